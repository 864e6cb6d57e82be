/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every rank of `lap bench` does: makes the matrices, times the GEMM alone, verifies each
 * method, times all of them in turn, verifies again, and traces calls. A time is that of the
 * slowest rank; all ranks learn every time, so that they come to the same result and the same
 * decisions.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lap/lap_cuda.h>

#include "bench.h"
#include "core/status.h"
#include "interrupt.h"
#include "progress.h"
#include "ranks.h"
#include "schedule/trace.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/turns.h"

#define RATIO_ROUNDS 5 /* GEMMs that are timed for a link of a given ratio */

/* What a rank sends to all others with everything that it measures. */
typedef struct measured {
    double value;
    int32_t interrupted; /* the signal that asked it to stop; 0: none */
} measured_t;

/* One rank at work on one case. */
typedef struct runner {
    const lap_bench_t *bench;
    const lap_bench_case_t *it;
    lap_group_t *group;
    lap_engine_t *engine;
    bool speaks; /* rank 0, */
    bool shows;  /* which shows its progress */
    lap_bench_data_t data;
    lap_buffer_t *buffer;
    lap_op_t *ops[LAP_LIST_MAX + 1];
    lap_op_t *gemm; /* during which the operators run; NULL: they have their own */
    lap_bench_baseline_t *baseline;
    measured_t *gathered;              /* by each rank; room for a verdict */
    double *samples[LAP_LIST_MAX + 3]; /* ns of each row; then of the GEMM, twice as many */
    double *sorted;                    /* what statistics sort */
    lap_bench_result_t result;
} runner_t;

static const runner_t *speaker; /* rank 0 while it measures: see lap_bench_measured */

/* ---- single times ---- */

/* The largest number of the ranks, nothing below 0; what is not a number counts as that. */
static lap_status_t largest(runner_t *runner, double mine, double *all_p)
{
    measured_t own;
    memset(&own, 0, sizeof(own));
    own.value = mine;
    own.interrupted = lap_interrupt_here();
    LAP_TRY(lap_group_allgather(runner->group, &own, sizeof(own), runner->gathered));
    double most = 0;
    for (int r = 0; r < lap_group_size(runner->group); r++) {
        const measured_t *its = &runner->gathered[r];
        if (!isnan(most) && !(its->value <= most))
            most = its->value;
        /* All have the same answer, and stop at the same place. */
        if (its->interrupted > runner->result.interrupted) {
            lap_interrupt_lock();
            runner->result.interrupted = its->interrupted;
            lap_interrupt_unlock();
        }
    }
    *all_p = most;
    return LAP_OK;
}

/* What a call of a round took that began then. */
static double mean_since(const runner_t *runner, uint64_t begin)
{
    return (double)(lap_now_ns() - begin) / runner->bench->calls;
}

/*
 * The whole local GEMM on the stream that the executor uses, while the other ranks do the same. An
 * epilogue is part of it where the GEMM itself applies it.
 */
static lap_status_t time_gemm(runner_t *runner, double *ns_p)
{
    const lap_bench_data_t *data = &runner->data;
    const lap_bench_shape_t *shape = &data->shape;
    const lap_tensor_t *a = &data->gemm_a, *b = &data->args.b, *d = &data->gemm_d;
    const lap_device_ops_t *ops = runner->engine->device->ops;
    lap_stream_t *stream = runner->engine->streams[LAP_STREAM_COMPUTE];
    lap_gemm_block_t block = {.a = lap_bench_far(data, a->data),
                              .d = lap_bench_far(data, d->data),
                              .rows = d->rows,
                              .a_stride = a->stride * lap_dtype_size(a->dtype),
                              .d_stride = d->stride * lap_dtype_size(d->dtype),
                              .aux = lap_bench_far(data, data->args.aux.data)};
    lap_gemm_t gemm = {.a_dtype = a->dtype,
                       .b_dtype = b->dtype,
                       .d_dtype = d->dtype,
                       .a_transposed = shape->layout == LAP_WGRAD,
                       .b_plain = shape->layout != LAP_FORWARD,
                       .scale = data->args.a_scale * data->args.b_scale,
                       .n = d->cols,
                       .k = shape->depth.count,
                       .b = lap_bench_far(data, b->data),
                       .b_stride = b->stride * lap_dtype_size(b->dtype),
                       .finish = &data->gemm_finish,
                       .blocks = &block,
                       .nblocks = 1};
    LAP_TRY(ops->gemm_prepare(stream, &gemm, true));
    LAP_TRY(lap_group_barrier(runner->group));
    uint64_t begin = lap_now_ns();
    for (int i = 0; i < runner->bench->calls; i++)
        LAP_TRY(ops->gemm(stream, &gemm));
    LAP_TRY(ops->stream_synchronize(stream));
    return largest(runner, mean_since(runner, begin), ns_p);
}

