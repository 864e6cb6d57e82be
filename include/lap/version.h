/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the header a program was compiled with, and of the library it runs with. */
#ifndef LAP_VERSION_H
#define LAP_VERSION_H

#include <lap/export.h>

/* The version of the header. CMake takes that of the project from here. */
#define LAP_VERSION_MAJOR 0
#define LAP_VERSION_MINOR 1
#define LAP_VERSION_PATCH 0

LAP_BEGIN_DECLS

/*
 * The version of the library that runs, such as "0.1.0".
 * Local. The string belongs to the library and is never freed.
 */
LAP_API const char *lap_version_string(void);

LAP_END_DECLS

#endif
