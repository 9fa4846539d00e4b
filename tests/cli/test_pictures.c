/* SPDX-License-Identifier: MIT
 * Pictures from results: which there are, what is in them, and the script that draws them. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/page.h"
#include "cli/pictures.h"
#include "cli/result.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *o = json_loads(text, 0, &error);
    if (!o) fail_msg("%s", error.text);
    return o;
}

static const plot *titled(const pictures *p, const char *begin)
{
    for (int i = 0; i < p->n; i++)
        if (strncmp(p->plot[i].title, begin, strlen(begin)) == 0) return &p->plot[i];
    fail_msg("no picture '%s'", begin);
    return NULL;
}

/* ---- Pareto front --------------------------------------------------------------------------------------------------------- */

static void test_front(void **state)
{
    (void)state;
    const plot_point point[] = {{.x = 4, .y = 3}, {.x = 2, .y = 9}, {.x = 5, .y = 3}, {.x = 3, .y = 9},
                                {.x = 8, .y = 1}, {.x = 3, .y = 5}, {.x = 3, .y = 5}};
    const bool expected[] = {true, true, false, false, true, true, true}; /* two that are the same do not beat each other */
    bool keep[7];
    pictures_front(point, 7, keep);
    for (int i = 0; i < 7; i++) assert_int_equal(keep[i], expected[i]);
}

/* ---- which pictures ------------------------------------------------------------------------------------------------------- */

static const char E2E[] =
    "{'format':1,'kind':'e2e','runs':["
    "{'title':'a','model':'m.gguf','depth':512,'threads':2},{'title':'b','model':'m.gguf','depth':4096,'threads':2},"
    "{'title':'c','model':'n.gguf','depth':512,'threads':2}],"
    "'rows':["
    "{'run':0,'phase':'decode','name':'x','tokens_per_s':50,'tokens_per_s_min':40,'tokens_per_s_max':55,'us_median':20000,"
    "'us_min':18000,'us_max':25000,'held':520,'accounted':1048576,'host':1048576,'peak':104857600},"
    "{'run':1,'phase':'decode','name':'x','tokens_per_s':30,'tokens_per_s_min':20,'tokens_per_s_max':35,'us_median':33000,"
    "'us_min':30000,'us_max':40000,'held':4104,'accounted':8388608,'peak':104857600},"
    "{'run':0,'phase':'prefill','name':'x','tokens_per_s':500,'tokens_per_s_min':400,'tokens_per_s_max':550},"
    "{'run':2,'phase':'decode','name':'x','tokens_per_s':7,'us_median':4.5,'us':[8,1,2,3,4,5,6,7],'held':520}]}";

/* Single quotes for double ones: readable here. */
static json_t *results_of(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *list = json_array();
    json_array_append_new(list, parse(copy));
    free(copy);
    return list;
}

static void test_e2e(void **state)
{
    (void)state;
    json_t *results = results_of(E2E);
    pictures p;
    pictures_make(&p, results);
    assert_int_equal(p.n, 9); /* of m: decoding, a token's time, cache, peak, prefill; of n the first four */
    const plot *speed = titled(&p, "Speed of decode: m.gguf");
    assert_int_equal(speed->n_series, 1);
    assert_int_equal(speed->series[0].n, 2);
    const plot_point *at = &speed->series[0].point[1];
    assert_true(at->x == 4096 && at->y == 30 && at->low == 24.75 && at->high == 33);
    const plot *other = titled(&p, "Speed of decode: n.gguf");
    assert_string_equal(other->file, "decode-2");
    assert_true(other->series[0].point[0].low == 5.25 && other->series[0].point[0].high == 10.5); /* samples 3 to 6 of 8 */
    const plot *peak = titled(&p, "Peak memory of the process: m.gguf");
    assert_non_null(strstr(peak->y, "no claim"));
    const plot *cache = titled(&p, "Memory of the cache: m.gguf");
    assert_true(cache->series[0].point[0].x == 520 && cache->series[0].point[0].y == 2); /* the host's cells count */
    pictures_free(&p);
    /* The same from another machine: pictures of its own, which say so. */
    json_array_append(results, json_array_get(results, 0));
    pictures_make(&p, results);
    assert_int_equal(p.n, 18);
    assert_int_equal(titled(&p, "Speed of decode: m.gguf")->series[0].n, 2);
    assert_int_equal(titled(&p, "Speed of decode: m.gguf, threads 2 (result 2)")->series[0].n, 2);
    pictures_free(&p);
    json_decref(results);
}

static const char QUALITY[] =
    "{'kind':'quality','command':'c','model':{'file':'/a/m.gguf'},'texts':[{'file':'/b/"
    "t.txt','first':5,'bytes':90}],'context':2048,'chunks':2,'runs':[],'rows':[],'arms':["
    "{'name':'uni4/"
    "uni4','k':'uni4','libllama':false,'bits_code':4.25,'bits_per_value':5,'kld':{'mean':0.003},'ppl_ratio':{'mean':1.002,'error'"
    ":0.0015}},"
    "{'name':'llama-q4_0','libllama':true,'bits_code':4.5,'bits_per_value':4.5,'kld':{'mean':0.07},'ppl_ratio':{'mean':1.04}},"
    "{'name':'kivi4/"
    "kivi4','k':'kivi4','libllama':false,'bits_code':5,'bits_per_value':6,'kld':{'mean':0.004},'ppl_ratio':{'mean':0.9,'error':0."
    "01}},"
    "{'name':'f16/f16','k':'f16','libllama':false,'bits_code':16,'bits_per_value':16,'kld':{'mean':0},'at_floor':true},"
    "{'name':'failed','libllama':false,'bits_code':null,'bits_per_value':null,'failure':'no'}]}";

