/* SPDX-License-Identifier: MIT
 * Calibration files: what was written is read back; every truncation and every flipped bit is refused with a sentence; with the checksum put
 * right again, whatever the header says, nothing crashes. And the small parts of `kvfold calibrate`. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/calibrate.h"
#include "cli/inspect.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { LAYERS = 3, MOST = 64, HEADS = 2, DIM = 4, SUM_AT = 24 + 8 + 27 + 12 };

static char folder[] = "/tmp/kvfold-calibration-XXXXXX", path[64];

typedef struct made {
    calibrate_collection c;
    calibrate_layer layer[LAYERS];
    calibrate_result result[LAYERS];
    calibrate_books books;
    float numbers[LAYERS][512];
    ggml_fp16_t owner;
} made;

static float *take(made *m, int il, size_t *at, size_t n)
{
    float *x = &m->numbers[il][*at];
    for (size_t i = 0; i < n; i++) x[i] = (float)(1 + il) + 0.01f * (float)(*at + i);
    *at += n;
    return x;
}

/* Layers 0 and 2 own keys; layer 1 reads those of layer 0, and layer 2's keys do not turn. */
static void make(made *m)
{
    memset(m, 0, sizeof *m);
    m->c = (calibrate_collection){.layer = m->layer, .n_layers = LAYERS};
    assert_int_equal(calibrate_books_parse(&m->books, "k2x3,v4x2"), CLI_GO);
    for (int il = 0; il < LAYERS; il += 2) {
        size_t at = 0;
        calibrate_result *r = &m->result[il];
        kvf_learnt *l = &r->learnt;
        m->layer[il].info =
            (kvf_llama_layer_t){.size = sizeof m->layer[il].info, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM + il};
        m->layer[il].k = &m->owner, r->arrays = m->numbers[il], l->turns = il == 0;
        l->k_mean = take(m, il, &at, HEADS * DIM), l->k_rms = take(m, il, &at, HEADS * DIM),
        l->q_rms = take(m, il, &at, HEADS * DIM);
        l->k_lambda = take(m, il, &at, HEADS * DIM), l->k_max = take(m, il, &at, HEADS * DIM);
        l->q_moment = take(m, il, &at, HEADS * DIM * DIM);
        l->q_direction = take(m, il, &at, HEADS * DIM), l->one_sided = take(m, il, &at, HEADS);
        for (int s = 0; s < CALIBRATE_SCORES_N; s++) r->rank[s] = take(m, il, &at, HEADS);
        r->book[0] = take(m, il, &at, 2 << 3), r->book[1] = take(m, il, &at, 4 << 2);
    }
}

static void write_with(const made *m, const tune_losses *losses)
{
    const calibrate_about about = {.architecture = "llama",
                                   .model_hash = 11,
                                   .text_hash = 12,
                                   .seed = 13,
                                   .tokens = 14,
                                   .positions = 15,
                                   .context = 16,
                                   .losses = losses};
    assert_int_equal(calibrate_write(path, &m->c, m->result, &m->books, &about), CLI_GO);
}

static void write_made(const made *m)
{
    write_with(m, NULL);
}

static char *read_bytes(size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(1 << 20);
    assert_true(f && bytes);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void write_bytes(const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n);
    fclose(f);
}

static int load(char *error, size_t size)
{
    kvf_llama_calibration *c = NULL;
    int rc = kvf_llama_calibration_load(path, NULL, NULL, &c, error, size);
    assert_true((rc == KVF_OK) == (c != NULL));
    kvf_llama_calibration_free(&c);
    assert_null(c);
    return rc;
}

static void same(const float *a, const float *b, size_t n)
{
    assert_non_null(a);
    assert_memory_equal(a, b, n * sizeof *a);
}

