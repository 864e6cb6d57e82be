/* SPDX-License-Identifier: Apache-2.0 */
/* For CMake: "yes: ..." if there is an NCCL here that tests on a GPU can use, or why not. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    const char *given = getenv("LAP_NCCL");
    int version = 0, (*get_version)(int *version);
    void *library = dlopen(given && *given ? given : "libnccl.so.2", RTLD_NOW);
    void *symbol = library ? dlsym(library, "ncclGetVersion") : NULL;
    memcpy(&get_version, &symbol, sizeof(symbol));
    if (!symbol || get_version(&version) != 0) {
        printf("no: there is no libnccl.so.2 here; LAP_NCCL may name it");
        return 0;
    }
    printf("%s: NCCL here is %d.%d.%d%s", version >= 23000 ? "yes" : "no", version / 10000,
           version % 10000 / 100, version % 100,
           version >= 23000 ? "" : ", expected 2.30 or later; LAP_NCCL may name it");
    return 0;
}
