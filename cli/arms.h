/* SPDX-License-Identifier: MIT
 * Lists of cache arms as the command line writes them: K/V,K/V,... with presets among them, and @FILE for a profile. ",sink=N" and
 * ",window=N" at the end of an arm hold for this arm alone, and so does ",evict=POLICY:...", which comes last: what follows it belongs to
 * the policy. */
#ifndef KVFOLD_CLI_ARMS_H
#define KVFOLD_CLI_ARMS_H

#include "kv.h"

enum { CLI_ARMS_MOST = 64, CLI_ARM_NAME = 256 };

typedef struct cli_arms {
    kv_choice arm[CLI_ARMS_MOST];
    char name[CLI_ARMS_MOST][CLI_ARM_NAME]; /* as written */
    int n;
} cli_arms;

/* Characters of the first arm of a list. It ends at a comma, but not at one that is followed by a piece in which '=' comes before
 * any ':' or '/': that piece continues the arm, because options of a codec are separated by commas too. */
size_t cli_arm_length(const char *list);

/* Makes a choice of the one arm text[0 .. n). CLI_GO, or CLI_USAGE or CLI_CANNOT after a sentence, with nothing to free. */
int cli_arm_make(kv_choice *choice, const char *text, size_t n, const kv_settings *others);

/* The list of arms where none is given: the profile of the settings, as an arm in own[CLI_ARM_NAME + 1], or else `usual`. */
const char *cli_arms_usual(const kv_settings *s, const char *usual, char *own);

/* Makes a choice of each arm of `list` (the value of --kv), with the other settings the same for all. CLI_GO, or CLI_USAGE or
 * CLI_CANNOT after a sentence, with nothing to free. */
int cli_arms_make(cli_arms *arms, const char *list, const kv_settings *others);
/* kv_choice_apart of all of them. */
int cli_arms_apart(const char *out, const cli_arms *arms);
/* kv_choice_meet of all of them, each profile once. */
void cli_arms_meet(const cli_arms *arms, const char *model);
void cli_arms_free(cli_arms *arms);

#endif
