/* SPDX-License-Identifier: MIT
 * Every codec of keys with every codec of values: one example of each, as the registry lists them, at the head sizes that models
 * have, with one and three query heads to a KV head. Every layer of a cache that stores anything has codecs of its own; a further
 * layer reads the same store with the other number of query heads. `test_pairs print` writes what came out as the tables of
 * docs/SUPPORT.md; a pair that disagrees ends it without one. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "../unit/books.h"
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))
enum { CODECS = 32, NOTES = 64, SPEC = 96 };

static const int sizes[] = {64, 72, 80, 96, 112, 128, 192, 256};
static const int groups[] = {1, 3};
enum { SIZES = COUNT(sizes), GROUPS = COUNT(groups), STORES = TS_LAYERS / GROUPS };

/* ---- what there is --------------------------------------------------------------------------------------------------------- */

/* One codec: the example of each side (NULL: none suits it; `why` has the sentence then), and the key spec without stages that the
 * prompt decides, which no oracle of single blocks can know. */
typedef struct family {
    char name[32], example[2][SPEC], plain[SPEC], why[2][512];
    int suits[2], estimates;
} family;

static family families[CODECS];
static int n_families;

static int takes(const char *spec, kvf_side side, char *why, size_t size)
{
    return kvf_spec_check(spec, side, sizes[0], NULL, why, size) == KVF_OK;
}

/* The first example that the side takes; with none, the first of all and the reason. */
static void find_example(family *f, const char *examples, kvf_side side)
{
    for (const char *at = examples; !f->suits[side] && *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        char spec[SPEC], why[512];
        snprintf(spec, sizeof spec, "%.*s", (int)strcspn(at, " "), at);
        f->suits[side] = takes(spec, side, why, sizeof why);
        if (!f->suits[side] && *f->example[side]) continue;
        memcpy(f->example[side], spec, sizeof spec);
        memcpy(f->why[side], why, sizeof why);
    }
}

static void find_plain(family *f)
{
    static const char *const off[] = {"centre=none,scale=none", "centre=none", "scale=none"};
    const char *spec = f->example[KVF_K];
    memcpy(f->plain, spec, SPEC);
    for (int i = 0; i < COUNT(off) && !f->estimates; i++) {
        char longer[2 * SPEC];
        snprintf(longer, sizeof longer, "%s%c%s", spec, strchr(spec, ':') ? ',' : ':', off[i]);
        if (strlen(longer) >= SPEC || !takes(longer, KVF_K, NULL, 0)) continue;
        memcpy(f->plain, longer, SPEC);
        f->estimates = 1;
    }
}

static void find_families(void)
{
    kvf_codec_info info;
    for (n_families = 0; kvf_codec_list(n_families, &info) == KVF_OK; n_families++) {
        assert_in_range(n_families, 0, CODECS - 1);
        family *f = &families[n_families];
        memset(f, 0, sizeof *f);
        snprintf(f->name, sizeof f->name, "%s", info.name);
        find_example(f, info.examples, KVF_K);
        find_example(f, info.examples, KVF_V);
        if (f->suits[KVF_K]) find_plain(f);
    }
}

/* ---- what came out --------------------------------------------------------------------------------------------------------- */

/* agreed: it ran, and said what the oracle says, with every number of query heads. note: the refusal's number, 0 none. */
typedef struct outcome {
    int agreed, note;
} outcome;

static outcome outcomes[CODECS][CODECS][SIZES];
static char notes[NOTES][512];
static int n_notes;

static int note(const char *sentence)
{
    for (int i = 0; i < n_notes; i++)
        if (!strcmp(notes[i], sentence)) return i + 1;
    assert_in_range(n_notes, 0, NOTES - 1);
    snprintf(notes[n_notes], sizeof notes[0], "%s", sentence);
    return ++n_notes;
}

