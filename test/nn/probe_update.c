/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of an optimizer is predicted to take: its kernels have the rates that were measured with
 * them, and those of others have theirs. Linked with --wrap for lap_now_ns: kernels take the time that
 * the test says.
 */
#include <math.h>

#include <lap/optimizer.h>

#include "nn/predict.h"
#include "tap.h"

#define UPDATE_S 2e-9  /* of a byte that an update reads or writes */
#define SQUARES_S 5e-9 /* of a byte that a sum of squares reads */
#define SUM_RATE 3e9

static _Atomic uint64_t now; /* while something is measured; 0: the clock runs by itself */

uint64_t __real_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void);
uint64_t __wrap_lap_now_ns(void)
{
    return now ? now : __real_lap_now_ns();
}

static size_t updated;      /* weights of the latest update */
static unsigned unprepared; /* updates that would not be made, or of second moments below 0 */

static const lap_device_ops_t *ops;

/* Runs at once, and not when its turn in the stream comes: all that is before it must have ended. */
static lap_status_t update(lap_stream_t *stream, const lap_update_t *given)
{
    LAP_TRY(ops->stream_synchronize(stream));
    const int arrays = given->kind == LAP_ADAMW ? 7 : 5;
    now += (uint64_t)llround((double)given->count * sizeof(float) * arrays * UPDATE_S * 1e9);
    updated = given->count;
    unprepared += !given->rates->made || given->rates->scale != 1;
    for (size_t i = 0; i < given->count; i++) {
        if (given->beta2 == 0)
            given->second[i] = given->grad[i] * given->grad[i];
        unprepared += given->kind == LAP_ADAMW && !(given->second[i] >= 0);
    }
    return LAP_OK;
}

static lap_status_t sum_squares(lap_stream_t *stream, const lap_sum_squares_t *given)
{
    (void)stream;
    now += (uint64_t)llround((double)given->count * sizeof(float) * SQUARES_S * 1e9);
    return LAP_OK;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) < 1e-3 * b;
}

/* The rate that each entry of the step has, by an estimate for the bytes of its fragment. */
static void expect_rates(const lap_probe_t *probe, lap_nn_t *nn)
{
    const lap_nn_source_t source = lap_nn_chosen(nn);
    const lap_nn_linking_t linking = {.target = &nn->calls[0].op->target,
                                      .source = &source,
                                      .replication = {.held = false},
                                      .optimizer = &nn->optimizer};
    lap_nn_programs_t programs;
    unsigned updates = 0, squares = 0, wrong = 0;
    if (!tap_success(lap_nn_programs_init(&programs, &nn->list.plan, &linking), "the programs"))
        return;
    const lap_linked_t *linked = &programs.programs[0];
    for (uint32_t f = 0; f < linked->nfragments; f++) {
        const uint32_t origin = linked->fragments[f].origin;
        const lap_nn_work_t work = nn->list.entries[origin].work;
        if (work != LAP_NN_UPDATE && work != LAP_NN_SQUARES)
            continue;
        const double rate = 1 / (work == LAP_NN_UPDATE ? UPDATE_S : SQUARES_S);
        const lap_fragment_cost_t cost = lap_nn_entry_cost(probe, &nn->list, origin, linked, f);
        *(work == LAP_NN_UPDATE ? &updates : &squares) += 1;
        wrong += !is_near(cost.kernel_s, lap_nn_kernel_estimate(linked, f, rate));
    }
    tap_ok(updates > 0 && squares == nn->list.nweights,
           "the step has %u updates and %u sums of squares", updates, squares);
    tap_ok(wrong == 0, "they have the rates of what was measured (%u have not)", wrong);
    lap_nn_programs_clear(&programs);
}

static void measure(lap_nn_t *nn, lap_optimizer_kind_t kind)
{
    const lap_kernels_t *real = nn->kernels;
    lap_kernels_t slow = *real;
    lap_optimizer_desc_t desc = LAP_OPTIMIZER_DESC_INIT;
    lap_optimizer_t *optimizer;
    lap_probe_t probe;
    desc.kind = kind;
    desc.clip_norm = 1;
    if (!tap_success(lap_optimizer_create(nn, nn->group, &desc, &optimizer), "an optimizer"))
        return;
    slow.update = update;
    slow.sum_squares = sum_squares;
    nn->kernels = &slow;
    ops = nn->engine->device->ops;
    unprepared = 0;
    tap_success(lap_probe_init(&probe, nn), "a probe");
    probe.costs[0].reduce = SUM_RATE;
    for (uint32_t i = 0; i < nn->list.nentries; i++)
        probe.kernels[i].seconds = -1;
    updated = 0;
    tap_success(lap_probe_update(&probe, false), "a prediction without the step");
    tap_ok(updated == 0 && probe.update_rate == SUM_RATE, "measures none of it");
    now = __real_lap_now_ns();
    tap_success(lap_probe_update(&probe, true), "the optimizer's kernels are measured");
    now = 0;
    tap_ok(updated >= 4 * 24 * 24, "with a piece as large as an update here (%zu weights)",
           updated);
    tap_ok(unprepared == 0, "with numbers that an update may have (%u have not)", unprepared);
    tap_ok(is_near(probe.update_rate, 1 / UPDATE_S), "an update: %g bytes/s", probe.update_rate);
    tap_ok(is_near(probe.squares_rate, 1 / SQUARES_S), "a sum of squares: %g", probe.squares_rate);
    expect_rates(&probe, nn);
    lap_probe_clear(&probe);
    nn->kernels = real;
    lap_optimizer_destroy(optimizer);
}

static void rank_main(lap_world_t *world, void *arg)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_nn_t *nn = NULL;
    lap_probe_t probe;
    (void)arg;
    desc.seq = 12;
    desc.hidden = 24;
    desc.heads = 3;
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "layers"))
        return;
    tap_success(lap_probe_init(&probe, nn), "a probe without an optimizer");
    probe.costs[0].reduce = SUM_RATE;
    tap_success(lap_probe_update(&probe, true), "there is nothing to measure");
    tap_ok(probe.update_rate == SUM_RATE, "the rate is that of a sum: %g", probe.update_rate);
    lap_probe_clear(&probe);
    measure(nn, LAP_SGD);
    measure(nn, LAP_ADAMW);
    lap_nn_destroy(nn);
}

int main(void)
{
    tap_ranks(1, NULL, rank_main, NULL);
    return tap_done();
}
