/* SPDX-License-Identifier: MIT
 * What may be said about texts and memory of two arms. */
#include "bench_e2e.h"

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
