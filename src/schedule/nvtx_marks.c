/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks by NVTX, which is all header: it loads the profiler's library if the profiler has named one
 * in the environment, and does nothing else.
 */
#include <pthread.h>
#include <sys/auxv.h>

#include <nvtx3/nvToolsExt.h>

#include "schedule/marks.h"

static void begin(void)
{
    nvtxInitialize(NULL);
}

/*
 * NVTX is one for the process, and finds its profiler when it is first called: several threads at
 * once would write and read what it finds without an order.
 */
lap_marks_t *lap_marks_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    /* Who starts a setuid program does not choose the code that it runs. */
    if (getauxval(AT_SECURE))
        return NULL;
    (void)pthread_once(&once, begin);
    return (lap_marks_t *)nvtxDomainCreateA("lap");
}

void lap_marks_close(lap_marks_t *marks)
{
    if (marks)
        nvtxDomainDestroy((nvtxDomainHandle_t)marks);
}

void lap_marks_push(lap_marks_t *marks, const char *name)
{
    if (!marks)
        return;
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
    if (marks)
        (void)nvtxDomainRangePop((nvtxDomainHandle_t)marks);
}
