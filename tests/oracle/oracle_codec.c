/* SPDX-License-Identifier: MIT */
#include "oracle_tables.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, LINE = 64 };

/* ---- numbers ---- */

/* Nearest binary16, ties to even, at most 65504 in magnitude. */
static double half(double x)
{
    double a = fabs(x), unit = 0x1p-24, y;
    while (a >= unit * 2048) unit *= 2;
    y = nearbyint(a / unit) * unit;
    if (y > 65504) y = 65504;
    return copysign(y, x);
}

static double half_at(const void *record, size_t at)
{
    const unsigned char *p = (const unsigned char *)record + at;
    unsigned h = (unsigned)p[0] | (unsigned)p[1] << 8;
    double m = h >> 10 & 31 ? ldexp(1 + (h & 1023) / 1024.0, (int)(h >> 10 & 31) - 15) : (h & 1023) * 0x1p-24;
    return h & 0x8000 ? -m : m;
}

/* ---- plans ---- */

static int has_table(const oracle_plan *p)
{
    return p->family == ORACLE_TURBO || p->family == ORACLE_RVQ || p->family == ORACLE_TCQ;
}

int oracle_read_spec(const char *spec, int keys, int dim, oracle_plan *p)
{
    *p = (oracle_plan){.keys = keys, .head_dim = dim, .dim = dim, .group = 32};
    char rest[96] = "";
    const char *fallback = "none";
    if (!strcmp(spec, "f16")) {
        p->family = ORACLE_F16;
        p->bits = 16;
    } else if (sscanf(spec, "kivi%d%95s", &p->bits, rest) >= 1) {
        p->family = ORACLE_KIVI;
        if (rest[0] && sscanf(rest, ":group=%d", &p->group) != 1) return 0;
    } else if (sscanf(spec, "uni%d%95s", &p->bits, rest) >= 1 || sscanf(spec, "turbo%d%95s", &p->bits, rest) >= 1 ||
               sscanf(spec, "rvq%d%95s", &p->bits, rest) >= 1 || sscanf(spec, "tcq%d%95s", &p->bits, rest) >= 1) {
        p->family = spec[0] == 'u' ? ORACLE_UNI : spec[0] == 'r' ? ORACLE_RVQ : spec[1] == 'u' ? ORACLE_TURBO : ORACLE_TCQ;
        fallback = "h1";
        p->norm = keys ? 1 : 2;
        if (strstr(rest, "norm=n")) p->norm = strstr(rest, "norm=n")[6] - '0';
    } else if (!strncmp(spec, "q8_0", 4) || !strncmp(spec, "q4_0", 4)) {
        p->bits = spec[1] - '0';
        p->family = p->bits == 8 ? ORACLE_Q8_0 : ORACLE_Q4_0;
        snprintf(rest, sizeof rest, "%s", spec + 4);
    } else {
        return 0;
    }
    p->mean = strstr(rest, "centre=block") != NULL;
    if (!oracle_read_rotation(rest, fallback, dim, &p->rotation)) return 0;
    p->dim = p->rotation.size;
    if (p->family == ORACLE_UNI || has_table(p)) p->group = p->dim;
    p->stage = strstr(rest, "stages=") ? strstr(rest, "stages=")[7] - '0' : (p->bits + 1) / 2;
    if (p->family == ORACLE_TURBO) oracle_turbo_table(p);
    if (p->family == ORACLE_TCQ) oracle_tcq_table(p);
    if (p->family == ORACLE_RVQ) oracle_rvq_table(p, strstr(rest, "tuned=paper") != NULL);
    return 1;
}

static int padded(const oracle_plan *p)
{
    return (p->dim + 15) / 16 * 16;
}

static int per_channel(const oracle_plan *p)
{
    return p->family == ORACLE_KIVI && p->keys;
}

static size_t fill64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static size_t section_bytes(const oracle_plan *p)
{
    if (p->family == ORACLE_F16) return 0;
    if (per_channel(p)) return (size_t)(TOKENS / p->group * padded(p) * 2);
    return (size_t)((p->dim + p->group - 1) / p->group * TOKENS * 2);
}

static size_t codes_bytes(const oracle_plan *p)
{
    return (size_t)(TOKENS * padded(p) / 8 * p->bits);
}

/* Where the mean lies: behind codes, scales and minima. */
static size_t mean_at(const oracle_plan *p)
{
    return fill64(codes_bytes(p)) + fill64(section_bytes(p)) * (p->family == ORACLE_KIVI ? 2 : 1);
}

