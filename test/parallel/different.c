/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in different calls. All learn at once that they are, which rank is in which call; a rank that
 * never comes is named when the time is over, and no other. Ranks that are in calls of other groups,
 * or that are late, or that begin a call before others come to a barrier, are left alone.
 *
 * different [DEVICE [processes [SCENARIO]]]: three ranks on that device, threads or the processes of
 * the world that the environment describes. Each scenario has a world of its own, because most of
 * them break it; MPI can make but one.
 */
#include <string.h>

#include <lap/data_parallel.h>

#include "nn/memory.h"
#include "overlap/data.h"
#include "tap.h"
#include "util/clock.h"

enum { RANKS = 3, OTHER = 1, M = 12, N = 6, K = 6 };

#define TIMEOUT_S 30.0
#define PATIENCE_S 3.0 /* for who never comes: longer than a rank is kept from running by load */
#define SOON_S 5.0     /* well before the timeout, on a machine that is busy */
#define LATE_NS 300000000u

static lap_op_desc_t describe(lap_op_kind_t kind)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.m = M;
    desc.n = N;
    desc.k = K;
    desc.method = "ring";
    return desc;
}

static lap_op_t *make(lap_group_t *group, lap_op_kind_t kind)
{
    const lap_op_desc_t desc = describe(kind);
    lap_op_t *op = NULL;
    tap_success(lap_op_create(group, &desc, &op), "an operator");
    return op;
}

static test_call_t call_of(lap_group_t *group, lap_op_kind_t kind)
{
    const lap_op_desc_t desc = describe(kind);
    test_call_t call = test_exact_call(group, &desc, M, 1);
    test_call_init(&call);
    return call;
}

static lap_status_t run(lap_op_t *op, lap_group_t *group, lap_op_kind_t kind)
{
    const lap_op_desc_t desc = describe(kind);
    return test_call_check(op, test_exact_call(group, &desc, M, 1));
}

static void expect(lap_status_t status, uint64_t since, const char *word, const char *other)
{
    const double seconds = (double)(lap_now_ns() - since) * 1e-9;
    tap_failure(status, LAP_ERR_MISMATCH, word, other, NULL);
    tap_ok(seconds < SOON_S, "at once: %.3f s", seconds);
    tap_note("%s", lap_last_error());
}

/* Operators with buffers of their own, in another order. */
static void orders(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *one = make(group, LAP_AG_GEMM), *two = make(group, LAP_GEMM_RS);
    const bool other = lap_group_rank(group) == OTHER;
    tap_success(run(one, group, LAP_AG_GEMM), "a call of all");
    const uint64_t begin = lap_now_ns();
    lap_status_t status = other ? run(two, group, LAP_GEMM_RS) : run(one, group, LAP_AG_GEMM);
    expect(status, begin, "rank 1 calls gemm_rs with m = 12", "calls ag_gemm with m = 12");
    lap_op_destroy(one);
    lap_op_destroy(two);
}

/* Two operators whose calls have the same words, in another order. */
static void alike(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_op_t *one = make(group, LAP_AG_GEMM), *two = make(group, LAP_AG_GEMM);
    tap_success(run(one, group, LAP_AG_GEMM), "a call of all");
    const uint64_t begin = lap_now_ns();
    lap_status_t status = run(lap_group_rank(group) == OTHER ? two : one, group, LAP_AG_GEMM);
    expect(status, begin, "calls ag_gemm with m = 12, rank ",
           " calls another ag_gemm with m = 12 as call 2 of operators in the group");
    lap_op_destroy(one);
    lap_op_destroy(two);
}

