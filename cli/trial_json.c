/* SPDX-License-Identifier: MIT
 * A trial as JSON: the fields that every saved result has. */
#include "cli.h"
#include "trial.h"

#include <jansson.h>

static void put(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, cli_json_real(x));
}

static void put_known(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, x > 0 ? cli_json_real(x) : json_null());
}

static json_t *samples_json(const trial *t, int i)
{
    json_t *list = json_array();
    for (int s = 0; s < t->rounds.rounds; s++) json_array_append_new(list, cli_json_real(t->us[i * t->samples + s]));
    return list;
}

static const char *verdict(const trial *t, int i)
{
    if (i == t->baseline) return "baseline";
    if (t->rounds.rounds < MEASURE_SAMPLES_MIN) return "too few samples";
    if (trial_is_busy(t)) return "busy machine";
    if (!t->row[i].ratio.distinguishable) return "not distinguishable";
    return t->row[i].ratio.ratio > 1 ? "faster" : "slower";
}

json_t *trial_row_json(const trial *t, int i)
{
    char doubts[TRIAL_DOUBTS];
    const trial_row *r = &t->row[i];
    double limit = trial_read_rate(t), rate = trial_rate(r);
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(r->name));
    put(o, "us_median", r->time.median);
    put(o, "us_min", r->time.min);
    put(o, "us_max", r->time.max);
    json_object_set_new(o, "samples", json_integer(t->rounds.rounds));
    json_object_set_new(o, "calls", json_integer(r->arm.calls));
    put(o, "noise", r->time.noise);
    json_object_set_new(o, "bytes", json_integer((json_int_t)r->bytes));
    put_known(o, "gb_per_s", rate);
    put_known(o, "of_limit", limit > 0 ? rate / limit : 0);
    json_object_set_new(o, "base", json_string(t->row[t->baseline].name));
    put(o, "ratio", r->ratio.ratio);
    put(o, "ratio_low", r->ratio.low);
    put(o, "ratio_high", r->ratio.high);
    put_known(o, "ceiling", r->ceiling);
    put_known(o, "amdahl", r->amdahl);
    json_object_set_new(o, "verdict", json_string(verdict(t, i)));
    json_object_set_new(o, "distinguishable",
                        json_boolean(i != t->baseline && t->rounds.rounds >= MEASURE_SAMPLES_MIN && !trial_is_busy(t) &&
                                     r->ratio.distinguishable));
    json_object_set_new(o, "doubts", json_string(trial_doubts(t, i, doubts)));
    json_object_set_new(o, "us", samples_json(t, i));
    return o;
}

/* The marked ones by number, as they stand in `us` of every row. */
static json_t *marks_json(const measure_rounds *r, int mark)
{
    json_t *list = json_array();
    for (int i = 0; i < r->rounds; i++)
        if (r->mark[i] & mark) json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *unseen_json(int unseen)
{
    static const char *const name[] = {"time of other processes", "time that the hypervisor took", "time that threads waited"};
    json_t *list = json_array();
    for (int i = 0; i < 3; i++)
        if (unseen >> i & 1) json_array_append_new(list, json_string(name[i]));
    return list;
}

json_t *trial_load_json(const measure_rounds *r)
{
    json_t *load = json_object();
    json_object_set_new(load, "repeated", json_integer(r->repeated));
    json_object_set_new(load, "marked", json_integer(r->marked));
    json_object_set_new(load, "busy", json_integer(r->busy));
    json_object_set_new(load, "slow", json_integer(r->slow));
    json_object_set_new(load, "busy_samples", marks_json(r, MEASURE_BUSY));
    json_object_set_new(load, "slow_samples", marks_json(r, MEASURE_SLOW));
    json_object_set_new(load, "not_watched", unseen_json(r->unseen));
    put(load, "worst_share", r->worst);
    put_known(load, "mhz_min", r->mhz_min);
    put_known(load, "mhz_max", r->mhz_max);
    return load;
}

json_t *trial_self_json(const trial *t)
{
    json_t *self = json_object();
    json_object_set_new(self, "name", json_string(t->row[t->floor_of].name));
    put(self, "ratio", t->against_itself.ratio);
    put(self, "low", t->against_itself.low);
    put(self, "high", t->against_itself.high);
    return self;
}

json_t *trial_json(const trial *t)
{
    json_t *o = json_object();
    json_object_set_new(o, "threads", json_integer(t->threads));
    json_object_set_new(o, "baseline", json_string(t->row[t->baseline].name));
    json_object_set_new(o, "against_itself", trial_self_json(t));
    put(o, "noise_floor", t->floor);
    put_known(o, "read_gb_per_s", trial_read_rate(t));
    put_known(o, "read_gb_per_s_best", t->read.min > 0 ? t->read_bytes / t->read.min * 1e-3 : 0);
    json_object_set_new(o, "other_load", trial_load_json(&t->rounds));
    return o;
}
