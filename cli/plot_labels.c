/* SPDX-License-Identifier: MIT
 * Greedy: labels one after the other, each at the first of its places that is free. */
#include "plot_labels.h"

#include <math.h>

typedef struct box {
    double x, y, width, height; /* x, y: the middle */
} box;

enum { DIRECTIONS = 8, RINGS = 9 };
static const double POINT = 10, GAP = 3, RING = 14; /* side of a point, space beside it, from ring to ring */

static double common(double a, double a_wide, double b, double b_wide)
{
    return fmax(0, fmin(a + a_wide / 2, b + b_wide / 2) - fmax(a - a_wide / 2, b - b_wide / 2));
}

static double overlap(box a, box b)
{
    return common(a.x, a.width, b.x, b.width) * common(a.y, a.height, b.y, b.height);
}

/* First those that a falling staircase through the point leaves free. */
static box candidate(const plot_label *l, int ring, int direction)
{
    static const double way[DIRECTIONS][2] = {{1, 1}, {-1, -1}, {-1, 0}, {1, 0}, {0, -1}, {1, -1}, {-1, 1}, {0, 1}};
    double away = POINT / 2 + GAP + ring * RING;
    return (box){l->x + way[direction][0] * (away + l->width / 2), l->y + way[direction][1] * (away + l->height / 2), l->width,
                 l->height};
}

/* Area that label i would share with points and with the labels before it, and that it would have outside. */
static double cost(const plot_label *label, int n, int i, box b, box area)
{
    double covered = b.width * b.height - overlap(b, area);
    for (int k = 0; k < n; k++) covered += overlap(b, (box){label[k].x, label[k].y, POINT, POINT});
    for (int k = 0; k < i; k++) covered += overlap(b, (box){label[k].at_x, label[k].at_y, label[k].width, label[k].height});
    return covered;
}

static void place(plot_label *label, int n, int i, box area)
{
    plot_label *l = &label[i];
    double least = INFINITY;
    for (int ring = 0; ring < RINGS && least > 0; ring++)
        for (int d = 0; d < DIRECTIONS && least > 0; d++) {
            box b = candidate(l, ring, d);
            double c = cost(label, n, i, b, area);
            if (c >= least) continue;
            least = c;
            l->at_x = b.x;
            l->at_y = b.y;
            l->line = ring > 0;
        }
}

void plot_place_labels(plot_label *label, int n, double width, double height)
{
    const box area = {width / 2, height / 2, width, height};
    for (int i = 0; i < n; i++) place(label, n, i, area);
}
