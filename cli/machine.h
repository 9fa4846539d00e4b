/* SPDX-License-Identifier: MIT
 * What a result says about where it was measured. */
#ifndef KVFOLD_CLI_MACHINE_H
#define KVFOLD_CLI_MACHINE_H

#include <stddef.h>

struct json_t;

struct json_t *machine_json(void);
/* Bytes of all last-level caches under a folder like /sys/devices/system/cpu; 0: unknown. */
size_t machine_caches_below(const char *folder);
size_t machine_last_level_cache(void); /* bytes; a generous guess where the system does not tell */

#endif
