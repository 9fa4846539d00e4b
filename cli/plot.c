/* SPDX-License-Identifier: MIT */
#include "plot.h"
#include "child.h"
#include "plot_labels.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is in a picture ------------------------------------------------------------------------------------------------- */

plot_series *plot_series_named(plot *p, const char *name, plot_kind kind)
{
    for (int i = 0; i < p->n_series; i++)
        if (strcmp(p->series[i].name, name) == 0 && p->series[i].kind == kind) return &p->series[i];
    if (p->n_series == PLOT_SERIES_MOST) return NULL;
    plot_series *s = &p->series[p->n_series++];
    *s = (plot_series){.kind = kind};
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

void plot_add(plot_series *s, double x, double y, double low, double high, const char *label)
{
    if (!s) return;
    if (s->n == s->room) {
        int room = s->room ? 2 * s->room : 16;
        plot_point *point = cli_alloc((size_t)room, sizeof *point);
        if (s->n) memcpy(point, s->point, (size_t)s->n * sizeof *point);
        free(s->point);
        s->point = point;
        s->room = room;
    }
    plot_point *p = &s->point[s->n++];
    *p = (plot_point){.x = x, .y = y, .low = low, .high = high};
    snprintf(p->label, sizeof p->label, "%s", label ? label : "");
}

void plot_hollow(plot_series *s)
{
    if (s && s->n > 0) s->point[s->n - 1].hollow = true;
}

void plot_free(plot *p)
{
    for (int i = 0; i < p->n_series; i++) free(p->series[i].point);
    p->n_series = 0;
}

static bool has_place(double value, bool logarithmic)
{
    return isfinite(value) && (!logarithmic || value > 0);
}

static void clean_series(const plot *p, plot_series *s)
{
    int n = 0;
    for (int k = 0; k < s->n; k++) {
        plot_point x = s->point[k];
        if (!has_place(x.x, p->log_x) || !has_place(x.y, p->log_y)) continue;
        if (s->kind != PLOT_HEAT && !has_place(x.low, p->log_y)) x.low = x.y;
        if (s->kind != PLOT_HEAT && !has_place(x.high, p->log_y)) x.high = x.y;
        if (has_place(x.low, false)) s->point[n++] = x;
    }
    s->n = n;
}

void plot_clean(plot *p)
{
    int n = 0;
    for (int i = 0; i < p->n_series; i++) {
        clean_series(p, &p->series[i]);
        if (p->series[i].n)
            p->series[n++] = p->series[i];
        else
            free(p->series[i].point);
    }
    p->n_series = n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_x(const void *a, const void *b)
{
    double x = ((const plot_point *)a)->x, y = ((const plot_point *)b)->x;
    return (x > y) - (x < y);
}

/* ---- script --------------------------------------------------------------------------------------------------------------- */

static const char *const COLOUR[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"};
enum { COLOURS = sizeof COLOUR / sizeof *COLOUR };
static const int SYMBOL[] = {7, 5, 9, 11, 13, 6, 4, 8, 10, 12};
enum { SYMBOLS = sizeof SYMBOL / sizeof *SYMBOL };
static const int FILLED[] = {7, 5, 9, 11, 13}; /* one less is its outline */
enum { FILLED_MOST = sizeof FILLED / sizeof *FILLED };

/* In single quotes, where gnuplot reads nothing but a doubled quote. */
static void add_quoted(cli_text *to, const char *text)
{
    cli_text_add(to, "'", 1);
    for (; *text; text++)
        if (*text == '\'')
            cli_text_add(to, "''", 2);
        else if ((unsigned char)*text >= ' ')
            cli_text_add(to, text, 1);
    cli_text_add(to, "'", 1);
}

/* In double quotes, as a field of a data block. */
static void add_field(cli_text *to, const char *text)
{
    cli_text_add(to, "\"", 1);
    for (; *text; text++)
        if (*text != '"' && *text != '\\' && (unsigned char)*text >= ' ') cli_text_add(to, text, 1);
    cli_text_add(to, "\"", 1);
}

static void add_block(cli_text *to, const char *name, const plot_point *point, int n)
{
    cli_text_format(to, "%s << END\n", name);
    for (int k = 0; k < n; k++) {
        const plot_point *p = &point[k];
        cli_text_format(to, "%.10g %.10g %.10g %.10g ", p->x, p->y, p->low, p->high);
        add_field(to, p->label);
        cli_text_format(to, " %d\n", p->hollow);
    }
    cli_text_format(to, "END\n");
}

static void add_data(cli_text *to, const plot_series *s, int i)
{
    char name[16];
    snprintf(name, sizeof name, "$s%d", i);
    qsort(s->point, (size_t)s->n, sizeof *s->point, by_x);
    add_block(to, name, s->point, s->n);
}

typedef struct range {
    double min, max;
} range;

/* What the axes show. */
typedef struct ranges {
    range x, y;
} ranges;

static void widen(range *r, double value, bool first)
{
    if (first || value < r->min) r->min = value;
    if (first || value > r->max) r->max = value;
}

/* Some room on both sides; a linear axis of amounts begins at 0. */
static range with_room(range r, bool logarithmic, bool from_zero, double room)
{
    double wide = r.max - r.min > 0 ? r.max - r.min : 1;
    if (!logarithmic) return (range){from_zero ? 0 : r.min - room * wide, r.max + room * wide};
    double factor = pow(r.max / r.min, room) * 1.1;
    return (range){r.min / factor, r.max * factor};
}

static plot_kind kind_of(const plot *p)
{
    return p->n_series ? p->series[0].kind : PLOT_LINES;
}

static ranges find_ranges(const plot *p)
{
    static const double room_x[] = {0.05, 0.06, 0.05, 0.2}, room_y[] = {0.08, 0.06, 0.08, 0.2}; /* by plot_kind */
    ranges r = {{0, 0}, {0, 0}};
    bool first = true;
    for (int i = 0; i < p->n_series; i++)
        for (int k = 0; k < p->series[i].n; k++, first = false) {
            const plot_series *s = &p->series[i];
            bool spread = s->kind == PLOT_LINES;
            widen(&r.x, s->point[k].x, first);
            widen(&r.y, spread ? s->point[k].low : s->point[k].y, first);
            widen(&r.y, spread ? s->point[k].high : s->point[k].y, false);
        }
    r.x = with_room(r.x, p->log_x, false, room_x[kind_of(p)]);
    r.y = with_room(r.y, p->log_y, kind_of(p) != PLOT_HEAT && r.y.min >= 0, room_y[kind_of(p)]);
    return r;
}

/* Where a value lies on its axis, 0 to 1. */
static double place(double value, range r, bool logarithmic)
{
    if (r.max <= r.min) return 0.5;
    return logarithmic ? log(value / r.min) / log(r.max / r.min) : (value - r.min) / (r.max - r.min);
}

/* ---- names of points ------------------------------------------------------------------------------------------------------ */

/* Pixels of a picture with named points, and the part of it between the axes. The key lies below. */
enum { NAMED_WIDTH = 1200, NAMED_HEIGHT = 800, LETTER = 7, LETTER_HEIGHT = 13 };
static const double LEFT = 0.08, RIGHT = 0.98, BOTTOM = 0.15, TOP = 0.94;

static void add_label(cli_text *to, const plot_label *l, const char *text, double width, double height)
{
    if (l->line)
        cli_text_format(to, "set arrow from graph %.5f,%.5f to graph %.5f,%.5f nohead linecolor rgb '#999999' linewidth 0.7\n",
                        l->x / width, l->y / height, l->at_x / width, l->at_y / height);
    cli_text_format(to, "set label ");
    add_quoted(to, text);
    cli_text_format(to, " at graph %.5f,%.5f center front font ',10'\n", l->at_x / width, l->at_y / height);
}

static void add_labels(cli_text *to, const plot *p, const ranges *r)
{
    const double width = NAMED_WIDTH * (RIGHT - LEFT), height = NAMED_HEIGHT * (TOP - BOTTOM);
    const char **text = cli_alloc(PLOT_SERIES_MOST * 64, sizeof *text);
    plot_label *label = cli_alloc(PLOT_SERIES_MOST * 64, sizeof *label);
    int n = 0;
    for (int i = 0; i < p->n_series; i++)
        for (int k = 0; p->series[i].kind == PLOT_POINTS && k < p->series[i].n && n < PLOT_SERIES_MOST * 64; k++) {
            const plot_point *x = &p->series[i].point[k];
            text[n] = x->label;
            label[n++] = (plot_label){.x = width * place(x->x, r->x, p->log_x),
                                      .y = height * place(x->y, r->y, p->log_y),
                                      .width = LETTER * (double)strlen(x->label),
                                      .height = LETTER_HEIGHT};
        }
    plot_place_labels(label, n, width, height);
    for (int i = 0; i < n; i++) add_label(to, &label[i], text[i], width, height);
    free(label);
    free(text);
}

/* ---- series --------------------------------------------------------------------------------------------------------------- */

static void add_title(cli_text *to, const char *name)
{
    cli_text_format(to, " title ");
    add_quoted(to, name);
}

static void add_lines(cli_text *to, const plot_series *s, int i)
{
    const char *colour = COLOUR[i % COLOURS];
    if (s->n > 1)
        cli_text_format(
            to, "$s%d using 1:3:4 with filledcurves fillcolor rgb '%s' fillstyle transparent solid 0.15 noborder notitle, ", i,
            colour);
    else
        cli_text_format(to, "$s%d using 1:2:3:4 with yerrorbars linecolor rgb '%s' pointtype 0 notitle, ", i, colour);
    cli_text_format(to, "$s%d using 1:2 with linespoints linecolor rgb '%s' linewidth 2 dashtype %d pointtype %d pointsize 0.9",
                    i, colour, 1 + i / COLOURS, SYMBOL[i % SYMBOLS]);
    add_title(to, s->name);
}

static void add_points(cli_text *to, const plot_series *s, int i)
{
    const char *colour = COLOUR[i % COLOURS];
    int symbol = FILLED[i % FILLED_MOST];
    cli_text_format(
        to, "$s%d using 1:($6 > 0 ? $2 : NaN):3:4 with yerrorbars linecolor rgb '%s' pointtype %d pointsize 1.2 notitle, ", i,
        colour, symbol - 1);
    cli_text_format(to, "$s%d using 1:($6 > 0 ? NaN : $2):3:4 with yerrorbars linecolor rgb '%s' pointtype %d pointsize 1.2", i,
                    colour, symbol);
    add_title(to, s->name);
}

static void add_front(cli_text *to, const plot_series *s, int i)
{
    cli_text_format(to,
                    "$s%d using 1:2 with steps linecolor rgb '#777777' linewidth 1.5 dashtype 2 notitle, "
                    "$s%d using 1:2 with points linecolor rgb '#777777' pointtype 6 pointsize 2.2",
                    i, i);
    add_title(to, s->name);
}

static void add_heat(cli_text *to, const plot_series *s, int i)
{
    (void)s;
    cli_text_format(
        to,
        "$s%d using 1:2:3 with points pointtype 5 pointsize 8 linecolor palette notitle, "
        "$s%d using 1:2:(sprintf('%%.2f', $3)):($3 < 0.5 ? 0xffffff : 0x000000) with labels textcolor rgb variable notitle",
        i, i);
}

enum { TICS_MOST = 64 };

/* Labels where there is data, as powers of two may all lie beside it. Those that would touch the one before are left out. */
static void add_tics(cli_text *to, const plot *p, const ranges *r)
{
    double x[TICS_MOST], last = -1;
    int n = 0;
    for (int i = 0; i < p->n_series; i++)
        for (int k = 0; k < p->series[i].n && n < TICS_MOST; k++) {
            double value = p->series[i].point[k].x;
            int at = 0;
            while (at < n && x[at] != value) at++;
            if (at == n) x[n++] = value;
        }
    qsort(x, (size_t)n, sizeof *x, by_value);
    cli_text_format(to, "set xtics (");
    for (int i = 0; i < n; i++) {
        double at = place(x[i], r->x, p->log_x);
        if (last >= 0 && at - last < 0.06) continue;
        cli_text_format(to, "%s'%.10g' %.10g", last >= 0 ? ", " : "", x[i], x[i]);
        last = at;
    }
    cli_text_format(to, ")\n");
}

static void add_axes(cli_text *to, const plot *p, const ranges *r)
{
    bool heat = kind_of(p) == PLOT_HEAT;
    cli_text_format(to, "set termoption noenhanced\nset title ");
    add_quoted(to, p->title);
    cli_text_format(to, "\nset xlabel ");
    add_quoted(to, p->x);
    cli_text_format(to, "\nset ylabel ");
    add_quoted(to, p->y);
    cli_text_format(to, "\nset border 3\nset tics nomirror\n");
    if (kind_of(p) == PLOT_POINTS)
        cli_text_format(to,
                        "set key outside bottom center horizontal Left reverse noenhanced\nset lmargin at screen %g\n"
                        "set rmargin at screen %g\nset bmargin at screen %g\nset tmargin at screen %g\n"
                        "set xtics (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)\n",
                        LEFT, RIGHT, BOTTOM, TOP);
    else
        cli_text_format(to, "set key outside right top vertical Left reverse noenhanced\n");
    if (p->log_x) cli_text_format(to, "set logscale x 2\n");
    if (kind_of(p) != PLOT_POINTS && p->log_x) add_tics(to, p, r);
    if (p->log_y) cli_text_format(to, "set logscale y\nset format y '%%g'\n");
    if (heat) /* from dark to light, in one direction of brightness */
        cli_text_format(to,
                        "set palette defined (0 '#440154', 0.33 '#31688e', 0.66 '#35b779', 1 '#fde725')\nset cbrange [0:1]\n");
    else
        cli_text_format(to, "set grid linecolor rgb '#cccccc'\n");
    cli_text_format(to, "set xrange [%.10g:%.10g]\nset yrange [%.10g:%.10g]\n", r->x.min, r->x.max, r->y.min, r->y.max);
}

void plot_script(const plot *p, const char *terminal, const char *file, cli_text *to)
{
    static void (*const add[])(cli_text *, const plot_series *, int) = {add_lines, add_points, add_front, add_heat};
    cli_text_format(to, "set terminal %s\nset output ", terminal);
    add_quoted(to, file);
    cli_text_add(to, "\n", 1);
    const ranges r = find_ranges(p);
    add_axes(to, p, &r);
    if (kind_of(p) == PLOT_POINTS) add_labels(to, p, &r);
    for (int i = 0; i < p->n_series; i++) add_data(to, &p->series[i], i);
    cli_text_format(to, "plot ");
    for (int i = 0; i < p->n_series; i++) {
        if (i) cli_text_format(to, ", ");
        add[p->series[i].kind](to, &p->series[i], i);
    }
    cli_text_format(to, "\nunset output\nreset\nunset label\nunset arrow\n");
}

/* ---- drawing -------------------------------------------------------------------------------------------------------------- */

static plot_end run_gnuplot(const cli_text *script)
{
    static const char *const args[] = {"-", NULL};
    child c;
    if (child_start_program(&c, "gnuplot", args) != 0) {
        cli_error("gnuplot cannot be started: %s (Debian package gnuplot-nox)", strerror(errno));
        return PLOT_NO_PROGRAM;
    }
    fwrite(script->data, 1, script->length, c.to);
    int status = child_end(&c);
    return status == 0 ? PLOT_DRAWN : PLOT_FAILED;
}

plot_end plot_draw(plot *p, const char *folder)
{
    static const struct {
        const char *name, *font, *ending;
    } forms[] = {{"svg", "sans-serif,14", "svg"}, {"pngcairo", "sans,11", "png"}};
    bool named = kind_of(p) == PLOT_POINTS;
    char terminal[160];
    cli_text script = {0}, file = {0};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        file.length = 0;
        cli_text_format(&file, "%s/%s.%s", folder, p->file, forms[i].ending);
        snprintf(terminal, sizeof terminal, "%s size %d,%d background rgb 'white' font '%s'", forms[i].name,
                 named ? NAMED_WIDTH : 960, named ? NAMED_HEIGHT : 560, forms[i].font);
        plot_script(p, terminal, file.data, &script);
    }
    plot_end end = run_gnuplot(&script);
    p->drawn = end == PLOT_DRAWN;
    if (end == PLOT_FAILED) cli_error("gnuplot cannot draw %s (%s)", file.data, p->title);
    cli_text_free(&script);
    cli_text_free(&file);
    return end;
}
