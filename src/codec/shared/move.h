/* SPDX-License-Identifier: MIT
 * Moving one token from record to record as it is: codes, scales and minima bit for bit. */
#ifndef KVFI_MOVE_H
#define KVFI_MOVE_H

#include "codec/codec.h"

/* Can single tokens move? Not where a number of the record belongs to several of them: scales per channel, the mean of the block,
 * the record's choice of outliers. Kinds that are not known here answer no. */
int kvfi_part_moves(const kvf_part *part);

/* Token u of the record `to` becomes what token t of `from` is; the other tokens stay. Only if kvfi_part_moves. */
void kvfi_part_move(const kvf_part *part, const void *from, int32_t t, void *to, int32_t u);

#endif
