/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that can be made is made, used and destroyed, and nothing may be left of it: no
 * allocation, no memory of a device, no mapping, no descriptor, no thread. Also of what failed to be
 * made. Linked with --wrap for those calls, so that they are counted exactly; what only the system
 * counts is read from /proc. The first rounds are not counted: a group and a device keep what they
 * have measured.
 *
 * leaks [--device D] [--threads P]: see overlap/suite.h.
 */
#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/host/host.h"
#include "nn/memory.h"
#include "overlap/suite.h"
#include "tap.h"
#include "util/clock.h"

enum { ROUNDS = 2, SEQ = 8, HIDDEN = 16 };

static atomic_long allocations, device_memory, mapped_bytes;

void *__real_lap_alloc(size_t count, size_t size);
void *__wrap_lap_alloc(size_t count, size_t size);
void *__real_lap_realloc(void *old, size_t old_count, size_t count, size_t size);
void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size);
void __real_lap_free(void *p);
void __wrap_lap_free(void *p);
lap_status_t __real_lap_host_alloc(lap_device_t *device, size_t bytes, void **memory_p);
lap_status_t __wrap_lap_host_alloc(lap_device_t *device, size_t bytes, void **memory_p);
lap_status_t __real_lap_host_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p);
lap_status_t __wrap_lap_host_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p);
void __real_lap_host_free(lap_device_t *device, void *memory);
void __wrap_lap_host_free(lap_device_t *device, void *memory);
void *__real_mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t bytes);
int __wrap_munmap(void *address, size_t bytes);

void *__wrap_lap_alloc(size_t count, size_t size)
{
    void *p = __real_lap_alloc(count, size);
    allocations += p != NULL;
    return p;
}

void *__wrap_lap_realloc(void *old, size_t old_count, size_t count, size_t size)
{
    void *p = __real_lap_realloc(old, old_count, count, size);
    allocations += p && !old;
    return p;
}

void __wrap_lap_free(void *p)
{
    allocations -= p != NULL;
    __real_lap_free(p);
}

lap_status_t __wrap_lap_host_alloc(lap_device_t *device, size_t bytes, void **memory_p)
{
    lap_status_t status = __real_lap_host_alloc(device, bytes, memory_p);
    device_memory += status == LAP_OK;
    return status;
}

lap_status_t __wrap_lap_host_alloc_shared(lap_device_t *device, size_t bytes, void **memory_p)
{
    lap_status_t status = __real_lap_host_alloc_shared(device, bytes, memory_p);
    device_memory += status == LAP_OK;
    return status;
}

void __wrap_lap_host_free(lap_device_t *device, void *memory)
{
    device_memory -= memory != NULL;
    __real_lap_host_free(device, memory);
}

static long pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (long)((bytes + page - 1) / page * page);
}

void *__wrap_mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    void *p = __real_mmap(address, bytes, prot, flags, fd, offset);
    mapped_bytes += p == MAP_FAILED ? 0 : pages(bytes);
    return p;
}

int __wrap_munmap(void *address, size_t bytes)
{
    mapped_bytes -= pages(bytes);
    return __real_munmap(address, bytes);
}

/* What this process has. */
typedef struct balance {
    long allocations, device_memory, mapped, shared, fds, threads;
} balance_t;

