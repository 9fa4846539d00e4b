/* SPDX-License-Identifier: MIT
 * What was chosen, as lines of a profile.
 */
#include "tune.h"

#include <stdlib.h>
#include <string.h>

static bool same(const tune_item *a, const tune_item *b)
{
    return a[0].level == b[0].level && a[1].level == b[1].level;
}

void tune_profile(const tune_item *items, int n, const char name[][TUNE_NAME], cli_text *text)
{
    cli_text_format(text, "# kvfold profile 1\nkv %s/%s\n", name[0], name[0]);
    bool *done = cli_alloc((size_t)n + 1, sizeof *done);
    for (int i = 0; i + 1 < n; i += 2) {
        if (done[i]) continue;
        cli_text_format(text, "%d", items[i].layer);
        for (int j = i + 2; j + 1 < n; j += 2)
            if (same(&items[i], &items[j])) done[j] = true, cli_text_format(text, ",%d", items[j].layer);
        cli_text_format(text, "=%s/%s\n", name[items[i].level], name[items[i + 1].level]);
    }
    free(done);
}
