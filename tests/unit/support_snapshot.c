/* SPDX-License-Identifier: MIT
 * Everything that can be observed of a cache, taken and compared bit for bit. */
#include "support_internal.h"
#include "cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_TAG 0x50524F4245u

float *ts_probe(kvf_cache *c, const ts_model *m, int32_t seq, size_t *n)
{
    ts_row row = {seq, kvf_seq_pos_max(c, seq) + 1, PROBE_TAG};
    ts_batch *b = ts_batch_new(m, &row, 1, NULL);
    size_t total = 0, at = 0;
    for (int i = 0; i < m->params.n_layers; i++) total += (size_t)m->layers[i].q_heads * ((size_t)m->layers[i].v_dim + 1);
    float *all = malloc(total * sizeof *all);
    assert_non_null(all);
    ts_begin(c, b);
    ts_attend_all(c, b);
    ts_ok(kvf_batch_abort(c));
    for (int i = 0; i < m->params.n_layers; i++) {
        size_t heads = (size_t)m->layers[i].q_heads, values = heads * (size_t)m->layers[i].v_dim;
        memcpy(all + at, b->out[i], values * sizeof *all);
        memcpy(all + at + values, b->lse[i], heads * sizeof *all);
        at += values + heads;
    }
    ts_batch_free(b);
    *n = total;
    return all;
}

static int sequences(const ts_model *m)
{
    return m->params.max_sequences < TS_SEQUENCES ? m->params.max_sequences : TS_SEQUENCES;
}

/* Positions worth asking about: around the end, around the start, and between. */
static int32_t question(int i, int32_t last)
{
    static const int back[] = {0, 1, 40, 100};
    return i < 4 ? last - back[i] : i == 4 ? last / 2 : 1;
}

ts_snapshot ts_snapshot_take(kvf_cache *c, const ts_model *m)
{
    ts_snapshot s;
    memset(&s, 0, sizeof s);
    s.stats.size = sizeof s.stats;
    ts_ok(kvf_stats(c, &s.stats));
    s.stats.resident = s.stats.reserved_bytes = 0;
    for (int i = 0; i < sequences(m); i++) {
        s.pos_max[i] = kvf_seq_pos_max(c, i);
        s.hash[i] = kvfi_cache_hash(c, i);
        for (int j = 0; j < 6; j++) {
            int32_t pos = question(j, s.pos_max[i]);
            if (pos < 0) continue;
            s.can[i][j] = kvf_can(c, KVF_CAN_RM, i, pos) * 2 + kvf_can(c, KVF_CAN_RM_EXACT, i, pos);
        }
        if (s.pos_max[i] < 0) continue;
        size_t n = 0;
        float *probe = ts_probe(c, m, i, &n);
        s.probe = realloc(s.probe, (s.n_probe + n) * sizeof *probe);
        assert_non_null(s.probe);
        memcpy(s.probe + s.n_probe, probe, n * sizeof *probe);
        s.n_probe += n;
        free(probe);
    }
    return s;
}

void ts_snapshot_free(ts_snapshot *s)
{
    free(s->probe);
    s->probe = NULL;
}

static void stats_equal(const kvf_stats_t *a, const kvf_stats_t *b)
{
#define SAME(field)                                                                                                              \
    if (a->field != b->field)                                                                                                    \
    fail_msg("stats differ in %s: %" PRId64 " and %" PRId64, #field, (int64_t)a->field, (int64_t)b->field)
    SAME(layers);
    SAME(layers_folded);
    SAME(sequences);
    SAME(tokens);
    SAME(tokens_sink);
    SAME(tokens_body);
    SAME(tokens_window);
    SAME(accounted);
    SAME(f16);
    SAME(saturated);
#undef SAME
}

void ts_snapshot_equal(const ts_snapshot *a, const ts_snapshot *b)
{
    stats_equal(&a->stats, &b->stats);
    for (int i = 0; i < TS_SEQUENCES; i++) {
        if (a->pos_max[i] != b->pos_max[i]) fail_msg("sequence %d: pos_max %d and %d", i, a->pos_max[i], b->pos_max[i]);
        if (a->hash[i] != b->hash[i]) fail_msg("sequence %d: other bytes", i);
        for (int j = 0; j < 6; j++)
            if (a->can[i][j] != b->can[i][j]) fail_msg("sequence %d: other abilities (question %d)", i, j);
    }
    assert_int_equal(a->n_probe, b->n_probe);
    if (a->n_probe) assert_memory_equal(a->probe, b->probe, a->n_probe * sizeof(float));
}

void ts_unchanged(kvf_cache *c, const ts_model *m, const ts_snapshot *before)
{
    ts_snapshot now = ts_snapshot_take(c, m);
    ts_snapshot_equal(before, &now);
    ts_snapshot_free(&now);
}

void ts_same_sequence(kvf_cache *a, int32_t seq_a, kvf_cache *b, int32_t seq_b, const ts_model *m)
{
    assert_int_equal(kvf_seq_pos_max(a, seq_a), kvf_seq_pos_max(b, seq_b));
    if (kvfi_cache_hash(a, seq_a) != kvfi_cache_hash(b, seq_b)) fail_msg("sequences %d and %d hold other bytes", seq_a, seq_b);
    size_t n = 0, n_b = 0;
    float *x = ts_probe(a, m, seq_a, &n), *y = ts_probe(b, m, seq_b, &n_b);
    assert_int_equal(n, n_b);
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
}