size_t oracle_bytes(const oracle_plan *p)
{
    return mean_at(p) + (p->mean ? fill64((size_t)padded(p) + 2) : 0);
}

double oracle_mean(const oracle_plan *p, const void *record, int c)
{
    const size_t at = mean_at(p);
    return (double)((const signed char *)record)[at + (size_t)c] * half_at(record, at + (size_t)padded(p));
}

/* ---- encoding ---- */

static void take(oracle_value *v, double quotient, int low, int high, double offset, double scale, double min)
{
    double code = nearbyint(quotient), floor_ = floor(quotient);
    v->near = fabs(quotient - floor_ - 0.5);
    if (code < low) code = low;
    if (code > high) code = high;
    v->code = (int)(code + offset);
    v->scale = scale;
    v->min = min;
}

static void kivi_group(const oracle_plan *p, const double *x, oracle_value **v, int n)
{
    double low = x[0], high = x[0], levels = (1 << p->bits) - 1;
    for (int i = 1; i < n; i++) {
        low = fmin(low, x[i]);
        high = fmax(high, x[i]);
    }
    double range = once(high - low), scale = half(fmax(once(range / levels), (double)1e-8f)), min = half(low) + 0.0;
    if ((levels + 0.5) * scale < range && scale < 65504) scale += fmax(0x1p-24, ldexp(1, ilogb(scale > 0 ? scale : 1e-9) - 10));
    if (range == 0) scale = 0;
    for (int i = 0; i < n; i++) {
        double q = scale > 0 ? once(once(x[i] - min) / scale) : 0;
        take(v[i], q, 0, (int)levels, 0, scale, min);
        v[i]->value = once(once(v[i]->code * scale) + min);
    }
}

/* q8_0: symmetric, the largest magnitude is 127 steps, half away from zero. q4_0: the peak with its sign is -8 steps, half up.
 * Codes are made with the reciprocal of the step in f32, values with the step in f16. */
static void ggml_group(const oracle_plan *p, const double *x, oracle_value **v, int n)
{
    double peak = 0;
    for (int i = 0; i < n; i++)
        if (fabs(x[i]) > fabs(peak)) peak = x[i];
    double step = p->bits == 8 ? once(fabs(peak) / 127) : once(peak / -8), inverse = step == 0 ? 0 : once(1 / step);
    for (int i = 0; i < n; i++) {
        double q = once(x[i] * inverse);
        double zero = p->bits == 8 ? 128 : 8;
        double code = p->bits == 8 ? copysign(floor(fabs(q) + 0.5), q) : floor(once(q + 8.5)) - 8;
        v[i]->near = fabs(q - floor(q) - 0.5);
        v[i]->code = (int)(zero + (code > zero - 1 ? zero - 1 : code));
        v[i]->scale = half(step);
        v[i]->min = 0;
        v[i]->value = once((v[i]->code - zero) * v[i]->scale);
    }
}

/* What is subtracted from a code before it is multiplied by the scale. */
static double zero_of(const oracle_plan *p)
{
    if (p->family == ORACLE_KIVI || p->family == ORACLE_F16 || has_table(p)) return 0;
    return p->family == ORACLE_UNI && p->bits <= 3 ? (ldexp(1, p->bits) - 1) / 2 : ldexp(1, p->bits - 1);
}

/* What a code stands for before its scale. */
static double level_of(const oracle_plan *p, const oracle_value *v)
{
    const int index = p->family == ORACLE_TCQ ? v->state : v->code;
    return has_table(p) ? once(p->entry[index] * p->unit) : v->code - zero_of(p);
}

double oracle_norm_scale(int norm, double xx, double xc, double cc, double plain)
{
    if (norm == 0) return plain;
    if (xx == 0) return 0;
    if (norm == 1) return sqrt(xx / cc);
    return norm == 2 && 4 * xc * fabs(xc) >= xx * cc ? xx / xc : xc / cc;
}

/* Scale of the vector x whose codes are chosen. */
static void norm_scale(const oracle_plan *p, const double *x, oracle_value **v, int n, double step)
{
    double xx = 0, xc = 0, cc = 0;
    for (int i = 0; i < n; i++) {
        double c = level_of(p, v[i]);
        xx += x[i] * x[i], xc += x[i] * c, cc += c * c;
    }
    const double scale = oracle_norm_scale(p->norm, xx, xc, cc, step);
    for (int i = 0; i < n; i++) {
        v[i]->scale = half(scale);
        v[i]->min = 0;
        v[i]->value = once(level_of(p, v[i]) * v[i]->scale);
    }
}