static void test_read_back(void **state)
{
    made m;
    char error[300] = "old";
    kvf_llama_calibration *c;
    kvf_llama_calibration_info info = {.size = sizeof info};
    int64_t n;
    (void)state;
    make(&m), write_made(&m);
    if (kvf_llama_calibration_load(path, NULL, NULL, &c, error, sizeof error)) fail_msg("%s", error);
    assert_string_equal(error, "");
    assert_int_equal(kvf_llama_calibration_about(c, &info), KVF_OK);
    assert_int_equal(info.n_layers, LAYERS);
    assert_true(info.model_hash == 11 && info.text_hash == 12 && info.seed == 13 && info.tokens == 14);
    assert_true(info.positions == 15 && info.context == 16);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.kvfold, kvf_version());
    assert_null(kvf_llama_calibration_layer(c, 1));
    assert_null(kvf_llama_calibration_layer(c, -1));
    assert_null(kvf_llama_calibration_layer(c, LAYERS));
    for (int il = 0; il < LAYERS; il += 2) {
        const kvf_calibrated_layer *l = kvf_llama_calibration_layer(c, il);
        const calibrate_result *r = &m.result[il];
        assert_non_null(l);
        assert_true(l->kv_heads == HEADS && l->k_dim == DIM && l->v_dim == DIM + il && l->size == sizeof *l);
        if (il)
            assert_null(l->k_mean);
        else
            same(l->k_mean, r->learnt.k_mean, HEADS * DIM);
        same(l->k_rms, r->learnt.k_rms, HEADS * DIM), same(l->q_rms, r->learnt.q_rms, HEADS * DIM);
        same(l->k_lambda, r->learnt.k_lambda, HEADS * DIM), same(l->q_direction, r->learnt.q_direction, HEADS * DIM);
        same(l->q_moment, r->learnt.q_moment, HEADS * DIM * DIM);
        assert_int_equal(l->n_codebooks, 2);
        assert_true(l->codebooks[0].side == KVF_K && l->codebooks[0].sub == 2 && l->codebooks[0].bits == 3 &&
                    l->codebooks[0].heads == 1);
        assert_true(l->codebooks[1].side == KVF_V && l->codebooks[1].sub == 4 && l->codebooks[1].bits == 2);
        same(l->codebooks[0].centroids, r->book[0], 2 << 3), same(l->codebooks[1].centroids, r->book[1], 4 << 2);
    }
    same(kvf_llama_calibration_array(c, "blk.2.rank.q", &n), m.result[2].rank[CALIBRATE_QUERIES], HEADS);
    assert_int_equal(n, HEADS);
    assert_null(kvf_llama_calibration_array(c, "blk.1.rank.q", &n));
    assert_int_equal(n, 0);
    kvf_llama_calibration_free(&c);
}

static void test_damage_is_noticed(void **state)
{
    made m;
    size_t n;
    (void)state;
    make(&m), write_made(&m);
    char *bytes = read_bytes(&n);
    for (size_t cut = 0; cut < n; cut++) {
        char error[300] = "";
        write_bytes(bytes, cut);
        if (load(error, sizeof error) != KVF_E_DAMAGED || !strstr(error, path)) fail_msg("cut at %zu: '%s'", cut, error);
    }
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit += at < 600 ? 1 : 7) {
            char error[300] = "";
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            write_bytes(bytes, n);
            if (load(error, sizeof error) != KVF_E_DAMAGED || !error[0]) fail_msg("byte %zu, bit %d: '%s'", at, bit, error);
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
        }
    bytes[n] = 0;
    write_bytes(bytes, n + 1); /* longer, too */
    assert_int_equal(load(NULL, 0), KVF_E_DAMAGED);
    free(bytes);
}

static void put_sum(char *bytes, size_t n)
{
    char digits[17];
    XXH64_state_t s;
    XXH64_reset(&s, 0);
    XXH64_update(&s, bytes, SUM_AT), XXH64_update(&s, bytes + SUM_AT + 16, n - SUM_AT - 16);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH64_digest(&s));
    memcpy(bytes + SUM_AT, digits, 16);
}

/* Where the number behind the text `key` lies, `skip` bytes after it. */
static char *behind(char *bytes, size_t n, const char *key, size_t skip)
{
    const size_t length = strlen(key);
    for (size_t at = 0; at + length + skip + 8 <= n; at++)
        if (memcmp(bytes + at, key, length) == 0) return bytes + at + length + skip;
    fail_msg("no '%s'", key);
    return NULL;
}