static long count_threads(void)
{
    long count = 0;
    DIR *dir = opendir("/proc/self/task");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

static balance_t take_balance(void)
{
    return (balance_t){allocations,     device_memory,  mapped_bytes, (long)tap_shared_bytes(),
                       tap_count_fds(), count_threads()};
}

/* A thread that has been joined may be in the list for a moment yet. */
static balance_t take_end_balance(const balance_t *before)
{
    balance_t after = take_balance();
    for (int i = 0; i < 200 && after.threads > before->threads; i++) {
        lap_sleep_until_ns(lap_now_ns() + 10000000u);
        after = take_balance();
    }
    return after;
}

static void compare(const char *name, const balance_t *before, const balance_t *after)
{
    tap_ok(
        memcmp(before, after, sizeof(*before)) == 0,
        "%s: nothing is left (%ld allocations, %ld pieces of a device's memory, %ld bytes mapped "
        "by us, %ld shared bytes, %ld descriptors, %ld threads)",
        name, after->allocations - before->allocations,
        after->device_memory - before->device_memory, after->mapped - before->mapped,
        after->shared - before->shared, after->fds - before->fds, after->threads - before->threads);
}

/* Something that is made and destroyed; true when it did what it should. */
typedef bool (*round_fn_t)(lap_group_t *group, const void *arg);

static bool threads; /* ranks are, and share what they have: the first counts */

/* A balance when no rank does anything. */
static balance_t quiet_balance(lap_group_t *group, const balance_t *before)
{
    balance_t balance = {0};
    lap_group_barrier(group);
    if (!threads || lap_group_rank(group) == 0)
        balance = before ? take_end_balance(before) : take_balance();
    lap_group_barrier(group);
    return balance;
}

static void try_it(lap_group_t *group, const char *name, round_fn_t round, const void *arg)
{
    bool right = true;
    for (int i = 0; i < ROUNDS; i++)
        right = round(group, arg) && right;
    const balance_t before = quiet_balance(group, NULL);
    for (int i = 0; i < ROUNDS; i++)
        right = round(group, arg) && right;
    const balance_t after = quiet_balance(group, &before);
    if (!right)
        tap_ok(false, "%s: works (%s)", name, lap_last_error());
    if (!threads || lap_group_rank(group) == 0)
        compare(name, &before, &after);
}

/* ---- groups and buffers ---- */

static bool make_groups(lap_group_t *group, const void *arg)
{
    (void)arg;
    lap_group_t *alone = NULL, *all = NULL;
    const bool made =
        lap_group_split(group, lap_group_rank(group), 0, &alone) == LAP_OK &&
        lap_group_split(group, 0, lap_group_size(group) - lap_group_rank(group), &all) == LAP_OK &&
        lap_group_barrier(all) == LAP_OK;
    lap_group_destroy(alone);
    lap_group_destroy(all);
    return made;
}

static bool make_buffer(lap_group_t *group, const void *arg)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    const lap_link_t *link = arg;
    lap_buffer_t *buffer = NULL;
    options.link = *link;
    const bool made = lap_buffer_create(group, 70000, 3, &options, &buffer) == LAP_OK;
    lap_buffer_destroy(buffer);
    return made;
}

/* Each rank finds out that they do not agree. */
static bool fail_buffer(lap_group_t *group, const void *arg)
{
    (void)arg;
    lap_buffer_t *buffer = NULL;
    const size_t bytes = 4096 * (1 + (size_t)lap_group_rank(group));
    const lap_status_t status = lap_buffer_create(group, bytes, 1, NULL, &buffer);
    lap_buffer_destroy(buffer);
    return lap_group_size(group) == 1 || status == LAP_ERR_MISMATCH;
}

/* ---- operators ---- */

static const test_shape_t shape = {12, 8, 8};

static bool make_op(lap_group_t *group, const void *arg)
{
    const test_method_t *method = arg;
    const test_flavour_t plain = test_plain();
    lap_op_t *op = test_op(group, NULL, method, &plain, &shape);
    const bool right =
        op && test_run(op, test_call(group, method, &plain, &shape, shape.m, 3, true)) == 0;
    lap_op_destroy(op);
    return right;
}

static bool fail_op(lap_group_t *group, const void *arg)
{
    const bool everywhere = *(const bool *)arg;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    lap_op_t *op = NULL;
    desc.kind = LAP_AG_GEMM;
    desc.m = desc.n = desc.k = 16;
    if (everywhere)
        desc.method = "pipelined";
    else
        desc.n += (size_t)lap_group_rank(group);
    const lap_status_t status = lap_op_create(group, &desc, &op);
    const bool failed = status != LAP_OK || (!everywhere && lap_group_size(group) == 1);
    lap_op_destroy(op);
    return failed;
}

