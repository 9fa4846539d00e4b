/* SPDX-License-Identifier: MIT */
#include "codec/shared/rotation.h"

#include "base/random.h"
#include "codec/shared/part.h"
#include "codec/shared/stages.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/hadamard.h"

#include <math.h>
#include <string.h>

/* ---- Hadamard matrices of 12, 20 and 28 --------------------------------------------------------------------------------------- */

/* Quadratic character of a, -q < a < q, not 0, modulo the prime q: bit r of the mask is set when r is a square. */
static int character(int32_t a, int32_t q)
{
    const uint32_t squares = q == 11 ? 0x23au : q == 19 ? 0x30af2u : 0x161au; /* q = 13 */
    return squares >> (a < 0 ? a + q : a) & 1 ? 1 : -1;
}

/* Paley I, q = 3 (mod 4): I + [0 1; -1 Q], size q + 1. */
static int paley_first(int32_t q, int32_t i, int32_t j)
{
    if (i == j) return 1;
    if (!i || !j) return i ? -1 : 1;
    return character(i - j, q);
}

/* Paley II, q = 1 (mod 4), C = [0 1; 1 Q]: an entry c of C becomes c [1 1; 1 -1], zeros [1 -1; -1 -1]; size 2 (q + 1). */
static int paley_second(int32_t q, int32_t i, int32_t j)
{
    const int32_t r = i / 2, c = j / 2;
    if (r == c) return i % 2 || j % 2 ? -1 : 1;
    const int entry = r && c ? character(r - c, q) : 1;
    return i % 2 && j % 2 ? -entry : entry;
}

static int odd_entry(int32_t odd, int32_t i, int32_t j)
{
    return odd == 28 ? paley_second(13, i, j) : paley_first(odd - 1, i, j);
}

int32_t kvfi_hadamard_size(int32_t dim, int32_t *odd)
{
    static const int32_t factors[] = {1, 12, 20, 28};
    int32_t best = INT32_MAX;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        int32_t size = factors[i];
        while (size < dim) size *= 2;
        if (size < best) best = size, *odd = factors[i];
    }
    return best;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------------------- */

static const char *const names[] = {
    [KVF_ROT_NONE] = "none", [KVF_ROT_H] = "h", [KVF_ROT_H1] = "h1", [KVF_ROT_H2] = "h2", [KVF_ROT_HAAR] = "haar"};

const char *kvfi_rotation_name(const kvf_rotation *rot)
{
    return names[rot->kind];
}

static void draw_signs(kvf_rotation *rot, int32_t rounds)
{
    for (int32_t r = 0; r < rounds; r++) {
        const uint64_t start = kvfi_random_start(rot->seed, KVFI_STREAM_ROTATION + (uint32_t)r);
        for (int32_t c = 0; c < rot->size; c++) rot->minus[r][c / 32] |= kvfi_random_minus(start, (uint64_t)c) << c % 32;
    }
}

int kvfi_rotation_init(kvf_rotation *rot, const char *name, uint32_t seed, int32_t dim)
{
    int32_t kind = 0, n = (int32_t)(sizeof names / sizeof *names);
    while (kind < n && strcmp(names[kind], name)) kind++;
    if (kind == n) return 0;
    *rot = (kvf_rotation){.kind = kind, .size = dim, .seed = seed, .odd = 1};
    if (kind == KVF_ROT_H) rot->block = dim & -dim;
    if (kind != KVF_ROT_H1 && kind != KVF_ROT_H2) return 1;
    rot->size = kvfi_hadamard_size(dim, &rot->odd);
    rot->block = rot->size / rot->odd;
    draw_signs(rot, kind == KVF_ROT_H2 ? 2 : 1);
    return 1;
}

size_t kvfi_rotation_floats(const kvf_rotation *rot)
{
    return rot->kind == KVF_ROT_HAAR ? (size_t)rot->size * (size_t)rot->size : 0;
}

static double dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Row i orthogonal to the rows before it (Gram and Schmidt, twice), length 1. */
static void orthonormalise(double *rows, int32_t i, int32_t n)
{
    double *row = rows + (size_t)i * (size_t)n;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t j = 0; j < i; j++) {
            const double *before = rows + (size_t)j * (size_t)n, share = dot(row, before, n);
            for (int32_t c = 0; c < n; c++) row[c] -= share * before[c];
        }
    const double length = sqrt(dot(row, row, n));
    for (int32_t c = 0; c < n; c++) row[c] /= length;
}

void kvfi_rotation_fill(const kvf_rotation *rot, double *work, float *matrix)
{
    const int32_t n = rot->size;
    const size_t count = (size_t)n * (size_t)n;
    const uint64_t start = kvfi_random_start(rot->seed, KVFI_STREAM_ROTATION);
    for (size_t i = 0; i < count; i += 2) {
        double normal[2];
        kvfi_random_normals(start, i / 2, normal);
        work[i] = normal[0];
        if (i + 1 < count) work[i + 1] = normal[1];
    }
    for (int32_t i = 0; i < n; i++) orthonormalise(work, i, n);
    for (size_t i = 0; i < count; i++) matrix[i] = (float)work[i];
}

/* ---- transforms --------------------------------------------------------------------------------------------------------------- */

