/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The method `cublasmp`, over the GPU, the NCCL and the cuBLASMp of test/fake, or real ones: results,
 * and what it refuses. Two ranks or more, started by `lap run` with LAP_DEVICE=cuda and
 * LAP_TRANSPORT=nccl.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/lap_cuda.h>

#include "data.h"
#include "device/device.h"
#include "overlap/op.h"
#include "tap.h"
#include "util/clock.h"

static const char *const algorithms[] = {"default", "split_p2p", "multicast", "no_overlap"};

static size_t unit = 64; /* rows of a rank */

static lap_op_desc_t describe(lap_op_kind_t kind, int size)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = unit * (size_t)size;
    desc.n = unit / 2 * (size_t)size;
    desc.k = unit * (size_t)size;
    desc.dtype = LAP_BFLOAT16;
    desc.method = "cublasmp";
    return desc;
}

static lap_dtype_t out_of(const lap_op_desc_t *desc)
{
    return desc->out_dtype != LAP_DTYPE_DEFAULT ? desc->out_dtype
           : lap_dtype_is_fp8(desc->dtype)      ? LAP_BFLOAT16
                                                : desc->dtype;
}

/* Where it rounds before an epilogue is its own affair: then results have bounds. */
static lap_status_t call(lap_group_t *group, lap_op_t *op, const lap_op_desc_t *desc, size_t m,
                         uint64_t seed)
{
    test_call_t call = test_exact_call(group, desc, m, seed);
    call.exact = desc->epilogue == LAP_EPILOGUE_NONE;
    call.vector_dtype = call.aux_dtype = out_of(desc);
    return test_call_check(op, call);
}

/* Calls that are repeated are launched as a graph. */
static void test_calls(lap_group_t *group, lap_op_kind_t kind, int algorithm)
{
    lap_op_t *op = NULL;
    lap_op_desc_t desc = describe(kind, lap_group_size(group));
    desc.algorithm = (lap_algorithm_t)algorithm;
    if (!tap_success(lap_op_create(group, &desc, &op), "%s, %s", lap_op_kind_name(kind),
                     algorithms[algorithm]))
        return;
    tap_ok(strcmp(lap_op_method(op), "cublasmp") == 0, "its method is cublasmp");
    for (uint64_t i = 0; i < 5; i++)
        tap_success(call(group, op, &desc, desc.m, 1 + i / 3), "call %d is right", (int)i);
    tap_failure(call(group, op, &desc, desc.m / 2, 1), LAP_ERR_UNSUPPORTED, "cublasmp",
                "m = ", NULL);
    tap_success(call(group, op, &desc, desc.m, 9), "which does no harm");
    lap_op_destroy(op);
}

/* An operator of its own for each, with calls of several numbers and scales. */
static void test_flavour(lap_group_t *group, const lap_op_desc_t *desc, const char *text)
{
    lap_op_t *op = NULL;
    if (!tap_success(lap_op_create(group, desc, &op), "%s, %s", lap_op_kind_name(desc->kind), text))
        return;
    for (uint64_t i = 0; i < 4; i++)
        tap_success(call(group, op, desc, desc->m, 1 + i), "call %d is right", (int)i);
    lap_op_destroy(op);
}

static void test_flavours(lap_group_t *group)
{
    const lap_op_kind_t kinds[] = {LAP_AG_GEMM, LAP_GEMM_RS, LAP_GEMM_AR};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        lap_op_desc_t desc = describe(kinds[i], lap_group_size(group));
        desc.epilogue = LAP_EPILOGUE_BIAS;
        test_flavour(group, &desc, "bias");
        desc.out_dtype = LAP_FLOAT32;
        test_flavour(group, &desc, "bias, a float32 result");
        desc = describe(kinds[i], lap_group_size(group));
        desc.dtype = LAP_FLOAT16;
        test_flavour(group, &desc, "float16");
        if (kinds[i] == LAP_AG_GEMM)
            continue;
        desc.wire_dtype = LAP_FLOAT32;
        test_flavour(group, &desc, "sums that travel as float32");
        desc = describe(kinds[i], lap_group_size(group));
        desc.dtype = LAP_FLOAT8_E4M3;
        desc.out_dtype = desc.wire_dtype = LAP_BFLOAT16;
        test_flavour(group, &desc, "FP8");
    }
    const char *gelu = getenv("LAP_GPU_GELU");
    lap_op_desc_t desc = describe(LAP_AG_GEMM, lap_group_size(group));
    desc.epilogue = LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU;
    lap_op_t *op = NULL;
    if (gelu && strcmp(gelu, "fast") == 0)
        test_flavour(group, &desc, "bias and GELU");
    else
        tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, "GELU", "approximation",
                    "LAP_GPU_GELU=fast", NULL);
}

static void refuse(lap_group_t *group, const lap_op_desc_t *desc, const char *word)
{
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(group, desc, &op), LAP_ERR_UNSUPPORTED, "cublasmp", word, NULL);
}