/* Calls with a trace, which is brought together and drawn. */
static bool make_trace(lap_group_t *group, const void *arg)
{
    const char *path = arg;
    const test_method_t *method = &test_methods[1];
    const test_flavour_t plain = test_plain();
    lap_trace_t *trace = NULL;
    lap_op_t *op = test_op(group, NULL, method, &plain, &shape);
    test_call_t call = test_call(group, method, &plain, &shape, shape.m, 3, true);
    test_call_init(&call);
    bool right = op && lap_trace_create(&trace) == LAP_OK;
    call.args.trace = trace;
    right = right && test_call_run(op, &call) == LAP_OK && lap_trace_gather(trace, group) == LAP_OK;
    if (lap_group_rank(group) == 0) {
        right = right && lap_trace_draw(trace, "a test", path) == LAP_OK;
        right = right && lap_trace_draw(trace, "a test", "/nowhere/trace.svg") != LAP_OK;
    }
    test_call_clear(&call);
    lap_trace_destroy(trace);
    lap_op_destroy(op);
    return right;
}

/* ---- layers ---- */

typedef struct layers {
    const char *name;
    lap_nn_kind_t kind;
    lap_fp8_recipe_t fp8;
    int optimizer; /* a lap_optimizer_kind_t, or -1 */
    bool replicas;
} layers_t;

static const layers_t all_layers[] = {
    {"linear", LAP_NN_LINEAR, LAP_FP8_NONE, -1, false},
    {"layernorm_linear", LAP_NN_LAYERNORM_LINEAR, LAP_FP8_NONE, -1, false},
    {"layernorm_mlp", LAP_NN_LAYERNORM_MLP, LAP_FP8_NONE, LAP_SGD, false},
    {"attention", LAP_NN_ATTENTION, LAP_FP8_NONE, LAP_ADAMW, false},
    {"transformer", LAP_NN_TRANSFORMER, LAP_FP8_NONE, LAP_ADAMW, false},
    {"layernorm_mlp in FP8, delayed scaling", LAP_NN_LAYERNORM_MLP, LAP_FP8_DELAYED, LAP_SGD,
     false},
    {"layernorm_mlp in FP8, current scaling", LAP_NN_LAYERNORM_MLP, LAP_FP8_CURRENT, -1, false},
    {"replicas of a layernorm_mlp", LAP_NN_LAYERNORM_MLP, LAP_FP8_NONE, LAP_ADAMW, true},
};

static lap_status_t train(lap_nn_t *nn, lap_dp_t *dp, lap_optimizer_t *optimizer)
{
    const lap_nn_part_t in = lap_nn_input(nn, 0), out = lap_nn_output(nn, 0);
    const size_t most =
        in.rows * in.cols > out.rows * out.cols ? in.rows * in.cols : out.rows * out.cols;
    float *memory = nn_new(nn, 4 * most * sizeof(float));
    const lap_tensor_t x = lap_tensor(memory, LAP_FLOAT32, in.rows, in.cols);
    const lap_tensor_t y = lap_tensor(memory + most, LAP_FLOAT32, out.rows, out.cols);
    const lap_tensor_t dy = lap_tensor(memory + 2 * most, LAP_FLOAT32, out.rows, out.cols);
    const lap_tensor_t dx = lap_tensor(memory + 3 * most, LAP_FLOAT32, in.rows, in.cols);
    lap_status_t status = lap_nn_forward(nn, SEQ, &x, &y);
    if (status == LAP_OK)
        status = lap_nn_loss(nn, &y, &y, &dy);
    if (status == LAP_OK)
        status = lap_nn_backward(nn, &dy, &dx);
    if (status == LAP_OK && dp)
        status = lap_dp_wait(dp);
    if (status == LAP_OK)
        status = lap_nn_wait(nn);
    if (status == LAP_OK && optimizer)
        status = lap_optimizer_step(optimizer, 1, NULL);
    lap_nn_zero_gradients(nn);
    if (status == LAP_OK)
        status = lap_nn_wait(nn);
    nn_free(nn, memory);
    return status;
}

