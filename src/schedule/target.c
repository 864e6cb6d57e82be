/* SPDX-License-Identifier: Apache-2.0 */
/* The targets by name, and those of the devices and transports of this build. */
#include "schedule/target.h"

#include <string.h>

#include "core/status.h"
#include "device/cuda/cuda_facts.h"
#include "transport/facts.h"
#include "util/join.h"

static const lap_target_t targets[] = {
    {"cpu", LAP_SHM_CAN, LAP_HOST_FACTS},
    {"cuda", LAP_CUDA_IPC_CAN, LAP_CUDA_FACTS},
    {"nccl", LAP_NCCL_CAN, LAP_CUDA_FACTS},
};

const lap_target_t *lap_target_at(size_t index)
{
    return index < sizeof(targets) / sizeof(targets[0]) ? &targets[index] : NULL;
}

lap_status_t lap_target_find(const char *name, const lap_target_t **target_p)
{
    char names[64] = "";
    for (size_t i = 0; lap_target_at(i); i++) {
        const lap_target_t *target = lap_target_at(i);
        if (name && strcmp(target->name, name) == 0) {
            *target_p = target;
            return LAP_OK;
        }
        lap_join(names, sizeof(names), target->name);
    }
    return lap_error(LAP_ERR_INVALID, "there is no target '%s'; there are: %s",
                     name ? name : "(null)", names);
}

lap_target_t lap_target_of(const lap_device_ops_t *device, const lap_transport_ops_t *transport)
{
    return (lap_target_t){transport->name, transport->can, device->facts};
}
