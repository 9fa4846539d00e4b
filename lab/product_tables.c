/* SPDX-License-Identifier: MIT
 * Product codes, 4 channels x 8 bits, head size 128, 4 queries: scores by a table of partial products against scores from centroids, and
 * values by weights summed for each centroid against centroids added token by token. AVX2, one thread; nanoseconds a token of one KV head.
 *
 *   cc -O3 -mavx2 -mfma lab/product_tables.c -lm -o product_tables && ./product_tables
 *
 * gcc 12, one of two busy cores of a Zen 3, least of 15 (filling the table and multiplying the sums included):
 *
 *   tokens   scores by table   by centroids   values by weights   by tokens
 *       64               106             29                 613          26
 *      256                38             21                 177          18
 *     1024                22             19                  65          16
 *     4096              17.5           18.9                  37          15.5
 *    16384              16.5           19.0                  31          15.1
 *
 * The library walks blocks of 64 tokens and reads centroids for both: a table wins 7 to 13 % from some 3,000 tokens on, loses below, and
 * wants 128 KiB for each group of queries; weights never win, as adding to a sum in L2 costs more than the product that it saves. */
#define _POSIX_C_SOURCE 200809L
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DIM = 128, SUBS = DIM / 4, ENTRIES = 256, QUERIES = 4, ROUNDS = 15 };

static float book[ENTRIES][4], query[QUERIES][DIM];
static float table[SUBS][ENTRIES][QUERIES]; /* 128 KiB */
static float bins[SUBS][ENTRIES][QUERIES];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- scores: index[token][sub], out[token][query] ---- */

static void fill_table(void)
{
    for (int m = 0; m < SUBS; m++)
        for (int e = 0; e < ENTRIES; e++)
            for (int v = 0; v < QUERIES; v++) {
                float sum = 0;
                for (int j = 0; j < 4; j++) sum += query[v][4 * m + j] * book[e][j];
                table[m][e][v] = sum;
            }
}

static void score_by_table(const uint8_t *index, int n, float *out)
{
    for (int t = 0; t < n; t++, index += SUBS) {
        __m128 a = _mm_setzero_ps(), b = a;
        for (int m = 0; m < SUBS; m += 2) {
            a = _mm_add_ps(a, _mm_loadu_ps(table[m][index[m]]));
            b = _mm_add_ps(b, _mm_loadu_ps(table[m + 1][index[m + 1]]));
        }
        _mm_storeu_ps(out + t * QUERIES, _mm_add_ps(a, b));
    }
}

static __m256 pair_of(const uint8_t *index)
{
    return _mm256_set_m128(_mm_loadu_ps(book[index[1]]), _mm_loadu_ps(book[index[0]]));
}

static void score_by_centroids(const uint8_t *index, int n, float *out)
{
    for (int t = 0; t < n; t++, index += SUBS) {
        __m256 sum[QUERIES] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int m = 0; m < SUBS; m += 2) {
            const __m256 x = pair_of(index + m);
            for (int v = 0; v < QUERIES; v++) sum[v] = _mm256_fmadd_ps(x, _mm256_loadu_ps(query[v] + 4 * m), sum[v]);
        }
        const __m256 low = _mm256_hadd_ps(sum[0], sum[1]), high = _mm256_hadd_ps(sum[2], sum[3]), all = _mm256_hadd_ps(low, high);
        _mm_storeu_ps(out + t * QUERIES, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }
}

/* ---- values: w[token][query], acc[query][DIM] ---- */

static void mix_by_bins(const uint8_t *index, int n, const float *w)
{
    for (int t = 0; t < n; t++, index += SUBS) {
        const __m128 weight = _mm_loadu_ps(w + t * QUERIES);
        for (int m = 0; m < SUBS; m++) _mm_storeu_ps(bins[m][index[m]], _mm_add_ps(_mm_loadu_ps(bins[m][index[m]]), weight));
    }
}

static void empty_bins(float *acc)
{
    for (int m = 0; m < SUBS; m++)
        for (int v = 0; v < QUERIES; v++) {
            __m128 sum = _mm_setzero_ps();
            for (int e = 0; e < ENTRIES; e++) sum = _mm_fmadd_ps(_mm_set1_ps(bins[m][e][v]), _mm_loadu_ps(book[e]), sum);
            _mm_storeu_ps(acc + v * DIM + 4 * m, sum);
        }
    memset(bins, 0, sizeof bins);
}

static void mix_by_centroids(const uint8_t *index, int n, const float *w, float *acc)
{
    for (int m = 0; m < SUBS; m += 4) { /* 16 channels of 4 queries stay in registers */
        __m256 a[QUERIES], b[QUERIES];
        for (int v = 0; v < QUERIES; v++) a[v] = b[v] = _mm256_setzero_ps();
        for (int t = 0; t < n; t++) {
            const __m256 x = pair_of(index + t * SUBS + m), y = pair_of(index + t * SUBS + m + 2);
            for (int v = 0; v < QUERIES; v++) {
                const __m256 weight = _mm256_broadcast_ss(w + t * QUERIES + v);
                a[v] = _mm256_fmadd_ps(weight, x, a[v]), b[v] = _mm256_fmadd_ps(weight, y, b[v]);
            }
        }
        for (int v = 0; v < QUERIES; v++)
            _mm256_storeu_ps(acc + v * DIM + 4 * m, a[v]), _mm256_storeu_ps(acc + v * DIM + 4 * m + 8, b[v]);
    }
}

/* ---- */

static double worst(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static void measure(int n)
{
    uint8_t *index = malloc((size_t)n * SUBS);
    float *w = malloc((size_t)n * QUERIES * sizeof *w), *one = malloc((size_t)n * QUERIES * sizeof *one),
          *two = malloc((size_t)n * QUERIES * sizeof *two), acc[2][QUERIES * DIM];
    double best[6] = {1e18, 1e18, 1e18, 1e18, 1e18, 1e18}, at[7];
    for (int i = 0; i < n * SUBS; i++) index[i] = (uint8_t)rand();
    for (int i = 0; i < n * QUERIES; i++) w[i] = (float)rand() / (float)RAND_MAX / (float)n;
    for (int r = 0; r < ROUNDS; r++) {
        at[0] = now(), fill_table();
        at[1] = now(), score_by_table(index, n, one);
        at[2] = now(), score_by_centroids(index, n, two);
        at[3] = now(), mix_by_bins(index, n, w);
        at[4] = now(), empty_bins(acc[0]);
        at[5] = now(), mix_by_centroids(index, n, w, acc[1]);
        at[6] = now();
        for (int i = 0; i < 6; i++) best[i] = least(best[i], (at[i + 1] - at[i]) / n);
    }
    printf("%6d  %8.1f (%5.1f of it the table) %10.1f  %10.1f (%5.1f of it the end) %8.1f    %.0e %.0e\n", n, best[0] + best[1],
           best[0], best[2], best[3] + best[4], best[4], best[5], worst(one, two, n * QUERIES),
           worst(acc[0], acc[1], QUERIES * DIM));
    free(index), free(w), free(one), free(two);
}

int main(void)
{
    static const int tokens[] = {64, 256, 1024, 4096, 16384};
    for (int i = 0; i < ENTRIES * 4; i++) book[i / 4][i % 4] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < QUERIES * DIM; i++) query[i / DIM][i % DIM] = (float)rand() / (float)RAND_MAX - 0.5f;
    printf("tokens  scores: by table                by centroids  values: by weights              by tokens    differences\n");
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) measure(tokens[i]);
    return 0;
}