/* The other rank is in something of the group, the rest in an operator. */
static void against_operator(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world), *part = NULL;
    const char *what = arg;
    char words[96], all[RANKS];
    lap_op_t *op = make(group, LAP_AG_GEMM), *made = NULL;
    lap_buffer_t *buffer = NULL;
    const lap_op_desc_t desc = describe(LAP_GEMM_RS);
    tap_success(run(op, group, LAP_AG_GEMM), "a call of all");
    const uint64_t begin = lap_now_ns();
    lap_status_t status;
    if (lap_group_rank(group) != OTHER)
        status = run(op, group, LAP_AG_GEMM);
    else if (strcmp(what, "barrier") == 0)
        status = lap_group_barrier(group);
    else if (strcmp(what, "allgather") == 0)
        status = lap_group_allgather(group, "x", 1, all);
    else if (strcmp(what, "split") == 0)
        status = lap_group_split(group, 0, 0, &part);
    else if (strcmp(what, "lap_buffer_create") == 0)
        status = lap_buffer_create(group, 64, 1, NULL, &buffer);
    else
        status = lap_op_create(group, &desc, &made);
    snprintf(words, sizeof(words), "rank 1 is in %s, which rank", what);
    expect(status, begin, words, "is in ag_gemm with m = 12, which rank 1 has not begun");
    lap_op_destroy(op);
}

/* Both are in something of the group. */
static void against_each_other(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const lap_op_desc_t desc = describe(LAP_GEMM_RS);
    lap_nn_desc_t layers = LAP_NN_DESC_INIT;
    lap_op_t *op = NULL;
    lap_nn_t *nn = NULL;
    lap_buffer_t *buffer = NULL;
    layers.kind = LAP_NN_LINEAR;
    layers.seq = M;
    layers.hidden = 24;
    const bool other = lap_group_rank(group) == OTHER;
    uint64_t begin = lap_now_ns();
    expect(other ? lap_op_create(group, &desc, &op) : lap_nn_create(group, &layers, &nn), begin,
           "rank 0 called lap_nn_create, rank 1 lap_op_create", "rank 1");
    expect(other ? lap_group_barrier(group) : lap_buffer_create(group, 64, 1, NULL, &buffer), begin,
           "rank 0 called lap_buffer_create, rank 1 barrier", "rank 1");
    tap_success(lap_group_barrier(group), "the group can go on");
}

/* Layers against a barrier, and replicas. */
static void against_layers(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    desc.kind = LAP_NN_LAYERNORM_MLP;
    desc.seq = M;
    desc.hidden = 24;
    if (!tap_success(lap_nn_create(group, &desc, &nn), "layers"))
        return;
    const lap_nn_part_t part = lap_nn_input(nn, M);
    float *x = nn_new(nn, sizeof(float) * M * 24), *y = nn_new(nn, sizeof(float) * M * 24);
    const lap_tensor_t in = lap_tensor(x, LAP_FLOAT32, part.rows, part.cols);
    const lap_tensor_t out = lap_tensor(y, LAP_FLOAT32, part.rows, part.cols);
    const uint64_t begin = lap_now_ns();
    lap_status_t status;
    if (lap_group_rank(group) == OTHER) {
        status = lap_group_barrier(group);
    } else {
        status = lap_nn_forward(nn, M, &in, &out);
        const lap_status_t ended = lap_nn_wait(nn);
        status = status == LAP_OK ? ended : status;
    }
    /* The calls of a pass wait on several streams at once: the first of them or the second is named. */
    expect(status, begin, "rank 1 is in barrier", " with m = 12, which rank 1 has not begun");
    nn_free(nn, x);
    nn_free(nn, y);
    lap_nn_destroy(nn);
}

/* Ranks 0 and 1 are a group; one is in an operator of it, the other in a barrier of all. */
static void of_two_groups(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *all = lap_world_group(world), *part = NULL;
    const int rank = lap_group_rank(all);
    tap_success(lap_group_split(all, rank < 2 ? 0 : LAP_NO_GROUP, 0, &part), "a part");
    lap_op_t *op = part ? make(part, LAP_AG_GEMM) : NULL;
    const uint64_t begin = lap_now_ns();
    expect(rank == 0 ? run(op, part, LAP_AG_GEMM) : lap_group_barrier(all), begin,
           "is in ag_gemm with m = 12", "is in barrier");
    lap_op_destroy(op);
    lap_group_destroy(part);
}