/* 4 bits and more: the largest magnitude is 2^(bits-1) - 1 steps, codes to nearest around 2^(bits-1). Fewer: as many cells below
 * 0 as above, their width that of the best uniform quantiser of a normal variable (Max, 1960), the outer ones open. */
static double plain_scale(const oracle_plan *p, const double *x, int n)
{
    static const double width[] = {0, 1.596, 0.9957, 0.5860};
    double peak = 0, square = 0;
    for (int i = 0; i < n; i++) {
        peak = fmax(peak, fabs(x[i]));
        square += x[i] * x[i];
    }
    if (has_table(p)) return sqrt(square / n);
    return p->bits >= 4 ? peak / (ldexp(1, p->bits - 1) - 1) : sqrt(square / n) * width[p->bits];
}

static void uni_group(const oracle_plan *p, const double *x, oracle_value **v, int n)
{
    double step = plain_scale(p, x, n), zero = zero_of(p), levels = ldexp(1, p->bits);
    for (int i = 0; i < n; i++) {
        double q = step > 0 ? x[i] / step : 0;
        double code = p->bits >= 4 ? nearbyint(q) + zero : floor(q) + levels / 2;
        v[i]->near = p->bits >= 4 ? fabs(q - floor(q) - 0.5) : fabs(q - nearbyint(q));
        v[i]->code = (int)fmin(fmax(code, 0), levels - 1);
    }
    norm_scale(p, x, v, n, step);
}

/* The level nearest to x / rms; halfway between two, the lower. */
static void turbo_group(const oracle_plan *p, const double *x, oracle_value **v, int n)
{
    double rms = plain_scale(p, x, n);
    for (int i = 0; i < n; i++) {
        double q = rms > 0 ? x[i] / (rms * p->unit) : 0;
        v[i]->code = 0;
        v[i]->near = HUGE_VAL;
        for (int k = 0; k + 1 < 1 << p->bits; k++) {
            double boundary = (p->entry[k] + p->entry[k + 1]) / 2.0;
            v[i]->near = fmin(v[i]->near, fabs(q - boundary) / (p->entry[k + 1] - p->entry[k]));
            if (q > boundary) v[i]->code = k + 1;
        }
    }
    norm_scale(p, x, v, n, rms);
}

/* The code of one stage, entries ascending, and how near a boundary was, in gaps between entries. */
static int stage_code(const int *entry, int bits, double q, double *near)
{
    int code = 0;
    for (int k = 0; k + 1 < 1 << bits; k++) {
        double boundary = (entry[k] + entry[k + 1]) / 2.0;
        *near = fmin(*near, fabs(q - boundary) / (entry[k + 1] - entry[k]));
        if (q > boundary) code = k + 1;
    }
    return code;
}

/* First the nearest level of the first stage, then of the second to what is left. */
static void rvq_group(const oracle_plan *p, const double *x, oracle_value **v, int n)
{
    int rest = p->bits - p->stage, first[16], second[16], top = (1 << rest) - 1;
    for (int i = 0; i < 1 << p->stage; i++) first[i] = (p->entry[i] + p->entry[i + (top << p->stage)]) / 2;
    for (int i = 0; i <= top; i++) second[i] = p->entry[i << p->stage] - first[0];
    double rms = plain_scale(p, x, n);
    for (int i = 0; i < n; i++) {
        double q = rms > 0 ? x[i] / (rms * p->unit) : 0;
        v[i]->near = HUGE_VAL;
        int a = stage_code(first, p->stage, q, &v[i]->near), b = stage_code(second, rest, q - first[a], &v[i]->near);
        v[i]->code = a | b << p->stage;
    }
    norm_scale(p, x, v, n, rms);
}

/* The index of an entry is made of the last eight bits of the codes; before the first comes the last. */
static void set_states(const oracle_plan *p, oracle_value *row)
{
    for (int c = 0; c < p->dim; c++) {
        long long bits = 0;
        for (int back = 8; back >= 0; back--) bits = bits << p->bits | row[(c - back + 9 * p->dim) % p->dim].code;
        row[c].state = (int)(bits % 256);
    }
}

/* least[s]: the smallest sum of (y - level)^2 over `n` channels from `first` on (round and round), of all ways that begin behind a
 * state b with least[b] and end in s. */
