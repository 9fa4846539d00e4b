/* SPDX-License-Identifier: MIT
 * Checks of rows that come from outside. */
#ifndef KVFI_CHECK_H
#define KVFI_CHECK_H

#include "cache/cache.h"

/* A view must exist and have a known type. */
int kvfi_check_view(kvf_cache *c, int32_t layer, const char *what, const kvf_view *v);

/* Every element of the open batch's rows must be finite; the sentence names layer, head, position and channel. Counts f32
 * magnitudes that f16 cannot hold into *saturated (NULL: not wanted). */
int kvfi_check_rows(kvf_cache *c, int32_t layer, const char *what, const kvf_view *v, const int32_t *cells, int32_t heads,
                    int32_t dim, int64_t *saturated);

#endif
