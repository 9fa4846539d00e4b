/* SPDX-License-Identifier: MIT
 * stdout: JSON objects, and the check that everything was really written. */
#include "cli.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <string.h>

/* One sentence for a stream that stays broken. */
static int write_failed(int error)
{
    static bool said;
    if (!said) cli_error("cannot write to stdout: %s", error ? strerror(error) : "an earlier write failed");
    said = true;
    return CLI_CANNOT;
}

int cli_finish(int code)
{
    errno = 0;
    return fflush(stdout) == 0 && !ferror(stdout) ? code : write_failed(errno);
}

int cli_write(const char *bytes, size_t n)
{
    errno = 0;
    return fwrite(bytes, 1, n, stdout) == n && fflush(stdout) == 0 ? CLI_GO : write_failed(errno);
}

int cli_print_json(json_t *object)
{
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : -1;
    json_decref(object);
    if (!failed) fputc('\n', stdout);
    int code = cli_finish(CLI_DONE);
    if (failed && code == CLI_DONE) {
        cli_error("cannot write the JSON result");
        code = CLI_CANNOT;
    }
    return code;
}

json_t *cli_json_real(double x)
{
    return isfinite(x) ? json_real(round(x * 1e4) / 1e4) : json_null();
}

json_t *cli_json_text(const char *text)
{
    cli_text t = {0};
    cli_utf8_add(&t, text, strlen(text));
    json_t *string = json_string(t.data ? t.data : "");
    cli_text_free(&t);
    return string;
}
