/* SPDX-License-Identifier: MIT */
#ifndef KVFOLD_CLI_VERSION_H
#define KVFOLD_CLI_VERSION_H

/* "gcc 12.2.0" */
const char *cli_compiler(void);
/* Identifies the sources of this build; "unknown" when the build did not say. */
const char *cli_build_id(void);
/* Instruction set that attention uses when nothing else is asked for. */
const char *cli_cpu_in_use(void);

/* kvfold --version [--json] */
int cli_print_version(int argc, char **argv);

#endif
