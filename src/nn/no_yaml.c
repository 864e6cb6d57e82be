/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of tp_overlap_yaml.c and core/yaml.c, in a build without libyaml. */
#include <lap/tp_overlap.h>

#include "core/status.h"
#include "core/yaml.h"

lap_status_t lap_yaml_read(const char *path, lap_yaml_each_t each, void *context)
{
    (void)each;
    (void)context;
    return lap_error(
        LAP_ERR_UNSUPPORTED,
        "'%s' cannot be read: this build cannot read YAML, expected a build with libyaml",
        path ? path : "");
}

lap_status_t lap_yaml_parse(const char *name, const char *text, size_t bytes, lap_yaml_each_t each,
                            void *context)
{
    (void)text;
    (void)bytes;
    return lap_yaml_read(name, each, context);
}

lap_status_t lap_tp_overlap_load(const char *path, int tp, lap_tp_overlap_t *overlap_p)
{
    (void)tp;
    (void)overlap_p;
    return lap_yaml_read(path, NULL, NULL);
}

lap_status_t lap_tp_overlap_parse(const char *name, const char *text, size_t bytes, int tp,
                                  lap_tp_overlap_t *overlap_p)
{
    (void)text;
    (void)bytes;
    return lap_tp_overlap_load(name, tp, overlap_p);
}