static void go(const oracle_plan *p, const double *y, int first, int n, double *least)
{
    double next[256];
    for (int c = first; c < first + n; c++) {
        for (int s = 0; s < 256; s++) next[s] = HUGE_VAL;
        for (int b = 0; b < 256; b++)
            for (int code = 0; code < 1 << p->bits && least[b] < HUGE_VAL; code++) {
                int s = (b * (1 << p->bits) + code) % 256;
                if (least[b] < next[s]) next[s] = least[b];
            }
        for (int s = 0; s < 256; s++) {
            double miss = y[(c + 64 * p->dim) % p->dim] - p->entry[s];
            least[s] = next[s] + miss * miss;
        }
    }
}

/* By how much the path of a row misses what it should be: cheapest of all that pass the state between the last channel and the first,
 * and that state the one on the cheapest way through the 32 channels before and the 32 behind it. */
static double path_excess(const oracle_plan *p, const double *y, const oracle_value *row)
{
    double least[256], cost = 0, free_cost = HUGE_VAL, bound_cost = HUGE_VAL;
    const int end = row[p->dim - 1].state;
    for (int c = 0; c < p->dim; c++) cost += pow(y[c] - p->entry[row[c].state], 2);
    for (int s = 0; s < 256; s++) least[s] = s == end ? 0 : HUGE_VAL;
    go(p, y, 0, p->dim, least);
    const double excess = cost - least[end];
    for (int s = 0; s < 256; s++) least[s] = 0;
    go(p, y, -32, 32, least);
    const double passed = least[end];
    go(p, y, 0, 32, least);
    for (int s = 0; s < 256; s++) free_cost = fmin(free_cost, least[s]);
    for (int s = 0; s < 256; s++) least[s] = s == end ? passed : HUGE_VAL;
    go(p, y, 0, 32, least);
    for (int s = 0; s < 256; s++) bound_cost = fmin(bound_cost, least[s]);
    return fmax(excess, bound_cost - free_cost);
}

/* Sums of squares in f32 and of turned coordinates: a hundred thousandth of all that there is. */
static int best_path(const oracle_plan *p, const double *x, const oracle_value *row)
{
    double rms = plain_scale(p, x, p->dim), y[1024] = {0}, size = 0;
    for (int c = 0; c < p->dim && rms > 0; c++) y[c] = x[c] / (rms * p->unit), size += y[c] * y[c];
    return path_excess(p, y, row) <= 1e-5 * size;
}

static void settle_paths(const oracle_plan *p, const double *y, const oracle_value *got, int first, oracle_value *out)
{
    oracle_value *place[1024];
    for (int t = 0; t < TOKENS; t++) {
        const double *x = y + t * p->dim;
        oracle_value *row = out + t * p->dim;
        if (t % 16 == first % 16 && !best_path(p, x, got + t * p->dim)) continue;
        for (int c = 0; c < p->dim; c++) row[c].code = got[t * p->dim + c].code, place[c] = &row[c];
        set_states(p, row);
        norm_scale(p, x, place, p->dim, plain_scale(p, x, p->dim));
    }
}

static void encode_group(const oracle_plan *p, const double *x, oracle_value *out, int t0, int nt, int c0, int nc)
{
    double member[1024] = {0};
    oracle_value *place[1024];
    int n = 0;
    for (int t = t0; t < t0 + nt; t++)
        for (int c = c0; c < c0 + nc; c++, n++) {
            member[n] = x[t * p->dim + c];
            place[n] = &out[t * p->dim + c];
        }
    if (p->family == ORACLE_KIVI)
        kivi_group(p, member, place, n);
    else if (p->family == ORACLE_UNI)
        uni_group(p, member, place, n);
    else if (p->family == ORACLE_TURBO)
        turbo_group(p, member, place, n);
    else if (p->family == ORACLE_RVQ)
        rvq_group(p, member, place, n);
    else if (p->family == ORACLE_TCQ)
        for (int i = 0; i < n; i++) place[i]->code = -1;
    else
        ggml_group(p, member, place, n);
}

