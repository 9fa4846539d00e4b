/* SPDX-License-Identifier: MIT
 * Paths through the bit-shift trellis of 256 states. The state of channel c is the newest 8 bits of the codes up to it, its own code
 * lowest:
 *   state(c) = (state(c - 1) << bits | code(c)) mod 256
 * and goes round: the channel before the first is the last (tail-biting), so that no state has to be stored or agreed on.
 * Every state is a level; the path is the one whose levels are nearest to the vector, of all that go through one state between the
 * last channel and the first, which a pass over the WRAP channels on either side of that place chooses. Exact arithmetic: f32
 * operations in a fixed order, of equals the lower state. */
#ifndef KVFI_VITERBI_H
#define KVFI_VITERBI_H

#include "cpu/kernels.h"

enum {
    KVFI_TRELLIS_WRAP = 32,      /* half as many cost 2 % in mean-square error at 64 channels, a third as many 3 % */
    KVFI_TRELLIS_LEAST_BITS = 32 /* of a vector: its end state alone takes 8 of them, and fewer codes have no freedom left */
};

/* state[d][i]: the path of y[.][i], d < dim, searched by `steps`. bits 1 to 4, dim up to 1024, bits * dim at least
 * KVFI_TRELLIS_LEAST_BITS. Takes 150 KiB of stack. */
void kvfi_trellis_paths(kvfi_paths steps, int32_t bits, const float level[KVFI_TRELLIS_STATES], int32_t dim,
                        const float (*y)[KVFI_TRELLIS_LANES], uint8_t (*state)[KVFI_TRELLIS_LANES]);

#endif