static void refuses_patched(char *bytes, size_t n, const char *says)
{
    char error[300] = "";
    put_sum(bytes, n);
    write_bytes(bytes, n);
    if (load(error, sizeof error) != KVF_E_DAMAGED || !strstr(error, says)) fail_msg("'%s', not '%s'", error, says);
}

/* What layers cost alone: two numbers of those that have keys, and what they were measured with. */
static void test_losses(void **state)
{
    float loss[LAYERS][2] = {{0.5f, 0.25f}, {0, 0}, {2, 0}};
    const tune_losses losses = {.loss = loss[0], .n_layers = LAYERS, .context = 256, .codec = "turbo2"};
    kvf_llama_calibration *c = NULL;
    kvf_llama_calibration_info info = {.size = sizeof info};
    made m;
    size_t size;
    int64_t n;
    (void)state;
    make(&m), write_with(&m, &losses);
    assert_int_equal(kvf_llama_calibration_load(path, NULL, NULL, &c, NULL, 0), KVF_OK);
    assert_int_equal(kvf_llama_calibration_about(c, &info), KVF_OK);
    assert_string_equal(info.sensitivity, "turbo2");
    assert_int_equal(info.sensitivity_context, 256);
    same(kvf_llama_calibration_array(c, "blk.0.sensitivity", &n), loss[0], 2);
    assert_int_equal(n, 2);
    same(kvf_llama_calibration_array(c, "blk.2.sensitivity", &n), loss[2], 2);
    assert_null(kvf_llama_calibration_array(c, "blk.1.sensitivity", &n));
    kvf_llama_calibration_free(&c);
    char *bytes = read_bytes(&size), *first = behind(bytes, size, "blk.0.sensitivity", 4);
    assert_int_equal(*first, 2);
    *first = 1;
    refuses_patched(bytes, size, "'blk.0.sensitivity' has 1 numbers");
    free(bytes);
    loss[2][1] = -1, write_with(&m, &losses);
    char error[300] = "";
    assert_int_equal(load(error, sizeof error), KVF_E_DAMAGED);
    assert_non_null(strstr(error, "'blk.2.sensitivity' is 2 and -1"));
    make(&m), write_made(&m);
    assert_int_equal(kvf_llama_calibration_load(path, NULL, NULL, &c, NULL, 0), KVF_OK);
    assert_int_equal(kvf_llama_calibration_about(c, &info), KVF_OK);
    assert_true(!*info.sensitivity && !info.sensitivity_context);
    kvf_llama_calibration_free(&c);
}

/* Fewer figures than heads: `kvfold inspect` would read behind them. Behind a name stand the number of dimensions (4 bytes) and the first. */
static void test_figures_of_heads(void **state)
{
    static const char *const name[] = {"blk.0.rank.q", "blk.0.rank.recency", "blk.2.q_one_sided"};
    made m;
    size_t n;
    (void)state;
    make(&m), write_made(&m);
    char *bytes = read_bytes(&n);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char *first = behind(bytes, n, name[i], 4);
        assert_int_equal(*first, HEADS);
        *first = HEADS - 1;
        refuses_patched(bytes, n, name[i]);
        *first = HEADS;
    }
    free(bytes);
}

/* As many numbers, in another shape: behind the name stand the number of dimensions (4 bytes) and the dimensions (8 each). */
static void test_shape_of_moments(void **state)
{
    made m;
    size_t n;
    (void)state;
    make(&m), write_made(&m);
    char *bytes = read_bytes(&n), *first = behind(bytes, n, "blk.2.q_moment", 4);
    assert_true(first[0] == DIM && first[8] == DIM && first[16] == HEADS);
    first[0] = DIM / 2, first[8] = 2 * DIM;
    refuses_patched(bytes, n, "'blk.2.q_moment' has 2 x 8 x 2 numbers, not 4 x 4 x 2");
    free(bytes);
}

/* Sizes that no model has: behind the key stand two types (4 bytes each) and the number of layers (8). A layer of a billion heads that has
 * no array would keep whoever walks it busy for ever. */
