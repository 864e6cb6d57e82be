/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline tables: every schedule is proved for many sizes, has the bubbles and the memory of the
 * theory, and survives a file; a table with a mistake is refused with the rank and the action.
 */
#include "parallel/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

static const lap_pipe_costs_t one = {.forward = 1, .input_grad = 1, .weight_grad = 1};

static uint32_t chunks_of(const char *schedule)
{
    return strcmp(schedule, "interleaved") == 0 ? 2 : 1;
}

/* ---- proofs ---- */

static void test_proofs(void)
{
    size_t tables = 0, refused = 0;
    for (size_t i = 0; lap_pipe_schedules[i]; i++)
        for (uint32_t ranks = 1; ranks <= 9; ranks++)
            for (uint32_t micros = 1; micros <= 28; micros++)
                for (uint32_t chunks = chunks_of(lap_pipe_schedules[i]); chunks <= 5; chunks++) {
                    lap_pipeline_t pipeline;
                    lap_status_t status =
                        lap_pipeline_build(lap_pipe_schedules[i], ranks, chunks, micros, &pipeline);
                    refused += status == LAP_ERR_INVALID;
                    if (status == LAP_OK) {
                        status = lap_pipeline_check(&pipeline);
                        tap_wrong(status != LAP_OK, "%s, %u ranks, %u chunks, %u micro-batches: %s",
                                  lap_pipe_schedules[i], (unsigned)ranks, (unsigned)chunks,
                                  (unsigned)micros, lap_last_error());
                        tables += status == LAP_OK;
                    }
                    lap_pipeline_clear(&pipeline);
                }
    /* 1f1b, zb-h1 and 1f1b-eager; zb-v with 1 or 2 chunks; interleaved with 2 to 5 and multiples of the ranks. */
    const size_t sizes = 9 * 28, multiples = 28 + 14 + 9 + 7 + 5 + 4 + 4 + 3 + 3;
    tap_ok(tables == 3 * sizes + 2 * sizes + 4 * multiples,
           "all tables are proved: %zu, %zu sizes are refused", tables, refused);
}

/* ---- theory ---- */

/* What a rank idles between its first and its last action, and holds at most. */
typedef struct theory {
    const char *schedule;
    uint32_t chunks, least; /* micro-batches per rank */
    double (*idle)(uint32_t p, uint32_t r);
    uint32_t (*live)(uint32_t p, uint32_t r);
} theory_t;

static double idle_1f1b(uint32_t p, uint32_t r)
{
    return 3.0 * (p - 1 - r);
}

static uint32_t live_eager(uint32_t p, uint32_t r)
{
    return 2 * (p - r) - 1;
}

static double idle_zb_h1(uint32_t p, uint32_t r)
{
    return p - 1 - r;
}

static double idle_never(uint32_t p, uint32_t r)
{
    (void)p;
    (void)r;
    return 0;
}

static uint32_t live_1f1b(uint32_t p, uint32_t r)
{
    return p - r;
}

static uint32_t live_all(uint32_t p, uint32_t r)
{
    (void)r;
    return p;
}

static uint32_t live_interleaved(uint32_t p, uint32_t r)
{
    return 2 * (p - r - 1) + p + 1;
}

static uint32_t live_zb_v(uint32_t p, uint32_t r)
{
    (void)r;
    return 2 * p;
}

static void test_theory(const theory_t *theory)
{
    size_t wrong = 0, ranks = 0;
    for (uint32_t p = 2; p <= 8; p++)
        for (uint32_t micros = theory->least * p; micros <= 4 * p; micros += p) {
            lap_pipeline_t pipeline;
            lap_pipe_times_t times = {.span = 0};
            lap_status_t status =
                lap_pipeline_build(theory->schedule, p, theory->chunks, micros, &pipeline);
            if (status == LAP_OK)
                status = lap_pipeline_simulate(&pipeline, &one, &times);
            for (uint32_t r = 0; status == LAP_OK && r < p; r++, ranks++) {
                const lap_pipe_rank_t *rank = &times.ranks[r];
                const double idle = rank->end - rank->begin - rank->busy;
                wrong += tap_wrong(
                    fabs(idle - theory->idle(p, r)) > 1e-9 || rank->most_live != theory->live(p, r),
                    "rank %u of %u, %u micro-batches: idle %g, expected %g; live "
                    "%u, expected %u",
                    (unsigned)r, (unsigned)p, (unsigned)micros, idle, theory->idle(p, r),
                    (unsigned)rank->most_live, (unsigned)theory->live(p, r));
            }
            wrong += status != LAP_OK;
            lap_pipe_times_clear(&times, p);
            lap_pipeline_clear(&pipeline);
        }
    tap_ok(wrong == 0 && ranks > 100, "%s: %zu ranks idle and hold as the theory says",
           theory->schedule, ranks);
}

