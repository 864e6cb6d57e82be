/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making layers: one symmetric buffer for all their operators, the operators in the order in which
 * a pass calls them, the memory of activations, and what can be asked about it all.
 */
#include "nn/nn.h"

#include <string.h>

#include "core/status.h"
#include "overlap/overlap.h"
#include "util/alloc.h"

/* ---- the buffer ---- */

static lap_status_t buffer_size(const lap_nn_step_t *steps, size_t nsteps, int nranks,
                                size_t *bytes_p, size_t *nsignals_p)
{
    size_t most_bytes = 0, most_signals = 0;
    for (size_t i = 0; i < nsteps; i++) {
        size_t bytes, nsignals;
        LAP_TRY(lap_op_buffer_size(&steps[i].desc, nranks, &bytes, &nsignals));
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
        most_signals = nsignals > most_signals ? nsignals : most_signals;
    }
    *bytes_p = most_bytes;
    *nsignals_p = most_signals;
    return LAP_OK;
}

lap_status_t lap_nn_buffer_size(const lap_nn_desc_t *desc, int nranks, size_t *bytes_p,
                                size_t *nsignals_p)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_nn_step_t *steps;
    size_t nsteps;
    if (!bytes_p || !nsignals_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected a pointer to a size_t",
                         bytes_p ? "nsignals_p" : "bytes_p");
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    LAP_TRY(lap_nn_plan_steps(&plan, &steps, &nsteps));
    const lap_status_t status = buffer_size(steps, nsteps, nranks, bytes_p, nsignals_p);
    lap_free(steps);
    return status;
}

/* Layers of a kind repeat the same calls: two of them show all neighbours that calls can have. */
lap_status_t lap_nn_check(const lap_nn_desc_t *desc, int nranks, const char *transport)
{
    lap_nn_plan_t plan = {.nranks = nranks};
    lap_nn_step_t *steps;
    size_t nsteps;
    LAP_TRY(lap_nn_plan_init(desc, nranks, &plan));
    const size_t per_layer = plan.nblocks / plan.desc.layers;
    plan.nblocks = plan.nblocks > 2 * per_layer ? 2 * per_layer : plan.nblocks;
    LAP_TRY(lap_nn_plan_steps(&plan, &steps, &nsteps));
    lap_op_desc_t *descs = lap_alloc(nsteps, sizeof(*descs));
    lap_status_t status = LAP_OK;
    if (!descs)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for the proof of %zu calls", nsteps);
    for (size_t i = 0; i < nsteps && status == LAP_OK; i++) {
        descs[i] = steps[i].desc;
        if (descs[i].method && strcmp(descs[i].method, LAP_AUTO) == 0)
            descs[i].method = "serial";
    }
    if (status == LAP_OK)
        status = lap_op_check(descs, NULL, nsteps, nranks, transport);
    lap_free(descs);
    lap_free(steps);
    return status;
}

/* ---- memory ---- */

lap_status_t lap_nn_alloc(lap_nn_t *nn, size_t bytes, void **memory_p)
{
    lap_device_t *device = nn->engine->device;
    if (nn->nmemory == nn->memory_room) {
        const size_t room = nn->memory_room ? 2 * nn->memory_room : 32;
        void *grown = lap_realloc(nn->memory, nn->memory_room, room, sizeof(void *));
        if (!grown)
            return lap_error(LAP_ERR_NO_MEMORY, "no memory for a list of %zu allocations", room);
        nn->memory = grown;
        nn->memory_room = room;
    }
    LAP_TRY(device->ops->alloc(device, bytes, memory_p));
    nn->memory[nn->nmemory++] = *memory_p;
    return LAP_OK;
}

/* The most that blocks need of what they share, in columns of this rank; and its rows. */
typedef struct sizes {
    size_t width, pre, mid, out;
    size_t rows, own_rows;
    bool row, column, both, norm, apart; /* some block has such; apart: a middle with dmid */
} sizes_t;

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