static void test_refusals(lap_group_t *group)
{
    const int size = lap_group_size(group);
    lap_op_desc_t desc = describe(LAP_AG_GEMM, size);
    desc.m++;
    refuse(group, &desc, "m = ");
    desc = describe(LAP_GEMM_RS, size);
    desc.k++;
    refuse(group, &desc, "k = ");
    desc = describe(LAP_GEMM_RS, size);
    desc.epilogue = LAP_EPILOGUE_GELU;
    refuse(group, &desc, "epilogue");
    desc = describe(LAP_AG_GEMM, size);
    desc.out_dtype = LAP_FLOAT16;
    refuse(group, &desc, "write d");
    desc = describe(LAP_GEMM_RS, size);
    desc.out_dtype = LAP_FLOAT32;
    desc.wire_dtype = LAP_BFLOAT16;
    refuse(group, &desc, "send sums");
    desc = describe(LAP_AG_GEMM, size);
    desc.dtype = LAP_FLOAT8_E4M3;
    refuse(group, &desc, "gather FP8");
    desc = describe(LAP_GEMM_RS, size);
    desc.dtype = desc.b_dtype = LAP_FLOAT8_E5M2;
    refuse(group, &desc, "float8_e5m2");
    desc = describe(LAP_GEMM_AR, size);
    desc.accumulate = 1;
    refuse(group, &desc, "add to d");
    desc = describe(LAP_AG_GEMM, size);
    tap_failure(lap_op_check(&desc, NULL, 1, size, "nccl"), LAP_ERR_UNSUPPORTED, "cublasmp",
                "look inside", NULL);
    desc.kind = LAP_BULK_AG;
    desc.cols = 8;
    lap_op_t *op = NULL;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "cublasmp", "bulk_ag", NULL);
    desc = describe(LAP_AG_GEMM, size);
    desc.method = "ring";
    desc.algorithm = LAP_ALGORITHM_SPLIT_P2P;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "algorithm", "ring", NULL);
    desc = describe(LAP_AG_GEMM, size);
    desc.gather_input = 1;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_INVALID, "gather_input", "cublasmp",
                NULL);
    /* What cuBLASMp itself refuses: no switch, no multicast. */
    desc = describe(LAP_GEMM_RS, size);
    desc.algorithm = LAP_ALGORITHM_MULTICAST;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, "cuBLASMp", NULL);
}

/* Over other transports there is no communicator that it could use. */
static void test_transport(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_buffer_t *buffer = NULL;
    lap_op_desc_t desc = describe(LAP_AG_GEMM, lap_group_size(group));
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = "cuda_ipc";
    tap_success(lap_buffer_create(group, 64, 64, &options, &buffer), "a buffer of cuda_ipc");
    desc.buffer = buffer;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, "cublasmp", "transport nccl",
                NULL);
    lap_buffer_destroy(buffer);
}

/* Its transfers are its own: over an emulated link it would look faster than it is. */
static void test_link(lap_group_t *group)
{
    lap_op_t *op = NULL;
    lap_buffer_t *buffer = NULL;
    lap_op_desc_t desc = describe(LAP_AG_GEMM, lap_group_size(group));
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.link.bytes_per_s = 1e9;
    tap_success(lap_buffer_create(group, (size_t)1 << 20, 256, &options, &buffer), "a slow link");
    desc.buffer = buffer;
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_UNSUPPORTED, "cublasmp", "emulated link",
                NULL);
    lap_buffer_destroy(buffer);
}

/* One rank that cannot make its part: all fail at once, and go on. Only the fake fails so. */
static void test_local_failure(lap_group_t *group)
{
    lap_op_t *op = NULL;
    const lap_op_desc_t desc = describe(LAP_AG_GEMM, lap_group_size(group));
    if (lap_group_rank(group) == 1)
        setenv("FAKE_FAILS", "cuMemHostAlloc now", 1);
    tap_failure(lap_op_create(group, &desc, &op), LAP_ERR_NO_MEMORY, "cuMemHostAlloc", NULL);
    unsetenv("FAKE_FAILS");
    if (tap_success(lap_op_create(group, &desc, &op), "one after that is made"))
        tap_success(call(group, op, &desc, desc.m, 5), "... and right");
    lap_op_destroy(op);
}

/* ---- auto, by a clock of its own: linked with --wrap ---- */

static _Thread_local uint64_t script_ns; /* what time it is; 0: as everywhere */

uint64_t __real_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void);
lap_status_t __real_lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args, void *stream);
lap_status_t __wrap_lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args, void *stream);

uint64_t __wrap_lap_now_ns(void)
{
    return script_ns ? script_ns : __real_lap_now_ns();
}

/* A call of cuBLASMp takes a millisecond, one of ours two. */
lap_status_t __wrap_lap_op_enqueue(lap_op_t *op, const lap_op_args_t *args, void *stream)
{
    if (script_ns)
        script_ns += strcmp(lap_op_method(op), "cublasmp") == 0 ? 1000000u : 2000000u;
    return __real_lap_op_enqueue(op, args, stream);
}

static lap_status_t create_by_script(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p)
{
    script_ns = lap_now_ns();
    const lap_status_t status = lap_op_create(group, desc, op_p);
    script_ns = 0;
    return status;
}

