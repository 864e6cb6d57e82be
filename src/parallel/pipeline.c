/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that pipeline schedules are built by. */
#include "parallel/pipeline.h"

#include <string.h>

#include "core/status.h"
#include "util/alloc.h"
#include "util/nearest.h"

const char *const lap_pipe_schedules[] = {"1f1b", "interleaved", "zb-h1",
                                          "zb-v", "1f1b-eager",  NULL};

const char *lap_pipe_text(const lap_pipe_action_t *action, char text[LAP_PIPE_TEXT])
{
    static const char works[] = "FBIW";
    snprintf(text, LAP_PIPE_TEXT, "%u%c%u", (unsigned)action->stage, works[action->work],
             (unsigned)action->micro);
    return text;
}

void lap_pipe_add(lap_pipeline_t *pipeline, uint32_t rank, lap_pipe_work_t work, uint32_t stage,
                  uint32_t micro)
{
    lap_pipe_row_t *row = &pipeline->rows[rank];
    if (pipeline->status != LAP_OK)
        return;
    lap_pipe_action_t *actions =
        lap_grow(row->actions, row->nactions, &row->room, sizeof(*actions));
    if (!actions) {
        pipeline->status = lap_error(LAP_ERR_NO_MEMORY, "no memory for %u actions of a pipeline",
                                     (unsigned)row->nactions + 1);
        return;
    }
    row->actions = actions;
    actions[row->nactions++] = (lap_pipe_action_t){work, stage, micro};
}

/* ---- one forward, one backward ---- */

/* After the forwards that fill the pipeline, a rank goes forward and backward in turn. */
static void add_1f1b(lap_pipeline_t *pipeline, uint32_t r, uint32_t before)
{
    const uint32_t warm_up = before < pipeline->micros ? before : pipeline->micros;
    for (uint32_t i = 0; i < warm_up; i++)
        lap_pipe_add(pipeline, r, LAP_PIPE_FORWARD, r, i);
    for (uint32_t i = 0; i < pipeline->micros; i++) {
        if (warm_up + i < pipeline->micros)
            lap_pipe_add(pipeline, r, LAP_PIPE_FORWARD, r, warm_up + i);
        lap_pipe_add(pipeline, r, LAP_PIPE_BACKWARD, r, i);
    }
}

static void build_1f1b(lap_pipeline_t *pipeline, uint32_t r)
{
    add_1f1b(pipeline, r, pipeline->ranks - r - 1);
}

/*
 * Twice as many forwards before: of the way of a micro-batch to the last rank and back, messages may take as
 * long as the work does.
 */
static void build_eager(lap_pipeline_t *pipeline, uint32_t r)
{
    add_1f1b(pipeline, r, 2 * (pipeline->ranks - r - 1));
}

/* Gradients of weights wait until they fill a bubble: rank r puts them off by r micro-batches. */
static void build_zb_h1(lap_pipeline_t *pipeline, uint32_t r)
{
    const uint32_t before = pipeline->ranks - r - 1;
    const uint32_t warm_up = before < pipeline->micros ? before : pipeline->micros;
    uint32_t done = 0;
    for (uint32_t i = 0; i < warm_up; i++)
        lap_pipe_add(pipeline, r, LAP_PIPE_FORWARD, r, i);
    for (uint32_t i = 0; i < pipeline->micros; i++) {
        if (warm_up + i < pipeline->micros)
            lap_pipe_add(pipeline, r, LAP_PIPE_FORWARD, r, warm_up + i);
        lap_pipe_add(pipeline, r, LAP_PIPE_INPUT_GRAD, r, i);
        if (i >= r)
            lap_pipe_add(pipeline, r, LAP_PIPE_WEIGHT_GRAD, r, done++);
    }
    while (done < pipeline->micros)
        lap_pipe_add(pipeline, r, LAP_PIPE_WEIGHT_GRAD, r, done++);
}

/* ---- several stages on a rank ---- */