static size_t pre_of(const lap_nn_t *nn, const lap_nn_shape_t *shape)
{
    return lap_nn_pre_share(&nn->plan, shape, nn->group->rank);
}

static size_t mid_of(const lap_nn_t *nn, const lap_nn_shape_t *shape)
{
    return lap_nn_mid_share(&nn->plan, shape, nn->group->rank);
}

static sizes_t sizes_of(const lap_nn_t *nn)
{
    sizes_t sizes = {.rows = nn->plan.m, .own_rows = nn->plan.m};
    if (nn->plan.desc.sequence_parallel)
        sizes.own_rows = larger(lap_shard(nn->plan.m, nn->plan.nranks, nn->group->rank, NULL), 1);
    for (size_t b = 0; b < nn->plan.nblocks; b++) {
        const lap_nn_shape_t *shape = &nn->blocks[b].shape;
        sizes.width = larger(sizes.width, shape->width);
        sizes.pre = larger(sizes.pre, pre_of(nn, shape));
        sizes.mid = larger(sizes.mid, mid_of(nn, shape));
        sizes.out = larger(sizes.out, shape->out);
        sizes.row |= shape->row;
        sizes.column |= shape->column;
        sizes.both |= shape->row && shape->column;
        sizes.norm |= shape->norm;
        sizes.apart |= shape->middle == LAP_MIDDLE_SWIGLU || shape->middle == LAP_MIDDLE_ATTENTION;
    }
    return sizes;
}

static lap_status_t alloc_matrix(lap_nn_t *nn, bool needed, size_t rows, size_t cols,
                                 void **memory_p)
{
    if (!needed)
        return LAP_OK;
    return lap_nn_alloc(nn, rows * cols * lap_dtype_size(nn->plan.desc.dtype), memory_p);
}

static lap_status_t alloc_scratch(lap_nn_t *nn, const sizes_t *sizes)
{
    const lap_nn_desc_t *desc = &nn->plan.desc;
    const size_t ranks = (size_t)nn->plan.nranks;
    size_t bytes = nn->kernels->norm_scratch(sizes->own_rows, sizes->width);
    const lap_attention_t attention = {
        .dtype = desc->dtype,
        .seq = desc->seq,
        .batch = desc->batch,
        .heads = desc->heads / ranks,
        .kv_heads = desc->kv_heads / ranks,
        .dim = desc->head_dim,
    };
    if (nn->blocks[0].shape.middle == LAP_MIDDLE_ATTENTION)
        bytes = larger(bytes, nn->kernels->attention_scratch(&attention));
    return lap_nn_alloc(nn, bytes, &nn->scratch);
}

/* What a block needs only while it is in work. */
static lap_status_t alloc_shared(lap_nn_t *nn, const sizes_t *sizes, lap_nn_block_t *shared)
{
    const bool sequence = nn->plan.desc.sequence_parallel != 0;
    const lap_recompute_t recompute = nn->plan.desc.recompute;
    const bool fp8 = nn->plan.desc.fp8 != LAP_FP8_NONE;
    const size_t rows = sizes->rows, own = sizes->own_rows, width = sizes->width;
    if (fp8 && sizes->row)
        LAP_TRY(lap_nn_alloc(nn, own * sizes->out, &nn->dy8));
    if (fp8 && sizes->column)
        LAP_TRY(lap_nn_alloc(nn, rows * sizes->pre, &nn->dpre8));
    LAP_TRY(alloc_matrix(nn, sizes->row && sequence, rows, sizes->out, &nn->dy_full));
    LAP_TRY(alloc_matrix(nn, sizes->apart, rows, sizes->mid, &nn->dmid));
    LAP_TRY(alloc_matrix(nn, sizes->both, rows, sizes->pre, &nn->dpre));
    LAP_TRY(alloc_matrix(nn, sizes->column && sequence, rows, width, &nn->dx_part));
    LAP_TRY(alloc_matrix(nn, sizes->column && sequence, rows, width, &shared->full));
    LAP_TRY(alloc_matrix(nn, sizes->norm, own, width, &nn->dnorm));
    for (size_t i = 0; i < 2; i++)
        LAP_TRY(alloc_matrix(nn, nn->plan.nblocks > 1, own, width, &nn->dx[i]));
    const bool shares = recompute != LAP_RECOMPUTE_NONE;
    LAP_TRY(alloc_matrix(nn, sizes->norm && (shares || fp8), own, width, &shared->norm_out));
    LAP_TRY(alloc_matrix(nn, sizes->both && (shares || fp8), rows, sizes->mid, &shared->mid));
    LAP_TRY(alloc_matrix(nn, sizes->both && recompute == LAP_RECOMPUTE_FULL, rows, sizes->pre,
                         &shared->pre));
    return alloc_scratch(nn, sizes);
}

