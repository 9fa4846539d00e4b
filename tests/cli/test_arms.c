/* SPDX-License-Identifier: MIT
 * Lists of arms: where a comma separates arms, and where it separates the options of one codec. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/arms.h"

#include <string.h>

static void test_length(void **state)
{
    (void)state;
    static const char *const arms[][2] = {
        {"f16/f16", "f16/f16"},
        {"a/b,c/d", "a/b"},
        {"a:x=1/b,c/d", "a:x=1/b"},
        {"a:x=1,y=2/b,c:z=3/d", "a:x=1,y=2/b"},
        {"a:x=1,y=2,z=3/b:u=4,v=5,c/d", "a:x=1,y=2,z=3/b:u=4,v=5"},
        {"turbo2:outliers=32,norm=n1/turbo2,kivi4/kivi4", "turbo2:outliers=32,norm=n1/turbo2"},
        {"a/b,c:x=1/d", "a/b"}, /* ':' comes before '=' */
        {"a/b,c/d:x=1", "a/b"}, /* '/' comes before '=' */
        {"small,a/b:x=1,y=2", "small"},
        {"a/b,", "a/b"},
        {",a/b", ""},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        assert_int_equal(cli_arm_length(arms[i][0]), strlen(arms[i][1]));
        assert_memory_equal(arms[i][0], arms[i][1], strlen(arms[i][1]));
    }
}

static void test_arms(void **state)
{
    (void)state;
    cli_arms arms;
    kv_settings others;
    kv_settings_init(&others);
    others.recent = 128;
    assert_int_equal(cli_arms_make(&arms, "kivi4:group=64/kivi2,q8_0/q4_0:rot=h,f16", &others), CLI_GO);
    assert_int_equal(arms.n, 3);
    assert_string_equal(arms.arm[0].k, "kivi4:group=64");
    assert_string_equal(arms.arm[0].v, "kivi2");
    assert_string_equal(arms.arm[1].k, "q8_0");
    assert_string_equal(arms.arm[1].v, "q4_0:rot=h");
    assert_string_equal(arms.arm[2].preset, "f16");
    for (int i = 0; i < 3; i++) assert_int_equal(arms.arm[i].recent, 128);
    cli_arms_free(&arms);
}

/* ",sink=N" and ",window=N" at the end of an arm are its own; they do not reach the next one, and win over what all have. */
static void test_options_of_an_arm(void **state)
{
    (void)state;
    cli_arms arms;
    kv_settings others;
    kv_settings_init(&others);
    others.sink = 7;
    assert_int_equal(cli_arms_make(&arms, "kivi4:group=64/kivi2:group=32,window=0,uni4/uni4,f16,sink=0,window=128", &others),
                     CLI_GO);
    assert_int_equal(arms.n, 3);
    assert_string_equal(arms.arm[0].v, "kivi2:group=32");
    assert_int_equal(arms.arm[0].sink, 7);
    assert_int_equal(arms.arm[0].recent, 0);
    assert_int_equal(arms.arm[1].sink, 7);
    assert_int_equal(arms.arm[1].recent, 64);
    assert_string_equal(arms.arm[2].preset, "f16");
    assert_int_equal(arms.arm[2].sink, 0);
    assert_int_equal(arms.arm[2].recent, 128);
    cli_arms_free(&arms);
}

/* The policy comes last: what follows it is the policy's, though it has the name of an arm's option. */
static void test_policy_of_an_arm(void **state)
{
    (void)state;
    cli_arms arms;
    kv_settings others;
    kv_settings_init(&others);
    others.evict = "window:budget=500";
    assert_int_equal(
        cli_arms_make(&arms, "f16/f16,sink=0,evict=knorm:budget=300,recent=100,sink=9,f16,small,evict=none", &others), CLI_GO);
    assert_int_equal(arms.n, 3);
    assert_int_equal(arms.arm[0].sink, 0);
    assert_string_equal(arms.arm[0].evict, "knorm:budget=300,recent=100,sink=9");
    assert_string_equal(arms.arm[1].evict, "window:budget=500,recent=64,sink=4");
    assert_true(arms.arm[1].evicts);
    assert_string_equal(arms.arm[2].evict, "none");
    assert_false(arms.arm[2].evicts);
    cli_arms_free(&arms);
}

static void test_what_is_no_list(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        ",",
                                        "f16/f16,",
                                        ",f16/f16",
                                        "f16/f16,,f16/f16",
                                        "nosuch/f16",
                                        "f16/nosuch",
                                        "nosuch",
                                        "f16/f16/f16",
                                        "/f16",
                                        "f16/",
                                        "f16/f16,nosuch/f16",
                                        "kivi4/kivi4,group=64",
                                        "f16/f16,sink=65",
                                        "f16/f16,window=",
                                        "f16/f16,sink=1x",
                                        "f16/f16,window=-1"};
    kv_settings others;
    kv_settings_init(&others);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cli_arms arms;
        int code = cli_arms_make(&arms, wrong[i], &others);
        if (code != CLI_USAGE) fail_msg("'%s' gave %d", wrong[i], code);
        assert_int_equal(arms.n, 0);
    }
}

static void test_too_many(void **state)
{
    (void)state;
    char list[8 * (CLI_ARMS_MOST + 1) + 1] = "";
    cli_arms arms;
    kv_settings others;
    kv_settings_init(&others);
    for (int i = 0; i < CLI_ARMS_MOST; i++) strcat(list, i ? ",f16/f16" : "f16/f16");
    assert_int_equal(cli_arms_make(&arms, list, &others), CLI_GO);
    assert_int_equal(arms.n, CLI_ARMS_MOST);
    cli_arms_free(&arms);
    strcat(list, ",f16/f16");
    assert_int_equal(cli_arms_make(&arms, list, &others), CLI_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_arms),
        cmocka_unit_test(test_options_of_an_arm),
        cmocka_unit_test(test_policy_of_an_arm),
        cmocka_unit_test(test_what_is_no_list),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
