/* SPDX-License-Identifier: MIT
 * Files that take their name only when they are whole: what is replaced, what stays, what is written to directly. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "cli/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int into_a_folder(void **state)
{
    static char folder[] = "/tmp/kvfold-whole-XXXXXX";
    *state = mkdtemp(folder);
    return *state && chdir(folder) == 0 ? 0 : -1;
}

static int away(void **state)
{
    static const char *const left[] = {"old", "link", "far/target", "far", "dangling", "new", "pipe", "loop"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) remove(left[i]);
    return chdir("/") == 0 && rmdir(*state) == 0 ? 0 : -1; /* nothing else may be left */
}

static void content_is(const char *path, const char *expected)
{
    char bytes[64] = "";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    (void)!fread(bytes, 1, sizeof bytes - 1, f);
    fclose(f);
    assert_string_equal(bytes, expected);
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void save(const char *path, const char *text)
{
    assert_int_equal(cli_save_check(path), CLI_GO);
    assert_int_equal(cli_save(path, text, strlen(text)), CLI_GO);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode;
}

static void test_replaced(void **state)
{
    (void)state;
    write_file("old", "old");
    assert_int_equal(chmod("old", 0640), 0);
    save("old", "new");
    content_is("old", "new");
    assert_int_equal(mode_of("old") & 0777, 0640);
}

/* The file that a link points to is replaced where it lies, and one that is still to come is made there. */
static void test_links(void **state)
{
    (void)state;
    assert_int_equal(mkdir("far", 0700), 0);
    write_file("far/target", "old");
    assert_int_equal(symlink("far/target", "link"), 0);
    save("link", "through");
    assert_true(S_ISLNK(mode_of("link")));
    content_is("far/target", "through");
    assert_int_equal(symlink("new", "dangling"), 0);
    save("dangling", "made");
    assert_true(S_ISLNK(mode_of("dangling")));
    content_is("new", "made");
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(cli_save("loop", "x", 1), CLI_CANNOT);
}

static void test_pipes_and_devices(void **state)
{
    (void)state;
    char bytes[16] = "";
    assert_int_equal(mkfifo("pipe", 0600), 0);
    int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    save("pipe", "hello");
    assert_int_equal(read(reader, bytes, sizeof bytes), 5);
    close(reader);
    assert_string_equal(bytes, "hello");
    assert_true(S_ISFIFO(mode_of("pipe")));
    assert_int_equal(cli_save("/dev/full", "x", 1), CLI_CANNOT);
    assert_true(S_ISCHR(mode_of("/dev/full")));
}

static void test_given_up(void **state)
{
    (void)state;
    whole_file f;
    write_file("old", "old");
    assert_int_equal(whole_file_open(&f, "old"), 0);
    assert_int_equal(write(f.fd, "half", 4), 4);
    whole_file_abort(&f);
    whole_file_abort(&f);
    content_is("old", "old");
    assert_int_equal(whole_file_open(&f, "far"), -1);
    assert_int_equal(errno, EISDIR);
    assert_int_equal(whole_file_open(&f, "nowhere/x"), -1);
    assert_int_equal(errno, ENOENT);
}

/* By whatever name, there already (from the tests above) or still to come. */
static void test_same(void **state)
{
    (void)state;
    assert_int_equal(symlink("coming", "ahead"), 0);
    assert_true(whole_file_same("old", "./old"));
    assert_true(whole_file_same("link", "far/target"));
    assert_true(whole_file_same("far/../coming", "coming"));
    assert_true(whole_file_same("ahead", "coming"));
    assert_false(whole_file_same("old", "new"));
    assert_false(whole_file_same("old", "coming"));
    assert_false(whole_file_same("far/coming", "coming"));
    assert_false(whole_file_same("coming", "comings"));
    assert_false(whole_file_same("nowhere/coming", "coming"));
    assert_false(whole_file_same("far", "far"));
    assert_false(whole_file_same("pipe", "pipe"));
    assert_int_equal(remove("ahead"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replaced), cmocka_unit_test(test_links), cmocka_unit_test(test_pipes_and_devices),
        cmocka_unit_test(test_given_up), cmocka_unit_test(test_same),
    };
    return cmocka_run_group_tests(tests, into_a_folder, away);
}