static lap_status_t alloc_floats(lap_nn_t *nn, bool needed, size_t count, float **floats_p)
{
    void *memory = NULL;
    if (needed)
        LAP_TRY(lap_nn_alloc(nn, count * sizeof(float), &memory));
    *floats_p = memory;
    return LAP_OK;
}

/* FP8 operands: those of forward are kept in place of what they are made from. */
static lap_status_t alloc_fp8(lap_nn_t *nn, const sizes_t *sizes, lap_nn_block_t *block)
{
    const lap_nn_shape_t *shape = &block->shape;
    if (nn->plan.desc.fp8 == LAP_FP8_NONE)
        return LAP_OK;
    block->dy8.data = nn->dy8;
    block->dpre8.data = nn->dpre8;
    if (shape->column) {
        LAP_TRY(
            lap_nn_fp8_add(nn, &block->input8, LAP_FLOAT8_E4M3, sizes->own_rows * shape->width));
        LAP_TRY(lap_nn_fp8_add(nn, &block->dpre8, LAP_FLOAT8_E5M2, 0));
    }
    if (shape->row) {
        LAP_TRY(lap_nn_fp8_add(nn, &block->mid8, LAP_FLOAT8_E4M3, sizes->rows * mid_of(nn, shape)));
        LAP_TRY(lap_nn_fp8_add(nn, &block->dy8, LAP_FLOAT8_E5M2, 0));
    }
    return LAP_OK;
}

/* What a block keeps from forward to backward, or finds in what is shared. */
static lap_status_t alloc_block(lap_nn_t *nn, const sizes_t *sizes, const lap_nn_block_t *shared,
                                lap_nn_block_t *block)
{
    const lap_nn_shape_t *shape = &block->shape;
    const lap_nn_desc_t *desc = &nn->plan.desc;
    const size_t rows = sizes->rows, own = sizes->own_rows, ranks = (size_t)nn->plan.nranks;
    const bool both = shape->row && shape->column,
               last = block == &nn->blocks[nn->plan.nblocks - 1];
    const bool keeps = shape->column && lap_nn_plan_keeps_input(&nn->plan, shape) && !block->again;
    block->norm_out = shared->norm_out;
    block->full = shared->full;
    block->pre = shared->pre;
    /* Attention looks at its result once more in backward. */
    const bool keeps_mid =
        desc->recompute == LAP_RECOMPUTE_NONE && shape->middle == LAP_MIDDLE_ATTENTION;
    block->mid = keeps_mid ? NULL : shared->mid;
    LAP_TRY(alloc_fp8(nn, sizes, block));
    LAP_TRY(
        alloc_matrix(nn, shape->norm && !shared->norm_out, own, shape->width, &block->norm_out));
    LAP_TRY(alloc_matrix(nn, keeps, rows, shape->width, &block->full));
    LAP_TRY(alloc_matrix(nn, both && !shared->pre, rows, pre_of(nn, shape), &block->pre));
    LAP_TRY(alloc_matrix(nn, both && !block->mid, rows, mid_of(nn, shape), &block->mid));
    LAP_TRY(alloc_matrix(nn, !last, own, shape->out, &block->y));
    LAP_TRY(alloc_floats(nn, shape->norm, own, &block->mean));
    LAP_TRY(alloc_floats(nn, shape->norm, own, &block->rstd));
    block->gelu = (lap_nn_reduction_t){
        .src = block->pre,
        .src_stride = pre_of(nn, shape) * lap_dtype_size(desc->dtype),
        .finish = {.epilogue = LAP_EPILOGUE_GELU, .scale = 1},
    };
    return alloc_floats(nn, shape->middle == LAP_MIDDLE_ATTENTION,
                        desc->heads / ranks * desc->batch * desc->seq, &block->lse);
}

