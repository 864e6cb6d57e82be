/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a pass, for layers of all kinds and every rank: private regions that live at the same
 * time have memory of their own, nothing is read that was not written, both backwards use the same
 * operators, and memory is packed well. Runs nothing and needs no device.
 */
#include <stdlib.h>

#include "nn/list.h"
#include "tap.h"

static bool is_private(const lap_nn_list_t *list, uint32_t region)
{
    return list->regions[region].memory == LAP_NN_PRIVATE &&
           list->regions[region].part_of == LAP_NN_NONE;
}

static size_t end_of(const lap_nn_region_t *region)
{
    return region->offset + region->rows * region->cols * lap_dtype_size(region->dtype);
}

/* Lifetimes are found anew here: from the first entry that uses a region to the last one. */
static bool uses(const lap_nn_entry_t *entry, uint32_t region)
{
    for (int i = 0; i < LAP_NN_READS; i++)
        if (entry->reads[i] == region)
            return true;
    for (int i = 0; i < LAP_NN_WRITES; i++)
        if (entry->writes[i] == region)
            return true;
    return false;
}

/* The positions of a forward and one backward; the two backwards are tried one after the other. */
static void find_lives(const lap_nn_list_t *list, int part, uint32_t (*life)[2])
{
    for (uint32_t r = 0; r < list->nregions; r++) {
        life[r][0] = UINT32_MAX;
        life[r][1] = 0;
        for (uint32_t i = 0; i < list->nentries; i++) {
            const bool forward = i < list->parts[LAP_NN_LOSS_PART];
            const bool backward = i >= list->parts[part] && i < list->parts[part + 1];
            if ((!forward && !backward) || !uses(&list->entries[i], r))
                continue;
            life[r][0] = life[r][0] == UINT32_MAX ? i : life[r][0];
            life[r][1] = i;
        }
    }
}

/* Pairs of regions that live at the same time and have bytes in common. */
static size_t count_clashes(const lap_nn_list_t *list, int part)
{
    uint32_t(*life)[2] = calloc(list->nregions, sizeof(*life));
    size_t clashes = 0;
    if (!life)
        exit(1);
    find_lives(list, part, life);
    for (uint32_t a = 0; a < list->nregions; a++)
        for (uint32_t b = a + 1; b < list->nregions; b++) {
            const lap_nn_region_t *x = &list->regions[a], *y = &list->regions[b];
            if (is_private(list, a) && is_private(list, b) && life[a][0] != UINT32_MAX &&
                life[b][0] != UINT32_MAX && life[a][0] <= life[b][1] && life[b][0] <= life[a][1])
                clashes += x->offset < end_of(y) && y->offset < end_of(x);
        }
    free(life);
    return clashes;
}

/* Private regions that an entry reads though nobody has written them. */
static size_t count_unwritten(const lap_nn_list_t *list, int part)
{
    bool *written = calloc(list->nregions, sizeof(*written));
    size_t unwritten = 0, offset;
    if (!written)
        exit(1);
    for (uint32_t i = 0; i < list->parts[part + 1]; i++) {
        if (i == list->parts[LAP_NN_LOSS_PART])
            i = list->parts[part];
        const lap_nn_entry_t *entry = &list->entries[i];
        for (int r = 0; r < LAP_NN_READS; r++)
            if (entry->reads[r] != LAP_NN_NONE && is_private(list, entry->reads[r]))
                unwritten += !written[entry->reads[r]];
        if (entry->beta != 0 && is_private(list, entry->writes[0]))
            unwritten += !written[entry->writes[0]];
        for (int w = 0; w < LAP_NN_WRITES; w++)
            if (entry->writes[w] != LAP_NN_NONE)
                written[lap_nn_region_root(list, entry->writes[w], &offset)] = true;
    }
    free(written);
    return unwritten;
}

static bool same_calls(const lap_nn_list_t *list)
{
    uint32_t other = list->parts[LAP_NN_BACKWARD_MORE];
    for (uint32_t i = list->parts[LAP_NN_BACKWARD]; i < list->parts[LAP_NN_BACKWARD_MORE]; i++) {
        if (list->entries[i].work != LAP_NN_OPERATOR)
            continue;
        while (list->entries[other].work != LAP_NN_OPERATOR)
            other++;
        if (list->entries[i].index != list->entries[other++].index)
            return false;
    }
    return true;
}

