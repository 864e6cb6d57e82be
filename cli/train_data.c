/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens that `lap train --data` trains on. Sequence s of an iteration is sample n + s of the files, where n samples were seen
 * before: which ranks it goes to does not matter.
 */
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "train.h"
#include "util/alloc.h"
#include "util/random.h"

enum { FILES_MOST = 65536 };
#define ORDER_KEY 0x73616d706c657321u /* weights and data have keys of their own */

/* Adds the files of a name or pattern, in the order of their names. */
static lap_status_t expand(const char *name, glob_t *found)
{
    const int failed =
        glob(name, GLOB_NOCHECK | (found->gl_pathc > 0 ? GLOB_APPEND : 0), NULL, found);
    if (failed == GLOB_NOSPACE || found->gl_pathc > FILES_MOST)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the files of --data");
    return failed == 0 ? LAP_OK : lap_error(LAP_ERR_SYSTEM, "cannot read the folder of '%s'", name);
}

/* The files of a list of names and patterns with commas between them. */
static lap_status_t list_files(const char *list, glob_t *found)
{
    char *names = lap_alloc(strlen(list) + 1, 1);
    lap_status_t status = LAP_OK;
    if (!names)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the files of --data");
    memcpy(names, list, strlen(list) + 1);
    for (char *rest = names, *name; status == LAP_OK && (name = strsep(&rest, ",")) != NULL;)
        status = *name ? expand(name, found)
                       : lap_error(LAP_ERR_INVALID,
                                   "--data is '%s'; expected names of files with one comma between "
                                   "two of them",
                                   list);
    lap_free(names);
    return status;
}

static lap_status_t open_files(const lap_train_t *train, const lap_data_options_t *options,
                               lap_data_t **data_p)
{
    glob_t found = {.gl_pathc = 0};
    lap_status_t status = list_files(train->data, &found);
    if (status == LAP_OK)
        status =
            lap_data_open((const char *const *)found.gl_pathv, found.gl_pathc, options, data_p);
    if (found.gl_pathc > 0)
        globfree(&found);
    return status;
}

lap_status_t lap_train_data_open(const lap_train_t *train, lap_data_t **data_p)
{
    lap_data_options_t options = LAP_DATA_OPTIONS_INIT;
    options.seq = train->desc.seq;
    options.vocab = train->desc.vocab;
    options.wraps = !train->data_ends;
    return open_files(train, &options, data_p);
}

lap_status_t lap_train_data_check(const lap_train_t *train)
{
    lap_data_t *data = NULL;
    uint64_t needed;
    if (!train->data)
        return LAP_OK;
    LAP_TRY(lap_train_data_open(train, &data));
    const uint64_t samples = lap_data_samples(data);
    lap_data_close(data);
    if (train->data_ends &&
        (__builtin_mul_overflow((uint64_t)train->batch, (uint64_t)train->iters, &needed) ||
         needed > samples))
        return lap_error(LAP_ERR_INVALID,
                         "--data has %" PRIu64
                         " samples of %zu tokens; expected %d iterations of %zu "
                         "to need no more, or no --no-data-wrap",
                         samples, train->desc.seq, train->iters, train->batch);
    return LAP_OK;
}

/* ---- order ---- */

/*
 * A permutation of numbers of 2 * `half` bits, by a Feistel network: each round changes one half by what a
 * function makes of the other, and can be undone.
 */
static uint64_t permute(uint64_t seed, uint64_t epoch, uint64_t x, unsigned half)
{
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 6; round++) {
        const lap_u32x4_t words = lap_random_u32x4(seed ^ ORDER_KEY, epoch << 3 | round, right);
        const uint64_t next = left ^ (((uint64_t)words.word[0] << 32 | words.word[1]) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t lap_train_shuffled(uint64_t seed, uint64_t n, uint64_t count)
{
    const uint64_t epoch = n / count;
    unsigned half = 1;
    while (half < 32 && (uint64_t)1 << 2 * half < count)
        half++;
    /* What lies beyond the last sample is permuted on: that ends, since it is a cycle through n. */
    uint64_t x = n % count;
    do
        x = permute(seed, epoch, x, half);
    while (x >= count);
    return epoch * count + x;
}

void lap_train_log_data(const lap_train_model_t *model)
{
    char order[64] = "the order of the files";
    if (!model->data)
        return;
    if (model->shuffle)
        snprintf(order, sizeof(order), "a random order, of seed %" PRIu64, model->data_seed);
    lap_train_log(model->train, model->trainer.groups.world,
                  "|-- Data: %" PRIu64 " samples of %zu tokens, in %s",
                  lap_data_samples(model->data), model->train->desc.seq, order);
}

/* ---- samples ---- */

static lap_status_t read_samples(const lap_train_model_t *model, uint64_t first, size_t count,
                                 size_t seq, int32_t *tokens, int32_t *targets)
{
    const lap_data_t *data = model->data;
    uint32_t *sample = lap_alloc(seq + 1, sizeof(*sample));
    lap_status_t status =
        sample ? LAP_OK : lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu tokens", seq + 1);
    for (size_t b = 0; b < count && status == LAP_OK; b++) {
        const uint64_t n = first + b;
        status = lap_data_sample(
            data,
            model->shuffle ? lap_train_shuffled(model->data_seed, n, lap_data_samples(data)) : n,
            sample);
        for (size_t s = 0; s < seq && status == LAP_OK; s++) {
            tokens[b * seq + s] = (int32_t)sample[s];
            targets[b * seq + s] = (int32_t)sample[s + 1];
        }
    }
    lap_free(sample);
    return status;
}

/*
 * A Markov chain over the first tokens of the vocabulary: mostly each is followed by one that it
 * determines, so that there is something to learn.
 */
enum { CHAIN = 64, SURE = 8 }; /* tokens, and of how many steps one is not determined */

static void make_sample(const lap_nn_desc_t *desc, uint64_t tensor, int32_t *tokens,
                        int32_t *targets)
{
    const uint64_t size = desc->vocab < CHAIN ? desc->vocab : CHAIN;
    uint64_t token = lap_random_u32x4(desc->seed, tensor, 0).word[0] % size;
    for (size_t s = 0; s < desc->seq; s++) {
        const uint64_t random = lap_random_u32x4(desc->seed, tensor, s + 1).word[0];
        const uint64_t next = random % SURE == 0 ? random / SURE % size : (5 * token + 7) % size;
        tokens[s] = (int32_t)token;
        targets[s] = (int32_t)next;
        token = next;
    }
}

lap_status_t lap_train_data_give(void *context, uint64_t first, size_t count, size_t seq,
                                 int32_t *tokens, int32_t *targets)
{
    const lap_train_model_t *model = context;
    const lap_trainer_t *trainer = &model->trainer;
    if (model->data)
        return read_samples(model, first, count, seq, tokens, targets);
    for (size_t b = 0; b < count; b++)
        make_sample(&trainer->model, (trainer->step + 1) << 32 | (first - trainer->samples + b),
                    tokens + b * seq, targets + b * seq);
    return LAP_OK;
}