/* Ranks that are late because they have something to do without rank 0. */
static void elsewhere(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *all = lap_world_group(world), *part = NULL;
    const int rank = lap_group_rank(all);
    tap_success(lap_group_split(all, rank > 0 ? 0 : LAP_NO_GROUP, 0, &part), "a part");
    lap_op_t *op = make(all, LAP_AG_GEMM), *own = part ? make(part, LAP_GEMM_RS) : NULL;
    for (int round = 0; round < 2; round++) {
        if (rank == 1) /* rank 2 is blocked in the part, rank 0 with all */
            lap_sleep_until_ns(lap_now_ns() + LATE_NS);
        if (part)
            tap_success(round ? lap_group_barrier(part) : run(own, part, LAP_GEMM_RS),
                        "what the part does");
        if (rank == 2) /* rank 1 is blocked with all */
            lap_sleep_until_ns(lap_now_ns() + LATE_NS);
        tap_success(round ? run(op, all, LAP_AG_GEMM) : lap_group_barrier(all), "what all do");
    }
    lap_op_destroy(own);
    lap_op_destroy(op);
    lap_group_destroy(part);
}

/* Groups of two neighbours each, in a circle; `pairs[i]` is of ranks i and i + 1. */
static void make_pairs(lap_group_t *all, lap_group_t *pairs[RANKS])
{
    const int rank = lap_group_rank(all);
    for (int i = 0; i < RANKS; i++) {
        pairs[i] = NULL;
        const bool member = rank == i || rank == (i + 1) % RANKS;
        tap_success(lap_group_split(all, member ? 0 : LAP_NO_GROUP, 0, &pairs[i]), "a pair");
    }
}

static void destroy_pairs(lap_group_t *pairs[RANKS])
{
    for (int i = 0; i < RANKS; i++)
        lap_group_destroy(pairs[i]);
}

/* Each waits for the next one, which is in another call. No two of them wait for each other. */
static void in_a_circle(lap_world_t *world, void *arg)
{
    lap_group_t *all = lap_world_group(world), *pairs[RANKS];
    const int rank = lap_group_rank(all);
    const bool calls = strcmp(arg, "circle-operator") == 0;
    make_pairs(all, pairs);
    lap_op_t *op = rank != 0 ? make(pairs[1], LAP_AG_GEMM) : NULL;
    tap_success(lap_group_barrier(all), "all are there");
    const uint64_t begin = lap_now_ns();
    expect(calls && rank == 1 ? run(op, pairs[1], LAP_AG_GEMM) : lap_group_barrier(pairs[rank]),
           begin, "ranks wait in a circle",
           calls ? "rank 0 is in barrier, rank 1 is in ag_gemm with m = 12, rank 2 is in barrier"
                 : "rank 0 is in barrier, rank 1 is in barrier, rank 2 is in barrier");
    lap_op_destroy(op);
    destroy_pairs(pairs);
}

/* Each waits for the next one, but the last is only late; and then the other way round. */
static void in_a_row(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *all = lap_world_group(world), *pairs[RANKS];
    const int rank = lap_group_rank(all);
    make_pairs(all, pairs);
    for (int round = 0; round < 2; round++) {
        const int first = round ? 0 : 1, second = round ? 1 : 0;
        if (rank == (round ? 0 : 2))
            lap_sleep_until_ns(lap_now_ns() + 1500000000u);
        if (pairs[first])
            tap_success(lap_group_barrier(pairs[first]), "the later of two pairs meets");
        if (pairs[second])
            tap_success(lap_group_barrier(pairs[second]), "and then the one that waited for it");
    }
    destroy_pairs(pairs);
}

/* Who has begun a call may go on to a barrier before others begin it. */
static void begun_before(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const bool eager = lap_group_rank(group) != OTHER;
    lap_op_t *op = make(group, LAP_AG_GEMM);
    test_call_t call = call_of(group, LAP_AG_GEMM);
    if (eager)
        tap_success(test_call_begin(op, &call), "some begin a call");
    lap_sleep_until_ns(lap_now_ns() + (eager ? 0 : LATE_NS));
    tap_success(lap_group_barrier(group), "and come to a barrier, as all do");
    lap_sleep_until_ns(lap_now_ns() + (eager ? 0 : LATE_NS));
    if (!eager)
        tap_success(test_call_begin(op, &call), "the other begins it after that");
    tap_success(test_call_end(op, &call), "it ends");
    tap_ok(test_call_error(&call) == 0, "and is right");
    test_call_clear(&call);
    lap_op_destroy(op);
}