/*
 * Chunk c of rank r is stage c * ranks + r. Chunks take turns, for as many micro-batches in a row as
 * there are ranks; backward takes them from the last to the first.
 */
static void add_chunk(lap_pipeline_t *pipeline, uint32_t r, uint32_t k, bool backward)
{
    const uint32_t ranks = pipeline->ranks, chunks = pipeline->stages / ranks;
    const uint32_t turn = k / ranks % chunks;
    const uint32_t chunk = backward ? chunks - 1 - turn : turn;
    const uint32_t micro = k / (ranks * chunks) * ranks + k % ranks;
    lap_pipe_add(pipeline, r, backward ? LAP_PIPE_BACKWARD : LAP_PIPE_FORWARD, chunk * ranks + r,
                 micro);
}

static void build_interleaved(lap_pipeline_t *pipeline, uint32_t r)
{
    const uint32_t ranks = pipeline->ranks, chunks = pipeline->stages / ranks;
    const uint32_t all = pipeline->micros * chunks;
    const uint32_t before = 2 * (ranks - r - 1) + (chunks - 1) * ranks;
    const uint32_t warm_up = before < all ? before : all;
    for (uint32_t k = 0; k < warm_up; k++)
        add_chunk(pipeline, r, k, false);
    for (uint32_t k = 0; k < all; k++) {
        if (warm_up + k < all)
            add_chunk(pipeline, r, warm_up + k, false);
        add_chunk(pipeline, r, k, true);
    }
}

/*
 * Rank r has a stage on the way down, r, and one on the way up, 2 * ranks - 1 - r: the last rank turns
 * a micro-batch round at once, and the first one begins its backward. Counts how far each is.
 */
typedef struct v_rank {
    lap_pipeline_t *pipeline;
    uint32_t rank;
    uint32_t counts[2][LAP_PIPE_WORKS];
} v_rank_t;

/* Micro-batches that there are not leave their place empty. */
static void add_v(v_rank_t *v, int way, lap_pipe_work_t work)
{
    const uint32_t stage = way == 0 ? v->rank : 2 * v->pipeline->ranks - 1 - v->rank;
    const uint32_t micro = v->counts[way][work]++;
    if (micro < v->pipeline->micros)
        lap_pipe_add(v->pipeline, v->rank, work, stage, micro);
}

static void add_v_backward(v_rank_t *v, int way)
{
    add_v(v, way, LAP_PIPE_INPUT_GRAD);
    add_v(v, way, LAP_PIPE_WEIGHT_GRAD);
}

static void build_zb_v(lap_pipeline_t *pipeline, uint32_t r)
{
    const uint32_t p = pipeline->ranks;
    const uint32_t least = 2 * p - 1; /* fewer are as many, of which some are left out */
    const uint32_t micros = pipeline->micros > least ? pipeline->micros : least;
    v_rank_t v = {.pipeline = pipeline, .rank = r};
    for (uint32_t i = 0; i < 2 * (p - r) - 1; i++)
        add_v(&v, 0, LAP_PIPE_FORWARD);
    for (uint32_t i = 0; i < r; i++) {
        add_v(&v, 1, LAP_PIPE_FORWARD);
        add_v(&v, 0, LAP_PIPE_FORWARD);
    }
    for (uint32_t i = 0; i < p - r; i++) {
        add_v(&v, 1, LAP_PIPE_FORWARD);
        add_v_backward(&v, 1);
    }
    while (v.counts[1][LAP_PIPE_FORWARD] < micros) {
        if (v.counts[0][LAP_PIPE_FORWARD] < micros)
            add_v(&v, 0, LAP_PIPE_FORWARD);
        add_v_backward(&v, 0);
        add_v(&v, 1, LAP_PIPE_FORWARD);
        add_v_backward(&v, 1);
    }
    for (uint32_t i = 0; i < r; i++) {
        add_v(&v, 0, LAP_PIPE_INPUT_GRAD);
        add_v(&v, 1, LAP_PIPE_INPUT_GRAD);
    }
    for (uint32_t i = 0; i < p - r; i++)
        add_v_backward(&v, 0);
    for (int way = 1; way >= 0; way--)
        while (v.counts[way][LAP_PIPE_WEIGHT_GRAD] < micros)
            add_v(&v, way, LAP_PIPE_WEIGHT_GRAD);
}

