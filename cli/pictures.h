/* SPDX-License-Identifier: MIT
 * Which pictures saved results give. */
#ifndef KVFOLD_CLI_PICTURES_H
#define KVFOLD_CLI_PICTURES_H

#include "plot.h"

struct json_t;

enum { PICTURES_MOST = 200 };

typedef struct pictures {
    plot *plot;   /* [PICTURES_MOST] */
    int n, first; /* first: of the result that is being read */
} pictures;

/* From a list of results as result_read gives them. What belongs into one picture of one result is put together. */
void pictures_make(pictures *p, const struct json_t *results);
void pictures_free(pictures *p);

/* Marks the points of no other point is better in both: fewer bits, less loss. keep[n]. */
void pictures_front(const plot_point *point, int n, bool *keep);

#endif
