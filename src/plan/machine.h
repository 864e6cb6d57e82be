/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machine descriptions: what a GPU and the wires between GPUs can do, as a YAML file says it. The
 * planner takes every rate from here; nothing is measured.
 */
#ifndef LAP_PLAN_MACHINE_H
#define LAP_PLAN_MACHINE_H

#include <stddef.h>
#include <stdio.h>

#include "core/status.h"
#include "schedule/simulate.h"

/* Of Adam: gradient, master and two moments of an element, and the copy of the weight. */
#define LAP_PLAN_OPTIMIZER_BYTES 34.0

/* The types that GEMMs multiply. */
typedef enum lap_plan_type {
    LAP_PLAN_FP32 = 0,
    LAP_PLAN_FP16,
    LAP_PLAN_BF16,
    LAP_PLAN_FP8,
    LAP_PLAN_MXFP8, /* FP8 with a scale per block of 32 */
    LAP_PLAN_FP4,
    LAP_PLAN_TYPES
} lap_plan_type_t;

/* Their names, in their order; NULL at the end. */
extern const char *const lap_plan_type_names[LAP_PLAN_TYPES + 1];

/* Kernels that a device may compute more slowly than its memory is; the last three end a GEMM. */
typedef enum lap_plan_kernel {
    LAP_PLAN_NORM = 0,
    LAP_PLAN_NORM_BACKWARD,
    LAP_PLAN_SWIGLU,
    LAP_PLAN_SWIGLU_BACKWARD,
    LAP_PLAN_ROPE,
    LAP_PLAN_LOGIT_STATS,
    LAP_PLAN_CROSS_ENTROPY,
    LAP_PLAN_BIAS,
    LAP_PLAN_GELU,
    LAP_PLAN_GELU_BACKWARD,
    LAP_PLAN_KERNELS
} lap_plan_kernel_t;

/* A wire out of one GPU, in one direction. */
typedef struct lap_plan_wire {
    double bytes_per_s, efficiency, latency_s;
    double sms; /* that a collective keeps busy meanwhile */
} lap_plan_wire_t;

typedef struct lap_machine {
    char name[64];
    double gpus_per_node; /* that reach each other by NVLink */
    double sms, power_w;
    double memory_bytes, memory_bytes_per_s, memory_efficiency;
    double optimizer_efficiency; /* of an optimizer's step; 0: as all else */
    double reserved_bytes;       /* of the context, libraries and fragmentation */
    double peak[LAP_PLAN_TYPES]; /* FLOP/s of dense matrices; 0: it cannot multiply the type */
    /* Parts of the peak, by FLOPs of a GEMM; of attention by tokens of a sequence. */
    lap_curve_t gemm[LAP_PLAN_TYPES];
    lap_curve_t attention_forward, attention_backward;
    lap_plan_wire_t nvlink, network;
    double kernel_s; /* from the end of a kernel to the beginning of the next */
    /* Bytes per second, as kernels.h counts them; 0: that of memory, and nothing at the end of a GEMM. */
    double kernels[LAP_PLAN_KERNELS];
} lap_machine_t;

/*
 * Reads a description: a path of a file, or the name of one of those in machines/, such as h100-sxm: as
 * it lies near the program, else as it was when the program was built. LAP_ERR_INVALID names file, line,
 * key and value, or the nearest name.
 */
lap_status_t lap_machine_load(const char *name, lap_machine_t *machine_p);

/* The same of a file, or of a text that is not NULL, for which `path` then stands in sentences. */
lap_status_t lap_machine_read(const char *path, const char *text, size_t bytes,
                              lap_machine_t *machine_p);

/* Writes a description that lap_machine_load reads, after `comment`, lines that begin with #. */
void lap_machine_write(const lap_machine_t *machine, const char *comment, FILE *file);

/* Seconds of a GEMM of so many FLOPs. */
double lap_machine_gemm_s(const lap_machine_t *machine, lap_plan_type_t type, double flops);

/* Bytes per second of its memory. */
double lap_machine_memory_rate(const lap_machine_t *machine);

/* Seconds of an epilogue per byte of the result. */
double lap_machine_finish(const lap_machine_t *machine, lap_epilogue_t epilogue);

/*
 * The cost model of a schedule for `ranks` GPUs with this wire between them, NULL: an infinitely fast
 * one. GEMMs multiply `type`.
 */
lap_cost_t lap_machine_cost(const lap_machine_t *machine, const lap_plan_wire_t *wire,
                            lap_plan_type_t type, const lap_schedule_t *schedule, int ranks);

/* The wire between that many GPUs. */
static inline const lap_plan_wire_t *lap_machine_wire(const lap_machine_t *machine, size_t gpus)
{
    return (double)gpus <= machine->gpus_per_node ? &machine->nvlink : &machine->network;
}

/* Bytes per second that a wire carries of large messages. */
static inline double lap_wire_rate(const lap_plan_wire_t *wire)
{
    return wire->bytes_per_s * wire->efficiency;
}

#endif
