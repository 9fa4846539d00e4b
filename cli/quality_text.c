/* SPDX-License-Identifier: MIT
 * The text of `kvfold quality`: bytes, checked; then tokens, cut into chunks of one context. */
#include "measure.h"
#include "quality.h"
#include "tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ----------------------------------------------------------------------------------------------------------------- */

static int parse_slice(const char *slice, long long *first, long long *bytes)
{
    char *end = NULL;
    *first = 0;
    *bytes = -1;
    if (!slice) return CLI_GO;
    errno = 0;
    *first = strtoll(slice, &end, 10);
    bool form = end != slice && *end == ':';
    char *second = end + form;
    if (form) *bytes = strtoll(second, &end, 10);
    if (form && end != second && !*end && !errno && *first >= 0 && *bytes > 0) return CLI_GO;
    cli_error("--slice: '%s' is not of the form FIRST:BYTES, as 300000:16384", slice);
    return CLI_USAGE;
}

/* Bytes at the start of p that belong to a character begun before it. */
static size_t broken_start(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && i < 3 && ((unsigned char)p[i] & 0xC0) == 0x80) i++;
    return i;
}

/* Bytes of a character that the end cuts off. */
static size_t broken_end(const char *p, size_t n)
{
    for (size_t i = 1; i <= 3 && i <= n; i++)
        if (cli_utf8_step(p + n - i, i) == 0) return i;
    return 0;
}

/* *first moves to the first whole character. */
static int cut(const char *path, long long *at, long long bytes, cli_text *t)
{
    long long length = (long long)t->length, first = *at;
    if (first > length || bytes > length - first) {
        cli_error("--slice: '%s' has %lld bytes, and %lld from byte %lld on are asked for", path, length, bytes, first);
        return CLI_CANNOT;
    }
    memmove(t->data, t->data + first, (size_t)bytes);
    size_t start = first > 0 ? broken_start(t->data, (size_t)bytes) : 0, n = (size_t)bytes - start;
    memmove(t->data, t->data + start, n);
    t->length = n - broken_end(t->data, n);
    t->data[t->length] = '\0';
    *at = first + (long long)start;
    return CLI_GO;
}

static int check_text(const char *path, const cli_text *t)
{
    for (size_t i = 0; i < t->length;) {
        int step = cli_utf8_step(t->data + i, t->length - i);
        if (step <= 0 || !t->data[i]) {
            cli_error("'%s' is no UTF-8 text: byte %zu is 0x%02X", path, i, (unsigned char)t->data[i]);
            return CLI_DAMAGED;
        }
        i += (size_t)step;
    }
    if (t->length > 0 && t->length < INT32_MAX / 2) return CLI_GO;
    if (t->length == 0)
        cli_error("'%s' is empty: there is nothing to read", path);
    else
        cli_error("'%s' has %zu bytes, more than the %d that can be tokenized; take a --slice of it", path, t->length,
                  INT32_MAX / 2);
    return CLI_CANNOT;
}

int quality_read(quality_input *in, cli_text *raw, const quality_settings *set)
{
    long long first, bytes;
    int code = parse_slice(set->slice, &first, &bytes);
    for (int i = 0; code == CLI_GO && i < set->files.n; i++) {
        const char *path = set->files.item[i];
        code = cli_read_file(path, &raw[i]);
        long long at = first;
        if (code == CLI_GO && bytes >= 0 && raw[i].length > 0) code = cut(path, &at, bytes, &raw[i]);
        if (code == CLI_GO) code = check_text(path, &raw[i]);
        in->text[i] = (quality_text){.name = path, .first = at, .bytes = (int64_t)raw[i].length};
        if (raw[i].length > 0) in->text[i].hash = measure_digest(raw[i].data, raw[i].length);
        in->n_texts = i + 1;
    }
    return code;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------- */

static int too_short(const quality_text *t, const quality_settings *set, int32_t context)
{
    if (t->tokens < context)
        cli_error("'%s' has %d tokens, fewer than the context of %d (-c): give a longer text or a smaller -c", t->name, t->tokens,
                  context);
    else if (set->held_out > 0)
        cli_error(
            "'%s' has %d tokens, enough for %d chunks of %d; %lld to measure and %lld held out (--chunks, --held-out) are asked "
            "for, of each text",
            t->name, t->tokens, t->tokens / context, context, (long long)(set->chunks - set->held_out), (long long)set->held_out);
    else
        cli_error("'%s' has %d tokens, enough for %d chunks of %d, and --chunks asks for %lld", t->name, t->tokens,
                  t->tokens / context, context, (long long)set->chunks);
    return CLI_CANNOT;
}

/* A chunk begins as a text of its own: with the token that the model begins a text with, in place of its first one. */
static void add_chunks(quality_input *in, int text, const llama_token *token, const struct llama_vocab *vocab)
{
    size_t n = (size_t)in->context;
    for (int i = 0; i < in->text[text].chunks; i++) {
        quality_chunk *c = &in->chunk[in->n_chunks++];
        c->text = text;
        c->token = cli_alloc(n, sizeof *c->token);
        memcpy(c->token, token + (size_t)i * n, n * sizeof *c->token);
        if (llama_vocab_get_add_bos(vocab)) c->token[0] = llama_vocab_bos(vocab);
    }
}

int quality_tokenize(quality_input *in, const cli_text *raw, const struct llama_vocab *vocab, const quality_settings *set)
{
    for (int i = 0; i < in->n_texts; i++) {
        quality_text *t = &in->text[i];
        llama_token *token;
        int32_t found = cli_tokenize(vocab, raw[i].data, raw[i].length, true, false, 0, &token);
        t->tokens = found > 0 ? found : 0;
        int32_t chunks = t->tokens / in->context;
        t->chunks = set->chunks > 0 && set->chunks <= chunks ? (int32_t)set->chunks : chunks;
        bool enough = chunks > 0 && set->chunks <= chunks;
        if (enough) {
            size_t n = (size_t)(in->n_chunks + t->chunks);
            quality_chunk *grown = cli_alloc(n, sizeof *grown);
            if (in->n_chunks > 0) memcpy(grown, in->chunk, (size_t)in->n_chunks * sizeof *grown);
            free(in->chunk);
            in->chunk = grown;
            add_chunks(in, i, token, vocab);
        }
        free(token);
        if (!enough) return too_short(t, set, in->context);
    }
    return CLI_GO;
}

void quality_input_free(quality_input *in)
{
    for (int i = 0; i < in->n_chunks; i++) free(in->chunk[i].token);
    free(in->chunk);
}