/* A collective during a GEMM that has been begun; both have ended when this returns. */
static lap_status_t run_after(lap_op_t *gemm, lap_op_t *moves, const lap_op_args_t *args,
                              lap_trace_t *trace, lap_trace_t *gemm_trace)
{
    /* Each of the two has the scales of what it uses. */
    lap_op_args_t gemm_args = *args, moves_args = *args;
    gemm_args.wire_scale = 1;
    gemm_args.trace = gemm_trace;
    moves_args.a_scale = moves_args.b_scale = moves_args.d_scale = 1;
    moves_args.trace = trace;
    LAP_TRY(lap_op_begin(gemm, &gemm_args));
    lap_status_t status = lap_op_begin(moves, &moves_args);
    if (status == LAP_OK)
        status = lap_op_end(moves);
    lap_status_t gemm_status = lap_op_end(gemm);
    return status == LAP_OK ? gemm_status : status;
}

/* The same with a trace, which then holds the steps of both. */
static lap_status_t trace_after(lap_op_t *gemm, lap_op_t *moves, const lap_op_args_t *args,
                                lap_trace_t *trace)
{
    lap_trace_t *gemm_trace = NULL;
    LAP_TRY(lap_trace_create(&gemm_trace));
    lap_status_t status = run_after(gemm, moves, args, trace, gemm_trace);
    if (status == LAP_OK)
        status = lap_trace_join(trace, gemm_trace);
    lap_trace_destroy(gemm_trace);
    return status;
}

/* A call that ends before the next one begins. */
static lap_status_t run_method(runner_t *runner, size_t method, lap_trace_t *trace)
{
    lap_op_args_t args = lap_bench_far_args(&runner->data);
    lap_op_t *op = runner->ops[method];
    args.trace = trace;
    if (!runner->gemm)
        return lap_op_run(op, &args);
    return trace ? trace_after(runner->gemm, op, &args, trace)
                 : run_after(runner->gemm, op, &args, NULL, NULL);
}

/* The verdict of all ranks is that of the one nearest to its bound, or farthest beyond. */
static lap_status_t join_verdicts(runner_t *runner, lap_bench_verdict_t *verdict)
{
    lap_bench_verdict_t *all = (lap_bench_verdict_t *)(void *)runner->gathered;
    LAP_TRY(lap_group_allgather(runner->group, verdict, sizeof(*verdict), all));
    for (int r = 0; r < lap_group_size(runner->group); r++)
        if (!isnan(verdict->ratio) && !(all[r].ratio <= verdict->ratio))
            *verdict = all[r];
    return LAP_OK;
}

static lap_status_t time_call(void *context, size_t method, lap_trace_t *trace, double *ns_p)
{
    runner_t *runner = context;
    lap_trace_mark(trace);
    LAP_TRY(lap_group_barrier(runner->group));
    const uint64_t begin = lap_now_ns();
    LAP_TRY(run_method(runner, method, trace));
    return largest(runner, (double)(lap_now_ns() - begin), ns_p);
}