static lap_status_t alloc_all(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    const sizes_t sizes = sizes_of(nn);
    lap_nn_block_t shared = {.x = {.data = NULL}};
    void *memory;
    LAP_TRY(device->ops->event_create(device, &nn->end));
    LAP_TRY(device->ops->alloc_shared(device, sizeof(*nn->loss), &memory));
    nn->loss = memory;
    LAP_TRY(device->ops->alloc_shared(device, sizeof(*nn->grad_scale), &memory));
    nn->grad_scale = memory;
    *nn->grad_scale = 1 / nn->plan.desc.loss_scale;
    nn->flight = lap_alloc(nn->ncalls, sizeof(*nn->flight));
    if (!nn->flight)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for a list of %zu calls", nn->ncalls);
    LAP_TRY(alloc_shared(nn, &sizes, &shared));
    for (size_t b = 0; b < nn->plan.nblocks; b++)
        LAP_TRY(alloc_block(nn, &sizes, &shared, &nn->blocks[b]));
    return LAP_OK;
}

/* ---- making ---- */

/* Local: everything that can be found wrong without the other ranks. */
static lap_status_t prepare(lap_nn_t *nn, const lap_nn_desc_t *desc)
{
    lap_nn_step_t *steps;
    LAP_TRY(lap_nn_plan_init(desc, nn->group->size, &nn->plan));
    if (nn->plan.desc.debug)
        LAP_TRY(lap_nn_check(desc, nn->group->size, NULL));
    LAP_TRY(lap_engine_get(nn->group->world, &nn->engine));
    LAP_TRY(lap_nn_kernels_of(nn->engine->device, &nn->kernels));
    LAP_TRY(lap_nn_plan_steps(&nn->plan, &steps, &nn->ncalls));
    nn->calls = lap_alloc(nn->ncalls, sizeof(*nn->calls));
    nn->blocks = lap_alloc(nn->plan.nblocks, sizeof(*nn->blocks));
    for (size_t i = 0; nn->calls && i < nn->ncalls; i++)
        nn->calls[i].step = steps[i];
    lap_free(steps);
    if (!nn->calls || !nn->blocks)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for %zu layers", nn->plan.desc.layers);
    return LAP_OK;
}

/* Tells a block of a call that is its own. */
static void assign(lap_nn_t *nn, lap_nn_call_t *call)
{
    const lap_nn_step_t *step = &call->step;
    if (step->block == LAP_NN_SUMS) {
        nn->sum_calls[step->gemm] = call;
        return;
    }
    lap_nn_block_t *block = &nn->blocks[step->block];
    const bool column = block->shape.column && step->gemm >= block->shape.column_gemm &&
                        step->gemm < block->shape.column_gemm + 3;
    if (step->again)
        block->again = call;
    else if (column)
        block->column_calls[step->gemm - block->shape.column_gemm] = call;
    else
        block->row_calls[step->gemm - block->shape.row_gemm] = call;
}

/* Collective. */
static lap_status_t create_calls(lap_nn_t *nn)
{
    for (size_t i = 0; i < nn->ncalls; i++) {
        lap_nn_call_t *call = &nn->calls[i];
        size_t nsignals;
        LAP_TRY(lap_op_buffer_size(&call->step.desc, nn->group->size, &call->bytes, &nsignals));
        call->step.desc.buffer = nn->buffer;
        LAP_TRY(lap_op_create(nn->group, &call->step.desc, &call->op));
        assign(nn, call);
    }
    return LAP_OK;
}

