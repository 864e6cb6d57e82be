/* SPDX-License-Identifier: Apache-2.0 */
/* The version that this library was built as. */
#include <lap/version.h>

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *lap_version_string(void)
{
    return VERSION_TEXT(LAP_VERSION_MAJOR, LAP_VERSION_MINOR, LAP_VERSION_PATCH);
}