/* All calls of a round in the order of a stream, as a training step would issue them. */
static lap_status_t enqueue_round(runner_t *runner, size_t method)
{
    const lap_op_args_t args = lap_bench_far_args(&runner->data);
    const uint64_t begin = lap_now_ns();
    for (int i = 0; i < runner->bench->calls; i++)
        LAP_TRY(lap_op_enqueue(runner->ops[method], &args, NULL));
    const double host_us = mean_since(runner, begin) * 1e-3;
    double *least = &runner->result.methods[method].host_us;
    *least = *least > 0 && *least < host_us ? *least : host_us;
    return lap_world_synchronize(runner->group->world, NULL);
}

static lap_status_t time_method(runner_t *runner, size_t method, double *ns_p)
{
    LAP_TRY(lap_group_barrier(runner->group));
    const uint64_t begin = lap_now_ns();
    const bool in_order = runner->engine->device->ops->takes_streams;
    if (in_order && runner->bench->calls > 1 && !runner->gemm) {
        LAP_TRY(enqueue_round(runner, method));
    } else {
        for (int i = 0; i < runner->bench->calls; i++)
            LAP_TRY(run_method(runner, method, NULL));
    }
    return largest(runner, mean_since(runner, begin), ns_p);
}

static lap_status_t time_baseline(runner_t *runner, double *ns_p)
{
    LAP_TRY(lap_group_barrier(runner->group));
    uint64_t begin = lap_now_ns();
    for (int i = 0; i < runner->bench->calls; i++)
        runner->bench->baseline->run(runner->baseline);
    return largest(runner, mean_since(runner, begin), ns_p);
}

static lap_status_t time_row(runner_t *runner, size_t row, double *ns_p)
{
    return row < runner->it->nmethods ? time_method(runner, row, ns_p)
                                      : time_baseline(runner, ns_p);
}

/* ---- set-up ---- */

/*
 * The link in effect. That of a ratio follows from the GEMM measured now; rank 0's figure counts
 * for all.
 */
static lap_status_t choose_link(runner_t *runner)
{
    const lap_link_arg_t *asked = &runner->bench->link;
    runner->result.link = asked->link;
    if (asked->ratio <= 0)
        return LAP_OK;
    lap_progress(runner->shows, "timing the GEMM for the link");
    double samples[RATIO_ROUNDS];
    for (int i = 0; i < RATIO_ROUNDS; i++)
        LAP_TRY(time_gemm(runner, &samples[i]));
    double gemm_s = lap_stats(samples, RATIO_ROUNDS).median * 1e-9;
    /* All ranks have the same samples, and so would agree anyway; this way they need not. */
    double rate = lap_bench_serial_bytes(&runner->data.shape) / (asked->ratio * gemm_s);
    LAP_TRY(lap_group_broadcast(runner->group, &rate, sizeof(rate)));
    runner->result.link.bytes_per_s = rate;
    return LAP_OK;
}

static lap_status_t size_buffer(const runner_t *runner, size_t *bytes_p, size_t *nsignals_p)
{
    const int nranks = lap_group_size(runner->group);
    for (size_t i = 0; i < runner->it->nmethods; i++) {
        size_t bytes, nsignals;
        lap_op_desc_t desc = lap_bench_desc(runner->bench, runner->it, i);
        LAP_TRY(lap_op_buffer_size(&desc, nranks, &bytes, &nsignals));
        *bytes_p = bytes > *bytes_p ? bytes : *bytes_p;
        *nsignals_p = nsignals > *nsignals_p ? nsignals : *nsignals_p;
    }
    return LAP_OK;
}