/* Collective. */
static lap_status_t create_buffer(lap_nn_t *nn)
{
    size_t bytes, nsignals;
    nn->buffer = nn->plan.desc.buffer;
    if (nn->buffer)
        return LAP_OK;
    LAP_TRY(lap_nn_buffer_size(&nn->plan.desc, nn->group->size, &bytes, &nsignals));
    LAP_TRY(
        lap_buffer_create(nn->group, bytes, nsignals, nn->plan.desc.buffer_options, &nn->buffer));
    nn->owns_buffer = true;
    return LAP_OK;
}

static lap_status_t fill(lap_nn_t *nn)
{
    LAP_TRY(alloc_all(nn));
    LAP_TRY(lap_nn_create_params(nn));
    nn->fresh = true;
    return lap_nn_fp8_start(nn);
}

/* The copies of the weights: with FP8 the ranks agree on scales. Collective. */
static lap_status_t finish(lap_nn_t *nn)
{
    LAP_TRY(lap_nn_refresh(nn));
    return lap_nn_wait(nn);
}

static lap_status_t create(lap_group_t *group, const lap_nn_desc_t *desc, lap_nn_t **nn_p)
{
    lap_status_t status = LAP_OK;
    lap_nn_t *nn = lap_alloc(1, sizeof(*nn));
    if (nn)
        nn->group = lap_group_keep(group);
    else
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for layers");
    lap_terms_t terms = {.of = "lap_nn_create"};
    if (status == LAP_OK)
        status = prepare(nn, desc);
    if (status == LAP_OK)
        lap_nn_list_terms(&nn->plan, &terms);
    status = lap_terms_agree(&terms, group, status);
    lap_terms_clear(&terms);
    for (size_t b = 0; status == LAP_OK && b < nn->plan.nblocks; b++)
        nn->blocks[b].shape = lap_nn_plan_shape(&nn->plan, b);
    if (status == LAP_OK)
        status = create_buffer(nn);
    if (status == LAP_OK)
        status = create_calls(nn);
    if (status == LAP_OK)
        status = lap_group_agree(group, fill(nn));
    if (status == LAP_OK)
        status = finish(nn);
    if (status != LAP_OK) {
        lap_nn_destroy(nn);
        return status;
    }
    *nn_p = nn;
    return LAP_OK;
}

static void free_memory(lap_nn_t *nn)
{
    lap_device_t *device = nn->engine->device;
    for (size_t i = 0; i < nn->nmemory; i++)
        device->ops->free(device, nn->memory[i]);
    if (nn->loss)
        device->ops->free_shared(device, nn->loss);
    if (nn->grad_scale)
        device->ops->free_shared(device, nn->grad_scale);
    if (nn->amax)
        device->ops->free_shared(device, nn->amax);
    if (nn->end)
        device->ops->event_destroy(nn->end);
    lap_free(nn->memory);
}

