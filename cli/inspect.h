/* SPDX-License-Identifier: MIT
 * What kvfold inspect shows of files that are no models.
 */
#ifndef KVFOLD_CLI_INSPECT_H
#define KVFOLD_CLI_INSPECT_H

#include "cli.h"

/* A calibration file, as a table or one JSON object; with a folder also as pictures in it (ranks, channels-N of each layer). An exit
 * code. */
int inspect_calibration(const char *path, bool json, const char *folder);

#endif
