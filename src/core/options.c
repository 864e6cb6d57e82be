/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the structs that callers fill. It knows their sizes only; what the fields may hold is for
 * the function that takes them.
 */
#include "core/options.h"

#include <string.h>

#include <lap/version.h>

#include "core/status.h"

#define OPTIONS_BYTES_MAX 4096 /* no struct will ever be longer, so a larger size is a mistake */

lap_status_t lap_read_options(void *known, size_t known_bytes, const void *given, const char *name)
{
    size_t size;
    memcpy(&size, given, sizeof(size));
    if (size < sizeof(size) || size > OPTIONS_BYTES_MAX)
        return lap_error(LAP_ERR_INVALID, "%s.size is %zu, expected %zu, as %s_INIT sets it", name,
                         size, known_bytes, name);
    for (size_t i = known_bytes; i < size; i++) {
        if (((const char *)given)[i] != 0)
            return lap_error(LAP_ERR_UNSUPPORTED,
                             "%s.size is %zu and byte %zu is not 0: version %s of this library "
                             "does not know that field, it knows %zu bytes",
                             name, size, i, lap_version_string(), known_bytes);
    }
    memcpy(known, given, size < known_bytes ? size : known_bytes);
    memcpy(known, &known_bytes, sizeof(known_bytes));
    return LAP_OK;
}
