/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds machine descriptions by their names: near the program, where they may have been changed, or
 * else in it, so that one file can be copied to where it is needed.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "plan/machine.h"
#include "util/embed.h"
#include "util/join.h"
#include "util/nearest.h"

/* The files of machines/, in the order in which sentences name them. */
#define MACHINES(row)                                                                              \
    row(lap_a100_sxm, "a100-sxm") row(lap_h100_sxm, "h100-sxm") row(lap_h200_sxm, "h200-sxm")      \
        row(lap_b200, "b200") row(lap_gb200, "gb200") row(lap_gb300, "gb300")                      \
            row(lap_h200_measured, "h200-measured")

#define EMBED(symbol, name)                                                                        \
    LAP_EMBED(symbol, LAP_MACHINES_DIR "/" name ".yaml");                                          \
    extern const char(symbol)[], symbol##_end[];
MACHINES(EMBED)

#define NAME(symbol, name) name,
static const char *const known[] = {MACHINES(NAME) NULL};

#define TEXT(symbol, name) {symbol, symbol##_end},
static const struct {
    const char *begin, *end;
} texts[] = {MACHINES(TEXT)};

/* Near the program: in the tree that is installed, or in that of a build. */
static bool find_installed(const char *name, char path[PATH_MAX])
{
    static const char *const places[] = {"../share/lap/machines", "machines"};
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (length <= 0)
        return false;
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const int bytes = snprintf(path, PATH_MAX, "%s/%s/%s.yaml", program, places[i], name);
        if (bytes > 0 && bytes < PATH_MAX && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* The first that begins so, in whatever letters; else the nearest. */
static const char *nearest_machine(const char *name)
{
    for (size_t i = 0; known[i]; i++)
        if (*name && strncasecmp(known[i], name, strlen(name)) == 0)
            return known[i];
    return lap_nearest(name, known);
}

lap_status_t lap_machine_load(const char *name, lap_machine_t *machine_p)
{
    char path[PATH_MAX], list[128] = "";
    const size_t length = strlen(name);
    if (strchr(name, '/') || (length > 5 && strcmp(name + length - 5, ".yaml") == 0))
        return lap_machine_read(name, NULL, 0, machine_p);
    if (find_installed(name, path))
        return lap_machine_read(path, NULL, 0, machine_p);
    for (size_t i = 0; known[i]; i++) {
        lap_join(list, sizeof(list), known[i]);
        if (strcmp(known[i], name) == 0)
            return lap_machine_read(name, texts[i].begin, (size_t)(texts[i].end - texts[i].begin),
                                    machine_p);
    }
    const char *nearest = nearest_machine(name);
    return lap_error(LAP_ERR_INVALID,
                     "there is no machine '%s'; expected one of %s, or FILE.yaml%s%s%s", name, list,
                     nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
}
