/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GEMM on a host: one task that walks over the blocks of rows, waits for their signals in order
 * or as they come, and raises theirs. The arithmetic is the kernel of the device. Once the
 * stream has the workspace that the kernel needs, nothing is allocated.
 */
#include <assert.h>

#include "core/status.h"
#include "device/host/host.h"
#include "util/clock.h"

#define WORDS 256u /* most signals to wait for at once: one per rank that sends */
#define NONE SIZE_MAX

typedef struct gemm_task {
    lap_gemm_t gemm;
    lap_host_kernel_t kernel;
    void *workspace;
    lap_stream_t *stream;
} gemm_task_t;

static lap_status_t multiply(const gemm_task_t *task, const lap_gemm_block_t *block)
{
    if (block->rows == 0 || task->gemm.n == 0)
        return LAP_OK;
    return task->kernel(&task->gemm, block, task->workspace);
}

/* When the search for a block that can run begins. */
typedef struct search {
    uint64_t ns, delay;
} search_t;

static search_t begin_search(const gemm_task_t *task, const lap_gemm_block_t *block)
{
    const uint64_t delay = block->delays ? lap_host_stream_delay(task->stream) : 0;
    return (search_t){block->span ? lap_now_ns() : 0, delay};
}

/* A block whose signal, if it has one, has come. `search`: when the search for it began. */
static lap_status_t run_block(const gemm_task_t *task, size_t index, search_t search)
{
    const lap_gemm_t *gemm = &task->gemm;
    lap_gemm_block_t *block = &gemm->blocks[index];
    block->done = true;
    if (block->has_wait && gemm->wait_passed)
        LAP_TRY(gemm->wait_passed(gemm->context, index));
    if (block->delays)
        (void)lap_host_stream_delay(task->stream); /* what follows is counted from here */
    const uint64_t begin_ns = block->span ? lap_now_ns() : 0;
    LAP_TRY(multiply(task, block));
    if (block->span)
        *block->span = (lap_span_t){search.ns, begin_ns, lap_now_ns()};
    if (block->delays)
        *block->delays = (lap_delays_t){search.delay, lap_host_stream_delay(task->stream)};
    return block->raise_arg ? gemm->raise(gemm->context, block->raise_arg) : LAP_OK;
}

static lap_status_t wait_failed(const lap_gemm_t *gemm, size_t index, lap_status_t status)
{
    return gemm->wait_failed ? gemm->wait_failed(gemm->context, index, status) : status;
}

static lap_status_t run_in_order(const gemm_task_t *task)
{
    const lap_gemm_t *gemm = &task->gemm;
    for (size_t i = 0; i < gemm->nblocks; i++) {
        const lap_bank_wait_t *wait = &gemm->blocks[i].wait;
        const search_t search = begin_search(task, &gemm->blocks[i]);
        if (gemm->blocks[i].has_wait) {
            lap_status_t status =
                lap_bank_wait(gemm->wait_bank, wait->word, wait->target, gemm->watch);
            if (status != LAP_OK)
                return wait_failed(gemm, i, status);
        }
        LAP_TRY(run_block(task, i, search));
    }
    return LAP_OK;
}

static bool is_ready(const lap_gemm_t *gemm, const lap_gemm_block_t *block)
{
    return !block->has_wait ||
           lap_bank_reached(gemm->wait_bank, block->wait.word, block->wait.target);
}

/* xorshift64: enough to shuffle with, never 0 when it starts so. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/*
 * The first block from `first` on that is ready, or a random one of those that are; NONE when none
 * is.
 */
static size_t find_ready(const lap_gemm_t *gemm, size_t first, uint64_t *shuffle)
{
    size_t found = NONE;
    uint64_t ready = 0;
    for (size_t i = first; i < gemm->nblocks; i++) {
        if (gemm->blocks[i].done || !is_ready(gemm, &gemm->blocks[i]))
            continue;
        if (*shuffle == 0)
            return i;
        /* Of the blocks found so far each is kept with the same chance. */
        if (next_random(shuffle) % ++ready == 0)
            found = i;
    }
    return found;
}

/* Notes a wait for a word, or for the smaller of two targets of the same word. */
static bool add_word(lap_bank_wait_t *words, size_t *nwords, const lap_bank_wait_t *wait)
{
    for (size_t i = 0; i < *nwords; i++) {
        if (words[i].word != wait->word)
            continue;
        if ((int32_t)(wait->target - words[i].target) < 0)
            words[i].target = wait->target;
        return true;
    }
    if (*nwords == WORDS)
        return false;
    words[(*nwords)++] = *wait;
    return true;
}

/*
 * Waits until one of the blocks from `first` on, none of which is ready yet, may be. Of more words
 * than there is room for the first ones do: all of them come in the end.
 */
static lap_status_t wait_for_any(const lap_gemm_t *gemm, size_t first)
{
    lap_bank_wait_t words[WORDS];
    size_t nwords = 0, which;
    for (size_t i = first; i < gemm->nblocks; i++)
        if (!gemm->blocks[i].done && !add_word(words, &nwords, &gemm->blocks[i].wait))
            break;
    lap_status_t status = lap_bank_wait_any(gemm->wait_bank, words, nwords, gemm->watch, &which);
    return status == LAP_OK ? LAP_OK : wait_failed(gemm, first, status);
}

static lap_status_t run_any_order(const gemm_task_t *task)
{
    const lap_gemm_t *gemm = &task->gemm;
    uint64_t shuffle = gemm->shuffle;
    size_t first = 0; /* all before it are done */
    for (size_t i = 0; i < gemm->nblocks; i++)
        gemm->blocks[i].done = false;
    for (size_t left = gemm->nblocks; left > 0; left--) {
        const search_t search = begin_search(task, &gemm->blocks[0]); /* all are traced, or none */
        while (gemm->blocks[first].done)
            first++;
        size_t index;
        while ((index = find_ready(gemm, first, &shuffle)) == NONE)
            LAP_TRY(wait_for_any(gemm, first));
        LAP_TRY(run_block(task, index, search));
    }
    return LAP_OK;
}

static lap_status_t run_gemm(void *arg)
{
    const gemm_task_t *task = arg;
    return task->gemm.any_order ? run_any_order(task) : run_in_order(task);
}

lap_status_t lap_host_gemm(lap_stream_t *stream, const lap_gemm_t *gemm, lap_host_kernel_t kernel,
                           size_t workspace_bytes)
{
    gemm_task_t task = {*gemm, kernel, NULL, stream};
    LAP_TRY(lap_device_check_dtype("a GEMM with a", gemm->a_dtype));
    LAP_TRY(lap_device_check_dtype("a GEMM with b", gemm->b_dtype));
    LAP_TRY(lap_device_check_dtype("a GEMM with d", gemm->d_dtype));
    LAP_TRY(lap_host_stream_workspace(stream, workspace_bytes, &task.workspace));
    return lap_host_stream_call(stream, run_gemm, &task, sizeof(task));
}

static_assert(sizeof(gemm_task_t) <= LAP_STREAM_ARG_BYTES,
              "a GEMM is an argument of a stream call");