static void test_quality(void **state)
{
    (void)state;
    json_t *results = results_of(QUALITY), *one = json_array_get(results, 0);
    pictures p;
    result_add_quality(one);
    assert_int_equal(json_array_size(json_object_get(one, "rows")), 5);
    pictures_make(&p, results);
    assert_int_equal(p.n, 2);
    const plot *kld = titled(&p, "Loss against bits: m.gguf, 2048 tokens");
    assert_int_equal(kld->n_series, 5); /* uni, libllama's, kivi, f16, front */
    assert_string_equal(kld->series[0].name, "uni");
    assert_string_equal(kld->series[0].point[0].label, "uni4");
    assert_string_equal(kld->series[1].name, "libllama's own");
    assert_true(kld->log_y && kld->series[3].point[0].y > 0); /* 0 has no place on the axis */
    const plot_series *front = &kld->series[4];
    assert_int_equal(front->kind, PLOT_FRONT);
    assert_int_equal(front->n, 2); /* kivi4 has more bits than uni4 and loses more; f16 is at the floor */
    assert_true(kld->series[3].point[0].hollow && !kld->series[0].point[0].hollow);
    /* A perplexity below that of f16 is off by as much as one above, and one within its error is no better. */
    const plot *ppl = titled(&p, "Perplexity against bits");
    assert_true(fabs(ppl->series[2].point[0].y - 0.1) < 1e-9 && !ppl->series[2].point[0].hollow);
    assert_true(fabs(ppl->series[0].point[0].y - 0.002) < 1e-9 && ppl->series[0].point[0].hollow);
    pictures_free(&p);
    json_decref(results);
}

static void test_layers_and_needles(void **state)
{
    (void)state;
    json_t *results =
        results_of("{'kind':'sensitivity','runs':[{'model':'m'}],'rows':[{'run':0,'name':'keys','layer':0,'kld_mean':0.1},"
                   "{'run':0,'name':'keys','layer':1,'kld_mean':0.2}]}");
    json_t *needle =
        results_of("{'kind':'needle','runs':[{'model':'m'}],'rows':[{'run':0,'name':'x','context':1024,'position':0.5,"
                   "'found':0.25}]}");
    pictures p;
    json_array_extend(results, needle);
    pictures_make(&p, results);
    assert_int_equal(p.n, 2);
    assert_int_equal(titled(&p, "Loss when one layer")->series[0].n, 2);
    const plot_series *heat = &titled(&p, "Planted facts")->series[0];
    assert_true(heat->kind == PLOT_HEAT && heat->point[0].x == 1024 && heat->point[0].y == 50 && heat->point[0].low == 0.25);
    pictures_free(&p);
    json_decref(results);
    json_decref(needle);
}

/* ---- script --------------------------------------------------------------------------------------------------------------- */

static void test_script(void **state)
{
    (void)state;
    plot p = {.title = "it's $5 \"a\"", .x = "x", .y = "y", .log_x = true};
    cli_text script = {0};
    plot_series *s = plot_series_named(&p, "b'", PLOT_LINES);
    plot_add(s, 8, 2, 1, 3, NULL);
    plot_add(s, 4, 1, 1, 1, NULL);
    plot_script(&p, "svg", "out.svg", &script);
    assert_non_null(strstr(script.data, "set title 'it''s $5 \"a\"'")); /* nothing in it is read as a command */
    assert_non_null(strstr(script.data, "title 'b'''"));
    assert_non_null(strstr(script.data, "set output 'out.svg'"));
    assert_non_null(strstr(script.data, "set logscale x 2"));
    assert_non_null(strstr(script.data, "4 1 1 1 \"\" 0\n8 2 1 3 \"\" 0\n")); /* by x */
    assert_non_null(strstr(script.data, "filledcurves"));
    assert_non_null(strstr(script.data, "set xtics ('4' 4, '8' 8)"));
    cli_text_free(&script);
    plot_free(&p);
}