/* Bits of signs are spread once for all vectors. */
static void flip(const kvf_rotation *rot, int round, float *x, size_t stride, int32_t n)
{
    const int32_t size = rot->size;
    uint32_t sign[KVFI_DIM_MAX], bits;
    for (int32_t c = 0; c < size; c++) sign[c] = rot->minus[round][c / 32] >> c % 32 << 31;
    for (int32_t v = 0; v < n; v++, x += stride)
        for (int32_t c = 0; c < size; c++) {
            memcpy(&bits, x + c, sizeof bits);
            bits ^= sign[c];
            memcpy(x + c, &bits, sizeof bits);
        }
}

/* Signed sums across runs of `run` channels: x[odd][run]. sign[j][i] is 1 or -1: what output i takes channel j with. All outputs side by
 * side, each of which adds in the order of j. */
static inline void mix_runs_of(float sign[28][28], int32_t odd, int32_t run, float *x)
{
    for (int32_t c = 0; c < run; c++) {
        float sum[28] = {0};
        for (int32_t j = 0; j < odd; j++)
            for (int32_t i = 0; i < odd; i++) sum[i] += sign[j][i] * x[j * run + c];
        for (int32_t i = 0; i < odd; i++) x[i * run + c] = sum[i];
    }
}

/* The size is a constant in the loops. */
static void mix_runs(float sign[28][28], int32_t odd, int32_t run, float *x)
{
    switch (odd) {
    case 12: mix_runs_of(sign, 12, run, x); break;
    case 20: mix_runs_of(sign, 20, run, x); break;
    case 28: mix_runs_of(sign, 28, run, x); break;
    }
}

/* The matrix of 12, 20 or 28, or its transpose, for n vectors. */
static void odd_step(const kvf_rotation *rot, float *x, size_t stride, int32_t n, int back)
{
    float sign[28][28];
    if (rot->odd == 1) return;
    const float norm = (float)(1.0 / sqrt((double)rot->odd));
    for (int32_t i = 0; i < rot->odd; i++)
        for (int32_t j = 0; j < rot->odd; j++) sign[j][i] = (float)(back ? odd_entry(rot->odd, j, i) : odd_entry(rot->odd, i, j));
    for (int32_t v = 0; v < n; v++, x += stride) {
        mix_runs(sign, rot->odd, rot->block, x);
        for (int32_t c = 0; c < rot->size; c++) x[c] *= norm;
    }
}

/* y = M' x for the matrix with rows M[i]: the rows are multiplied and added, in order. */
static void turn(const kvf_rotation *rot, float *x)
{
    float y[KVFI_DIM_MAX] = {0};
    for (int32_t i = 0; i < rot->size; i++)
        for (int32_t c = 0; c < rot->size; c++) y[c] += x[i] * rot->matrix[(size_t)i * (size_t)rot->size + (size_t)c];
    memcpy(x, y, (size_t)rot->size * sizeof *y);
}

static void turn_back(const kvf_rotation *rot, float *x)
{
    float y[KVFI_DIM_MAX] = {0};
    for (int32_t i = 0; i < rot->size; i++) y[i] = kvfi_dot16(rot->matrix + (size_t)i * (size_t)rot->size, x, rot->size);
    memcpy(x, y, (size_t)rot->size * sizeof *y);
}

static int rounds(const kvf_rotation *rot)
{
    return rot->kind == KVF_ROT_NONE || rot->kind == KVF_ROT_HAAR ? 0 : rot->kind == KVF_ROT_H2 ? 2 : 1;
}

void kvfi_rotate(const kvf_rotation *rot, kvfi_hadamard hadamard, float *x, size_t stride, int32_t n)
{
    for (int32_t v = 0; rot->kind == KVF_ROT_HAAR && v < n; v++) turn(rot, x + (size_t)v * stride);
    for (int r = 0; r < rounds(rot); r++) {
        if (rot->kind != KVF_ROT_H) flip(rot, r, x, stride, n);
        hadamard(x, stride, n, rot->size, rot->block);
        odd_step(rot, x, stride, n, 0);
    }
}

void kvfi_rotate_back(const kvf_rotation *rot, kvfi_hadamard hadamard, float *x, size_t stride, int32_t n)
{
    for (int32_t v = 0; rot->kind == KVF_ROT_HAAR && v < n; v++) turn_back(rot, x + (size_t)v * stride);
    for (int r = rounds(rot) - 1; r >= 0; r--) {
        odd_step(rot, x, stride, n, 1);
        hadamard(x, stride, n, rot->size, rot->block);
        if (rot->kind != KVF_ROT_H) flip(rot, r, x, stride, n);
    }
}

void kvfi_rotate_block(const kvf_part *part, float *x)
{
    const int32_t from = part->head_dim, to = part->dim;
    for (int32_t t = KVF_BLOCK - 1; to > from && t >= 0; t--) {
        memmove(x + t * to, x + t * from, (size_t)from * sizeof *x);
        memset(x + t * to + from, 0, (size_t)(to - from) * sizeof *x);
    }
    kvfi_rotate(&part->rot, KVFI_EXACT(part, hadamard), x, (size_t)to, KVF_BLOCK);
}
