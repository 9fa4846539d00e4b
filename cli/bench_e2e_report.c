/* SPDX-License-Identifier: MIT
 * What may be said about texts and memory of two arms. */
#include "bench_e2e.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

bool e2e_text_verdict(const char *base, const char *x, bool exact, char *text)
{
    size_t n = 0;
    while (base[n] && base[n] == x[n]) n++;
    bool same = base[n] == x[n];
    if (same)
        snprintf(text, E2E_VERDICT, "identical (%zu bytes)", n);
    else
        snprintf(text, E2E_VERDICT, "%s after %zu of %zu bytes", exact ? "DIFFERS" : "differs", n, strlen(base));
    return same;
}

/* Two exact caches give logits that differ in their rounding, which quantised weights amplify: a mean KL divergence of 0.005 nats, as
 * libllama's own batch sizes show there, is logits off by 0.1, and the difference of two by 0.14. Above three and a half times that,
 * no rounding turns one token into another. */
static const double NEAR_TIE = 0.5;

int e2e_first_difference(const json_t *base, const json_t *x, double *gap, bool *near)
{
    const json_t *a = json_object_get(base, "tokens"), *b = json_object_get(x, "tokens");
    size_t n = json_array_size(a) < json_array_size(b) ? json_array_size(a) : json_array_size(b), i = 0;
    while (i < n && json_integer_value(json_array_get(a, i)) == json_integer_value(json_array_get(b, i))) i++;
    *gap = json_number_value(json_array_get(json_object_get(base, "gaps"), i));
    *near = i < n && *gap <= NEAR_TIE;
    return i < n || json_array_size(a) != json_array_size(b) ? (int)i : -1;
}

/* Half a per cent of the baseline is worth no word. */
void e2e_memory_verdict(const double *base, int n_base, const double *x, int n, char *text, measure_bytes *m)
{
    measure_memory(base, n_base, x, n, 0.005 * measure_median(base, n_base), m);
    const double mib = 1048576;
    if (!m->enough)
        snprintf(text, E2E_VERDICT, "%+.1f MiB, no claim from %d process%s", -m->saved / mib, n, n == 1 ? "" : "es");
    else if (!m->distinguishable)
        snprintf(text, E2E_VERDICT, "not distinguishable (%+.1f to %+.1f MiB)", -m->high / mib, -m->low / mib);
    else
        snprintf(text, E2E_VERDICT, "%+.1f MiB (%+.1f to %+.1f)", -m->saved / mib, -m->high / mib, -m->low / mib);
}