/* ---- by name ---- */

static lap_status_t check_sizes(const char *schedule, uint32_t ranks, uint32_t chunks,
                                uint32_t micros)
{
    const bool interleaved = strcmp(schedule, "interleaved") == 0;
    const bool v = strcmp(schedule, "zb-v") == 0;
    if (ranks < 1 || ranks > LAP_PIPE_MOST || micros < 1 || micros > LAP_PIPE_MOST)
        return lap_error(LAP_ERR_INVALID,
                         "a pipeline of %u ranks and %u micro-batches, expected 1 to %u of each",
                         (unsigned)ranks, (unsigned)micros, LAP_PIPE_MOST);
    if (interleaved && (chunks < 2 || chunks > LAP_PIPE_MOST / ranks))
        return lap_error(LAP_ERR_INVALID,
                         "interleaved has %u stages on a rank, expected 2 to %u of them",
                         (unsigned)chunks, (unsigned)(LAP_PIPE_MOST / ranks));
    if (interleaved && micros % ranks != 0)
        return lap_error(LAP_ERR_INVALID,
                         "interleaved has %u micro-batch%s, expected a multiple of its %u ranks",
                         (unsigned)micros, micros == 1 ? "" : "es", (unsigned)ranks);
    if (v && chunks > 2)
        return lap_error(LAP_ERR_INVALID, "zb-v has %u stages on a rank, expected 2",
                         (unsigned)chunks);
    if (!v && !interleaved && chunks > 1)
        return lap_error(LAP_ERR_INVALID,
                         "%s has %u stages on a rank, expected 1; interleaved has several",
                         schedule, (unsigned)chunks);
    return LAP_OK;
}

lap_status_t lap_pipeline_build(const char *schedule, uint32_t ranks, uint32_t chunks,
                                uint32_t micros, lap_pipeline_t *pipeline_p)
{
    static void (*const builders[])(lap_pipeline_t *, uint32_t) = {
        build_1f1b, build_interleaved, build_zb_h1, build_zb_v, build_eager};
    size_t kind = 0;
    *pipeline_p = (lap_pipeline_t){.ranks = 0};
    while (lap_pipe_schedules[kind] && strcmp(lap_pipe_schedules[kind], schedule) != 0)
        kind++;
    if (!lap_pipe_schedules[kind]) {
        const char *nearest = lap_nearest(schedule, lap_pipe_schedules);
        return lap_error(LAP_ERR_INVALID,
                         "no pipeline schedule '%s', expected 1f1b, interleaved, zb-h1, zb-v or "
                         "1f1b-eager%s%s%s",
                         schedule, nearest ? "; did you mean " : "", nearest ? nearest : "",
                         nearest ? "?" : "");
    }
    LAP_TRY(check_sizes(schedule, ranks, chunks, micros));
    lap_pipeline_t pipeline = {.ranks = ranks, .stages = ranks, .micros = micros};
    if (builders[kind] == build_interleaved)
        pipeline.stages = ranks * chunks;
    if (builders[kind] == build_zb_v)
        pipeline.stages = 2 * ranks;
    pipeline.rows = lap_alloc(ranks, sizeof(*pipeline.rows));
    if (!pipeline.rows)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a pipeline of %u ranks",
                         (unsigned)ranks);
    for (uint32_t r = 0; r < ranks; r++)
        builders[kind](&pipeline, r);
    *pipeline_p = pipeline;
    return pipeline.status;
}

void lap_pipeline_clear(lap_pipeline_t *pipeline)
{
    for (uint32_t r = 0; pipeline->rows && r < pipeline->ranks; r++)
        lap_free(pipeline->rows[r].actions);
    lap_free(pipeline->rows);
    *pipeline = (lap_pipeline_t){.ranks = 0};
}
