/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profiler that listens to NVTX, for tests: it appends the names of all ranges to the file that
 * FAKE_PROFILE names, one per line, indented as they nest; "left open" when one was not ended.
 */
#include <stdio.h>
#include <stdlib.h>

#include <nvtx3/nvToolsExt.h>

static _Thread_local int depth;

static void note(const char *text)
{
    FILE *file = fopen(getenv("FAKE_PROFILE"), "ae");
    if (!file)
        return;
    fprintf(file, "%*s%s\n", 2 * depth, "", text);
    fclose(file);
}

static nvtxDomainHandle_t NVTX_API create(const char *name)
{
    static int domain;
    note(name);
    return (nvtxDomainHandle_t)(void *)&domain;
}

static void NVTX_API destroy(nvtxDomainHandle_t domain)
{
    (void)domain;
    note(depth == 0 ? "closed" : "left open");
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range)
{
    (void)domain;
    note(range->message.ascii);
    return depth++;
}

static int NVTX_API pop(nvtxDomainHandle_t domain)
{
    (void)domain;
    return --depth;
}

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainDestroy] = (NvtxFunctionPointer)destroy;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