/* One symmetric buffer that is large enough for every method. */
static lap_status_t make_buffer(runner_t *runner)
{
    size_t bytes = 0, nsignals = 0;
    LAP_TRY(lap_group_agree(runner->group, size_buffer(runner, &bytes, &nsignals)));
    lap_buffer_options_t options = LAP_BUFFER_OPTIONS_INIT;
    options.transport = runner->bench->transport;
    options.link = runner->result.link;
    return lap_buffer_create(runner->group, bytes, nsignals, &options, &runner->buffer);
}

static lap_status_t make_ops(runner_t *runner)
{
    for (size_t i = 0; i < runner->it->nmethods; i++) {
        lap_op_desc_t desc = lap_bench_desc(runner->bench, runner->it, i);
        desc.buffer = runner->buffer;
        LAP_TRY(lap_op_create(runner->group, &desc, &runner->ops[i]));
    }
    if (lap_kind_multiplies(runner->it->kind))
        return LAP_OK;
    const lap_op_desc_t desc = lap_bench_gemm_desc(runner->bench, runner->it);
    return lap_op_create(runner->group, &desc, &runner->gemm);
}

/*
 * What auto expects of itself, and of the methods that are measured with it. It knows nothing of
 * a GEMM that another operator runs: then only its pick is reported.
 */
static void note_predictions(runner_t *runner)
{
    const size_t chooser = lap_bench_auto(runner->it);
    const char *label;
    double seconds;
    if (chooser == SIZE_MAX)
        return;
    for (size_t i = 0; lap_op_prediction(runner->ops[chooser], i, &label, &seconds) == LAP_OK;
         i++) {
        lap_bench_figure_t *figures = runner->result.methods;
        if (i == 0)
            snprintf(figures[chooser].picked, sizeof(figures[chooser].picked), "%s", label);
        if (i == 0 && !runner->gemm)
            figures[chooser].predicted_ms = seconds * 1e3;
        for (size_t method = 0; method < runner->it->nmethods; method++)
            if (strcmp(runner->it->methods[method].label, label) == 0 && !runner->gemm)
                figures[method].predicted_ms = seconds * 1e3;
    }
}

/* What each rank does by itself. */
static lap_status_t prepare(runner_t *runner)
{
    LAP_TRY(lap_engine_get(runner->group->world, &runner->engine));
    size_t nranks = (size_t)lap_group_size(runner->group);
    _Static_assert(sizeof(measured_t) <= sizeof(lap_bench_verdict_t), "there is room for either");
    runner->gathered = lap_alloc(nranks, sizeof(lap_bench_verdict_t));
    runner->sorted = lap_alloc(2 * (size_t)runner->bench->iters, sizeof(double));
    bool there = runner->gathered && runner->sorted;
    for (size_t i = 0; i <= lap_bench_rows(runner->it); i++) {
        runner->samples[i] = lap_alloc(2 * (size_t)runner->bench->iters, sizeof(double));
        there = there && runner->samples[i];
    }
    if (!there)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %d rounds",
                         runner->bench->iters);
    lap_progress(runner->shows, "computing the reference of %s",
                 lap_op_kind_name(runner->it->kind));
    return lap_bench_data_init(&runner->data, runner->bench, runner->it, runner->group,
                               runner->engine->device);
}

static lap_status_t set_up(runner_t *runner)
{
    double unused;
    LAP_TRY(lap_group_agree(runner->group, prepare(runner)));
    LAP_TRY(largest(runner, 0, &unused)); /* for who was asked to stop meanwhile */
    for (int i = 0; i < runner->bench->warmup && !runner->result.interrupted; i++)
        LAP_TRY(time_gemm(runner, &unused));
    if (runner->result.interrupted)
        return LAP_OK;
    runner->result.shape = runner->data.shape;
    LAP_TRY(choose_link(runner));
    LAP_TRY(make_buffer(runner));
    LAP_TRY(make_ops(runner));
    if (runner->it->baseline)
        LAP_TRY(runner->bench->baseline->create(runner->it, &runner->data, &runner->baseline));
    note_predictions(runner);
    return LAP_OK;
}

