/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of overlap from a file, a pipe or standard input: see rules.h. */
#include "rules.h"

#include <string.h>

#include "core/status.h"
#include "piped.h"

lap_status_t lap_rules_load(const char *path, int tp, lap_tp_overlap_t *rules_p)
{
    const char *text;
    if (!lap_piped_is(path))
        return lap_tp_overlap_load(path, tp, rules_p);
    LAP_TRY(lap_piped_read(path, "LAP_STDIN_RULES", "rules in YAML", &text));
    return lap_tp_overlap_parse(lap_piped_name(path), text, strlen(text), tp, rules_p);
}
