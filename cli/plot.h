/* SPDX-License-Identifier: MIT
 * Pictures, drawn by gnuplot: what is in one, and the script that draws it. Colours are those of Okabe and Ito, which colour-blind
 * readers tell apart; dashes and symbols differ as well.
 */
#ifndef KVFOLD_CLI_PLOT_H
#define KVFOLD_CLI_PLOT_H

#include "cli.h"

enum { PLOT_SERIES_MOST = 40, PLOT_NAME = 96 };

typedef struct plot_point {
    double x, y, low, high; /* low == high: no spread */
    char label[PLOT_NAME];
    bool hollow; /* of PLOT_POINTS: drawn as an outline, and no part of a front */
} plot_point;

typedef enum plot_kind {
    PLOT_LINES,  /* a line for each series, with a band from low to high */
    PLOT_POINTS, /* each series is one kind of points; a point has a label, and a bar from low to high */
    PLOT_FRONT,  /* steps through all points, which are circled; no label: drawn last */
    PLOT_HEAT,   /* x, y and the value in `low`, 0 to 1, as colour and number */
} plot_kind;

typedef struct plot_series {
    char name[PLOT_NAME];
    plot_kind kind;
    plot_point *point;
    int n, room;
} plot_series;

typedef struct plot {
    char file[64]; /* without folder and ending */
    char title[200], x[120], y[120];
    bool log_x, log_y;
    plot_series series[PLOT_SERIES_MOST];
    int n_series;
    bool drawn; /* by plot_draw */
} plot;

/* The series of that name, made when it is new; NULL when there is no room. */
plot_series *plot_series_named(plot *p, const char *name, plot_kind kind);
void plot_add(plot_series *s, double x, double y, double low, double high, const char *label);
void plot_hollow(plot_series *s); /* its last point */
void plot_free(plot *p);

/* Takes out what has no place: points that are not finite, or not above 0 on a logarithmic axis, and series without points. An end
 * of a bar that has none becomes its point. */
void plot_clean(plot *p);

/* Appends a script that draws p into FILE, in a form that gnuplot calls `terminal`. */
void plot_script(const plot *p, const char *terminal, const char *file, cli_text *script);

/* Draws p as FOLDER/file.svg and FOLDER/file.png. After a sentence when it cannot. */
typedef enum plot_end { PLOT_DRAWN, PLOT_FAILED, PLOT_NO_PROGRAM } plot_end;
plot_end plot_draw(plot *p, const char *folder);

#endif
