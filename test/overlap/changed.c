/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that differs in one thing from those before it. A device that keeps calls as graphs may
 * replay one only for a call with the same memory and the same numbers. So an operator is called
 * until a graph of it is replayed, then one number, address, stride or type of its arguments is
 * changed, called again as often, and changed back. After every call all memory that the arguments
 * could mean is compared with that of the same call on the device ref, byte by byte.
 *
 * changed DEVICE: ranks are the processes of the world that the environment describes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "data.h"
#include "device/device.h"
#include "overlap/op.h"
#include "schedule/runnable.h"
#include "tap.h"

/* The arguments that are memory. Each has two slots, which it can lie in. */
enum { A, B, D, GATHERED, BIAS, AUX, BIAS_GRAD, X, Y, TENSORS, SCALES = TENSORS, PARTS };
enum { NUMBERS = PARTS }; /* behind them: scales in memory */
enum { SLOT = 1 << 14, ARENA = 2 * (PARTS + 1) * SLOT };
enum { NUMBER_STEP = 4 }; /* floats from one scale in memory to the next */

static const char *const part_names[PARTS] = {"a",   "b",         "d", "gathered", "bias",
                                              "aux", "bias_grad", "x", "y",        "scales"};

/* The arguments of a call, wherever its memory begins. */
typedef struct setup {
    size_t m;
    float alpha, beta, a_scale, b_scale, d_scale, wire_scale;
    bool no_aux;
    lap_dtype_t vector, aux;     /* types of bias and bias_grad, and of aux */
    bool a_ptr, b_ptr, wire_ptr; /* these scales are in memory, */
    int a_at, b_at, wire_at;     /* at one of two places */
    int slots[PARTS];
    size_t pads[TENSORS]; /* elements between rows */
} setup_t;

/* What can be changed: numbers, types, and the place and the stride of every part. */
typedef enum change {
    ALPHA,
    BETA,
    BETA_ZERO,
    A_SCALE,
    A_SCALE_FOR_ALPHA, /* their product stays */
    B_SCALE,
    D_SCALE,
    WIRE_SCALE,
    A_SCALE_PTR,
    A_SCALE_PLACE,
    B_SCALE_PTR,
    B_SCALE_PLACE,
    WIRE_SCALE_PTR,
    WIRE_SCALE_PLACE,
    ROWS,
    VECTOR_TYPE,
    AUX_TYPE,
    WITHOUT_AUX,
    PLACE,
    STRIDE = PLACE + PARTS,
    CHANGES = STRIDE + TENSORS
} change_t;

static const char *const number_names[PLACE] = {"alpha",
                                                "beta",
                                                "beta, to 0",
                                                "a_scale",
                                                "a_scale and alpha",
                                                "b_scale",
                                                "d_scale",
                                                "wire_scale",
                                                "a_scale_ptr",
                                                "the place of a_scale_ptr",
                                                "b_scale_ptr",
                                                "the place of b_scale_ptr",
                                                "wire_scale_ptr",
                                                "the place of wire_scale_ptr",
                                                "m",
                                                "the type of bias and bias_grad",
                                                "the type of aux",
                                                "aux, to NULL"};

/* One operator on two devices. */
typedef struct pair {
    lap_op_t *op, *ref;
    const lap_op_desc_t *desc;
    lap_device_t *device; /* of op, if that has its own memory; else NULL */
    lap_stream_t *stream;
    char *here;  /* memory of the calls of ref, */
    char *there; /* and of op, */
    char *back;  /* and what is in it after a call */
    uint64_t calls;
} pair_t;

static int tried[CHANGES];

/* ---- arguments ---- */

static setup_t base_setup(const lap_op_desc_t *desc)
{
    const bool fp8 = lap_dtype_is_fp8(desc->dtype) && desc->kind != LAP_EXTERNAL_AG;
    return (setup_t){
        .m = desc->m,
        .alpha = 1,
        .beta = desc->accumulate ? 1 : 0,
        .a_scale = fp8 ? 0.5f : 1,
        .b_scale = fp8 ? 2 : 1,
        .d_scale = 1,
        .wire_scale = 1,
        .vector = LAP_FLOAT32,
        .aux = LAP_FLOAT32,
    };
}