static void test_sizes_of_layers(void **state)
{
    static const struct {
        const char *key;
        int32_t value;
    } bad[] = {{"kv_heads", INT32_MAX}, {"kv_heads", 4097}, {"kv_heads", 0}, {"kv_heads", -1}, {"k_dim", 0},
               {"k_dim", 1025},         {"k_dim", -4},      {"v_dim", 0},    {"v_dim", 1025}};
    made m;
    size_t n;
    (void)state;
    make(&m), m.books.n = 0;
    for (int i = 0; i < LAYERS; i++) m.result[i].arrays = NULL; /* sizes alone, no array that they would have to fit */
    write_made(&m);
    char *bytes = read_bytes(&n);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *at = behind(bytes, n, bad[i].key, 16), old[sizeof bad[i].value];
        memcpy(old, at, sizeof old), memcpy(at, &bad[i].value, sizeof old);
        refuses_patched(bytes, n, "layer 0: ");
        memcpy(at, old, sizeof old);
    }
    put_sum(bytes, n), write_bytes(bytes, n);
    assert_int_equal(load(NULL, 0), KVF_OK);
    free(bytes);
}

/* Finite numbers that no calibration has: the cache would refuse them later, as a mistake of its caller. */
static void test_ranges(void **state)
{
    made m;
    char error[300] = "";
    (void)state;
    make(&m), m.result[2].learnt.k_lambda[3] = 0, write_made(&m);
    assert_int_equal(load(error, sizeof error), KVF_E_DAMAGED);
    assert_non_null(strstr(error, "'blk.2.k_lambda' is 0 at 3; it must be above 0"));
    make(&m), m.result[0].learnt.k_rms[HEADS * DIM - 1] = -1, write_made(&m);
    assert_int_equal(load(error, sizeof error), KVF_E_DAMAGED);
    assert_non_null(strstr(error, "'blk.0.k_rms' is -1 at 7; it must be at least 0"));
    make(&m), m.result[0].learnt.k_rms[0] = 0, m.result[0].learnt.k_mean[0] = -1, write_made(&m);
    assert_int_equal(load(error, sizeof error), KVF_OK);
}

static float sum_of(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; x && i < n; i++) sum += x[i];
    return sum;
}

/* Every number that the layer offers. */
static float walk(const kvf_calibrated_layer *l)
{
    const int64_t n = (int64_t)l->kv_heads * l->k_dim;
    float sum = sum_of(l->k_mean, n) + sum_of(l->k_rms, n) + sum_of(l->q_rms, n) + sum_of(l->k_lambda, n) +
                sum_of(l->q_direction, n) + sum_of(l->q_moment, n * l->k_dim);
    for (int i = 0; i < l->n_codebooks; i++) {
        const kvf_codebook *b = &l->codebooks[i];
        sum += sum_of(b->centroids, ((int64_t)b->heads * b->sub) << b->bits);
    }
    return sum;
}

static volatile float walked; /* so that the reading is not left out */

/* What loads is fit to be walked, and a cache of such layers takes it. */
static void use_loaded(void)
{
    kvf_llama_calibration *c;
    kvf_llama_calibration_info info = {.size = sizeof info};
    kvf_calibrated_layer known[MOST] = {{0}};
    kvf_layer layer[MOST] = {{0}};
    char error[300] = "";
    kvf_cache *cache = NULL;
    assert_int_equal(kvf_llama_calibration_load(path, NULL, NULL, &c, NULL, 0), KVF_OK);
    assert_int_equal(kvf_llama_calibration_about(c, &info), KVF_OK);
    assert_true(info.n_layers >= 1 && info.n_layers <= MOST);
    for (int32_t il = 0; il < info.n_layers; il++) {
        const kvf_calibrated_layer *l = kvf_llama_calibration_layer(c, il);
        layer[il] = (kvf_layer){.size = sizeof *layer, .q_heads = 1, .kv_heads = 1, .k_dim = DIM, .v_dim = DIM, .share = -1};
        known[il] = l ? *l : (kvf_calibrated_layer){.size = sizeof *l};
        if (!l) continue;
        walked += walk(l);
        layer[il].q_heads = layer[il].kv_heads = l->kv_heads, layer[il].k_dim = l->k_dim, layer[il].v_dim = l->v_dim;
    }
    const kvf_calibration all = {.size = sizeof all, .n_layers = info.n_layers, .layers = known};
    const kvf_params p = {.size = sizeof p,
                          .n_layers = info.n_layers,
                          .layers = layer,
                          .k = "f16",
                          .v = "f16",
                          .max_sequences = 1,
                          .max_batch = 64,
                          .threads = 1,
                          .exact_bits = 16,
                          .recent = 64,
                          .error = error,
                          .error_size = sizeof error,
                          .calibration = &all};
    if (kvf_cache_create(&cache, &p) != KVF_OK) fail_msg("loaded, but refused by the cache: %s", error);
    kvf_cache_free(&cache);
    kvf_llama_calibration_free(&c);
}

