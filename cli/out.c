/* SPDX-License-Identifier: MIT
 * stdout: JSON objects, and the check that everything was really written. */
#include "cli.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <string.h>

int cli_finish(int code)
{
    static bool said;
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (!said)
        cli_error("cannot write to stdout: %s", errno ? strerror(errno) : "an earlier write failed");
    said = true;
    return CLI_CANNOT;
}

int cli_print_json(json_t *object)
{
    int failed = object ? json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : -1;
    json_decref(object);
    if (!failed)
        fputc('\n', stdout);
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
