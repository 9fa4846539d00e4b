/* SPDX-License-Identifier: MIT
 * The result of `kvfold quality` for programs: everything that was found, and all that it takes to find it again.
 */
#include "quality.h"

#include <jansson.h>

#include <ggml.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_TOKENS = 24 };

/* All digits: divergences are small. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *mean_object(quality_mean m)
{
    return json_pack("{s:o, s:o}", "mean", real(m.mean), "error", real(m.error));
}

/* ---- an arm ---------------------------------------------------------------------------------------------------------------- */

static json_t *kld_object(const quality_result *r)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "mean", real(r->kld.mean), "error", real(r->kld.error), "median",
                     real(r->kld_share[0]), "p99", real(r->kld_share[1]), "p99_9", real(r->kld_share[2]), "max",
                     real(r->kld_max));
}

static json_t *change_object(const quality_result *r)
{
    json_t *at = json_array();
    for (int i = 0; i < QUALITY_CHANGE_N; i++)
        json_array_append_new(at,
                              json_pack("{s:o, s:o}", "share", real(quality_change_share[i]), "change", real(r->change_at[i])));
    return json_pack("{s:o, s:o, s:o, s:o}", "mean", real(r->change.mean), "error", real(r->change.error), "rms",
                     real(sqrt(r->change_square.mean)), "percentiles", at);
}

static json_t *part_object(const quality_part *p)
{
    return json_pack("{s:I, s:o, s:o}", "positions", (json_int_t)p->n, "kld", mean_object(p->kld), "same_top",
                     mean_object(p->same_top));
}

