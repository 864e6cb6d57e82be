/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The masks of dropout. Whether an element is dropped is a pure function of the seed, the place in the model, the
 * number of its sequence among all that are trained on, and its row and column. So masks do not depend on how ranks
 * share the work, and backward and recomputation make the same ones. Plain C that is C++ as well.
 */
#ifndef LAP_KERNEL_MASK_H
#define LAP_KERNEL_MASK_H

#include "util/random.h"

/*
 * The tokens of a pass: LAP_ID_COLS numbers for each row of activations, in the order of rows. LAP_ID_BY_TOKEN is a list of its
 * own: all rows, ordered by their token, those of one token ascending. LAP_ID_SAMPLE is the number of a sequence; below 0: it has
 * no mask.
 */
enum { LAP_ID_TOKEN = 0, LAP_ID_TARGET, LAP_ID_BY_TOKEN, LAP_ID_SAMPLE, LAP_ID_COLS };

typedef struct lap_mask {
    float
        rate; /* the part of elements that become 0; those that stay are 1 / (1 - rate) as large */
    uint32_t site; /* where in the model */
    uint64_t seed;
    const int32_t *ids; /* of the pass; row b is of sequence b. NULL: nothing is masked */
} lap_mask_t;

/* The sites of a model: its embeddings; of block b, what it adds to its input, and its attention. */
#define LAP_MASK_EMBEDDING 0u
#define LAP_MASK_HIDDEN(b) (2u * (uint32_t)(b) + 2u)
#define LAP_MASK_ATTENTION(b) (2u * (uint32_t)(b) + 3u)

/* Weights and data have keys of their own. */
#define LAP_MASK_KEY 0x64726f706f757421u

/* The sequence b of a batch; below 0: all elements stay. */
LAP_RANDOM int32_t lap_mask_sample(const lap_mask_t *mask, size_t b)
{
    return mask->ids && mask->rate > 0 ? mask->ids[b * LAP_ID_COLS + LAP_ID_SAMPLE] : -1;
}

/* The words of four elements, of which `col` is one, of a row of `cols`. */
LAP_RANDOM lap_u32x4_t lap_mask_words(const lap_mask_t *mask, int32_t sample, uint64_t row,
                                      uint64_t cols, uint64_t col)
{
    return lap_random_u32x4(mask->seed ^ LAP_MASK_KEY,
                            (uint64_t)mask->site << 32 | (uint32_t)sample,
                            row * ((cols + 3) / 4) + col / 4);
}

/* What an element is multiplied with, by its word. */
LAP_RANDOM float lap_mask_factor(const lap_mask_t *mask, uint32_t word)
{
    const uint32_t least = (uint32_t)((double)mask->rate * 4294967296.0);
    return word < least ? 0.0f : 1.0f / (1.0f - mask->rate);
}

/* The same of an element. */
LAP_RANDOM float lap_mask_at(const lap_mask_t *mask, int32_t sample, uint64_t row, uint64_t cols,
                             uint64_t col)
{
    if (sample < 0)
        return 1;
    const lap_u32x4_t words = lap_mask_words(mask, sample, row, cols, col);
    return lap_mask_factor(mask, words.word[col % 4]);
}

#endif