/* The arguments in memory that begins at `base`. */
static lap_op_args_t args_at(const lap_op_t *op, const setup_t *setup, char *base)
{
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_tensor_t *const all[TENSORS] = {&args.a,         &args.b,    &args.d,
                                        &args.gathered,  &args.bias, &args.aux,
                                        &args.bias_grad, &args.x,    &args.y};
    lap_tensor_t *used[LAP_ARGS_TENSORS];
    args.m = setup->m;
    args.alpha = setup->alpha;
    args.beta = setup->beta;
    args.d_scale = setup->d_scale;
    args.scales = (float *)(void *)(base + (2 * SCALES + setup->slots[SCALES]) * SLOT);
    const float *numbers = (const float *)(const void *)(base + 2 * NUMBERS * SLOT);
    if (setup->a_ptr)
        args.a_scale_ptr = &numbers[NUMBER_STEP * setup->a_at];
    if (setup->b_ptr)
        args.b_scale_ptr = &numbers[NUMBER_STEP * (2 + setup->b_at)];
    if (setup->wire_ptr)
        args.wire_scale_ptr = &numbers[NUMBER_STEP * (4 + setup->wire_at)];
    args.a_scale = setup->a_ptr ? 1 : setup->a_scale;
    args.b_scale = setup->b_ptr ? 1 : setup->b_scale;
    args.wire_scale = setup->wire_ptr ? 1 : setup->wire_scale;
    args.bias.dtype = args.bias_grad.dtype = setup->vector;
    args.aux.dtype = setup->aux;
    args.aux.data = setup->no_aux ? NULL : base;
    const size_t count = lap_args_shape(&op->problem, &args, used);
    for (size_t i = 0; i < count; i++)
        for (int part = 0; part < TENSORS; part++)
            if (used[i] == all[part]) {
                used[i]->data = base + (2 * part + setup->slots[part]) * SLOT;
                used[i]->stride = used[i]->cols + setup->pads[part];
            }
    return args;
}

static const lap_tensor_t *tensor_of(const lap_op_args_t *args, int part)
{
    const lap_tensor_t *const all[TENSORS] = {&args->a,         &args->b,    &args->d,
                                              &args->gathered,  &args->bias, &args->aux,
                                              &args->bias_grad, &args->x,    &args->y};
    return all[part]->rows > 0 ? all[part] : NULL;
}

/* ---- memory ---- */

/* Small integers, others for each slot and call, in all of a slot, whatever stride is used in it. */
static void fill_slot(char *slot, lap_dtype_t dtype, uint64_t seed)
{
    const size_t count = SLOT / lap_dtype_size(dtype);
    const lap_tensor_t all = {slot, dtype, 1, count, count};
    for (size_t i = 0; i < count; i++)
        test_set(&all, 0, i, (float)(tap_random(seed, i) % 5) - 2);
}

static bool is_given(const pair_t *pair, const setup_t *setup, int part)
{
    return part == A || part == B || part == BIAS || part == X || (part == D && setup->beta != 0) ||
           (part == AUX && pair->desc->epilogue & LAP_EPILOGUE_DGELU);
}

/* What is not given is NaN in every type. */
static void fill(pair_t *pair, const setup_t *setup, const lap_op_args_t *args)
{
    memset(pair->here, 0xff, ARENA);
    float *numbers = (float *)(void *)(pair->here + 2 * NUMBERS * SLOT);
    for (int i = 0; i < 6; i++) /* powers of two: results stay exact */
        numbers[NUMBER_STEP * i] = ldexpf(1, i % 4 - 1);
    for (int part = 0; part < TENSORS; part++) {
        const lap_tensor_t *tensor = tensor_of(args, part);
        for (int slot = 0; slot < 2 && tensor && is_given(pair, setup, part); slot++)
            fill_slot(pair->here + (2 * part + slot) * SLOT, tensor->dtype,
                      pair->calls * 64 + (uint64_t)(2 * part + slot));
    }
}

static lap_status_t move(pair_t *pair, void *dst, const void *src)
{
    const lap_copy_t all = {dst, src, 1, ARENA, ARENA, ARENA, 0, false};
    if (!pair->device) {
        memcpy(dst, src, ARENA);
        return LAP_OK;
    }
    LAP_TRY(pair->device->ops->copy(pair->stream, &all));
    return pair->device->ops->stream_synchronize(pair->stream);
}