static json_t *depth_array(const quality_run *run, const quality_result *r)
{
    json_t *list = json_array();
    for (int b = 0; b < QUALITY_BUCKETS; b++) {
        json_t *o = part_object(&r->bucket[b]);
        json_object_set_new(o, "from", json_integer(quality_bucket_from(run, b)));
        json_object_set_new(o, "to", json_integer(quality_bucket_from(run, b + 1) - 1));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *texts_array(const quality_run *run, const quality_result *r)
{
    json_t *list = json_array();
    for (int t = 0; t < run->in.n_texts; t++) {
        json_t *o = part_object(&r->text[t]);
        json_object_set_new(o, "file", cli_json_text(run->in.text[t].name));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *worst_object(const quality_run *run, const quality_arm *arm, int64_t point)
{
    const quality_point *p = &arm->point[point];
    int chunk;
    int32_t pos;
    quality_words w;
    quality_place(run, point, &chunk, &pos);
    quality_words_at(run, arm, point, TEXT_TOKENS, &w);
    json_t *o = json_pack("{s:i, s:i, s:o, s:s, s:s, s:o, s:o, s:s, s:s}", "chunk", chunk, "position", (int)pos, "kld",
                          real(p->kld), "text", w.before.data, "next", w.next.data, "p_reference", real(p->p_reference), "p",
                          real(p->p), "top_reference", w.top_reference.data, "top", w.top.data);
    quality_words_free(&w);
    return o;
}

static json_t *blocks_array(const quality_run *run, const quality_arm *arm)
{
    json_t *list = json_array();
    double *sum = cli_alloc((size_t)arm->n_points, sizeof *sum);
    int64_t n = quality_block_sums(run, arm, sum);
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, real(sum[i]));
    free(sum);
    return list;
}

static json_t *verdict_value(const quality_result *r)
{
    return r->verdict == QUALITY_NO_FLOOR ? json_null() : json_boolean(r->verdict == QUALITY_AT_FLOOR);
}

static void add_numbers(const quality_run *run, const quality_arm *arm, json_t *o)
{
    quality_result r;
    json_t *worst = json_array();
    quality_summarise(run, arm, &r);
    for (int i = 0; i < r.n_worst; i++) json_array_append_new(worst, worst_object(run, arm, r.worst[i]));
    json_object_set_new(o, "ppl", mean_object(r.ppl));
    json_object_set_new(o, "ppl_ratio", mean_object(r.ratio));
    json_object_set_new(o, "kld", kld_object(&r));
    json_object_set_new(o, "kld_blocks", blocks_array(run, arm));
    json_object_set_new(o, "same_top", mean_object(r.same_top));
    json_object_set_new(o, "probability_change", change_object(&r));
    json_object_set_new(o, "depth", depth_array(run, &r));
    json_object_set_new(o, "texts", texts_array(run, &r));
    json_object_set_new(o, "worst", worst);
    json_object_set_new(o, "at_floor", verdict_value(&r));
    if (r.verdict != QUALITY_NO_FLOOR)
        json_object_set_new(o, "above_floor",
                            json_pack("{s:o, s:o, s:o}", "mean", real(r.above_floor.mean), "low", real(r.above_floor.low), "high",
                                      real(r.above_floor.high)));
}

static json_t *generation_object(const quality_generation *g)
{
    json_t *o = json_pack("{s:i, s:i}", "same_tokens", (int)g->same_tokens, "tokens", (int)g->tokens);
    for (int i = 0; i < QUALITY_CHECKS; i++)
        json_object_set_new(o, quality_check_key[i], json_pack("{s:i, s:i}", "passed", g->passed[i], "asked", g->asked[i]));
    return o;
}

/* complete: all positions of all chunks; false when interrupted or failed. */
static json_t *arm_object(const quality_run *run, const quality_arm *arm)
{
    int64_t all = (int64_t)run->in.n_chunks * run->in.score;
    json_t *o = json_pack("{s:s, s:b, s:I, s:b}", "name", arm->name, "libllama", (int)arm->host, "positions",
                          (json_int_t)arm->n_points, "complete", (int)(arm->n_points == all));
    json_object_set_new(o, "k", json_string(arm->host ? ggml_type_name(arm->k) : arm->choice.k));
    json_object_set_new(o, "v", json_string(arm->host ? ggml_type_name(arm->v) : arm->choice.v));
    if (!arm->host) {
        json_object_set_new(o, "sink", json_integer(arm->choice.sink));
        json_object_set_new(o, "window", json_integer(run->set->seal_each ? 0 : arm->choice.recent));
        json_object_set_new(o, "evict", json_string(arm->choice.evict));
        if (arm->choice.calibration) json_object_set_new(o, "calibration", cli_json_text(arm->choice.calibration));
        if (arm->choice.evicts) {
            json_object_set_new(o, "tokens_evicted", json_integer(arm->evicted));
            json_object_set_new(o, "rows_recoded", json_integer(arm->recoded));
        }
        json_object_set_new(o, "seal_each", json_boolean(run->set->seal_each));
        if (arm->choice.layers.data) json_object_set_new(o, "layers", json_string(arm->choice.layers.data));
    }
    json_object_set_new(o, "batch", json_integer(arm->rows));
    json_object_set_new(o, "bits_code", arm->bits_code > 0 ? real(arm->bits_code) : json_null());
    json_object_set_new(o, "bits_per_value", arm->bits_per_value > 0 ? real(arm->bits_per_value) : json_null());
    json_object_set_new(o, "with_host", arm->with_host > 0 ? real(arm->with_host) : json_null());
    json_object_set_new(o, "tokens_coded", json_integer(arm->body));
    if (arm->failure[0]) json_object_set_new(o, "failure", cli_json_text(arm->failure));
    if (arm->n_points > 0) add_numbers(run, arm, o);
    if (arm->generation.done) json_object_set_new(o, "generation", generation_object(&arm->generation));
    return o;
}

/* ---- the run --------------------------------------------------------------------------------------------------------------- */

static json_t *input_array(const quality_run *run)
{
    json_t *list = json_array();
    for (int i = 0; i < run->in.n_texts; i++) {
        const quality_text *t = &run->in.text[i];
        json_array_append_new(list, json_pack("{s:o, s:I, s:I, s:i, s:i}", "file", cli_json_text(t->name), "first",
                                              (json_int_t)t->first, "bytes", (json_int_t)t->bytes, "tokens", (int)t->tokens,
                                              "chunks", (int)t->chunks));
        json_object_set_new(json_array_get(list, (size_t)i), "hash", result_hash_json(t->hash));
    }
    return list;
}

static json_t *model_object(const quality_run *run)
{
    char description[128] = "";
    llama_model_desc(run->s->model, description, sizeof description);
    json_t *o =
        json_pack("{s:o, s:s, s:I, s:I}", "file", cli_json_text(run->set->model), "description", description, "bytes",
                  (json_int_t)llama_model_size(run->s->model), "parameters", (json_int_t)llama_model_n_params(run->s->model));
    json_object_set_new(o, "hash", result_hash_json(result_hash_of_model(run->set->model)));
    return o;
}

json_t *quality_json(const quality_run *run)
{
    json_t *o = result_new("quality", (uint64_t)run->set->seed), *arms = json_array();
    for (int i = 0; i < run->n_arms; i++) json_array_append_new(arms, arm_object(run, &run->arm[i]));
    result_set_cpu(o, run->set->kv.cpu);
    json_object_set_new(o, "seconds", real(run->seconds));
    json_object_set_new(o, "model", model_object(run));
    json_object_set_new(o, "texts", input_array(run));
    json_object_set_new(o, "context", json_integer(run->in.context));
    json_object_set_new(o, "score", json_integer(run->in.score));
    json_object_set_new(o, "chunks", json_integer(run->in.n_chunks));
    json_object_set_new(o, "batch", json_integer(QUALITY_BATCH));
    json_object_set_new(o, "passes", json_integer(run->groups));
    json_object_set_new(o, "threads", json_integer(run->s->threads));
    json_object_set_new(o, "seal_each", json_boolean(run->set->seal_each));
    json_object_set_new(o, "interrupted", json_boolean(run->interrupted));
    json_object_set_new(o, "reference", arm_object(run, &run->reference));
    json_object_set_new(o, "ordinary_prefill", arm_object(run, &run->prefill));
    json_object_set_new(o, "floor", run->set->floor ? arm_object(run, &run->floor) : json_null());
    json_object_set_new(o, "arms", arms);
    result_add_quality(o);
    return o;
}
