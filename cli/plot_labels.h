/* SPDX-License-Identifier: MIT
 * Where the names of points go, so that none lies on another. */
#ifndef KVFOLD_CLI_PLOT_LABELS_H
#define KVFOLD_CLI_PLOT_LABELS_H

#include <stdbool.h>

/* All in one unit, as pixels; x to the right, y upwards. */
typedef struct plot_label {
    double x, y;          /* the point */
    double width, height; /* of the text */
    double at_x, at_y;    /* out: middle of the text */
    bool line;            /* out: so far away that a line should join them */
} plot_label;

/* Finds a place for each label within an area from 0, 0 to width, height: beside its point where there is room, else farther away;
 * where there is no room at all, where it covers least. */
void plot_place_labels(plot_label *label, int n, double width, double height);

#endif