static bool make_layers(lap_group_t *group, const void *arg)
{
    const layers_t *layers = arg;
    lap_group_t *weights = NULL;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t how = LAP_OPTIMIZER_DESC_INIT;
    lap_dp_options_t options = LAP_DP_OPTIONS_INIT;
    lap_nn_t *nn = NULL;
    lap_dp_t *dp = NULL;
    lap_optimizer_t *optimizer = NULL;
    desc.kind = layers->kind;
    desc.seq = SEQ;
    desc.hidden = HIDDEN;
    desc.heads = 4;
    desc.fp8 = layers->fp8;
    how.clip_norm = 1;
    options.bucket = 500;
    options.wire_dtype = LAP_BFLOAT16;
    lap_status_t status =
        lap_group_split(group, layers->replicas ? lap_group_rank(group) : 0, 0, &weights);
    if (status == LAP_OK)
        status = lap_nn_create(weights, &desc, &nn);
    if (status == LAP_OK && layers->replicas)
        status = lap_dp_create(nn, group, &options, &dp);
    if (status == LAP_OK && layers->replicas)
        status = lap_dp_measure(dp, 1);
    if (status == LAP_OK && layers->optimizer >= 0) {
        how.kind = (lap_optimizer_kind_t)layers->optimizer;
        status = lap_optimizer_create(nn, weights, &how, &optimizer);
    }
    if (status == LAP_OK)
        status = train(nn, dp, optimizer);
    lap_optimizer_destroy(optimizer);
    lap_dp_destroy(dp);
    lap_nn_destroy(nn);
    lap_group_destroy(weights);
    return status == LAP_OK;
}

static bool fail_layers(lap_group_t *group, const void *arg)
{
    (void)arg;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    desc.kind = LAP_NN_ATTENTION;
    desc.seq = SEQ;
    desc.hidden = HIDDEN;
    desc.heads = 4;
    desc.seed += (uint64_t)lap_group_rank(group); /* their weights would not belong together */
    const lap_status_t status = lap_nn_create(group, &desc, &nn);
    lap_nn_destroy(nn);
    return status != LAP_OK || lap_group_size(group) == 1;
}

/* ---- all of it ---- */

static char path[] = "/tmp/lap-leaks-XXXXXX";

static void leaks(lap_group_t *group)
{
    static const lap_link_t none = {0, 0}, slow = {1e9, 1e-5};
    static const bool yes = true, no = false;
    const test_flavour_t plain = test_plain();
    char text[96];
    try_it(group, "groups", make_groups, NULL);
    try_it(group, "a buffer", make_buffer, &none);
    try_it(group, "a buffer on an emulated link", make_buffer, &slow);
    try_it(group, "a buffer that ranks do not agree on", fail_buffer, NULL);
    for (int i = 0; i < TEST_METHODS; i++)
        if (test_suits(&test_methods[i], &plain, lap_group_size(group)))
            try_it(group, test_label(&test_methods[i], &plain, text, sizeof(text)), make_op,
                   &test_methods[i]);
    try_it(group, "an operator of a method that is none", fail_op, &yes);
    try_it(group, "an operator that ranks do not agree on", fail_op, &no);
    try_it(group, "a trace", make_trace, path);
    for (size_t i = 0; i < sizeof(all_layers) / sizeof(all_layers[0]); i++)
        try_it(group, all_layers[i].name, make_layers, &all_layers[i]);
    try_it(group, "layers that ranks do not agree on", fail_layers, NULL);
}

static void use_world(lap_world_t *world, void *arg)
{
    (void)arg;
    make_op(lap_world_group(world), &test_methods[1]);
}

/* Worlds of threads, with the engine that an operator starts. */
static void leak_worlds(const char *device)
{
    balance_t before = {0}, after;
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = device;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        if (i == ROUNDS)
            before = take_end_balance(&(balance_t){.threads = 3});
        tap_ranks(3, &options, use_world, NULL);
    }
    after = take_end_balance(&before);
    compare("worlds of threads", &before, &after);
}

int main(int argc, char **argv)
{
    const char *device = "cpu";
    for (int i = 1; i + 1 < argc; i += 2) {
        threads = threads || strcmp(argv[i], "--threads") == 0;
        device = strcmp(argv[i], "--device") == 0 ? argv[i + 1] : device;
    }
    const int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    if (threads)
        leak_worlds(device);
    const int status = test_suite(argc, argv, leaks);
    unlink(path);
    return status;
}
