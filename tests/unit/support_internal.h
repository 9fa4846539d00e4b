/* SPDX-License-Identifier: MIT
 * Shared by the files of the test support only. */
#ifndef TESTS_SUPPORT_INTERNAL_H
#define TESTS_SUPPORT_INTERNAL_H

#include "support.h"

typedef enum ts_what { TS_Q, TS_K, TS_V } ts_what;

/* One head of one row, not yet rounded. Depends on its arguments and the model's seed only. */
void ts_content(const ts_model *m, uint64_t tag, int layer, ts_what what, int32_t pos, int head, int dim, float *out);

#endif
