/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libraries of others: see library.h. */
#include "core/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#define WHY_BYTES 256

/* Opens one file. On failure `why` says what the loader says, unless it says something already. */
static void *open_file(const lap_library_t *library, const char *path, char why[WHY_BYTES])
{
    void *handle = dlopen(path, RTLD_NOW | (library->global ? RTLD_GLOBAL : RTLD_LOCAL));
    const char *sentence = handle ? NULL : dlerror();
    if (sentence && !*why)
        snprintf(why, WHY_BYTES, "%s", sentence);
    return handle;
}

static lap_status_t tell_missing(const lap_library_t *library, const char *why)
{
    char names[128] = "";
    for (const char *const *name = library->names; *name; name++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
                 name == library->names ? ""
                 : name[1]              ? ", "
                                        : " and ",
                 *name);
    return lap_error(
        LAP_ERR_UNSUPPORTED,
        "there is no %s here: looked for %s in the library path and in %s (%s); %s%s%s "
        "may name it",
        library->title, names, library->dir, why, library->advice ? library->advice : "",
        library->advice ? ", or " : "", library->variable);
}

lap_status_t lap_library_open(const lap_library_t *library, void **handle_p)
{
    char path[512], why[WHY_BYTES] = "";
    /* Who starts a setuid program does not choose the code that it runs. */
    const char *given = secure_getenv(library->variable);
    void *handle = NULL;
    if (given && *given) {
        *handle_p = open_file(library, given, why);
        return *handle_p ? LAP_OK
                         : lap_error(LAP_ERR_UNSUPPORTED, "%s is '%s', expected the library %s: %s",
                                     library->variable, given, library->title, why);
    }
    for (const char *const *name = library->names; *name && !handle; name++)
        handle = open_file(library, *name, why);
    for (const char *const *name = library->names; *name && !handle; name++) {
        snprintf(path, sizeof(path), "%s/%s", library->dir, *name);
        handle = open_file(library, path, why);
    }
    *handle_p = handle;
    return handle ? LAP_OK : tell_missing(library, why);
}

void lap_library_close(void *handle)
{
    dlclose(handle);
}

lap_status_t lap_library_find(const lap_library_t *library, void *handle, const char *name,
                              void *field)
{
    void *symbol = dlsym(library->global ? RTLD_DEFAULT : handle, name);
    if (!symbol)
        return lap_error(LAP_ERR_UNSUPPORTED, "the %s here has no %s%s%s", library->title, name,
                         library->least ? ": expected " : "", library->least ? library->least : "");
    /*
     * ISO C has no cast from an object's address to a function's; POSIX promises that this works.
     */
    memcpy(field, &symbol, sizeof(symbol));
    return LAP_OK;
}