/* ---- comparing ---- */

/* GELU and its derivative are exact for nobody: what is near enough is as if it were right. */
static void forgive(pair_t *pair, const lap_op_args_t *args)
{
    const lap_tensor_t *want = tensor_of(args, D);
    if (!want || !(pair->desc->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU)))
        return;
    lap_tensor_t got = *want;
    got.data = pair->back + ((char *)want->data - pair->here);
    for (size_t i = 0; i < want->rows; i++)
        for (size_t j = 0; j < want->cols; j++) {
            const float right = test_get(want, i, j);
            if (fabsf(test_get(&got, i, j) - right) <= 1e-4f * (1 + fabsf(right)))
                test_set(&got, i, j, right);
        }
}

/* The part in which the memory of both differs; PARTS: in none. */
static int find_difference(const pair_t *pair)
{
    int part = 0;
    while (part < PARTS &&
           memcmp(pair->here + 2 * part * SLOT, pair->back + 2 * part * SLOT, 2 * SLOT) == 0)
        part++;
    return part;
}

/* One call on both devices. Writes what is wrong with it; nothing if it is right. */
static bool run(pair_t *pair, const setup_t *setup, char *wrong, size_t bytes)
{
    const lap_op_args_t near = args_at(pair->ref, setup, pair->here);
    const lap_op_args_t far = args_at(pair->op, setup, pair->there);
    pair->calls++;
    fill(pair, setup, &near);
    lap_status_t status = move(pair, pair->there, pair->here);
    if (status == LAP_OK)
        status = lap_op_run(pair->op, &far);
    if (status == LAP_OK)
        status = lap_op_run(pair->ref, &near);
    if (status == LAP_OK)
        status = move(pair, pair->back, pair->there);
    if (status != LAP_OK) {
        snprintf(wrong, bytes, "%s", lap_last_error());
        return false;
    }
    forgive(pair, &near);
    const int part = find_difference(pair);
    if (part < PARTS)
        snprintf(wrong, bytes, "%s is not that of ref", part_names[part]);
    return part == PARTS;
}

/* Whether the latest call with so many rows was a graph, where the device has any. */
static bool is_kept(const pair_t *pair, size_t m)
{
    if (!pair->op->engine->device->ops->facts.graphs)
        return true;
    for (int i = 0; i < LAP_OP_PROGRAMS; i++)
        if (pair->op->cache[i].runnable && pair->op->cache[i].m == m)
            return pair->op->cache[i].runnable->captured;
    return false;
}

/* As often as it takes that the last one is a replay. */
static bool run_until_kept(pair_t *pair, const setup_t *setup, char *wrong, size_t bytes)
{
    for (int i = 0; i < 3; i++)
        if (!run(pair, setup, wrong, bytes))
            return false;
    if (!is_kept(pair, setup->m))
        snprintf(wrong, bytes, "no graph was made of the same call three times");
    return is_kept(pair, setup->m);
}

/* ---- changes ---- */

static bool apply_number(const lap_op_t *op, setup_t *setup, change_t change)
{
    const lap_problem_t *p = &op->problem;
    const bool multiplies = lap_kind_multiplies(p->kind);
    switch (change) {
    case ALPHA:
        setup->alpha = 2;
        return multiplies;
    case BETA:
        setup->beta = -1;
        return p->desc.accumulate;
    case BETA_ZERO:
        setup->beta = 0;
        return p->desc.accumulate;
    case A_SCALE_FOR_ALPHA:
        setup->alpha = 0.5f;
        setup->a_scale *= 2;
        return multiplies && lap_dtype_is_fp8(p->types.a);
    case A_SCALE:
        setup->a_scale *= 2;
        return multiplies && lap_dtype_is_fp8(p->types.a);
    case B_SCALE:
        setup->b_scale *= 2;
        return multiplies && lap_dtype_is_fp8(p->types.b);
    case D_SCALE:
        setup->d_scale *= 2;
        return multiplies && lap_dtype_is_fp8(p->types.out);
    case WIRE_SCALE:
        setup->wire_scale *= 2;
        return p->kind != LAP_AG_GEMM && p->kind != LAP_GEMM && lap_dtype_is_fp8(p->types.wire);
    case A_SCALE_PLACE:
        setup->a_at = 1;
        /* fall through */
    case A_SCALE_PTR:
        setup->a_ptr = true;
        return multiplies && lap_dtype_is_fp8(p->types.a);
    case B_SCALE_PLACE:
        setup->b_at = 1;
        /* fall through */
    case B_SCALE_PTR:
        setup->b_ptr = true;
        return multiplies && lap_dtype_is_fp8(p->types.b);
    case WIRE_SCALE_PLACE:
        setup->wire_at = 1;
        /* fall through */
    case WIRE_SCALE_PTR:
        setup->wire_ptr = true;
        return (p->kind == LAP_BULK_AG || p->kind == LAP_EXTERNAL_AG) &&
               lap_dtype_is_fp8(p->types.wire);
    default: /* ROWS */
        setup->m = setup->m / 2 + 1;
        return true;
    }
}