/* No two series look alike, in colour, dash and symbol together. */
static void test_series_differ(void **state)
{
    (void)state;
    plot p = {.title = "t"};
    char name[16];
    for (int i = 0; i < PLOT_SERIES_MOST; i++) {
        snprintf(name, sizeof name, "arm %d", i);
        plot_add(plot_series_named(&p, name, PLOT_LINES), 1, 1, 1, 1, NULL);
        plot_add(plot_series_named(&p, name, PLOT_LINES), 2, 1, 1, 1, NULL);
    }
    assert_null(plot_series_named(&p, "one too many", PLOT_LINES));
    plot_add(NULL, 1, 1, 1, 1, NULL);
    cli_text script = {0};
    plot_script(&p, "svg", "x", &script);
    char *style[PLOT_SERIES_MOST] = {0};
    int n = 0;
    for (char *at = script.data; n < PLOT_SERIES_MOST && (at = strstr(at, "linespoints ")); n++) {
        style[n] = strndup(at, strcspn(at, "'") + 60);
        *strstr(style[n], " pointsize") = 0;
        for (int k = 0; k < n; k++) assert_string_not_equal(style[k], style[n]);
        at += 10;
    }
    assert_int_equal(n, PLOT_SERIES_MOST);
    for (int i = 0; i < n; i++) free(style[i]);
    cli_text_free(&script);
    plot_free(&p);
}

/* What has no place on the axes is left out, and so is a picture in which nothing remains. */
static void test_numbers_without_a_place(void **state)
{
    (void)state;
    json_t *results = results_of(
        "{'kind':'attend','runs':[{'q_heads':1,'context':64},{'q_heads':1},{'q_heads':2}],'rows':["
        "{'run':0,'name':'x','us_median':5,'us_min':0,'us_max':9},{'run':1,'name':'x','us_median':5},{'run':0,'name':'y'},"
        "{'run':2,'name':'z'}]}");
    pictures p;
    pictures_make(&p, results);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.plot[0].n_series, 1);
    assert_int_equal(p.plot[0].series[0].n, 1);
    const plot_point *x = &p.plot[0].series[0].point[0];
    assert_true(x->x == 64 && x->y == 5 && x->low == 5 && x->high == 9);
    pictures_free(&p);
    plot one = {.title = "t"};
    plot_series *s = plot_series_named(&one, "s", PLOT_LINES);
    plot_add(s, 1, NAN, 1, 1, NULL);
    plot_add(s, INFINITY, 1, 1, 1, NULL);
    plot_add(s, 0, -1, NAN, 2, NULL);
    plot_clean(&one);
    assert_true(s->n == 1 && s->point[0].low == -1 && s->point[0].high == 2);
    plot_free(&one);
    json_decref(results);
}

/* Times of a batch are no times of a token. */
static void test_batches_are_left_out(void **state)
{
    (void)state;
    json_t *results = results_of("{'kind':'attend','runs':[{'context':64,'queries':8},{'context':64,'queries':1}],'rows':["
                                 "{'run':0,'name':'x','us_median':70},{'run':1,'name':'x','us_median':9}]}");
    pictures p;
    pictures_make(&p, results);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.plot[0].series[0].n, 1);
    assert_true(p.plot[0].series[0].point[0].y == 9);
    pictures_free(&p);
    json_decref(results);
}

/* What is drawn against history stands where it was measured; peaks of several processes have a band. */
static void test_where_it_was_measured(void **state)
{
    (void)state;
    json_t *results = results_of("{'kind':'e2e','runs':[{'model':'m','depth':512,'depth_mean':600}],'rows':[{'run':0,'name':'x',"
                                 "'phase':'decode','tokens_per_s':5,'us_median':1,'us_min':1,'us_max':1,'held':700,'accounted':1,"
                                 "'processes':5,'peaks':[2097152,1048576,3145728,2097152,2097152]}]}");
    pictures p;
    pictures_make(&p, results);
    assert_true(titled(&p, "Speed of decode")->series[0].point[0].x == 600);
    const plot *peak = titled(&p, "Peak memory");
    assert_true(peak->series[0].point[0].low == 1 && peak->series[0].point[0].high == 3 && !strstr(peak->y, "no claim"));
    pictures_free(&p);
    json_decref(results);
}

/* ---- page ----------------------------------------------------------------------------------------------------------------- */

static void test_page(void **state)
{
    (void)state;
    json_t *results = results_of("{'format':1,'kind':'attend','command':'kvfold <x>','runs':[{'title':'a & b','notes':['n']}],"
                                 "'rows':[{'run':0,'name':'<script>','us_median':12.34,'verdict':'baseline','doubts':'odd'}]}");
    pictures p;
    cli_text page = {0};
    pictures_make(&p, results);
    page_html(results, &p, ".", &page);
    assert_null(strstr(page.data, "<script>"));
    assert_non_null(strstr(page.data, "<td>&lt;script&gt;</td><td class=n>12.3</td>"));
    assert_non_null(strstr(page.data, "<h3>a &amp; b</h3>"));
    assert_non_null(strstr(page.data, "kvfold &lt;x&gt;"));
    assert_non_null(strstr(page.data, "DOUBTFUL &lt;script&gt; (a &amp; b): odd"));
    cli_text_free(&page);
    pictures_free(&p);
    json_decref(results);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_front),
        cmocka_unit_test(test_e2e),
        cmocka_unit_test(test_quality),
        cmocka_unit_test(test_script),
        cmocka_unit_test(test_series_differ),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_numbers_without_a_place),
        cmocka_unit_test(test_where_it_was_measured),
        cmocka_unit_test(test_batches_are_left_out),
        cmocka_unit_test(test_layers_and_needles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
