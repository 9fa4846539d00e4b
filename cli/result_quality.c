/* SPDX-License-Identifier: MIT
 * A saved result of `kvfold quality` in the form of all others: its arms as rows of one run. */
#include "result.h"

#include <jansson.h>

#include <math.h>
#include <string.h>

static void put(json_t *row, const char *key, const json_t *from, const char *inner)
{
    const json_t *value = inner ? json_object_get(from, inner) : from;
    if (json_is_number(value)) json_object_set(row, key, (json_t *)(uintptr_t)value);
}

static json_t *row_of(const json_t *arm)
{
    json_t *row = json_object(), *kld = json_object_get(arm, "kld");
    json_object_set_new(row, "name", json_string(result_string(arm, "name")));
    json_object_set(row, "libllama", json_object_get(arm, "libllama"));
    put(row, "bits_code", json_object_get(arm, "bits_code"), NULL);
    put(row, "bits_per_value", json_object_get(arm, "bits_per_value"), NULL);
    put(row, "kld_mean", kld, "mean");
    put(row, "kld_error", kld, "error");
    put(row, "kld_median", kld, "median");
    put(row, "kld_p99", kld, "p99");
    put(row, "kld_max", kld, "max");
    put(row, "ppl", json_object_get(arm, "ppl"), "mean");
    put(row, "ppl_ratio", json_object_get(arm, "ppl_ratio"), "mean");
    put(row, "same_top", json_object_get(arm, "same_top"), "mean");
    put(row, "positions", json_object_get(arm, "positions"), NULL);
    if (json_is_true(json_object_get(arm, "at_floor"))) json_object_set_new(row, "floor", json_string("at the floor"));
    return row;
}

void result_from_quality(json_t *o)
{
    size_t i;
    char title[300];
    json_t *arm, *run = json_object();
    const char *file = result_string(json_object_get(o, "model"), "file"), *slash = strrchr(file, '/');
    if (json_object_get(o, "rows")) return;
    json_object_set_new(o, "format", json_integer(RESULT_FORMAT));
    json_object_set_new(o, "runs", json_array());
    json_object_set_new(o, "rows", json_array());
    if (!json_object_get(o, "date")) json_object_set(o, "date", json_object_get(o, "started"));
    json_object_set_new(run, "model", cli_json_text(slash ? slash + 1 : file));
    json_object_set(run, "context", json_object_get(o, "context"));
    snprintf(title, sizeof title, "%.160s, %.0f tokens, %.0f chunks", slash ? slash + 1 : file, result_real(o, "context"),
             result_real(o, "chunks"));
    int number = result_add_run(o, run, title);
    json_array_foreach(json_object_get(o, "arms"), i, arm) result_add_row(o, number, row_of(arm));
}
