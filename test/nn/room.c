/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers are held against the memory that is available, together for all ranks of the host, before
 * any of it is taken: all ranks fail, and the sentence has both numbers. Linked with --wrap for
 * lap_memory_room, so that the machine has as much as a test wants.
 */
#include <inttypes.h>
#include <stdio.h>

#include "nn/nn.h"
#include "tap.h"

enum { RANKS = 3 };

static uint64_t rooms[RANKS]; /* what there is, as each rank sees it */
static _Thread_local int self;

uint64_t __wrap_lap_memory_room(void);
uint64_t __wrap_lap_memory_room(void)
{
    return rooms[self];
}

static void set_rooms(uint64_t bytes)
{
    for (int r = 0; r < RANKS; r++)
        rooms[r] = bytes;
}

static lap_nn_desc_t small(void)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.seq = 12;
    desc.hidden = 24;
    desc.heads = 3;
    desc.layers = 2;
    return desc;
}

/* Layers that are made, or that no rank makes, with these words in its sentence. */
typedef struct scene {
    lap_nn_desc_t desc;
    const char *words[2]; /* NULL: they are made */
    double bytes[RANKS];  /* that each rank took */
} scene_t;

static void rank_main(lap_world_t *world, void *arg)
{
    scene_t *scene = arg;
    lap_nn_t *nn = NULL;
    self = lap_world_rank(world);
    const lap_status_t status = lap_nn_create(lap_world_group(world), &scene->desc, &nn);
    if (!scene->words[0])
        tap_success(status, "rank %d makes %s of %s that fit", self,
                    lap_nn_kind_name(scene->desc.kind), lap_dtype_name(scene->desc.dtype));
    else
        tap_failure(status, LAP_ERR_NO_MEMORY, scene->words[0], scene->words[1], NULL);
    scene->bytes[self] = 0;
    for (int i = 0; nn && i < LAP_NN_MEMORIES; i++)
        scene->bytes[self] += (double)nn->list.bytes[i];
    lap_nn_destroy(nn);
}

/* What fits to the byte is made, one byte less is refused. */
static void test_edge(lap_nn_kind_t kind, lap_dtype_t dtype, lap_recompute_t recompute,
                      lap_fp8_recipe_t fp8)
{
    scene_t scene = {.desc = small()};
    lap_nn_plan_t plan = {.nranks = RANKS};
    char needed[64], there[64];
    scene.desc.kind = kind;
    scene.desc.layers = kind <= LAP_NN_LAYERNORM_LINEAR ? 1 : 2;
    scene.desc.dtype = dtype;
    scene.desc.recompute = recompute;
    scene.desc.fp8 = fp8;
    if (kind == LAP_NN_MODEL) {
        scene.desc.vocab = 1027;
        scene.desc.tied = fp8 != LAP_FP8_NONE;
    }
    set_rooms(UINT64_MAX);
    tap_ranks(RANKS, NULL, rank_main, &scene);
    tap_success(lap_nn_plan_init(&scene.desc, RANKS, &plan), "they are valid");
    for (int r = 0; r < RANKS; r++) {
        double bytes = 0;
        tap_success(lap_nn_list_bytes(&plan, r, NULL, 0, &bytes), "their bytes are known");
        tap_ok(bytes == scene.bytes[r], "rank %d takes the %.0f bytes that were said (%.0f)", r,
               bytes, scene.bytes[r]);
        rooms[r] = RANKS * (uint64_t)scene.bytes[r];
    }
    tap_ranks(RANKS, NULL, rank_main, &scene);
    snprintf(needed, sizeof(needed), " %" PRIu64 " bytes of memory on 3 ranks of this host",
             rooms[2]);
    rooms[2]--;
    snprintf(there, sizeof(there), " %" PRIu64 " are available", rooms[2]);
    scene.words[0] = needed;
    scene.words[1] = there;
    tap_ranks(RANKS, NULL, rank_main, &scene);
}

/* One rank sees less than the others: all hear of it. */
static void test_one(void)
{
    scene_t scene = {small(), {"layers need at least", " 1000 are available"}, {0}};
    set_rooms(UINT64_MAX);
    rooms[1] = 1000;
    tap_ranks(RANKS, NULL, rank_main, &scene);
}

/* More than any machine has. */
static void test_huge(void)
{
    scene_t scene = {small(), {"100000 layers need at least", "1099511627776 are available"}, {0}};
    scene.desc.layers = 100000;
    scene.desc.hidden = 24000;
    scene.desc.head_dim = 8000;
    set_rooms((uint64_t)1 << 40);
    tap_ranks(RANKS, NULL, rank_main, &scene);
}

/* The bytes of many layers are found without a list of them. */
static void test_many(lap_nn_kind_t kind)
{
    lap_nn_desc_t desc = small();
    lap_nn_plan_t plan = {.nranks = RANKS};
    lap_nn_list_t list;
    double bytes = 0, exact = 0;
    desc.layers = 20;
    desc.kind = kind;
    desc.vocab = kind == LAP_NN_MODEL ? 100 : 0;
    tap_success(lap_nn_plan_init(&desc, RANKS, &plan), "20 layers are valid");
    tap_success(lap_nn_list_bytes(&plan, 1, NULL, 8, &bytes), "their bytes are known");
    tap_success(lap_nn_list_init(&list, &plan, 1, NULL), "their list");
    for (int i = 0; i < LAP_NN_MEMORIES; i++)
        exact += (double)list.bytes[i];
    exact += 8 * (double)list.regions[list.masters].cols;
    tap_ok(bytes >= 0.99 * exact && bytes <= 1.01 * exact, "%.0f bytes where %.0f are taken", bytes,
           exact);
    lap_nn_list_clear(&list);
    desc.hidden = desc.ffn = (size_t)3 << 29;
    desc.seq = (size_t)1 << 30;
    tap_success(lap_nn_plan_init(&desc, RANKS, &plan), "matrices that no memory holds");
    tap_failure(lap_nn_list_bytes(&plan, 0, NULL, 0, &bytes), LAP_ERR_NO_MEMORY, "a matrix of [",
                NULL);
}

int main(void)
{
    test_many(LAP_NN_TRANSFORMER);
    test_many(LAP_NN_MODEL);
    for (int kind = LAP_NN_LINEAR; kind <= LAP_NN_MODEL; kind++)
        test_edge((lap_nn_kind_t)kind, LAP_FLOAT32, LAP_RECOMPUTE_NONE, LAP_FP8_NONE);
    test_edge(LAP_NN_TRANSFORMER, LAP_BFLOAT16, LAP_RECOMPUTE_NONE, LAP_FP8_NONE);
    test_edge(LAP_NN_TRANSFORMER, LAP_FLOAT32, LAP_RECOMPUTE_FULL, LAP_FP8_NONE);
    test_edge(LAP_NN_TRANSFORMER, LAP_BFLOAT16, LAP_RECOMPUTE_SELECTIVE, LAP_FP8_DELAYED);
    test_edge(LAP_NN_MODEL, LAP_BFLOAT16, LAP_RECOMPUTE_FULL, LAP_FP8_DELAYED);
    test_one();
    test_huge();
    return tap_done();
}