/* 8 bits of the mean over the block's tokens, in steps of a 127th of the largest. */
static void subtract_mean(const oracle_plan *p, double *y)
{
    double mean[1024] = {0}, peak = 0;
    for (int c = 0; c < p->dim; c++) {
        for (int t = 0; t < TOKENS; t++) mean[c] += y[t * p->dim + c] / TOKENS;
        peak = fmax(peak, fabs(mean[c]));
    }
    double step = half(peak / 127);
    for (int c = 0; c < p->dim && step > 0; c++) {
        double code = fmin(fmax(nearbyint(mean[c] / step), -127), 127);
        for (int t = 0; t < TOKENS; t++) y[t * p->dim + c] -= code * step;
    }
}

/* The vectors that are coded, [64][dim]; the caller frees. */
static double *transformed(const oracle_plan *p, const float *x)
{
    double *y = calloc((size_t)(TOKENS * p->dim), sizeof *y);
    if (!y) abort();
    for (int t = 0; t < TOKENS; t++) {
        double row[1024];
        for (int c = 0; c < p->head_dim; c++) row[c] = half(x[t * p->head_dim + c]);
        oracle_rotate(&p->rotation, row, y + t * p->dim);
    }
    if (p->mean) subtract_mean(p, y);
    return y;
}

void oracle_encode(const oracle_plan *p, const float *x, oracle_value *out)
{
    double *y = transformed(p, x);
    if (p->family == ORACLE_F16)
        for (int i = 0; i < TOKENS * p->dim; i++) out[i] = (oracle_value){.value = y[i]};
    else if (per_channel(p))
        for (int c = 0; c < p->dim; c++)
            for (int t = 0; t < TOKENS; t += p->group) encode_group(p, y, out, t, p->group, c, 1);
    else
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < p->dim; c += p->group)
                encode_group(p, y, out, t, 1, c, p->dim - c < p->group ? p->dim - c : p->group);
    free(y);
}

void oracle_settle(const oracle_plan *p, const float *x, const oracle_value *got, double close, int first, oracle_value *out)
{
    double *y = transformed(p, x);
    oracle_value *place[1024];
    if (p->family == ORACLE_TCQ) settle_paths(p, y, got, first, out);
    for (int t = 0; t < TOKENS && p->family != ORACLE_TCQ; t++) {
        int moved = 0;
        for (int c = 0; c < p->dim; c++) {
            oracle_value *v = place[c] = &out[t * p->dim + c];
            int apart = abs(v->code - got[t * p->dim + c].code);
            if (!apart || (apart > 1 && p->family != ORACLE_RVQ) || v->near > close) continue;
            v->code = got[t * p->dim + c].code, moved = 1;
        }
        if (moved) norm_scale(p, y + t * p->dim, place, p->dim, plain_scale(p, y + t * p->dim, p->dim));
    }
    free(y);
}

/* ---- unpacking ---- */

/* Calls visit(row of the matrix, lane, bit of the code, bit of memory) for every bit of the codes, in the order of memory: chunks
 * of lanes, in each the planes, in each lines of 64 bytes, in each byte the fields. */
typedef void visitor(void *user, int r, int lane, int code_bit, size_t memory_bit);

static void walk_codes(int bits, int rows, int lanes, visitor *visit, void *user)
{
    size_t at = 0;
    for (int chunk = 0; chunk < lanes; chunk += 64) {
        int groups = (lanes - chunk >= 64 ? 64 : lanes - chunk) / 16, low = 0, left = bits;
        for (int width = 8; width; width /= 2) {
            if (left < width) continue;
            left -= width;
            int per = 8 / width, lines = rows / 4 * groups / per;
            for (int line = 0; line < lines; line++)
                for (int byte = 0; byte < LINE; byte++, at++)
                    for (int slot = 0; slot < per; slot++) {
                        int field = line * per + slot, quad = field / groups, group = field % groups;
                        for (int b = 0; b < width; b++)
                            visit(user, quad * 4 + byte % 4, chunk + group * 16 + byte / 4, low + b,
                                  at * 8 + (size_t)(slot * width + b));
                    }
            low += width;
        }
    }
}

typedef struct plain_codes {
    const unsigned char *memory;
    int lanes, *out;
} plain_codes;

static void take_bit(void *user, int r, int lane, int code_bit, size_t memory_bit)
{
    const plain_codes *to = user;
    to->out[r * to->lanes + lane] |= (to->memory[memory_bit / 8] >> memory_bit % 8 & 1) << code_bit;
}

void oracle_codes(const void *codes, int bits, int rows, int lanes, int *out)
{
    plain_codes to = {codes, lanes, out};
    memset(out, 0, (size_t)(rows * lanes) * sizeof *out);
    walk_codes(bits, rows, lanes, take_bit, &to);
}

