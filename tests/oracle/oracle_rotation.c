/* SPDX-License-Identifier: MIT */
#include "oracle_rotation.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- matrices ---- */

static int sylvester(int i, int j)
{
    int sign = 1;
    for (int both = i & j; both; both &= both - 1) sign = -sign;
    return sign;
}

/* 0, or whether a is a square modulo the prime q: by Euler's criterion. */
static int legendre(int a, int q)
{
    long power = 1;
    a = ((a % q) + q) % q;
    for (int i = 0; i < (q - 1) / 2; i++) power = power * a % q;
    return power == q - 1 ? -1 : (int)power;
}

/* The conference matrix C of Paley: a border of ones around the characters of differences; skew when q = 3 (mod 4). */
static int conference(int q, int i, int j)
{
    if (i == j) return 0;
    if (i == 0) return 1;
    if (j == 0) return q % 4 == 3 ? -1 : 1;
    return legendre(i - j, q);
}

static int paley(int m, int i, int j)
{
    if (m == 28) { /* C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1] */
        const int plain = i % 2 && j % 2 ? -1 : 1, diagonal = i % 2 || j % 2 ? -1 : 1;
        return conference(13, i / 2, j / 2) * plain + (i / 2 == j / 2) * diagonal;
    }
    return conference(m - 1, i, j) + (i == j);
}

static int odd_part(int n)
{
    int two = n & -n, odd = n / two;
    return odd == 1 ? 1 : 4 * odd; /* 3, 5, 7 */
}

int oracle_hadamard(int n, int i, int j)
{
    int m = odd_part(n), rest = n / m;
    return (m == 1 ? 1 : paley(m, i / rest, j / rest)) * sylvester(i % rest, j % rest);
}

/* The smallest size that has a matrix: 1, 3, 5 or 7 times a power of two, of at least 4 unless it is 1. */
static int size_for(int dim)
{
    for (int n = dim;; n++) {
        int two = n & -n, odd = n / two;
        if (odd == 1 || ((odd == 3 || odd == 5 || odd == 7) && two >= 4)) return n;
    }
}

/* ---- signs: SplitMix64 by counter ---- */

static uint64_t split(uint64_t z)
{
    z ^= z >> 30, z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27, z *= 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double sign_of(unsigned seed, int round, int channel)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t start = split(split(seed + golden) + (uint64_t)round * golden);
    uint64_t word = split(start + (uint64_t)(channel / 64 + 1) * golden);
    return word >> (channel % 64) & 1 ? -1 : 1;
}

/* ---- transforms ---- */

int oracle_read_rotation(const char *options, const char *fallback, int dim, oracle_rotation *r)
{
    const char *rot = strstr(options, "rot="), *seed = strstr(options, "seed=");
    *r = (oracle_rotation){.dim = dim, .size = dim, .seed = seed ? (unsigned)atoi(seed + 5) : 0};
    snprintf(r->name, sizeof r->name, "%.*s", (int)strcspn(rot ? rot + 4 : fallback, ","), rot ? rot + 4 : fallback);
    if (!strcmp(r->name, "none")) return 1;
    if (!strcmp(r->name, "h")) return dim % 2 == 0;
    r->size = size_for(dim);
    return !strcmp(r->name, "h1") || !strcmp(r->name, "h2");
}

static int rounds(const oracle_rotation *r)
{
    return !strcmp(r->name, "h1") ? 1 : !strcmp(r->name, "h2") ? 2 : 0;
}

/* The matrix of the size last asked for, and its transpose. */
static const float *matrix(int n, int transposed)
{
    static float entries[2][1024 * 1024];
    static int made;
    for (int i = 0; made != n && i < n * n; i++) {
        entries[0][i] = (float)oracle_hadamard(n, i / n, i % n);
        entries[1][i % n * n + i / n] = entries[0][i];
    }
    made = n;
    return entries[transposed];
}

/* Column by column, so that the inner loop has no sum across it. */
static void multiply(int n, int block, int transposed, double *x)
{
    const float *column = matrix(block, !transposed);
    double y[1024] = {0};
    for (int first = 0; first < n; first += block)
        for (int j = 0; j < block; j++)
            for (int i = 0; i < block; i++) y[first + i] += x[first + j] * (double)column[j * block + i];
    for (int i = 0; i < n; i++) x[i] = y[i] / sqrt(block);
}

void oracle_rotate(const oracle_rotation *r, const double *x, double *y)
{
    for (int c = 0; c < r->size; c++) y[c] = c < r->dim ? x[c] : 0;
    if (!strcmp(r->name, "h")) multiply(r->size, r->size & -r->size, 0, y);
    for (int round = 0; round < rounds(r); round++) {
        for (int c = 0; c < r->size; c++) y[c] *= sign_of(r->seed, round, c);
        multiply(r->size, r->size, 0, y);
    }
}

void oracle_rotate_back(const oracle_rotation *r, const double *y, double *x)
{
    double z[1024];
    memcpy(z, y, (size_t)r->size * sizeof *z);
    if (!strcmp(r->name, "h")) multiply(r->size, r->size & -r->size, 1, z);
    for (int round = rounds(r) - 1; round >= 0; round--) {
        multiply(r->size, r->size, 1, z);
        for (int c = 0; c < r->size; c++) z[c] *= sign_of(r->seed, round, c);
    }
    memcpy(x, z, (size_t)r->dim * sizeof *x);
}