/* The most bytes that live at any entry: no layout needs less. */
static size_t most_live(const lap_nn_list_t *list)
{
    size_t most = 0;
    for (uint32_t i = 0; i < list->nentries; i++) {
        size_t live = 0;
        for (uint32_t r = 0; r < list->nregions; r++) {
            const lap_nn_region_t *region = &list->regions[r];
            if (is_private(list, r) && region->first <= i && i <= region->last)
                live += end_of(region) - region->offset;
        }
        most = live > most ? live : most;
    }
    return most;
}

static lap_nn_desc_t describe(lap_nn_kind_t kind, lap_recompute_t recompute, lap_fp8_recipe_t fp8)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.kind = kind;
    desc.layers = kind == LAP_NN_LINEAR || kind == LAP_NN_LAYERNORM_LINEAR ? 1 : 3;
    desc.seq = 30;
    desc.batch = 3;
    desc.hidden = 96;
    desc.heads = 12;
    desc.dtype = LAP_BFLOAT16;
    desc.recompute = recompute;
    desc.fp8 = fp8;
    if (kind == LAP_NN_MODEL) {
        desc.vocab = 1027;
        desc.tied = fp8 == LAP_FP8_NONE;
        desc.positions = desc.tied ? LAP_POSITIONS_LEARNED : LAP_POSITIONS_ROPE;
    }
    return desc;
}

static size_t try_list(const lap_nn_desc_t *desc, int nranks, const char *name)
{
    size_t clashes = 0, unwritten = 0, most = 0, least = 0;
    bool same = true, good = true;
    for (int rank = 0; rank < nranks; rank++) {
        lap_nn_plan_t plan;
        lap_nn_list_t list = {.nregions = 0};
        good &= lap_nn_plan_init(desc, nranks, &plan) == LAP_OK &&
                lap_nn_list_init(&list, &plan, rank, NULL) == LAP_OK;
        for (int part = LAP_NN_BACKWARD; good && part <= LAP_NN_BACKWARD_MORE; part++) {
            clashes += count_clashes(&list, part);
            unwritten += count_unwritten(&list, part);
        }
        same &= good && same_calls(&list);
        if (good && list.bytes[LAP_NN_PRIVATE] > most) {
            most = list.bytes[LAP_NN_PRIVATE];
            least = most_live(&list);
        }
        lap_nn_list_clear(&list);
    }
    tap_ok(good && clashes == 0, "%s of %d ranks: no two live regions share memory (%zu do)", name,
           nranks, clashes);
    tap_ok(good && unwritten == 0, "%s of %d ranks: all that is read was written (%zu was not)",
           name, nranks, unwritten);
    tap_ok(same, "%s of %d ranks: both backwards call the same operators", name, nranks);
    tap_ok(good && (double)most <= 1.15 * (double)least + 16384,
           "%s of %d ranks: %zu bytes are laid out where %zu live", name, nranks, most, least);
    return most;
}

int main(void)
{
    static const int ranks[] = {1, 2, 3};
    for (int kind = LAP_NN_LINEAR; kind <= LAP_NN_MODEL; kind++)
        for (int fp8 = LAP_FP8_NONE; fp8 <= LAP_FP8_DELAYED; fp8++)
            for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
                size_t bytes[LAP_RECOMPUTE_FULL + 1];
                const char *name = lap_nn_kind_name((lap_nn_kind_t)kind);
                for (int recompute = LAP_RECOMPUTE_NONE; recompute <= LAP_RECOMPUTE_FULL;
                     recompute++) {
                    lap_nn_desc_t desc = describe((lap_nn_kind_t)kind, (lap_recompute_t)recompute,
                                                  (lap_fp8_recipe_t)fp8);
                    if (kind == LAP_NN_LAYERNORM_MLP)
                        desc.activation = LAP_SWIGLU;
                    bytes[recompute] = try_list(&desc, ranks[i], name);
                    desc.sequence_parallel = 0;
                    desc.loss_scale = 8;
                    (void)try_list(&desc, ranks[i], name);
                }
                if (kind >= LAP_NN_LAYERNORM_MLP)
                    tap_ok(bytes[LAP_RECOMPUTE_FULL] < bytes[LAP_RECOMPUTE_SELECTIVE] &&
                               bytes[LAP_RECOMPUTE_SELECTIVE] <= bytes[LAP_RECOMPUTE_NONE],
                           "%s of %d ranks: the more is recomputed the less is kept: %zu, %zu, %zu",
                           name, ranks[i], bytes[0], bytes[1], bytes[2]);
            }
    return tap_done();
}