double oracle_half(double x)
{
    return half(x);
}

double oracle_half_at(const void *memory, size_t at)
{
    return half_at(memory, at);
}

typedef struct reading {
    const oracle_plan *plan;
    const unsigned char *record;
    oracle_value *out;
    int stray; /* a bit of a padded channel is set */
} reading;

static void read_bit(void *user, int r, int lane, int code_bit, size_t memory_bit)
{
    reading *to = user;
    int t = to->plan->keys ? lane : r, c = to->plan->keys ? r : lane;
    int bit = to->record[memory_bit / 8] >> memory_bit % 8 & 1;
    if (c >= to->plan->dim)
        to->stray |= bit;
    else if (to->out)
        to->out[t * to->plan->dim + c].code |= bit << code_bit;
}

static void read_codes(const oracle_plan *p, reading *to)
{
    if (p->keys)
        walk_codes(p->bits, padded(p), TOKENS, read_bit, to);
    else
        walk_codes(p->bits, TOKENS, padded(p), read_bit, to);
}

void oracle_unpack(const oracle_plan *p, const void *record, oracle_value *out)
{
    memset(out, 0, (size_t)(TOKENS * p->dim) * sizeof *out);
    reading to = {p, record, out, 0};
    if (p->family != ORACLE_F16) read_codes(p, &to);
    for (int t = 0; t < TOKENS && p->family == ORACLE_TCQ; t++) set_states(p, out + t * p->dim);
    size_t scales = fill64(codes_bytes(p)), minima = scales + fill64(section_bytes(p));
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < p->dim; c++) {
            oracle_value *v = &out[t * p->dim + c];
            if (p->family == ORACLE_F16) {
                v->value = half_at(record, 2 * (size_t)(p->keys ? c * TOKENS + t : t * padded(p) + c));
                continue;
            }
            size_t i = 2 * (size_t)(per_channel(p) ? t / p->group * padded(p) + c : c / p->group * TOKENS + t);
            v->scale = half_at(record, scales + i);
            if (p->family == ORACLE_KIVI) v->min = half_at(record, minima + i);
            v->value = once(once(level_of(p, v) * v->scale) + v->min);
        }
}

static int all_zero(const unsigned char *p, size_t from, size_t to)
{
    while (from < to)
        if (p[from++]) return 0;
    return 1;
}

int oracle_padding_is_zero(const oracle_plan *p, const void *record)
{
    const unsigned char *bytes = record;
    reading to = {p, record, NULL, 0};
    size_t width = (size_t)padded(p), dim = (size_t)p->dim;
    if (p->family == ORACLE_F16) {
        if (p->keys) return all_zero(bytes, dim * TOKENS * 2, width * TOKENS * 2);
        for (size_t t = 0; t < TOKENS; t++)
            if (!all_zero(bytes, (t * width + dim) * 2, (t + 1) * width * 2)) return 0;
        return 1;
    }
    read_codes(p, &to);
    size_t at = codes_bytes(p), n = section_bytes(p);
    int sections = p->family == ORACLE_KIVI ? 2 : 1, zero = !to.stray && all_zero(bytes, at, fill64(at));
    for (at = fill64(at); sections--; at += fill64(n)) {
        zero &= all_zero(bytes, at + n, at + fill64(n));
        for (size_t g = 0; per_channel(p) && g < n / (width * 2); g++)
            zero &= all_zero(bytes, at + (g * width + dim) * 2, at + (g + 1) * width * 2);
    }
    return zero;
}

/* ---- attention ---- */

static double term(const oracle_plan *p, const oracle_value *v, double multiplier, double *size)
{
    double parts = p->family == ORACLE_F16 ? fabs(v->value) : fabs(level_of(p, v) * v->scale) + fabs(v->min);
    *size += fabs(multiplier) * parts;
    return multiplier * v->value;
}

double oracle_score(const oracle_plan *p, const oracle_value *record, const float *q, int t, double *size)
{
    double sum = 0;
    *size = 0;
    for (int c = 0; c < p->dim; c++) sum += term(p, &record[t * p->dim + c], q[c], size);
    return sum;
}

double oracle_mix(const oracle_plan *p, const oracle_value *record, const float *w, int c, double *size)
{
    double sum = 0;
    *size = 0;
    for (int t = 0; t < TOKENS; t++) sum += term(p, &record[t * p->dim + c], w[t], size);
    return sum;
}