/* Makes the change; false: there is nothing to change. */
static bool apply(const pair_t *pair, setup_t *setup, change_t change)
{
    const lap_epilogue_t epilogue = pair->desc->epilogue;
    const lap_op_args_t args = args_at(pair->ref, setup, pair->here);
    if (change < VECTOR_TYPE)
        return apply_number(pair->ref, setup, change);
    if (change == VECTOR_TYPE) {
        setup->vector = LAP_BFLOAT16;
        return epilogue & (LAP_EPILOGUE_BIAS | LAP_EPILOGUE_BIAS_GRAD);
    }
    if (change == AUX_TYPE) {
        setup->aux = LAP_BFLOAT16;
        return epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU);
    }
    if (change == WITHOUT_AUX) {
        setup->no_aux = true;
        return epilogue & LAP_EPILOGUE_GELU;
    }
    if (change < STRIDE) {
        const int part = (int)change - PLACE;
        setup->slots[part] = 1;
        return part == SCALES ? pair->ref->problem.gather_input &&
                                    lap_dtype_is_fp8(pair->ref->problem.types.wire)
                              : tensor_of(&args, part) != NULL;
    }
    const int part = (int)change - STRIDE;
    const lap_tensor_t *tensor = tensor_of(&args, part);
    setup->pads[part] = 16;
    return tensor && tensor->rows > 1;
}

static const char *name_of(change_t change, char *text, size_t bytes)
{
    if (change < PLACE)
        return number_names[change];
    snprintf(text, bytes, "the %s of %s", change < STRIDE ? "place" : "stride",
             part_names[change < STRIDE ? change - PLACE : change - STRIDE]);
    return text;
}

static void try_change(pair_t *pair, change_t change)
{
    setup_t base = base_setup(pair->desc);
    base.a_ptr = change == A_SCALE_PLACE; /* another place of what was in memory before */
    base.b_ptr = change == B_SCALE_PLACE;
    base.wire_ptr = change == WIRE_SCALE_PLACE;
    setup_t changed = base;
    char wrong[LAP_ERROR_TEXT] = "", text[64];
    if (!apply(pair, &changed, change))
        return;
    tried[change]++;
    const bool right = run_until_kept(pair, &base, wrong, sizeof(wrong)) &&
                       run_until_kept(pair, &changed, wrong, sizeof(wrong)) &&
                       run_until_kept(pair, &base, wrong, sizeof(wrong));
    tap_ok(right, "%s (%s): with another value of %s, and the old one again%s%s",
           lap_op_kind_name(pair->desc->kind), lap_op_method(pair->op),
           name_of(change, text, sizeof(text)), right ? "" : ": ", wrong);
}

/* ---- operators ---- */

static lap_op_desc_t describe(lap_op_kind_t kind, const char *method, lap_dtype_t dtype,
                              lap_dtype_t out, lap_epilogue_t epilogue, int size)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.method = method;
    desc.dtype = dtype;
    desc.m = 16 * (size_t)size;
    if (lap_kind_multiplies(kind)) {
        desc.n = 16 * (size_t)size;
        desc.k = 16 * (size_t)size;
        desc.out_dtype = out;
        desc.epilogue = epilogue;
    }
    if (lap_kind_moves(kind))
        desc.cols = 32;
    return desc;
}