/* What `kvfold inspect` prints goes nowhere meanwhile. */
static int inspect_silently(bool json)
{
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    assert_true(kept >= 0 && nowhere >= 0);
    dup2(nowhere, STDOUT_FILENO);
    const int code = inspect_calibration(path, json, NULL);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept), close(nowhere);
    return code;
}

/* The strings of a file must not steer the terminal of who looks at it; and books of one size are told apart. */
static void test_shown(void **state)
{
    made m;
    char shown[8192] = "", text[80];
    const calibrate_about about = {.architecture = "ll\033]0;x\007ama"};
    (void)state;
    make(&m);
    assert_int_equal(calibrate_books_parse(&m.books, "v4x1h,v4x1"), CLI_GO); /* fits the room that make gave */
    assert_int_equal(calibrate_write(path, &m.c, m.result, &m.books, &about), CLI_GO);
    snprintf(text, sizeof text, "%s.txt", path);
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO), to = open(text, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && to >= 0);
    dup2(to, STDOUT_FILENO);
    const int code = inspect_calibration(path, false, NULL);
    dup2(kept, STDOUT_FILENO);
    assert_int_equal(code, CLI_DONE);
    assert_true(pread(to, shown, sizeof shown - 1, 0) > 0);
    close(kept), close(to), unlink(text);
    assert_null(strpbrk(shown, "\033\007"));
    assert_non_null(strstr(shown, "a ll?]0;x?ama model"));
    assert_non_null(strstr(shown, " v4x1h v4x1\n"));
}

/* Somebody else's file, with a true checksum and false contents: accepted or refused, but never a crash (sanitizers watch this), and what is
 * accepted can be shown and used. */
static void test_false_contents(void **state)
{
    made m;
    size_t n;
    int refused = 0;
    char error[300];
    (void)state;
    make(&m), write_made(&m);
    char *bytes = read_bytes(&n);
    put_sum(bytes, n);
    write_bytes(bytes, n);
    assert_int_equal(load(error, sizeof error), KVF_OK);
    for (size_t at = SUM_AT + 16; at < n; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            put_sum(bytes, n);
            write_bytes(bytes, n);
            if (load(error, sizeof error) != KVF_OK)
                refused++;
            else
                use_loaded(), assert_int_equal(inspect_silently(at % 2), CLI_DONE);
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
        }
    assert_true(refused > 500);
    free(bytes);
}

static void test_other_files(void **state)
{
    char error[300];
    (void)state;
    write_bytes("GGUF", 4);
    assert_int_equal(load(error, sizeof error), KVF_E_DAMAGED);
    write_bytes("some text, which is no model and no calibration either, but long enough to be one, were its first key right",
                108);
    assert_int_equal(load(error, sizeof error), KVF_E_DAMAGED);
    assert_non_null(strstr(error, "does not begin with the letters GGUF"));
    unlink(path);
    assert_int_equal(load(error, sizeof error), KVF_E_IO);
    assert_non_null(strstr(error, "No such file"));
    kvf_llama_calibration *c;
    assert_int_equal(kvf_llama_calibration_load("/tmp", NULL, NULL, &c, error, sizeof error), KVF_E_IO);
    assert_int_equal(kvf_llama_calibration_load(NULL, NULL, NULL, &c, error, sizeof error), KVF_E_ARG);
}

