/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that dies fails all calls in flight of its peers, those with other ranks too: their streams
 * no longer do what they should. Three ranks: the first two are a group, and the last two. Rank 1
 * has a call of each group in flight when rank 0 ends; rank 2, which has nothing to do with rank 0,
 * must not get a result. It calls before that, or, with `late` as the last argument, after it.
 */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "suite.h"
#include "tap.h"

static bool late;

static const test_method_t method = {LAP_GEMM_AR, "serial", 0, 0, 0, 0};
static const test_shape_t shape = {64, 48, 32};

/* What a rank has in a group. */
typedef struct place {
    lap_group_t *group;
    lap_buffer_t *buffer;
    lap_op_t *op;
    test_call_t call;
} place_t;

/* All ranks of the world are in some group; only those of a pair call. */
static bool take_place(place_t *place, lap_group_t *world, int color, bool calls)
{
    const test_flavour_t plain = test_plain();
    if (!tap_success(lap_group_split(world, color, 0, &place->group), "a group"))
        return false;
    place->buffer = test_buffer(place->group, &plain, 1, &shape);
    place->op = test_op(place->group, place->buffer, &method, &plain, &shape);
    if (!place->op)
        return false;
    place->call = test_call(place->group, &method, &plain, &shape, shape.m, 1, true);
    test_call_init(&place->call);
    for (int i = 0; i < 3 && calls; i++)
        tap_ok(test_call_run(place->op, &place->call) == LAP_OK &&
                   test_call_error(&place->call) == 0,
               "a call is right");
    return true;
}

static void leave_place(place_t *place)
{
    lap_op_destroy(place->op);
    test_call_clear(&place->call);
    lap_buffer_destroy(place->buffer);
    lap_group_destroy(place->group);
}

static void check_lost(lap_status_t status, const char *what, const char *name)
{
    tap_note("%s: %s", what, lap_last_error());
    tap_failure(status, LAP_ERR_PEER_LOST, "has died", name, NULL);
}

/* `called`: rank 1 has both calls in flight. */
static void play(int rank, place_t *first, place_t *second, _Atomic int *called)
{
    if (rank == 0) {
        while (!atomic_load(called))
            usleep(1000);
        usleep(100000); /* by now the calls most likely wait; if not, they fail all the same */
        tap_done();
        _exit(0);
    }
    if (rank == 1) {
        tap_success(test_call_begin(first->op, &first->call), "a call with rank 0 begins");
        tap_success(test_call_begin(second->op, &second->call), "one with rank 2 too");
        atomic_store(called, 1);
        check_lost(test_call_end(first->op, &first->call), "the call with rank 0", "rank 1");
        usleep(late ? 1500000 : 0); /* nobody looks after the other one meanwhile */
        check_lost(test_call_end(second->op, &second->call), "the call with rank 2", "rank 1");
        return;
    }
    usleep(late ? 900000 : 0);
    check_lost(test_call_run(second->op, &second->call), "a call with rank 1",
               "rank 1 (rank 2 of the world)");
}

static void suite(lap_group_t *world)
{
    const int rank = lap_group_rank(world);
    place_t first = {.group = NULL}, second = {.group = NULL};
    lap_buffer_t *called = NULL; /* of the host, on rank 1 */
    lap_buffer_options_t mapped = LAP_BUFFER_OPTIONS_INIT;
    mapped.transport = "shm";
    if (take_place(&first, world, rank < 2, rank < 2) &&
        take_place(&second, world, rank > 0, rank > 0) &&
        tap_success(lap_buffer_create(world, 64, 0, &mapped, &called), "a word for all"))
        play(rank, &first, &second, lap_buffer_data(called, 1));
    lap_buffer_destroy(called);
    leave_place(&second);
    leave_place(&first);
}

int main(int argc, char **argv)
{
    late = argc > 1 && strcmp(argv[argc - 1], "late") == 0;
    return test_suite(argc - late, argv, suite);
}