static bool open_pair(pair_t *pair, lap_world_t *const *worlds, const lap_op_desc_t *desc)
{
    void *there = NULL;
    pair->desc = desc;
    pair->device = test_device(lap_world_group(worlds[0]));
    pair->here = aligned_alloc(256, ARENA);
    pair->back = aligned_alloc(256, ARENA);
    if (!tap_success(lap_op_create(lap_world_group(worlds[0]), desc, &pair->op), "%s (%s)",
                     lap_op_kind_name(desc->kind), desc->method) ||
        !tap_success(lap_op_create(lap_world_group(worlds[1]), desc, &pair->ref), "on ref"))
        return false;
    if (!pair->device) {
        pair->there = aligned_alloc(256, ARENA);
        return true;
    }
    const lap_device_ops_t *ops = pair->device->ops;
    const bool made =
        tap_success(ops->alloc(pair->device, ARENA, &there), "memory there") &&
        tap_success(ops->stream_create(pair->device, false, &pair->stream), "a stream there");
    pair->there = there;
    return made;
}

static void close_pair(pair_t *pair)
{
    lap_op_destroy(pair->op);
    lap_op_destroy(pair->ref);
    if (pair->stream)
        pair->device->ops->stream_destroy(pair->stream);
    if (pair->device && pair->there)
        pair->device->ops->free(pair->device, pair->there);
    else
        free(pair->there);
    free(pair->here);
    free(pair->back);
}

/* Between them they have every argument that there is. */
static void try_operators(lap_world_t *const *worlds)
{
    enum { OPS = 6 };
    const int size = lap_world_size(worlds[0]);
    const lap_dtype_t f32 = LAP_FLOAT32, bf16 = LAP_BFLOAT16, e4m3 = LAP_FLOAT8_E4M3;
    const lap_epilogue_t bias = LAP_EPILOGUE_BIAS, grad = LAP_EPILOGUE_BIAS_GRAD;
    lap_op_desc_t descs[OPS] = {
        describe(LAP_AG_GEMM, "ring", e4m3, e4m3, bias | grad, size),
        describe(LAP_GEMM_RS, "pipeline", bf16, f32, bias | LAP_EPILOGUE_GELU, size),
        describe(LAP_BULK_RS, "direct", f32, f32, LAP_EPILOGUE_DGELU, size),
        describe(LAP_GEMM, "serial", e4m3, f32, grad, size),
        describe(LAP_EXTERNAL_AG, "direct", e4m3, f32, LAP_EPILOGUE_NONE, size),
        describe(LAP_GEMM_AR, "direct", bf16, f32, bias, size),
    };
    descs[0].gather_input = 1;
    descs[0].accumulate = 1;
    descs[1].wire_dtype = e4m3;
    descs[2].wire_dtype = e4m3;
    descs[2].y_dtype = f32;
    descs[2].accumulate = 1;
    descs[3].layout = LAP_WGRAD;
    for (int i = 0; i < OPS; i++) {
        pair_t pair = {.op = NULL};
        if (open_pair(&pair, worlds, &descs[i]))
            for (int change = 0; change < CHANGES; change++)
                try_change(&pair, (change_t)change);
        close_pair(&pair);
    }
    for (int change = 0; change < CHANGES; change++) {
        char text[64];
        /* Vectors have one row. */
        if (!tried[change] && change != STRIDE + BIAS && change != STRIDE + BIAS_GRAD)
            tap_ok(false, "some operator has %s", name_of((change_t)change, text, sizeof(text)));
    }
}

int main(int argc, char **argv)
{
    lap_world_t *worlds[2] = {NULL, NULL};
    const char *const devices[2] = {argc > 1 ? argv[1] : "cpu", "ref"};
    for (int i = 0; i < 2; i++) {
        lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
        options.device = devices[i];
        if (!tap_success(lap_world_create(&options, &worlds[i]), "a world on %s", devices[i]))
            return tap_done();
    }
    try_operators(worlds);
    for (int i = 0; i < 2; i++)
        lap_world_destroy(worlds[i]);
    return tap_done();
}