static void test_cannot_write(void **state)
{
    made m;
    const calibrate_about about = {.architecture = "llama"};
    (void)state;
    make(&m);
    assert_int_equal(calibrate_write("/nonexistent/x.gguf", &m.c, m.result, &m.books, &about), CLI_CANNOT);
}

static void test_codebook_lists(void **state)
{
    static const char *const bad[] = {"4",          "4x",
                                      "x8",         "3x8",
                                      "4x13",       "4x0",
                                      "4x8,",       "q4x8",
                                      "4x8;8x8",    ",4x8",
                                      "4x8 ",       "16x8",
                                      "4x8,4x8",    "4x8,k4x8",
                                      "v2x3h,2x3h", "4x+8",
                                      "4x 8",       "+4x8",
                                      "04x8",       "4x08",
                                      "4x123",      "4x8,4x7,4x6,4x5,4x4,4x3,4x2,4x1,k2x8"};
    calibrate_books b;
    (void)state;
    assert_int_equal(calibrate_books_parse(&b, NULL), CLI_GO);
    assert_int_equal(b.n, 0);
    assert_int_equal(calibrate_books_parse(&b, "4x8,v8x12,k2x1"), CLI_GO);
    assert_int_equal(b.n, 4);
    assert_true(b.book[0].side == KVF_K && b.book[1].side == KVF_V && b.book[1].bits == 8);
    assert_true(b.book[2].side == KVF_V && b.book[2].sub == 8 && b.book[2].bits == 12);
    assert_true(b.book[3].side == KVF_K && b.book[3].sub == 2 && b.book[3].bits == 1);
    assert_int_equal(calibrate_books_parse(&b, "k4x8,v4x8,4x8h"), CLI_GO);
    assert_true(b.n == 4 && b.book[1].heads == 1 && b.book[2].heads == 0);
    assert_int_equal(calibrate_books_parse(&b, "4x8,4x7,4x6,4x5,4x4,4x3,4x2,4x1"), CLI_GO);
    assert_int_equal(b.n, CALIBRATE_BOOKS);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (calibrate_books_parse(&b, bad[i]) != CLI_USAGE) fail_msg("'%s' was taken", bad[i]);
}

static void test_spearman(void **state)
{
    const double up[] = {1, 2, 3, 4, 5}, curved[] = {0.1, 0.2, 5, 60, 700}, down[] = {9, 7, 5, 3, 1}, ties[] = {1, 1, 2, 2, 3};
    const double flat[] = {4, 4, 4, 4, 4}, mixed[] = {2, 1, 4, 3, 5};
    (void)state;
    assert_true(fabs(calibrate_spearman(up, curved, 5) - 1) < 1e-12);
    assert_true(fabs(calibrate_spearman(up, down, 5) + 1) < 1e-12);
    assert_true(fabs(calibrate_spearman(up, mixed, 5) - 0.8) < 1e-12); /* 1 - 6 * 4 / (5 * 24) */
    assert_true(fabs(calibrate_spearman(ties, up, 5) - 9.0 / sqrt(90)) < 1e-12);
    assert_true(calibrate_spearman(up, flat, 5) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),           cmocka_unit_test(test_figures_of_heads),
        cmocka_unit_test(test_shape_of_moments), cmocka_unit_test(test_sizes_of_layers),
        cmocka_unit_test(test_read_back),        cmocka_unit_test(test_damage_is_noticed),
        cmocka_unit_test(test_ranges),           cmocka_unit_test(test_shown),
        cmocka_unit_test(test_false_contents),   cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_cannot_write),     cmocka_unit_test(test_codebook_lists),
        cmocka_unit_test(test_spearman),
    };
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/c.gguf", folder);
    cli_log_install(false);
    cli_capture_begin();
    int failed = cmocka_run_group_tests_name("calibration file", tests, NULL, NULL);
    unlink(path), rmdir(folder);
    return failed;
}
