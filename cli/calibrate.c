/* SPDX-License-Identifier: MIT
 * kvfold calibrate: runs a model over a text and writes down what its keys, queries and values are like.
 */
#include "calibrate.h"
#include "tokens.h"

#include <gguf.h>

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define WORD(names, value, member, help) CLI_WORD(names, value, calibrate_settings, member, help)
#define COUNT(names, member, least, most, initial, help) CLI_COUNT(names, calibrate_settings, member, least, most, initial, help)

static const cli_option options[] = {
    CLI_HEAD("model and text"),
    WORD("-m --model", "FILE", model, "model, a GGUF file (the first one of a split model)"),
    CLI_WORDS("-f --file", "FILE", calibrate_settings, files,
              "UTF-8 text to learn from, - for stdin; several are read one after another"),
    WORD("--slice", "FIRST:BYTES", slice, "take that range of bytes of each file (default: all)"),
    WORD("-o --output", "FILE", out, "where to write, a GGUF file"),

    CLI_HEAD("how much"),
    COUNT("-c --ctx-size", context, CALIBRATE_LEAST, 1 << 20, "2048", "tokens of a chunk; each is read as a text of its own"),
    COUNT("--chunks", chunks, 1, 1 << 20, "8", "chunks that are read, as many as the text has at most"),
    COUNT("--positions", positions, 16, 1 << 20, "3000",
          "positions that are sampled of them, of every head; memory grows with it"),
    WORD("--codebooks", "LIST", books,
         "also train codebooks for product codes, as 4x8,v8x12,4x8h: channels x bits, of keys and values or of one side, h: a "
         "table of "
         "every KV head"),
    CLI_SWITCH(
        CLI_ON, "--sensitivity", calibrate_settings, sensitivity,
        "also measure what few bits cost each layer: reads up to 1,024 tokens two times for each layer, which takes minutes"),

    CLI_HEAD("how"),
    COUNT("-t --threads", threads, 0, 256, "0", "threads; 0: as many as there are, half above four"),
    COUNT("-s --seed", seed, 0, UINT32_MAX, "1", "seed of sample and codebooks: the same one gives the same file"),
    CLI_SWITCH(CLI_ON, "-v --verbose", calibrate_settings, verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "calibrate",
    .usage = "-m FILE -f TEXT -o FILE [OPTIONS]",
    .about = "Learns from a text what the keys, queries and values of a model are like, and writes one file for it, which run, "
             "quality\n"
             "and bench take with --calibration. Any text of the kind that the model will read does. docs/calibration.md says "
             "what is\n"
             "in the file; kvfold inspect shows it.",
    .options = options,
};

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

typedef struct text {
    llama_token *token;
    int32_t n, context, chunks;
    int32_t rank; /* first token of the chunk that ranks keys */
    uint64_t hash;
} text;

static int missing(const char *what)
{
    cli_error("calibrate: %s is missing: kvfold calibrate -m model.gguf -f text.txt -o model.calibration.gguf", what);
    return CLI_USAGE;
}

static int check(const calibrate_settings *set)
{
    if (!set->model) return missing("-m FILE");
    if (set->files.n == 0) return missing("-f TEXT");
    if (!set->out) return missing("-o FILE");
    int code = cli_save_apart(set->out, set->model);
    if (code == CLI_GO) code = cli_save_apart_all(set->out, set->files.item, set->files.n);
    return code == CLI_GO ? cli_save_check(set->out) : code;
}

/* Bytes of all files, one after another. */
static int read_text(const calibrate_settings *set, cli_text *all)
{
    quality_settings as = {.files = set->files, .slice = set->slice};
    quality_input in = {.n_texts = 0};
    cli_text raw[CLI_LIST_MOST] = {{0}};
    int code = quality_read(&in, raw, &as);
    for (int i = 0; i < CLI_LIST_MOST; i++) {
        if (code == CLI_GO && raw[i].length) cli_text_add(all, raw[i].data, raw[i].length);
        cli_text_free(&raw[i]);
    }
    return code;
}

static int cut_text(text *t, const cli_text *all, const struct llama_vocab *vocab, const calibrate_settings *set)
{
    t->n = cli_tokenize(vocab, all->data, all->length, true, false, 0, &t->token);
    t->hash = XXH64(all->data, all->length, 0);
    if (t->n < CALIBRATE_LEAST) {
        cli_error("calibrate: the text has %d token%s; at least %d are needed to learn from, and some thousands are better",
                  t->n > 0 ? t->n : 0, t->n == 1 ? "" : "s", CALIBRATE_LEAST);
        return CLI_CANNOT;
    }
    t->context = set->context < t->n ? (int32_t)set->context : t->n;
    const int32_t there = t->n / t->context, most = there > 1 ? there - 1 : 1; /* one is left to rank keys on */
    t->chunks = set->chunks < most ? (int32_t)set->chunks : most;
    t->rank = there > 1 ? t->chunks * t->context : 0;
    if (there == 1) cli_note("the text has less than two chunks: keys are ranked on text that was sampled, too");
    return CLI_GO;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

typedef struct job {
    const calibrate_settings *set;
    session s;
    text text;
    calibrate_collection c;
    calibrate_books books;
    calibrate_result *result; /* [n_layers] */
    tune_losses losses;       /* loss NULL: not asked for */
    progress bar;
    int64_t read;
} job;

static int decode(job *j, const llama_token *token, int32_t at, int32_t n)
{
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int32_t i = 0; i < n; i++) {
        b.token[i] = token[i], b.pos[i] = at + i, b.n_seq_id[i] = 1, b.seq_id[i][0] = 0;
        b.logits[i] = i == n - 1;
    }
    b.n_tokens = n;
    j->c.drawn_layer = -1;
    int rc = kvf_llama_decode(j->s.fold, b);
    llama_batch_free(b);
    if (rc == KVF_OK || cli_interrupted()) return rc == KVF_OK ? CLI_GO : CLI_DONE;
    cli_error("%s", kvf_llama_error(j->s.fold));
    return cli_exit_of(rc);
}

/* A chunk begins as a text of its own. */
static int read_chunk(job *j, int32_t from, int32_t n)
{
    llama_token *token = j->text.token + from;
    if (llama_vocab_get_add_bos(j->s.vocab)) token[0] = llama_vocab_bos(j->s.vocab);
    const int rc = kvf_llama_seq_rm(j->s.fold, 0, 0, -1);
    int code = rc == KVF_OK ? CLI_GO : cli_exit_of(rc);
    if (rc != KVF_OK) cli_error("calibrate: the chunk before token %d cannot be forgotten: %s", from, kvf_llama_error(j->s.fold));
    for (int32_t at = 0; code == CLI_GO && at < n; at += j->c.rows) {
        const int32_t rows = n - at < j->c.rows ? n - at : j->c.rows;
        code = decode(j, token + at, at, rows);
        progress_set(&j->bar, j->read += rows);
    }
    return code;
}

static int read_all(job *j)
{
    const int32_t context = j->text.context, ranked = context < CALIBRATE_RANK_MOST ? context : CALIBRATE_RANK_MOST;
    int code = CLI_GO;
    j->bar = progress_begin("calibrate", "tokens", (int64_t)context * j->text.chunks + ranked);
    for (int32_t i = 0; code == CLI_GO && i < j->text.chunks; i++) code = read_chunk(j, i * context, context);
    j->c.ranking = true, j->c.ranked = ranked;
    if (code == CLI_GO) code = read_chunk(j, j->text.rank, ranked);
    progress_end(&j->bar);
    return code;
}

/* ---- learning ---------------------------------------------------------------------------------------------------------------- */

static int learn_all(job *j)
{
    int code = CLI_GO;
    int32_t unturned = 0;
    j->result = cli_alloc((size_t)j->c.n_layers, sizeof *j->result);
    j->bar = progress_begin("learn", "layers", j->c.n_layers);
    for (int32_t il = 0; code == CLI_GO && il < j->c.n_layers; il++) {
        if (cli_interrupted()) break;
        if (j->c.layer[il].k) {
            code = calibrate_learn(&j->c, il, &j->books, (uint64_t)j->set->seed, &j->result[il]);
            unturned += !j->result[il].learnt.turns;
        }
        progress_set(&j->bar, il + 1);
    }
    progress_end(&j->bar);
    if (cli_interrupted()) return CLI_DONE;
    if (unturned)
        cli_warn("%d layers: keys do not turn as their RoPE description says, or have none that is known; the file has no centre "
                 "for them",
                 unturned);
    return code;
}

static int write_file(job *j)
{
    char error[512] = "";
    calibrate_about about = {.architecture = j->s.file.arch, .text_hash = j->text.hash, .seed = (uint64_t)j->set->seed};
    about.losses = j->losses.loss ? &j->losses : NULL;
    about.tokens = (int64_t)j->text.context * j->text.chunks, about.positions = j->c.filled, about.context = j->text.context;
    int rc = kvf_llama_model_hash(j->set->model, &about.model_hash, error, sizeof error);
    if (rc) {
        cli_error("%s", error);
        return cli_exit_of(rc);
    }
    return calibrate_write(j->set->out, &j->c, j->result, &j->books, &about);
}

static void say_done(const job *j)
{
    double sum[CALIBRATE_SCORES_N] = {0};
    int32_t heads = 0;
    for (int32_t il = 0; il < j->c.n_layers; il++)
        for (int32_t h = 0; j->result[il].arrays && h < j->c.layer[il].info.kv_heads; h++, heads++)
            for (int s = 0; s < CALIBRATE_SCORES_N && j->result[il].rank[s]; s++) sum[s] += (double)j->result[il].rank[s][h];
    printf("%s: %d positions of %lld tokens, %d KV heads\n", j->set->out, j->c.filled,
           (long long)j->text.context * j->text.chunks, heads);
    if (calibrate_unranked(&j->c)) {
        printf("how well keys are ranked is not known: %s\n", calibrate_unranked(&j->c));
        return;
    }
    printf("how well keys are ranked, mean over heads (Spearman, 1 is perfect): direction of the queries %.2f, short keys %.2f, "
           "recency "
           "%.2f, direction of the keys %.2f\n",
           sum[CALIBRATE_QUERIES] / heads, sum[CALIBRATE_NORM] / heads, sum[CALIBRATE_RECENT] / heads,
           sum[CALIBRATE_KEYS] / heads);
}

/* With fewer sub-vectors than centroids some of those repeat: no error, and hardly what was meant. */
static void warn_of_samples(const job *j, const kvf_codebook *b, const calibrate_layer *l)
{
    const int64_t dim = b->side == KVF_K ? l->info.k_dim : l->info.v_dim, heads = b->heads ? l->info.kv_heads : 1;
    const int64_t each = heads * (dim / b->sub), samples = j->c.slots * each, centroids = (int64_t)1 << b->bits;
    if (dim % b->sub == 0 && samples < centroids)
        cli_warn("--codebooks %c%dx%d: %lld samples for %lld centroids; --positions of %lld would be as many, ten times that is "
                 "better",
                 b->side == KVF_K ? 'k' : 'v', b->sub, b->bits, (long long)samples, (long long)centroids,
                 (long long)((centroids + each - 1) / each));
}

/* Better said before the text is read than after it. */
static int check_books(const job *j)
{
    for (int i = 0; j->c.layer[0].k && i < j->books.n; i++) warn_of_samples(j, &j->books.book[i], &j->c.layer[0]);
    for (int32_t il = 0; il < j->c.n_layers; il++)
        for (int i = 0; j->c.layer[il].k && i < j->books.n; i++) {
            const kvf_codebook *b = &j->books.book[i];
            const bool keys = b->side == KVF_K;
            const int32_t dim = keys ? j->c.layer[il].info.k_dim : j->c.layer[il].info.v_dim;
            if (dim % b->sub == 0) continue;
            cli_error("--codebooks %c%dx%d: %s of layer %d have heads of %d channels, which %d does not divide", keys ? 'k' : 'v',
                      b->sub, b->bits, keys ? "keys" : "values", il, dim, b->sub);
            return CLI_CANNOT;
        }
    return CLI_GO;
}

/* Scores of ALiBi have a distance in them and those of sinks one key more, of which rows that are observed say nothing. A model that turns
 * no layer's keys may be one of the first. */
static const char *biased(const job *j)
{
    bool turns = false;
    char name[64];
    for (int32_t il = 0; il < j->c.n_layers; il++) {
        turns |= j->c.layer[il].info.rope_dims > 0;
        snprintf(name, sizeof name, "blk.%d.attn_sinks.weight", il);
        if (gguf_find_tensor(j->s.file.gguf, name) >= 0) return "the model has attention sinks, of which nothing is observed";
    }
    return turns ? NULL : "no layer has RoPE, so scores may have a bias by distance (ALiBi), of which nothing is observed";
}

/* ---- the command ------------------------------------------------------------------------------------------------------------- */

/* Before the model is opened for its rows, so that it is in memory once. */
static int measure_losses(job *j, const cli_text *all)
{
    int64_t context = j->set->context < CALIBRATE_LOSS_MOST ? j->set->context : CALIBRATE_LOSS_MOST;
    if (!j->set->sensitivity) return CLI_GO;
    if (context < CALIBRATE_LOSS_LEAST) {
        cli_error("calibrate: --sensitivity needs chunks of at least %d tokens (-c), not %lld", CALIBRATE_LOSS_LEAST,
                  (long long)context);
        return CLI_USAGE;
    }
    return tune_alone(&j->losses, j->set->model, j->set->files.item[0], all, context, j->set->threads);
}

static int open_session(job *j, int32_t context)
{
    run_settings run = {
        .model = j->set->model, .threads = j->set->threads, .context = context, .repack = true, .verbose = j->set->verbose};
    run.yarn_ext = run.yarn_attn = run.yarn_slow = run.yarn_fast = -1;
    kv_settings_init(&run.kv);
    run.kv.k = run.kv.v = "f16";
    run.observe = calibrate_observe, run.observe_user = &j->c;
    return session_open(&j->s, &run);
}

static int run_job(job *j, const cli_text *all)
{
    int code = measure_losses(j, all);
    if (code == CLI_GO) code = open_session(j, (int32_t)j->set->context);
    if (code == CLI_GO) code = cut_text(&j->text, all, j->s.vocab, j->set);
    if (code != CLI_GO) return code;
    const int64_t offered = (int64_t)j->text.chunks * (j->text.context - CALIBRATE_SKIP);
    code = calibrate_collect_open(&j->c, j->s.fold, j->s.model, offered < j->set->positions ? offered : j->set->positions,
                                  j->s.host.n_batch, (uint64_t)j->set->seed);
    if (code != CLI_GO) return code;
    code = check_books(j);
    if (code != CLI_GO) return code;
    j->c.biased = biased(j);
    cli_note("%d chunk%s of %d tokens; samples take %s", j->text.chunks, j->text.chunks == 1 ? "" : "s", j->text.context,
             cli_bytes(j->c.bytes));
    code = read_all(j);
    if (code == CLI_GO) code = learn_all(j);
    if (code == CLI_GO && cli_interrupted()) code = CLI_DONE;
    if (code == CLI_GO) code = write_file(j);
    if (code == CLI_GO) say_done(j);
    return code;
}

static void free_job(job *j)
{
    for (int32_t il = 0; j->result && il < j->c.n_layers; il++) calibrate_result_free(&j->result[il]);
    free(j->result);
    free(j->text.token), free(j->losses.loss);
    session_close(&j->s);
    calibrate_collect_close(&j->c);
}

int cmd_calibrate(int argc, char **argv)
{
    calibrate_settings set = {0};
    job j = {.set = &set};
    cli_text all = {0};
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code == CLI_GO) code = check(&set);
    if (code == CLI_GO) code = calibrate_books_parse(&j.books, set.books);
    if (code == CLI_GO) code = read_text(&set, &all);
    if (code == CLI_GO) {
        session_begin(set.verbose);
        code = run_job(&j, &all);
        if (code != CLI_GO && cli_interrupted()) code = cli_stopped();
        free_job(&j);
        llama_backend_free();
    }
    cli_text_free(&all);
    return cli_finish(code == CLI_GO ? CLI_DONE : code);
}