/* Refused pairs leave their sentence; true when this one may run. */
static int possible(int k, int v, int size)
{
    outcome *to = &outcomes[k][v][size];
    ts_model m;
    if (!families[k].suits[KVF_K] || !families[v].suits[KVF_V]) {
        to->note = note(families[k].suits[KVF_K] ? families[v].why[KVF_V] : families[k].why[KVF_K]);
        return 0;
    }
    ts_model_init(&m, 1, 1, 1, sizes[size], sizes[size], families[k].example[KVF_K], families[v].example[KVF_V]);
    tb_known *known = tb_know(&m, 0);
    const int64_t bytes = ts_bytes(&m, 0);
    tb_forget(known);
    if (bytes >= 0) return 1;
    to->note = note(m.error);
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------------------------------------ */

static const int aims[] = {0, 1, 2, 63, 64, 127, 128, 192, -1};

/* A prompt of 140 rows, 24 rows that share unfolded tiles, single rows across the end of the block that row 191 seals. With `stored`,
 * the prompt's queries are seen, too, and the oracle takes what the cache says that it stores. */
static void run_cache(pair *p, int stored)
{
    ts_row rows[194];
    ts_how aimed = {.point_at = aims};
    tb_known *known = tb_know(&p->m, 0); /* centroids, for the codecs that need them */
    p->m.params.sink = 4;
    p->m.params.recent = 64;
    ts_rows(rows, COUNT(rows), 0, 1, 0);
    pair_open(p);
    if (stored)
        pair_prompt(p, rows, 140);
    else
        pair_feed(p, rows, 140, 140, NULL, 0);
    pair_feed(p, rows + 140, 24, 24, &aimed, !stored);
    pair_feed(p, rows + 164, 27, 27, NULL, 0);
    if (!stored) pair_feed(p, rows + 191, 3, 1, &aimed, 1);
    if (stored) {
        pair_feed(p, rows + 191, 3, 3, NULL, 0);
        pair_see_stored(p, 0);
        pair_next(p, 0, 1, 24, &aimed);
        pair_next(p, 0, 1, 1, &aimed);
    }
    pair_close(p);
    tb_forget(known);
}

/* A store and its readers, one for each number of query heads. */
static void add_pair(ts_model *m, int k, int v, int stored)
{
    int store = m->params.n_layers;
    for (int g = 0; g < GROUPS; g++) {
        kvf_layer *l = &m->layers[m->params.n_layers++];
        l->q_heads = groups[g];
        if (g > 0) l->share = store;
        l->k = stored ? families[k].example[KVF_K] : families[k].plain;
        l->v = families[v].example[KVF_V];
    }
}

/* Values `first` and on with keys shifted by `shift`: over all shifts, every pair once. */
static void run_layers(int shift, int first, int size, int stored)
{
    pair p = {0};
    ts_model_init(&p.m, TS_LAYERS, 1, 1, sizes[size], sizes[size], NULL, NULL);
    p.m.params.n_layers = 0;
    for (int v = first; v < n_families && v < first + STORES; v++) {
        int k = (v + shift) % n_families;
        if (stored ? outcomes[k][v][size].agreed && families[k].estimates : possible(k, v, size)) add_pair(&p.m, k, v, stored);
    }
    if (p.m.params.n_layers == 0) return;
    run_cache(&p, stored);
    for (int v = first; v < n_families && v < first + STORES; v++) {
        outcome *o = &outcomes[(v + shift) % n_families][v][size];
        o->agreed = !o->note;
    }
}

static void run_all(int stored)
{
    for (int size = 0; size < SIZES; size++)
        for (int shift = 0; shift < n_families; shift++)
            for (int first = 0; first < n_families; first += STORES) run_layers(shift, first, size, stored);
}

/* ---- tables ---------------------------------------------------------------------------------------------------------------- */

/* yes: agreed at each of these sizes; else no, with the numbers of the notes. k or v -1: every one of that side. */
static void print_cell(FILE *f, int k, int v, int first_size, int last_size)
{
    int all = 1, refused[NOTES + 1] = {0};
    for (int i = 0; i < n_families * n_families; i++) {
        int a = i / n_families, b = i % n_families;
        if (k < 0 ? !families[a].suits[KVF_K] : a != k) continue;
        if (v < 0 ? !families[b].suits[KVF_V] : b != v) continue;
        for (int s = first_size; s <= last_size; s++) {
            const outcome *o = &outcomes[a][b][s];
            if (!o->agreed) all = 0, refused[o->note] = 1;
        }
    }
    fprintf(f, all ? " yes" : " no");
    for (int i = 1; i <= n_notes && !all; i++)
        if (refused[i]) fprintf(f, " (%d)", i);
    fprintf(f, " |");
}

static void print_rule(FILE *f, int columns)
{
    fprintf(f, "\n|");
    for (int i = 0; i < columns; i++) fprintf(f, " --- |");
}

static void print_pairs(FILE *f)
{
    fprintf(f, "| keys \\ values |");
    for (int v = 0; v < n_families; v++) fprintf(f, " %s |", families[v].example[KVF_V]);
    print_rule(f, 1 + n_families);
    for (int k = 0; k < n_families; k++) {
        fprintf(f, "\n| %s |", families[k].example[KVF_K]);
        for (int v = 0; v < n_families; v++) print_cell(f, k, v, 0, SIZES - 1);
    }
    fprintf(f, "\n\n");
}

static void print_sizes(FILE *f)
{
    fprintf(f, "| head size |");
    for (int s = 0; s < SIZES; s++) fprintf(f, " %d |", sizes[s]);
    print_rule(f, 1 + SIZES);
    for (int side = KVF_K; side <= KVF_V; side++)
        for (int i = 0; i < n_families; i++) {
            fprintf(f, "\n| %s, %s |", families[i].example[side], side == KVF_K ? "keys" : "values");
            for (int s = 0; s < SIZES; s++) print_cell(f, side == KVF_K ? i : -1, side == KVF_K ? -1 : i, s, s);
        }
    fprintf(f, "\n\n");
}

static void print_tables(FILE *f)
{
    print_pairs(f);
    print_sizes(f);
    for (int i = 0; i < n_notes; i++) fprintf(f, "(%d) %s\n", i + 1, notes[i]);
}

/* ---- tests ----------------------------------------------------------------------------------------------------------------- */

/* Every pair against the definition: blocks coded alone, dense softmax in double precision. */
static void test_every_pair(void **state)
{
    (void)state;
    memset(outcomes, 0, sizeof outcomes);
    n_notes = 0;
    find_families();
    run_all(0);
}

/* With the key stages that the codecs estimate from the prompt by default, over what the cache says that it stores. */
static void test_every_pair_with_estimates(void **state)
{
    (void)state;
    run_all(1);
}

/* docs/SUPPORT.md holds the tables between `<!-- pairs -->` and `<!-- end -->`. */
static void test_document(void **state)
{
    static char text[1 << 16];
    char path[1024], *table = NULL;
    const char *source = getenv("KVFOLD_SOURCE"), *open = "<!-- pairs -->\n", *close = "<!-- end -->";
    size_t size = 0;
    (void)state;
    snprintf(path, sizeof path, "%s/docs/SUPPORT.md", source ? source : ".");
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    f = open_memstream(&table, &size);
    assert_non_null(f);
    print_tables(f);
    fclose(f);
    char *from = strstr(text, open), *end = from ? strstr(from, close) : NULL;
    if (!end) fail_msg("%s has no %s ... %s", path, open, close);
    from += strlen(open);
    if ((size_t)(end - from) != size || memcmp(from, table, size) != 0)
        fail_msg("the tables of docs/SUPPORT.md are not those that `test_pairs print` writes");
    free(table);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_document),
        cmocka_unit_test(test_every_pair_with_estimates),
    };
    if (argc == 2 && !strcmp(argv[1], "print")) { /* outside a test, what fails ends the program */
        test_every_pair(NULL);
        test_every_pair_with_estimates(NULL);
        print_tables(stdout);
        return fflush(stdout) ? 2 : 0;
    }
    /* On the library's choice of instruction sets alone: tests/parity holds the others to the same results, kind by kind. */
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
