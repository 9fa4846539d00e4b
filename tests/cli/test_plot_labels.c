/* SPDX-License-Identifier: MIT
 * Names of points: beside them where there is room, and never on each other while there is any. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measure_random.h"
#include "cli/plot_labels.h"

#include <math.h>

static const double WIDTH = 1000, HEIGHT = 600;

static int meet(const plot_label *a, const plot_label *b)
{
    return fabs(a->at_x - b->at_x) < (a->width + b->width) / 2 && fabs(a->at_y - b->at_y) < (a->height + b->height) / 2;
}

static int inside(const plot_label *a)
{
    return a->at_x >= a->width / 2 && a->at_x <= WIDTH - a->width / 2 && a->at_y >= a->height / 2 &&
           a->at_y <= HEIGHT - a->height / 2;
}

static void test_one(void **state)
{
    (void)state;
    plot_label middle = {.x = 500, .y = 300, .width = 80, .height = 13}, edge = {.x = 995, .y = 300, .width = 80, .height = 13};
    plot_place_labels(&middle, 1, WIDTH, HEIGHT);
    assert_true(middle.at_x > 540 && middle.at_x < 560 && middle.at_y > 310 && !middle.line); /* above, to the right */
    plot_place_labels(&edge, 1, WIDTH, HEIGHT);
    assert_true(edge.at_x < 955 && inside(&edge) && !edge.line); /* to the left, as there is no room */
}

/* As codecs with the same bits stand: many points in a few columns. */
static void test_columns(void **state)
{
    (void)state;
    uint64_t seed = 7;
    plot_label label[40];
    for (int i = 0; i < 40; i++)
        label[i] = (plot_label){.x = 100 + 200 * (i % 4), .y = 50 + measure_below(&seed, 500), .width = 60, .height = 13};
    plot_place_labels(label, 40, WIDTH, HEIGHT);
    for (int i = 0; i < 40; i++) {
        assert_true(inside(&label[i]));
        for (int k = 0; k < i; k++) assert_false(meet(&label[i], &label[k]));
    }
}

/* Points on one spot: names around it, the far ones with a line. */
static void test_one_spot(void **state)
{
    (void)state;
    plot_label label[12];
    int lines = 0;
    for (int i = 0; i < 12; i++) label[i] = (plot_label){.x = 500, .y = 300, .width = 60, .height = 13};
    plot_place_labels(label, 12, WIDTH, HEIGHT);
    for (int i = 0; i < 12; i++) {
        lines += label[i].line;
        for (int k = 0; k < i; k++) assert_false(meet(&label[i], &label[k]));
    }
    assert_true(lines > 0 && lines < 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_one_spot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
