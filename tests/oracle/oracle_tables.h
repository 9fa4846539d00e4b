/* SPDX-License-Identifier: MIT
 * Tables of the codecs that look codes up: fills entry and unit of a plan whose family, bits, stage and dim are set. */
#ifndef TESTS_ORACLE_TABLES_H
#define TESTS_ORACLE_TABLES_H

#include "oracle_codec.h"

/* A result that the format says is rounded to f32. */
static inline double once(double x)
{
    return (double)(float)x;
}

void oracle_turbo_table(oracle_plan *p);
void oracle_rvq_table(oracle_plan *p, int earlier); /* earlier: tuned=paper */
void oracle_tcq_table(oracle_plan *p);

#endif