static void tear_down(runner_t *runner)
{
    lap_saved_error_t saved;
    lap_error_save(&saved); /* a GPU that is given up has an error for each call */
    for (size_t i = 0; i < runner->it->nmethods; i++)
        lap_op_destroy(runner->ops[i]);
    lap_op_destroy(runner->gemm);
    if (runner->it->baseline)
        runner->bench->baseline->destroy(runner->baseline);
    lap_buffer_destroy(runner->buffer);
    lap_bench_data_clear(&runner->data);
    for (size_t i = 0; i <= lap_bench_rows(runner->it); i++)
        lap_free(runner->samples[i]);
    lap_free(runner->sorted);
    lap_free(runner->gathered);
    lap_error_restore(&saved);
}

/* ---- the work ---- */

/*
 * Spoils what other ranks have written to this one: the methods share a buffer and an input, and one
 * that sends nothing would find what the one before it was sent. No call is in flight.
 */
static lap_status_t spoil_buffer(const runner_t *runner)
{
    enum { PIECE = 1 << 20 };
    const lap_device_ops_t *ops = runner->engine->device->ops;
    lap_stream_t *stream = runner->engine->streams[LAP_STREAM_COMPUTE];
    char *to = runner->buffer->data[runner->group->rank], *bad = lap_alloc(PIECE, 1);
    lap_status_t status = LAP_OK;
    if (!bad)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to spoil the ranks' buffer with");
    else
        memset(bad, 0xff, PIECE); /* not a number, in every type */
    for (size_t at = 0; at < runner->buffer->bytes && status == LAP_OK; at += PIECE) {
        const size_t left = runner->buffer->bytes - at, bytes = left < PIECE ? left : PIECE;
        status = ops->copy(stream, &(lap_copy_t){to + at, bad, 1, bytes, bytes, bytes, 0, false});
    }
    if (status == LAP_OK)
        status = ops->stream_synchronize(stream);
    lap_free(bad);
    return lap_group_agree(runner->group, status);
}

/*
 * Runs every row once into a spoilt output, from a spoilt buffer, and compares it on every rank with
 * the reference.
 */
static lap_status_t verify(runner_t *runner)
{
    for (size_t i = 0; i < lap_bench_rows(runner->it) && !runner->result.interrupted; i++) {
        lap_bench_figure_t *figure = &runner->result.methods[i];
        lap_progress(runner->shows, "verifying %s %s", lap_op_kind_name(runner->it->kind),
                     runner->it->methods[i].label);
        LAP_TRY(lap_bench_data_spoil(&runner->data));
        LAP_TRY(spoil_buffer(runner));
        double unused, err;
        LAP_TRY(time_row(runner, i, &unused));
        LAP_TRY(lap_bench_data_fetch(&runner->data));
        lap_bench_verdict_t verdict = lap_bench_data_judge(&runner->data, &err);
        LAP_TRY(join_verdicts(runner, &verdict));
        LAP_TRY(largest(runner, err, &err));
        lap_interrupt_lock();
        figure->ok = figure->ok && verdict.ratio <= 1;
        if (!isnan(figure->verdict.ratio) && !(verdict.ratio <= figure->verdict.ratio))
            figure->verdict = verdict;
        if (!(err <= figure->max_err))
            figure->max_err = err;
        lap_interrupt_unlock();
    }
    return LAP_OK;
}

static void rest(const runner_t *runner)
{
    enum { LOOK_MS = 50 };
    for (int left = runner->bench->rest_ms; left > 0 && !lap_interrupt_here(); left -= LOOK_MS)
        lap_sleep_until_ns(lap_now_ns() + (uint64_t)(left < LOOK_MS ? left : LOOK_MS) * 1000000u);
}

static void count_rounds(runner_t *runner, size_t count)
{
    lap_interrupt_lock();
    runner->result.rounds = count;
    lap_interrupt_unlock();
}

