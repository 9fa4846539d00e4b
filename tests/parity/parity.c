/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200112L
#include "parity.h"

#include <stdio.h>

enum { GUARD = 128, JUNK = 0xff };

static const struct {
    const char *name;
    double bound;
} bounds[PX_ENTRIES] = {
#define PX_BOUND(entry, bound, reason) {#entry, bound},
    PX_BOUNDS(PX_BOUND)
#undef PX_BOUND
};

static char place[256];

void px_at(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(place, sizeof place, format, args);
    va_end(args);
}

void px_close(px_entry entry, float got, float want, double magnitude, const char *what, int i, int j)
{
    px_close_by(entry, got, want, magnitude, 0, what, i, j);
}

double px_fixed_point(const kvfi_kind_ops *ops, int n, double largest, double levels)
{
    double top = (double)ops->fixed_point;
    if (!ops->fixed_point) return 0;
    if (n > 256 && top > 8.3e6 / n) top = 8.3e6 / n;
    return fmax(bounds[PX_FIXED_POINT].bound * largest / top, 0x1p-110) * levels;
}

void px_close_by(px_entry entry, float got, float want, double magnitude, double more, const char *what, int i, int j)
{
    const double error = fabs((double)got - (double)want), most = bounds[entry].bound * magnitude + more + 0x1p-120;
    if (error <= most) return;
    fail_msg("%s, %s[%d][%d]: %.9g instead of %.9g, off by %.3g where %.3g is allowed (%s)", place, what, i, j, (double)got,
             (double)want, error, most, bounds[entry].name);
}

void px_same(px_entry entry, float got, float want, const char *what, int i, int j)
{
    if (!memcmp(&got, &want, sizeof got)) return;
    fail_msg("%s, %s[%d][%d]: %a instead of %a (%s must be exact)", place, what, i, j, (double)got, (double)want,
             bounds[entry].name);
}

void px_each_set(void (*test)(const kvfi_kernels *scalar, const kvfi_kernels *fast))
{
    kvfi_kernels scalar, fast;
    char error[256];
    int tested = 0;
    assert_int_equal(kvfi_kernels_select("scalar", &scalar, error, sizeof error), KVF_OK);
    for (int i = 1; i < kvfi_cpu_count(); i++) {
        if (!kvfi_cpu_present(i)) continue;
        if (kvfi_kernels_select(kvfi_cpu_name(i), &fast, error, sizeof error)) fail_msg("%s", error);
        test(&scalar, &fast);
        tested++;
    }
    if (!tested) skip();
}

px_output px_output_make(size_t bytes, size_t shift)
{
    const size_t size = (GUARD + shift + bytes + GUARD + 63) / 64 * 64;
    px_output o = {aligned_alloc(64, size), bytes, shift, NULL};
    if (!o.block) abort();
    memset(o.block, JUNK, size);
    o.data = (float *)(void *)(o.block + GUARD + shift);
    return o;
}

void px_output_free(px_output *o, const char *what)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (o->block[o->shift + i] != JUNK) fail_msg("%s: wrote %zu bytes before %s", place, GUARD - i, what);
        if (o->block[GUARD + o->shift + o->bytes + i] != JUNK) fail_msg("%s: wrote %zu bytes behind %s", place, i + 1, what);
    }
    free(o->block);
    o->block = NULL;
}

float px_junk(void)
{
    float x;
    memset(&x, JUNK, sizeof x);
    return x;
}

void px_untouched(const px_output *o, size_t i, const char *what)
{
    const float junk = px_junk();
    if (memcmp(o->data + i, &junk, sizeof junk)) fail_msg("%s: element %zu of %s was not to be written", place, i, what);
}

px_input px_input_make(size_t bytes, size_t shift)
{
    px_input in = {NULL, NULL};
    void *block = NULL;
    if (posix_memalign(&block, 64, shift + bytes)) abort();
    in.block = block;
    in.data = in.block + shift;
    return in;
}

void px_input_free(px_input *i)
{
    free(i->block);
    i->block = NULL;
}

float px_number(int flavour, int i, uint64_t *state)
{
    const float g = (float)ci_gauss(state);
    switch (flavour) {
    case 1: return i % 7 == 3 ? g * 1000 : g;
    case 2: return i % 3 ? 0 : g;
    case 3: return g * 0x1p-100f;
    case 4: return 1;
    case 5: return i % 2 ? -0.125f : 0.125f;
    default: return g;
    }
}

float px_weight(int flavour, int i, uint64_t *state)
{
    const float u = (float)(ci_uniform(state) * 0.5 + 0.5);
    switch (flavour) {
    case 1: return i % 5 == 2 ? 1 : u * 1e-4f;
    case 2: return i % 2 ? 0 : u;
    case 3: return u * 0x1p-100f;
    case 4: return 1;
    case 5: return i == 17 ? 1 : 0;
    default: return u;
    }
}
