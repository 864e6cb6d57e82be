/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of thread ranks: the conformance suite, with and without a link, and what waits in
 * vain are reported.
 */
#include <stdatomic.h>

#include "conformance.h"

static void conform(lap_world_t *world, void *arg)
{
    transport_conformance(world, arg, "self");
}

/* Before anything else is checked about them, the ranks are there. */
static void refuse_shm(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    lap_buffer_t *buffer = NULL;
    options.transport = "shm";
    lap_status_t status = lap_buffer_create(lap_world_group(world), 8, 1, &options, &buffer);
    if (lap_world_size(world) > 1)
        tap_failure(status, LAP_ERR_UNSUPPORTED, "shm", "threads", "use self", NULL);
    else
        tap_success(status, "alone, any transport will do");
    lap_buffer_destroy(buffer);
}

/*
 * Rank 1 never raises it; ranks 1 and 2, more patient, wait for something else and fail with the
 * same sentence.
 */
static void wait_in_vain(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_group_t *group = lap_world_group(world);
    lap_buffer_t *buffer = new_buffer(group, 8, 6, NULL);
    const int rank = lap_world_rank(world);
    if (rank == 0) {
        world->timeout_ns = 300000000u;
        tap_success(lap_buffer_raise(buffer, 0, 5), "a signal to oneself");
        const uint64_t begin = lap_now_ns();
        tap_failure(lap_buffer_wait(buffer, 1, 5, 2), LAP_ERR_TIMEOUT, "timeout after 0.3 s",
                    "rank 0 waited for signal 5 number 2 of rank 1", "it has come 1 time", NULL);
        tap_ok(lap_now_ns() - begin >= 300000000u, "not before its time");
    } else {
        tap_failure(lap_buffer_wait(buffer, 0, 4, 1), LAP_ERR_TIMEOUT, "rank 0 waited for signal 5",
                    rank == 1 ? "rank 1 waited" : "rank 2 waited",
                    "for signal 4 number 1 of rank 0", NULL);
    }
    tap_failure(lap_group_barrier(group), LAP_ERR_TIMEOUT, "rank 0 waited for signal 5", NULL);
    lap_buffer_destroy(buffer);
}

typedef struct in_step {
    uint32_t signal;
    const lap_buffer_options_t *options; /* signal 8: with a link */
    _Atomic bool reported;               /* until then the others stay */
} in_step_t;

/* Within an operator the sentence says where. */
static void wait_in_step(lap_world_t *world, void *arg)
{
    in_step_t *it = arg;
    const uint32_t signal = it->signal;
    lap_buffer_t *buffer = new_buffer(lap_world_group(world), 8, 9, it->options);
    const lap_wait_reason_t reason = reason_of(1, 512);
    /* Signal 4 came twice in calls before this one, and once in this one. */
    const uint32_t before = signal == 4 ? 2 : 0;
    const lap_wait_t wait = {
        .peer = 1, .signal = signal, .target = before + 2, .reason = &reason, .count = 2};
    if (lap_world_rank(world) == 0) {
        world->timeout_ns = 300000000u;
        for (uint32_t i = 0; before && i <= before; i++)
            tap_success(lap_buffer_raise(buffer, 0, signal), "a signal to oneself");
        tap_failure(buffer->ops->wait_now(buffer, &wait), LAP_ERR_TIMEOUT,
                    "rank 0 waited in ag_gemm (ring), step 7, for signal ",
                    signal == 1   ? "signal number 1 of 3 ranks number 2 of rank 1"
                    : signal == 4 ? "signal number 4 of 3 ranks number 2 of rank 1"
                                  : "signal number 8 of 3 ranks number 2 of rank 1",
                    before        ? "; it has come 1 time in this call"
                    : it->options ? "; it has not come in this call, over an emulated link"
                                  : "; it has not come in this call",
                    NULL);
        it->reported = true;
    }
    while (!it->reported)
        lap_sleep_until_ns(lap_now_ns() + 1000000u);
    lap_buffer_destroy(buffer);
}

/*
 * Rank 1 sends one signal and leaves; the first wait gets it, the second learns that there will be
 * no other.
 */
static void peer_leaves(lap_world_t *world, void *arg)
{
    (void)arg;
    lap_buffer_t *buffer = new_buffer(lap_world_group(world), 8, 2, NULL);
    if (lap_world_rank(world) == 1) {
        tap_success(lap_buffer_put(buffer, 0, 0, "goodbye", 8, 0), "a last word");
    } else {
        while (lap_group_look_for(lap_world_group(world), 1) == LAP_OK)
            lap_sleep_until_ns(lap_now_ns() + 1000000u);
        tap_success(lap_buffer_wait(buffer, 1, 0, 1), "what came before the peer left is there");
        tap_ok(strcmp(lap_buffer_data(buffer, 0), "goodbye") == 0, "whole");
        tap_failure(lap_buffer_wait(buffer, 1, 0, 1), LAP_ERR_PEER_LOST, "rank 1",
                    "rank 0 waited for signal 0 number 2 of rank 1", "1 time", NULL);
    }
    lap_buffer_destroy(buffer);
}

int main(void)
{
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    for (int nranks = 1; nranks <= 5; nranks++) {
        tap_ranks(nranks, NULL, conform, &options);
        tap_ranks(nranks, NULL, refuse_shm, NULL);
    }
    options.transport = "self";
    options.link.bytes_per_s = 200e6;
    options.link.latency_s = 20e-6;
    tap_ranks(2, NULL, conform, &options);
    tap_ranks(3, NULL, conform, &options);

    tap_ranks(3, NULL, wait_in_vain, NULL);
    static const uint32_t signals[] = {1, 4, 8};
    for (size_t i = 0; i < 3; i++) {
        in_step_t it = {.signal = signals[i], .options = signals[i] == 8 ? &options : NULL};
        tap_ranks(3, NULL, wait_in_step, &it);
    }
    tap_ranks(2, NULL, peer_leaves, NULL);
    return tap_done();
}