/* auto may choose it when asked to, for calls of the capacity; others go on to methods of our own. */
static void test_auto(lap_group_t *group)
{
    lap_op_desc_t desc = describe(LAP_AG_GEMM, lap_group_size(group));
    desc.method = "auto";
    for (desc.auto_foreign = 0; desc.auto_foreign < 2; desc.auto_foreign++) {
        lap_op_t *op = NULL;
        const char *label = "";
        double seconds;
        size_t count = 0;
        if (!tap_success(create_by_script(group, &desc, &op), "auto_foreign = %d",
                         desc.auto_foreign))
            return;
        tap_ok((strcmp(lap_op_method(op), "cublasmp") == 0) == (desc.auto_foreign != 0),
               "it picks %s", lap_op_method(op));
        for (size_t i = 0; lap_op_prediction(op, i, &label, &seconds) == LAP_OK; i++)
            count += strcmp(label, "cublasmp") == 0;
        tap_ok(count == (size_t)desc.auto_foreign, "and knows the time of %zu", count);
        for (uint64_t i = 0; i < 4; i++) {
            tap_success(call(group, op, &desc, desc.m, 1 + i), "a call of all rows is right");
            tap_success(call(group, op, &desc, desc.m - 1 - i, 1 + i), "one of fewer, too");
        }
        lap_op_destroy(op);
    }
    lap_op_t *op = NULL;
    desc.auto_foreign = 1;
    desc.m++; /* which it cannot share */
    tap_success(create_by_script(group, &desc, &op), "what it cannot do is left to the others");
    tap_ok(strcmp(lap_op_method(op), "cublasmp") != 0, "it picks %s", lap_op_method(op));
    tap_success(call(group, op, &desc, desc.m, 1), "and is right");
    lap_op_destroy(op);
    desc = describe(LAP_AG_GEMM, lap_group_size(group));
    desc.method = "auto";
    desc.auto_foreign = desc.gather_input = 1; /* it has no such knob */
    if (!tap_success(create_by_script(group, &desc, &op), "what it cannot return, too"))
        return;
    tap_ok(strcmp(lap_op_method(op), "cublasmp") != 0, "it picks %s", lap_op_method(op));
    lap_op_destroy(op);
}

/*
 * A call in a stream for which the other rank never comes, while nobody waits for it: the guard ends
 * it, for both. LAP_TIMEOUT_S is 3.
 */
static void test_alone(lap_group_t *group)
{
    lap_op_t *op = NULL;
    void *memory = NULL;
    const lap_op_desc_t desc = describe(LAP_GEMM_RS, lap_group_size(group));
    test_call_t call = test_exact_call(group, &desc, desc.m, 0);
    test_call_init(&call);
    if (!tap_success(lap_op_create(group, &desc, &op), "an operator") ||
        !tap_success(call.device->ops->alloc(call.device, test_call_bytes(&call), &memory), "room"))
        return;
    const lap_op_args_t args = test_call_args_at(&call, memory);
    for (int i = 0; i < 5; i++)
        tap_success(lap_op_enqueue(op, &args, NULL), "call %d of both", i);
    tap_success(lap_world_synchronize(group->world, NULL), "which end");
    usleep(3500000);
    tap_success(lap_group_barrier(group), "a rest that is longer than the timeout does no harm");
    if (lap_group_rank(group) == 0)
        tap_success(lap_op_enqueue(op, &args, NULL), "one of rank 0 alone");
    while (lap_group_look(group) == LAP_OK)
        usleep(1000);
    tap_failure(lap_op_enqueue(op, &args, NULL), LAP_ERR_TIMEOUT, "timeout after 3 s", "gemm_rs",
                "cublasmp", NULL);
    lap_op_destroy(op);
    test_call_clear(&call);
}

/* cublasmp [small | auto | alone]: with small matrices, for a GPU that is slow; what auto does of it;
 * a rank that is late */
int main(int argc, char **argv)
{
    lap_world_t *world;
    const bool tries = argc > 1 && strcmp(argv[1], "auto") == 0;
    const bool alone = argc > 1 && strcmp(argv[1], "alone") == 0;
    if (argc > 1)
        unit = 8;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return tap_done();
    lap_group_t *group = lap_world_group(world);
    if (tries || alone) {
        (tries ? test_auto : test_alone)(group);
        lap_world_destroy(world);
        return tap_done();
    }
    test_calls(group, LAP_AG_GEMM, LAP_ALGORITHM_DEFAULT);
    test_calls(group, LAP_AG_GEMM, LAP_ALGORITHM_SPLIT_P2P);
    test_calls(group, LAP_AG_GEMM, LAP_ALGORITHM_NO_OVERLAP);
    test_calls(group, LAP_GEMM_RS, LAP_ALGORITHM_DEFAULT);
    test_calls(group, LAP_GEMM_RS, LAP_ALGORITHM_NO_OVERLAP);
    test_calls(group, LAP_GEMM_AR, LAP_ALGORITHM_DEFAULT);
    test_flavours(group);
    test_refusals(group);
    test_transport(group);
    test_link(group);
    if (argc > 1)
        test_local_failure(group);
    lap_world_destroy(world);
    return tap_done();
}
