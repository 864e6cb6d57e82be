/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numeric kernels of transformer layers that are no GEMMs: a table per device. Each is issued
 * to a stream and runs in its order; the memory it is given must live until it has run. What the
 * devices have already is not here: casts are theirs, scaled sums and GELU are their reductions
 * (see device.h), residual sums the epilogues of GEMMs.
 */
#ifndef LAP_KERNEL_KERNEL_H
#define LAP_KERNEL_KERNEL_H

#include "device/device.h"
#include "kernel/params.h"

typedef enum lap_kernel_id {
#define KERNEL(id, slot, args_t, label, reads, writes) LAP_KERNEL_##id,
#define KERNEL_AS KERNEL
#include "kernel/kernels.def"
    LAP_KERNELS
} lap_kernel_id_t;

/* Its name in proofs and pictures. */
const char *lap_kernel_name(lap_kernel_id_t kernel);

/* Operands of a step at most: it reads those of roles 0, 1, ..., and writes those of LAP_KERNEL_READS and so on. */
enum { LAP_KERNEL_READS = 7, LAP_KERNEL_WRITES = 5 };

/* An operand of a step as it was linked and proved, and where it is. */
typedef struct lap_arg {
    void *data;               /* once it is bound */
    size_t rows, cols, pitch; /* pitch: bytes from row to row */
    lap_dtype_t dtype;
    bool reads, writes; /* of a kernel */
    uint32_t role;      /* of a kernel as above; of a call LAP_INPUT, ..., LAP_B_SCALE */
    uint32_t memory;    /* of the program's regions: where it lies, */
    size_t offset;      /* ... in bytes from its begin */
} lap_arg_t;

/* The operands of a step. */
typedef struct lap_operands {
    const lap_arg_t *at;
    uint32_t n;
} lap_operands_t;

/* The operand of a role; one without memory where there is none. */
const lap_arg_t *lap_operand(const lap_operands_t *operands, uint32_t role);

/* From row to row, in elements. */
static inline size_t lap_arg_stride(const lap_arg_t *arg)
{
    return arg->pitch / lap_dtype_size(arg->dtype);
}

static inline lap_tensor_t lap_arg_tensor(const lap_arg_t *arg)
{
    return (lap_tensor_t){arg->data, arg->dtype, arg->rows, arg->cols, lap_arg_stride(arg)};
}

/* What any kernel is given: the member of its slot. */
typedef union lap_kernel_args {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define KERNEL(id, slot, args_t, label, reads, writes) args_t slot;
#include "kernel/kernels.def"
} lap_kernel_args_t;

/* The operands of a kernel, in the order of its row; its constants are 0. */
void lap_kernel_take(lap_kernel_id_t kernel, const lap_operands_t *operands,
                     lap_kernel_args_t *args);

typedef struct lap_kernels {
    const char *device; /* whose kernels they are */
    /* Makes a device ready for all that follows, unless it is. May wait for the device. */
    lap_status_t (*prepare)(lap_device_t *device);
    size_t (*norm_scratch)(size_t rows, size_t cols);
    size_t (*attention_scratch)(const lap_attention_t *attention);
/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses */
#define KERNEL(id, slot, args_t, label, reads, writes)                                             \
    lap_status_t (*slot)(lap_stream_t * stream, const args_t *args);
/* NOLINTEND(bugprone-macro-parentheses) */
#include "kernel/kernels.def"
} lap_kernels_t;

/* Issues a kernel to a stream. */
lap_status_t lap_kernel_launch(const lap_kernels_t *kernels, lap_stream_t *stream,
                               lap_kernel_id_t kernel, const lap_kernel_args_t *args);

/* The table of the device of this name: to ask it for sizes. */
lap_status_t lap_kernels_find(const char *device, const lap_kernels_t **kernels_p);

/*
 * The table of a GPU, which has sizes alone where this build has no such device. LAP_ERR_UNSUPPORTED names a kernel that
 * it does not have: a program for the target could be proved and not be run.
 */
lap_status_t lap_kernels_of_gpus(const lap_kernels_t **kernels_p);

/*
 * The table of a device, which is prepared. LAP_ERR_UNSUPPORTED names the device that has none, or the
 * kernel that it does not have.
 */
lap_status_t lap_kernels_of(lap_device_t *device, const lap_kernels_t **kernels_p);

#endif