/* One round: the GEMM, every row, the GEMM. Those before the first sample warm up. */
static lap_status_t one_round(runner_t *runner, size_t round, bool timed, size_t sample)
{
    size_t rows = lap_bench_rows(runner->it);
    rest(runner);
    LAP_TRY(time_gemm(runner, &runner->samples[rows][2 * sample]));
    for (size_t i = 0; i < rows && !runner->result.interrupted; i++) {
        const size_t row = lap_turn(round, i, rows);
        rest(runner);
        LAP_TRY(time_row(runner, row, &runner->samples[row][sample]));
    }
    if (runner->result.interrupted)
        return LAP_OK;
    rest(runner);
    LAP_TRY(time_gemm(runner, &runner->samples[rows][2 * sample + 1]));
    if (timed)
        count_rounds(runner, sample + 1);
    return LAP_OK;
}

static lap_status_t all_rounds(runner_t *runner)
{
    const lap_bench_t *bench = runner->bench;
    for (int i = 0; i < bench->warmup + bench->iters && !runner->result.interrupted; i++) {
        bool timed = i >= bench->warmup;
        lap_progress(runner->shows, "%s: %s round %d of %d", lap_op_kind_name(runner->it->kind),
                     timed ? "timed" : "warm-up", timed ? i - bench->warmup + 1 : i + 1,
                     timed ? bench->iters : bench->warmup);
        LAP_TRY(one_round(runner, (size_t)i, timed, timed ? (size_t)(i - bench->warmup) : 0));
    }
    return LAP_OK;
}

/* What a row took longer than the GEMM in a round, of which both GEMMs count. */
static double ect_of(const runner_t *runner, size_t row, size_t round)
{
    const double *gemms = runner->samples[lap_bench_rows(runner->it)];
    return runner->samples[row][round] - (gemms[2 * round] + gemms[2 * round + 1]) / 2;
}

/*
 * Medians over the rounds: a machine that slows down and recovers does so for all of a round. The
 * efficiency of a round is that of its own times.
 */
static void note_ect(const runner_t *runner, size_t row, lap_bench_figure_t *figure)
{
    const size_t count = runner->result.rounds;
    for (size_t i = 0; i < count; i++)
        runner->sorted[i] = ect_of(runner, row, i);
    const lap_stats_t stats = lap_stats(runner->sorted, count);
    figure->ect_ms = stats.median * 1e-6;
    figure->ect_noise_ms = stats.noise * 1e-6;
    for (size_t i = 0; i < count; i++)
        runner->sorted[i] = 1 - ect_of(runner, row, i) / ect_of(runner, 0, i);
    figure->efficiency_noise = lap_stats(runner->sorted, count).noise;
}

/* Times of one row in milliseconds, in the order of the rounds, and their statistics. */
static lap_status_t note_rounds(const runner_t *runner, size_t row, size_t count, double **rounds_p,
                                lap_stats_t *stats_p)
{
    double *rounds = lap_alloc(count, sizeof(double));
    if (!rounds)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the times of %zu rounds", count);
    for (size_t i = 0; i < count; i++)
        runner->sorted[i] = rounds[i] = runner->samples[row][i] * 1e-6;
    *stats_p = lap_stats(runner->sorted, count);
    *rounds_p = rounds;
    return LAP_OK;
}

/* Medians, and half the distance of the quartiles as noise. With the lock. */
static lap_status_t conclude(const runner_t *runner, lap_bench_result_t *result)
{
    const size_t rows = lap_bench_rows(runner->it);
    const lap_world_t *world = runner->group->world;
    lap_stats_t stats = {0};
    result->cores = world->cores;
    result->local_ranks = world->local_size;
    LAP_TRY(note_rounds(runner, rows, 2 * result->rounds, &result->gemm_rounds_ms, &stats));
    result->gemm_ms = stats.median;
    result->gemm_noise_ms = stats.noise;
    for (size_t i = 0; i < rows; i++) {
        lap_bench_figure_t *figure = &result->methods[i];
        note_ect(runner, i, figure);
        LAP_TRY(note_rounds(runner, i, result->rounds, &figure->rounds_ms, &stats));
        figure->total_ms = stats.median;
        figure->noise_ms = stats.noise;
    }
    return LAP_OK;
}

