/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target: what a device and a transport can do, as far as it decides what is issued. Device and
 * transport declare it; no GPU, and no build with CUDA, is needed to lower for one.
 */
#ifndef LAP_SCHEDULE_TARGET_H
#define LAP_SCHEDULE_TARGET_H

#include "device/facts.h"
#include "transport/transport.h"

typedef struct lap_target {
    const char *name;
    unsigned can; /* LAP_CAN_... of the transport: what builders may count on */
    lap_device_facts_t device;
} lap_target_t;

/* The targets that every build knows, by index: cpu, cuda and nccl; NULL past the last one. */
const lap_target_t *lap_target_at(size_t index);

/* The target of a name. LAP_ERR_INVALID names the targets there are. */
lap_status_t lap_target_find(const char *name, const lap_target_t **target_p);

/* What a transport, which reaches the memory of one device or of hosts, makes of it. */
lap_target_t lap_target_of(const lap_device_ops_t *device, const lap_transport_ops_t *transport);

#endif