static void test_span(const char *schedule, uint32_t chunks, double expected)
{
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    lap_status_t status = lap_pipeline_build(schedule, 4, chunks, 8, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate(&pipeline, &one, &times);
    tap_ok(status == LAP_OK && times.span == expected, "%s takes %g for 8 micro-batches: %g",
           schedule, expected, times.span);
    lap_pipe_times_clear(&times, 4);
    lap_pipeline_clear(&pipeline);
}

/* A message costs its time on the way to another rank, and nothing within one. */
static void test_messages(void)
{
    const lap_pipe_costs_t costs = {
        .forward = 2, .input_grad = 3, .weight_grad = 4, .message = 0.5};
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    lap_status_t status = lap_pipeline_build("1f1b", 3, 1, 1, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate(&pipeline, &costs, &times);
    tap_ok(status == LAP_OK && times.span == 3 * 2 + 3 * 7 + 4 * 0.5,
           "one micro-batch takes all costs and four messages: %g", times.span);
    lap_pipe_times_clear(&times, 3);
    lap_pipeline_clear(&pipeline);
    status = lap_pipeline_build("zb-v", 1, 2, 1, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_simulate(&pipeline, &costs, &times);
    tap_ok(status == LAP_OK && times.span == 2 * 9, "stages of one rank send nothing: %g",
           times.span);
    lap_pipe_times_clear(&times, 1);
    lap_pipeline_clear(&pipeline);
}

/* Stages of 1 + 1 + 1, 2 + 2 + 2 and 5 + 1 + 1: the slowest one sets the pace. */
static void test_stages(void)
{
    const lap_pipe_costs_t stages[] = {{.forward = 1, .input_grad = 1, .weight_grad = 1},
                                       {.forward = 2, .input_grad = 2, .weight_grad = 2},
                                       {.forward = 5, .input_grad = 1, .weight_grad = 1}};
    const lap_pipe_costs_t costs = {.message = 0.25, .stages = stages};
    const uint32_t micros[] = {1, 4};
    const double spans[] = {16 + 4 * 0.25, 37 + 4 * 0.25};
    for (size_t i = 0; i < 2; i++) {
        lap_pipeline_t pipeline;
        lap_pipe_times_t times = {.span = 0};
        lap_status_t status = lap_pipeline_build("1f1b", 3, 1, micros[i], &pipeline);
        if (status == LAP_OK)
            status = lap_pipeline_simulate(&pipeline, &costs, &times);
        tap_ok(status == LAP_OK && times.span == spans[i] && times.ranks[2].busy == 7.0 * micros[i],
               "%u micro-batches through stages that differ: %g", (unsigned)micros[i], times.span);
        lap_pipe_times_clear(&times, 3);
        lap_pipeline_clear(&pipeline);
    }
}

/* ---- mistakes ---- */

/* Every table without one of its actions, or with one twice, is refused. */
static void test_mutants(const char *schedule)
{
    lap_pipeline_t pipeline;
    size_t mutants = 0, found = 0;
    lap_status_t status = lap_pipeline_build(schedule, 3, chunks_of(schedule), 6, &pipeline);
    for (uint32_t r = 0; status == LAP_OK && r < pipeline.ranks; r++) {
        lap_pipe_row_t *row = &pipeline.rows[r];
        for (uint32_t i = 0; i < row->nactions; i++) {
            const lap_pipe_action_t action = row->actions[i];
            memmove(&row->actions[i], &row->actions[i + 1],
                    (row->nactions - i - 1) * sizeof(action));
            row->nactions--;
            found += lap_pipeline_check(&pipeline) == LAP_ERR_CHECK;
            memmove(&row->actions[i + 1], &row->actions[i], (row->nactions - i) * sizeof(action));
            row->actions[i] = action;
            row->nactions++;
            lap_pipe_action_t *other = &row->actions[(i + 1) % row->nactions];
            const lap_pipe_action_t its = *other;
            *other = action;
            found += lap_pipeline_check(&pipeline) == LAP_ERR_CHECK;
            *other = its;
            mutants += 2;
        }
    }
    tap_ok(status == LAP_OK && mutants > 60 && found == mutants,
           "%s: all %zu tables with an action missing or doubled are refused: %zu", schedule,
           mutants, found);
    tap_success(lap_pipeline_check(&pipeline), "%s: and the table itself is not", schedule);
    lap_pipeline_clear(&pipeline);
}

static lap_status_t read_text(const char *text, lap_pipeline_t *pipeline_p)
{
    FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    const lap_status_t status = lap_pipeline_read(file, "table.csv", pipeline_p);
    fclose(file);
    return status;
}

static void test_refused(const char *text, lap_status_t expected, const char *word,
                         const char *other)
{
    lap_pipeline_t pipeline;
    lap_status_t status = read_text(text, &pipeline);
    if (status == LAP_OK)
        status = lap_pipeline_check(&pipeline);
    tap_failure(status, expected, word, other, NULL);
    lap_pipeline_clear(&pipeline);
}

static void test_sizes(void)
{
    lap_pipeline_t pipeline;
    tap_failure(lap_pipeline_build("interleaved", 4, 2, 6, &pipeline), LAP_ERR_INVALID,
                "6 micro-batches", "multiple of its 4 ranks", NULL);
    tap_failure(lap_pipeline_build("interleaved", 4, 1, 8, &pipeline), LAP_ERR_INVALID,
                "1 stages on a rank", "2 to", NULL);
    tap_failure(lap_pipeline_build("1f1b", 4, 2, 8, &pipeline), LAP_ERR_INVALID,
                "2 stages on a rank", "interleaved", NULL);
    tap_failure(lap_pipeline_build("zb-v", 4, 3, 8, &pipeline), LAP_ERR_INVALID, "3 stages",
                "expected 2", NULL);
    tap_failure(lap_pipeline_build("zb-h2", 4, 1, 8, &pipeline), LAP_ERR_INVALID, "'zb-h2'",
                "zb-h1", NULL);
    tap_failure(lap_pipeline_build("1f1b", 0, 1, 8, &pipeline), LAP_ERR_INVALID, "0 ranks",
                "expected 1 to", NULL);
}

/* ---- messages ---- */

/* What a micro-batch more costs in the steady state. */
static double period(const char *schedule, uint32_t ranks, double message)
{
    const lap_pipe_costs_t costs = {
        .forward = 1, .input_grad = 1, .weight_grad = 1, .message = message};
    double spans[2] = {0};
    for (int i = 0; i < 2; i++) {
        lap_pipeline_t table;
        lap_pipe_times_t times = {.span = 0};
        lap_status_t status = lap_pipeline_build(schedule, ranks, 1, ranks * (i ? 12 : 8), &table);
        if (status == LAP_OK)
            status = lap_pipeline_simulate(&table, &costs, &times);
        tap_wrong(status != LAP_OK, "%s: %s", schedule, lap_last_error());
        spans[i] = times.span;
        lap_pipe_times_clear(&times, ranks);
        lap_pipeline_clear(&table);
    }
    return (spans[1] - spans[0]) / (4 * ranks);
}

/*
 * In 1f1b a rank has as many micro-batches in flight as the way to the last rank and back has work: the 2 (p - 1)
 * messages on it are exposed. With more in flight none is, up to half of the work each.
 */
static void test_hiding(void)
{
    for (uint32_t p = 2; p <= 8; p *= 2)
        for (int i = 0; i < 3; i++) {
            const double message = 0.25 + 0.625 * i;
            const double plain = period("1f1b", p, message),
                         eager = period("1f1b-eager", p, message);
            const double theory = 3 + 2.0 * (p - 1) / p * message;
            tap_ok(fabs(plain - theory) < 1e-9,
                   "1f1b, %u ranks, messages of %g: a period of %g, in theory %g", (unsigned)p,
                   message, plain, theory);
            tap_ok(fabs(eager - 3) < 1e-9, "1f1b-eager hides all of them: %g", eager);
        }
}

/* ---- files ---- */

static bool same(const lap_pipeline_t *x, const lap_pipeline_t *y)
{
    bool alike = x->ranks == y->ranks && x->stages == y->stages && x->micros == y->micros;
    for (uint32_t r = 0; alike && r < x->ranks; r++) {
        const lap_pipe_row_t *a = &x->rows[r], *b = &y->rows[r];
        alike = a->nactions == b->nactions;
        for (uint32_t i = 0; alike && i < a->nactions; i++)
            alike = a->actions[i].work == b->actions[i].work &&
                    a->actions[i].stage == b->actions[i].stage &&
                    a->actions[i].micro == b->actions[i].micro;
    }
    return alike;
}

static void test_file(const char *schedule)
{
    char *text = NULL;
    size_t bytes = 0;
    lap_pipeline_t pipeline, again = {.ranks = 0};
    lap_status_t status = lap_pipeline_build(schedule, 4, chunks_of(schedule), 8, &pipeline);
    FILE *file = open_memstream(&text, &bytes);
    if (status == LAP_OK)
        status = lap_pipeline_write(&pipeline, file);
    fclose(file);
    if (status == LAP_OK)
        status = read_text(text, &again);
    tap_ok(status == LAP_OK && same(&pipeline, &again), "%s is read as it was written", schedule);
    lap_pipeline_clear(&pipeline);
    lap_pipeline_clear(&again);
    free(text);
}

static void test_pytorch_file(void)
{
    lap_pipeline_t pipeline;
    const char *text = "0UNSHARD,0F0,0SEND_F0,0F1,,0RECV_B0,0B0,0B1\n"
                       ", ,1RECV_F0,1F0,1I0,1F1,1W0,1I1,1W1\n";
    tap_success(read_text(text, &pipeline), "a table with messages and idle cells is read");
    tap_success(lap_pipeline_check(&pipeline), "... and proved");
    tap_ok(pipeline.ranks == 2 && pipeline.stages == 2 && pipeline.micros == 2 &&
               pipeline.rows[0].nactions == 4 && pipeline.rows[1].nactions == 6,
           "... with the actions that compute");
    lap_pipeline_clear(&pipeline);
}

int main(void)
{
    static const theory_t theories[] = {
        {"1f1b", 1, 1, idle_1f1b, live_1f1b},
        {"interleaved", 2, 2, idle_1f1b, live_interleaved},
        {"zb-h1", 1, 2, idle_zb_h1, live_all},
        {"zb-v", 2, 2, idle_never, live_zb_v},
        {"1f1b-eager", 1, 2, idle_1f1b, live_eager},
    };
    test_proofs();
    for (size_t i = 0; i < sizeof(theories) / sizeof(theories[0]); i++)
        test_theory(&theories[i]);
    test_span("1f1b", 1, 33);
    test_span("1f1b-eager", 1, 33);
    test_hiding();
    test_span("zb-h1", 1, 27);
    test_span("interleaved", 2, 57);
    test_span("zb-v", 2, 51);
    test_messages();
    test_stages();
    for (size_t i = 0; lap_pipe_schedules[i]; i++) {
        test_mutants(lap_pipe_schedules[i]);
        test_file(lap_pipe_schedules[i]);
    }
    test_sizes();
    test_pytorch_file();
    test_refused("0F0,0B0\n1B0,1F0\n", LAP_ERR_CHECK, "rank 1, action 0, 1B0", "forward");
    test_refused("0F0,0B0\n0F1,0B1\n", LAP_ERR_CHECK, "rank 1, action 0, 0F1", "rank 0 has");
    test_refused("0F0,0I0\n", LAP_ERR_CHECK, "stage 0", "weights of micro-batch 0 is missing");
    test_refused("0F0,0W0,0I0\n", LAP_ERR_CHECK, "action 1, 0W0", "does not come before");
    test_refused("0F0,0B0\n2F0,2B0\n", LAP_ERR_CHECK, "no rank has stage 1", "of 3");
    test_refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", LAP_ERR_CHECK, "deadlock: rank 0, action 1",
                 "rank 1");
    test_refused("0F0,0Q0\n", LAP_ERR_INVALID, "line 1", "'0Q0'");
    test_refused("0F0,0B0\nF1\n", LAP_ERR_INVALID, "line 2", "'F1'");
    test_refused("0F99999999999,0B0\n", LAP_ERR_INVALID, "'0F99999999999'", "less than 65536");
    test_refused("\n\n", LAP_ERR_INVALID, "table.csv", "no actions");
    return tap_done();
}