lap_status_t lap_nn_create(lap_group_t *group, const lap_nn_desc_t *desc, lap_nn_t **nn_p)
{
    if (!group || !nn_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_create: %s is NULL", group ? "nn_p" : "group");
    const char *before = lap_enter(group->world, "lap_nn_create");
    const lap_status_t status = create(group, desc, nn_p);
    lap_leave(group->world, before);
    return status;
}

static void end(lap_nn_t *nn)
{
    if (nn->end)
        (void)lap_nn_wait(nn);
    for (size_t i = 0; nn->calls && i < nn->ncalls; i++) {
        lap_op_destroy(nn->calls[i].op);
        lap_trace_destroy(nn->calls[i].trace);
    }
    if (nn->engine)
        free_memory(nn);
    if (nn->owns_buffer)
        lap_buffer_destroy(nn->buffer);
    lap_free(nn->history);
    lap_free(nn->flight);
    lap_free(nn->weights);
    lap_free(nn->blocks);
    lap_free(nn->calls);
    lap_group_t *group = nn->group;
    lap_free(nn);
    lap_group_let_go(group);
}

void lap_nn_destroy(lap_nn_t *nn)
{
    lap_said_t said;
    if (!nn)
        return;
    lap_error_save(&said);
    nn->is_destroyed = true;
    if (nn->keepers == 0)
        end(nn);
    lap_error_restore(&said);
}

lap_nn_t *lap_nn_keep(lap_nn_t *nn)
{
    nn->keepers++;
    return nn;
}

void lap_nn_let_go(lap_nn_t *nn)
{
    if (nn && --nn->keepers == 0 && nn->is_destroyed)
        lap_nn_destroy(nn);
}

/* ---- what there is to see ---- */

/* Rows that are whole here, or this rank's share of them. */
static lap_nn_part_t part_of(const lap_nn_t *nn, size_t seq, bool own_rows, size_t cols,
                             bool own_cols)
{
    const size_t m = (seq ? seq : nn->plan.desc.seq) * nn->plan.desc.batch;
    lap_nn_part_t part = {.rows = m, .cols = cols, .all_rows = m, .all_cols = cols};
    if (own_rows && nn->plan.desc.sequence_parallel)
        part.rows = lap_shard(m, nn->plan.nranks, nn->group->rank, &part.first_row);
    if (own_cols)
        part.cols = lap_shard_features(cols, nn->plan.nranks, nn->group->rank, &part.first_col);
    return part;
}

lap_nn_part_t lap_nn_input(const lap_nn_t *nn, size_t seq)
{
    const lap_nn_shape_t *shape = &nn->blocks[0].shape;
    return part_of(nn, seq, shape->column, shape->width, !shape->column);
}

lap_nn_part_t lap_nn_output(const lap_nn_t *nn, size_t seq)
{
    const lap_nn_shape_t *shape = &nn->blocks[0].shape;
    return part_of(nn, seq, shape->row, shape->row ? shape->out : shape->pre, !shape->row);
}

/* The sums come after all GEMMs. */
size_t lap_nn_gemms(const lap_nn_t *nn)
{
    size_t count = nn ? nn->ncalls : 0;
    while (count > 0 && nn->calls[count - 1].step.block == LAP_NN_SUMS)
        count--;
    return count;
}

lap_status_t lap_nn_gemm(const lap_nn_t *nn, size_t index, lap_nn_gemm_t *gemm_p)
{
    if (!nn || !gemm_p)
        return lap_error(LAP_ERR_INVALID, "lap_nn_gemm: %s is NULL", nn ? "gemm_p" : "nn");
    if (index >= lap_nn_gemms(nn))
        return lap_error(LAP_ERR_INVALID, "index is %zu, expected less than %zu", index,
                         lap_nn_gemms(nn));
    const lap_nn_call_t *call = &nn->calls[index];
    const lap_op_desc_t *desc = &call->step.desc;
    *gemm_p = (lap_nn_gemm_t){
        .gemm = call->step.gemm,
        .layer = nn->blocks[call->step.block].shape.layer,
        .kind = lap_op_kind_name(desc->kind),
        .method = lap_op_method(call->op),
        .m = desc->m,
        .n = desc->n,
        .k = desc->k,
        .bytes = call->bytes,
        .trace = call->trace,
    };
    return LAP_OK;
}

lap_status_t lap_nn_trace(lap_nn_t *nn, int on)
{
    if (!nn)
        return lap_error(LAP_ERR_INVALID, "lap_nn_trace: nn is NULL");
    for (size_t i = 0; on && i < nn->ncalls; i++)
        if (!nn->calls[i].trace)
            LAP_TRY(lap_trace_create(&nn->calls[i].trace));
    nn->tracing = on != 0;
    return LAP_OK;
}

lap_buffer_t *lap_nn_buffer(lap_nn_t *nn)
{
    return nn ? nn->buffer : NULL;
}