static lap_status_t conclude_all(runner_t *runner)
{
    lap_interrupt_lock();
    const lap_status_t status =
        runner->result.rounds > 0 ? conclude(runner, &runner->result) : LAP_OK;
    lap_interrupt_unlock();
    return lap_group_agree(runner->group, status);
}

void lap_bench_measured(lap_bench_result_t *result)
{
    if (!speaker || speaker->result.rounds == 0)
        return;
    *result = speaker->result;
    if (conclude(speaker, result) != LAP_OK)
        result->rounds = 0;
}

void lap_bench_result_clear(lap_bench_result_t *result)
{
    lap_free(result->gemm_rounds_ms);
    for (size_t i = 0; i < sizeof(result->methods) / sizeof(result->methods[0]); i++)
        lap_free(result->methods[i].rounds_ms);
    memset(result, 0, sizeof(*result));
}

/* ---- traces ---- */

/* The method to draw: as asked; else the fastest correct one that is not serial; else serial. */
static size_t drawn_method(const runner_t *runner)
{
    const lap_bench_figure_t *figures = runner->result.methods;
    if (runner->bench->timeline_method != SIZE_MAX)
        return runner->bench->timeline_method;
    size_t best = 0;
    for (size_t i = 1; i < runner->it->nmethods; i++)
        if (figures[i].ok && (best == 0 || figures[i].total_ms < figures[best].total_ms))
            best = i;
    return best;
}

/* All methods; a sweep has too many calls for that. The picture is of the first case. */
static lap_status_t trace_methods(runner_t *runner)
{
    lap_bench_call_t call = {.bench = runner->bench,
                             .it = runner->it,
                             .group = runner->group,
                             .engine = runner->engine,
                             .buffer = runner->buffer,
                             .gemm = runner->gemm,
                             .shows = runner->shows,
                             .time = time_call,
                             .context = runner};
    const bool traces = runner->bench->trace && runner->bench->mode != LAP_BENCH_SWEEP;
    runner->result.drawn = drawn_method(runner);
    for (call.method = 0; call.method < runner->it->nmethods && traces; call.method++) {
        call.op = runner->ops[call.method];
        LAP_TRY(lap_bench_trace_calls(&call, &runner->result));
    }
    return LAP_OK;
}

static lap_status_t measure(runner_t *runner)
{
    LAP_TRY(set_up(runner));
    LAP_TRY(verify(runner));
    LAP_TRY(all_rounds(runner));
    LAP_TRY(verify(runner));
    LAP_TRY(conclude_all(runner));
    if (!runner->result.interrupted)
        LAP_TRY(trace_methods(runner));
    return lap_group_barrier(runner->group);
}

lap_status_t lap_bench_measure(const lap_bench_t *bench, const lap_bench_case_t *it,
                               lap_world_t *world, lap_bench_result_t *result_p)
{
    runner_t runner = {.bench = bench, .it = it, .group = lap_world_group(world)};
    memset(result_p, 0, sizeof(*result_p));
    runner.speaks = lap_world_rank(world) == 0;
    runner.shows = runner.speaks && !bench->quiet;
    for (size_t i = 0; i < lap_bench_rows(it); i++)
        runner.result.methods[i].ok = true;
    if (runner.speaks) {
        lap_interrupt_lock();
        speaker = &runner;
        lap_interrupt_unlock();
    }
    lap_status_t status = measure(&runner);
    lap_interrupt_lock();
    *result_p = runner.result;
    if (runner.speaks)
        speaker = NULL;
    lap_interrupt_unlock();
    tear_down(&runner);
    lap_progress_end(runner.shows);
    return status;
}
