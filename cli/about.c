/* SPDX-License-Identifier: Apache-2.0 */
/* The machine and the program in every object of JSON: see about.h. */
#include "about.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include <lap/version.h>

#include "cli.h"
#include "device/cuda/cuda_info.h"
#include "lap_commit.h"

enum { TEXT = LAP_ABOUT_TEXT };

/* The value of a line "key : value" of /proc/cpuinfo; false: there is none. */
static bool read_cpu(const char *key, char value[TEXT])
{
    char line[256];
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon)
            continue;
        const char *begin = colon + 1 + strspn(colon + 1, " \t");
        snprintf(value, TEXT, "%.*s", (int)strcspn(begin, "\n"), begin);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

/* Arm has numbers for names. */
void lap_about_cpu(char text[LAP_ABOUT_TEXT])
{
    char implementer[TEXT], part[TEXT];
    struct utsname machine;
    if (read_cpu("model name", text))
        return;
    if (uname(&machine) != 0)
        memset(&machine, 0, sizeof(machine));
    if (read_cpu("CPU implementer", implementer) && read_cpu("CPU part", part))
        snprintf(text, TEXT, "%.32s, implementer %.32s, part %.32s", machine.machine, implementer,
                 part);
    else
        snprintf(text, TEXT, "%.64s", machine.machine);
}

static void put_host(lap_json_t *json)
{
    struct utsname machine;
    if (uname(&machine) != 0)
        memset(&machine, 0, sizeof(machine));
    lap_json_put(json, "host:%s", machine.nodename);
}

static void put_date(lap_json_t *json)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    lap_json_put(json, "date:%s", date);
}

void lap_about_place_json(lap_json_t *json)
{
    put_host(json);
    put_date(json);
}

void lap_about_json(lap_json_t *json, const char *device)
{
    char cpu[TEXT];
    lap_about_cpu(cpu);
    lap_cuda_info_t gpus;
    const bool gpu = strcmp(device, "cuda") == 0 && lap_cuda_info(&gpus) == LAP_OK;
    put_host(json);
    lap_json_put(json, "cpu:%s gpu:%s version:%s commit:%s", cpu, gpu ? gpus.gpus[0].name : NULL,
                 lap_version_string(), LAP_COMMIT);
    put_date(json);
}
