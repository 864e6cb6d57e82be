/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks by NVTX, which is all header: it loads the profiler's library if the profiler has named one
 * in the environment, and does nothing else.
 */
#include <nvtx3/nvToolsExt.h>

#include "schedule/marks.h"

lap_marks_t *lap_marks_open(void)
{
    return (lap_marks_t *)nvtxDomainCreateA("lap");
}

void lap_marks_close(lap_marks_t *marks)
{
    if (marks)
        nvtxDomainDestroy((nvtxDomainHandle_t)marks);
}

void lap_marks_push(lap_marks_t *marks, const char *name)
{
    const nvtxEventAttributes_t range = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };
    (void)nvtxDomainRangePushEx((nvtxDomainHandle_t)marks, &range);
}

void lap_marks_pop(lap_marks_t *marks)
{
    (void)nvtxDomainRangePop((nvtxDomainHandle_t)marks);
}
