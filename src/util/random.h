/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers that are a pure function of (seed, tensor, index): any rank can make any element
 * of a tensor without the others, so that weights and data do not depend on how they are sharded.
 * The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
 * easy as 1, 2, 3" (SC 2011). There is no state, so nothing to lock and nothing to seed.
 */
#ifndef LAP_UTIL_RANDOM_H
#define LAP_UTIL_RANDOM_H

#include <math.h>
#include <stdint.h>

/* Kernels for GPUs make the same numbers from the same lines. */
#ifdef __CUDACC__
#define LAP_RANDOM static inline __host__ __device__
#else
#define LAP_RANDOM static inline
#endif

typedef struct lap_u32x4 {
    uint32_t word[4];
} lap_u32x4_t;

/* The generator itself: a counter of 128 bits, its least word first, and a key of 64. */
LAP_RANDOM lap_u32x4_t lap_philox(lap_u32x4_t counter, uint32_t key0, uint32_t key1)
{
    uint32_t *c = counter.word;
    for (int round = 0; round < 10; round++) {
        const uint64_t left = (uint64_t)0xd2511f53 * c[0], right = (uint64_t)0xcd9e8d57 * c[2];
        const uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(right >> 32) ^ c1 ^ key0;
        c[1] = (uint32_t)right;
        c[2] = (uint32_t)(left >> 32) ^ c3 ^ key1;
        c[3] = (uint32_t)left;
        key0 += 0x9e3779b9;
        key1 += 0xbb67ae85;
    }
    return counter;
}

/* Four words, uniform over all 32 bits: block `index` of tensor `tensor` under `seed`. */
LAP_RANDOM lap_u32x4_t lap_random_u32x4(uint64_t seed, uint64_t tensor, uint64_t index)
{
    const lap_u32x4_t counter = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)tensor, (uint32_t)(tensor >> 32)}};
    return lap_philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/*
 * Two independent numbers of the standard normal distribution from two uniform words, by Box and
 * Muller. In double and then rounded, so that the last bits of a libm's log and cos do not show.
 */
LAP_RANDOM void lap_random_box_muller(uint32_t size, uint32_t angle, float normal[2])
{
    const double radius = sqrt(-2.0 * log((size + 1.0) * 0x1p-32)); /* of (0, 1]: finite */
    const double turn = 6.283185307179586477 * (angle * 0x1p-32);
    normal[0] = (float)(radius * cos(turn));
    normal[1] = (float)(radius * sin(turn));
}

/* Element `index` of a tensor of normal numbers: mean 0, standard deviation 1. */
LAP_RANDOM float lap_random_normal(uint64_t seed, uint64_t tensor, uint64_t index)
{
    const lap_u32x4_t block = lap_random_u32x4(seed, tensor, index / 4);
    const unsigned pair = (unsigned)(index % 4 / 2) * 2;
    float normal[2];
    lap_random_box_muller(block.word[pair], block.word[pair + 1], normal);
    return normal[index % 2];
}

#endif