/* Of those who have begun a call one waits for its end, one in a barrier, for a rank that is late. */
static void ended_before(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    const int rank = lap_group_rank(group);
    lap_op_t *op = make(group, LAP_AG_GEMM);
    test_call_t call = call_of(group, LAP_AG_GEMM);
    lap_sleep_until_ns(lap_now_ns() + (rank == OTHER ? LATE_NS : 0));
    tap_success(test_call_begin(op, &call), "all begin a call");
    if (rank == 2)
        tap_success(test_call_end(op, &call), "one ends it before the barrier");
    tap_success(lap_group_barrier(group), "all come to it");
    if (rank != 2)
        tap_success(test_call_end(op, &call), "the others end it after that");
    tap_ok(test_call_error(&call) == 0, "it is right");
    test_call_clear(&call);
    lap_op_destroy(op);
}

/* The other rank does nothing until the rest have given up, and then something else. */
static void never(lap_world_t *world, void *arg)
{
    lap_group_t *group = lap_world_group(world);
    const bool barrier = strcmp(arg, "never-barrier") == 0;
    const bool other = lap_group_rank(group) == OTHER;
    lap_op_t *op = make(group, LAP_AG_GEMM);
    tap_success(run(op, group, LAP_AG_GEMM), "a call of all");
    while (other && lap_group_look(group) == LAP_OK)
        lap_sleep_until_ns(lap_now_ns() + 1000000u);
    lap_status_t status = barrier ? lap_group_barrier(group) : run(op, group, LAP_AG_GEMM);
    if (other) {
        tap_failure(status, LAP_ERR_TIMEOUT, "rank 1", NULL);
    } else {
        tap_failure(status, LAP_ERR_TIMEOUT,
                    barrier ? "has not come" : "rank 1 has not begun the call",
                    "the latest operator that it has called is ag_gemm with m = 12", NULL);
        tap_ok(!strstr(lap_last_error(), "rank 2 has not") &&
                   !strstr(lap_last_error(), "rank 0 has not"),
               "no other is blamed");
        tap_note("%s", lap_last_error());
    }
    lap_op_destroy(op);
}

static lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
static bool processes;

/* A scenario, by its name or, where it has several ways, by that of the way. */
typedef struct scene {
    void (*play)(lap_world_t *world, void *arg);
    const char *name;
    double timeout_s;
} scene_t;

static const scene_t scenes[] = {
    {orders, "orders", TIMEOUT_S},
    {alike, "alike", TIMEOUT_S},
    {against_operator, "barrier", TIMEOUT_S},
    {against_operator, "allgather", TIMEOUT_S},
    {against_operator, "split", TIMEOUT_S},
    {against_operator, "lap_buffer_create", TIMEOUT_S},
    {against_operator, "lap_op_create", TIMEOUT_S},
    {against_each_other, "each-other", TIMEOUT_S},
    {against_layers, "layers", TIMEOUT_S},
    {of_two_groups, "two-groups", TIMEOUT_S},
    {in_a_circle, "circle", TIMEOUT_S},
    {in_a_circle, "circle-operator", TIMEOUT_S},
    {in_a_row, "row", TIMEOUT_S},
    {elsewhere, "elsewhere", TIMEOUT_S},
    {begun_before, "begun-before", TIMEOUT_S},
    {ended_before, "ended-before", TIMEOUT_S},
    {never, "never-barrier", PATIENCE_S},
    {never, "never", PATIENCE_S},
};

static void play(const scene_t *scene)
{
    lap_world_t *world;
    options.timeout_s = scene->timeout_s;
    if (!processes) {
        tap_ranks(RANKS, &options, scene->play, (void *)scene->name);
    } else if (tap_success(lap_world_create(&options, &world), "a world from the environment")) {
        scene->play(world, (void *)scene->name);
        lap_world_destroy(world);
    }
}

int main(int argc, char **argv)
{
    options.device = argc > 1 ? argv[1] : "cpu";
    processes = argc > 2 && strcmp(argv[2], "processes") == 0;
    /* Threads that share a GPU take turns: there a call begins when the others begin it too. */
    const bool turns = !processes && strcmp(options.device, "cuda") == 0;
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if ((argc < 4 || strcmp(argv[3], scenes[i].name) == 0) &&
            !(turns && (scenes[i].play == begun_before || scenes[i].play == ended_before)))
            play(&scenes[i]);
    return tap_done();
}
