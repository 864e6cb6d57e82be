/* SPDX-License-Identifier: Apache-2.0 */
#include "heads.h"

#include <stdint.h>
#include <stdio.h>

#include "nn/nn_fields.h"

static size_t distance(size_t a, size_t b)
{
    return a > b ? a - b : b - a;
}

bool lap_heads_divide(const lap_nn_desc_t *desc, size_t tp)
{
    return desc->heads % tp == 0 && lap_nn_kv_heads(desc) % tp == 0;
}

/* The same width as so many heads, if ranks can share these. */
static bool regroup(const lap_nn_desc_t *desc, size_t tp, size_t heads, lap_nn_desc_t *made)
{
    const size_t width = desc->heads * desc->head_dim,
                 keys = lap_nn_kv_heads(desc) * desc->head_dim;
    const size_t dim = width / heads;
    *made = *desc;
    made->heads = heads;
    made->head_dim = dim;
    made->kv_heads = keys / dim;
    return keys % dim == 0 && lap_heads_divide(made, tp) && heads % made->kv_heads == 0 &&
           (desc->positions != LAP_POSITIONS_ROPE || dim % 2 == 0);
}

/* Of two that are as near, fewer heads. `than` is 0 where there is no other. */
static bool is_nearer(size_t heads, size_t than, size_t given)
{
    const size_t one = distance(heads, given), other = distance(than, given);
    return than == 0 || one < other || (one == other && heads < than);
}

bool lap_heads_fit(lap_nn_desc_t *desc, size_t tp)
{
    lap_nn_desc_t best = {.heads = 0}, made;
    size_t width;
    if (__builtin_mul_overflow(desc->heads, desc->head_dim, &width) || width > INT32_MAX)
        return false;
    for (size_t i = 1; i * i <= width; i++) {
        const size_t pair[] = {i, width / i};
        for (int p = 0; p < 2 && width % i == 0; p++)
            if (regroup(desc, tp, pair[p], &made) && is_nearer(pair[p], best.heads, desc->heads))
                best = made;
    }
    if (best.heads > 0)
        *desc = best;
    return best.heads > 0;
}

#define RANKS_MOST 65536

/* The number of ranks nearest to `tp` that can share the heads: at least 2, where there is one. */
static size_t nearest_tp(const lap_nn_desc_t *desc, size_t tp, size_t ranks)
{
    const size_t most = lap_nn_kv_heads(desc) < RANKS_MOST ? lap_nn_kv_heads(desc) : RANKS_MOST;
    for (size_t away = 1; away < tp || tp + away <= most; away++) {
        const size_t fewer = tp > away ? tp - away : 1, more = tp + away;
        if (fewer > 1 && ranks % fewer == 0 && lap_heads_divide(desc, fewer))
            return fewer;
        if (more <= most && ranks % more == 0 && lap_heads_divide(desc, more))
            return more;
    }
    return 1;
}

void lap_heads_advise(const lap_nn_desc_t *desc, size_t tp, size_t ranks, bool all,
                      char text[LAP_HEADS_TEXT])
{
    lap_nn_desc_t fit = *desc;
    const size_t would = nearest_tp(desc, tp, ranks);
    int used = snprintf(text, LAP_HEADS_TEXT, "--tp %zu", would);
    if (all)
        used += snprintf(text + used, LAP_HEADS_TEXT - (size_t)used, " with --num-replicas %zu",
                         ranks / would);
    if (!lap_heads_fit(&fit, tp))
        return;
    char keys[32] = "";
    if (fit.kv_heads != fit.heads)
        snprintf(keys, sizeof(keys), " with --kv-heads %zu", fit.kv_heads);
    snprintf(text + used, LAP_HEADS_TEXT - (size_t)used, " or --heads %zu%s", fit.heads, keys);
}
