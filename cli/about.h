/* SPDX-License-Identifier: Apache-2.0 */
/* Where, when and with what something was measured or predicted, so that its figures can be compared later. */
#ifndef LAP_CLI_ABOUT_H
#define LAP_CLI_ABOUT_H

#include "util/json_write.h"

/* What the processor of this machine is called. */
#define LAP_ABOUT_TEXT 160
void lap_about_cpu(char text[LAP_ABOUT_TEXT]);

/*
 * Writes host, cpu, gpu, version, commit and date into an object. `device` is what was measured; of GPUs
 * only the first is named, null with other devices.
 */
void lap_about_json(lap_json_t *json, const char *device);

/* Only host and date. */
void lap_about_place_json(lap_json_t *json);

#endif
