/* SPDX-License-Identifier: MIT
 * One page with everything: tables, pictures, commands, machines. */
#ifndef KVFOLD_CLI_PAGE_H
#define KVFOLD_CLI_PAGE_H

#include "pictures.h"

/* Appends the page; pictures that were drawn are read from FOLDER and put into it. */
void page_html(const struct json_t *results, const pictures *p, const char *folder, cli_text *to);

#endif
