/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making an operator: a description that all ranks agree on, the method, the symmetric buffer and
 * scratch memory that it works in, and what its calls need before the first one; and its end.
 */
#include "core/options.h"
#include "core/terms.h"
#include "overlap/auto.h"
#include "overlap/knobs.h"
#include "overlap/op.h"
#include "schedule/run.h"
#include "util/alloc.h"

/* All of a description, and what else all ranks must have alike. */
static void list_terms(const lap_op_t *op, lap_terms_t *terms)
{
    const lap_op_desc_t *desc = &op->problem.desc;
    for (const lap_op_field_t *row = lap_op_fields; row->field.name; row++)
        lap_field_term(&row->field, desc, terms);
    lap_terms_text(terms, "device", op->group->world->device_name);
    /* Which one was given, 0 for none, and how many operators it has. */
    lap_terms_number(terms, "buffer", desc->buffer ? desc->buffer->id : 0);
    lap_terms_number(terms, "operators on the buffer", desc->buffer ? desc->buffer->nops : 0);
}

static lap_status_t check_given_buffer(const lap_group_t *group, const lap_op_desc_t *desc,
                                       const lap_device_ops_t *op_device, size_t bytes,
                                       size_t nsignals)
{
    const lap_buffer_t *buffer = desc->buffer;
    if (!buffer)
        return LAP_OK;
    if (buffer->group != group)
        return lap_error(LAP_ERR_INVALID, "the buffer given belongs to another group");
    if (buffer->nops > 0 && buffer->background != (desc->background != 0))
        return lap_error(LAP_ERR_INVALID,
                         "background is %d, expected %d, as in the other operators on the buffer "
                         "given: calls in flight on one buffer must have an order",
                         desc->background != 0, buffer->background);
    if (op_device->transport && !lap_transport_fits(buffer->ops, op_device))
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "the buffer given is of transport %s, which cannot reach the memory of "
                         "device %s: use %s",
                         buffer->ops->name, op_device->name, op_device->transport);
    if (buffer->bytes < bytes || buffer->nsignals < nsignals)
        return lap_error(LAP_ERR_INVALID,
                         "the buffer given has %zu bytes and %zu signals, expected at least %zu "
                         "bytes and %zu signals",
                         buffer->bytes, buffer->nsignals, bytes, nsignals);
    return LAP_OK;
}

/*
 * The transport that a buffer of the operator's own would have decides what its methods can count
 * on.
 */
static lap_status_t find_transport(const lap_group_t *group, const lap_op_desc_t *desc,
                                   const lap_transport_ops_t **ops_p)
{
    if (!desc->buffer)
        return lap_transport_find(lap_transport_default(group), ops_p);
    *ops_p = desc->buffer->ops;
    return LAP_OK;
}

/* Local: everything that can be found wrong without the other ranks. */
static lap_status_t plan(lap_op_t *op, const lap_op_desc_t *given, lap_op_desc_t *desc,
                         size_t *bytes_p, size_t *nsignals_p)
{
    lap_group_t *group = op->group;
    const lap_transport_ops_t *transport;
    if (!given)
        return lap_error(LAP_ERR_INVALID, "lap_op_create: desc is NULL");
    LAP_TRY(lap_read_options(desc, sizeof(*desc), given, "LAP_OP_DESC"));
    LAP_TRY(find_transport(group, desc, &transport));
    LAP_TRY(lap_problem_init(&op->problem, &op->builder, desc, group->size,
                             lap_transport_can(transport, group)));
    op->problem.rank = group->rank;
    if (lap_builder_is_foreign(op->builder)) {
        LAP_TRY(lap_foreign_check(&op->problem));
        if (op->scratch != &op->own_scratch)
            return lap_error(LAP_ERR_UNSUPPORTED,
                             "method '%s' cannot be part of layers: expected one of lap_op_methods",
                             op->builder->name);
    }
    if (!op->builder->build)
        LAP_TRY(lap_auto_get(group, &op->problem.desc, transport, &op->choice));
    LAP_TRY(lap_op_buffer_size(desc, group->size, bytes_p, nsignals_p));
    LAP_TRY(lap_engine_get(group->world, &op->engine));
    lap_device_t *device = op->engine->device;
    op->target = lap_target_of(device->ops, transport);
    op->target.can = lap_transport_can(transport, group);
    if (op->problem.kind != LAP_EXTERNAL_AG)
        LAP_TRY(device->ops->gemm_check(device, op->problem.types.a, op->problem.types.b));
    return check_given_buffer(group, desc, device->ops, *bytes_p, *nsignals_p);
}

/*
 * Collective. What NCCL can do between ranks of one host is known only once they have a buffer: it
 * may be less than it seemed.
 */
static lap_status_t take_buffer(lap_op_t *op, lap_op_desc_t *desc, size_t bytes, size_t nsignals)
{
    op->buffer = desc->buffer ? lap_buffer_keep(desc->buffer) : NULL;
    if (!op->buffer) {
        LAP_TRY(lap_buffer_create(op->group, bytes, nsignals, NULL, &op->buffer));
        op->owns_buffer = true;
        desc->buffer = op->buffer; /* methods are tried on it */
    }
    op->target.can = lap_buffer_can(op->buffer);
    return lap_builder_suits(op->builder, op->problem.kind, op->target.can);
}

/* Collective: chooses the method if that was left to the library. */
static lap_status_t choose(lap_op_t *op, const lap_op_desc_t *desc)
{
    if (!op->choice)
        return LAP_OK;
    LAP_TRY(lap_auto_choose(op->group, op->engine, desc, &op->target, op->choice));
    op->builder = op->choice->whole.builder;
    op->problem = op->choice->whole.problem;
    op->problem.rank = op->group->rank;
    op->problem.desc.buffer = desc->buffer;
    return LAP_OK;
}

void lap_scratch_clear(lap_scratch_t *scratch, lap_device_t *device)
{
    if (scratch->memory)
        device->ops->free(device, scratch->memory);
    *scratch = (lap_scratch_t){.memory = NULL};
}

/* Nothing of what was there is needed. */
static lap_status_t scratch_grow(lap_scratch_t *scratch, lap_device_t *device, size_t bytes)
{
    if (bytes <= scratch->bytes)
        return LAP_OK;
    lap_scratch_clear(scratch, device);
    LAP_TRY(device->ops->alloc(device, bytes, &scratch->memory));
    scratch->bytes = bytes;
    return LAP_OK;
}

/* The scratch memory of calls with up to m rows that are made alike. */
static lap_status_t count_scratch(lap_op_t *op, size_t m)
{
    lap_schedule_t schedule;
    lap_status_t status = lap_op_build(op, m, &schedule);
    if (status == LAP_OK && schedule.scratch_bytes > op->scratch_bytes)
        op->scratch_bytes = schedule.scratch_bytes;
    lap_schedule_clear(&schedule);
    return status;
}

/* Lets the device find out how to do the GEMMs of calls with such arguments. */
static lap_status_t prepare_gemms(lap_op_t *op, lap_runnable_t *runnable, const lap_op_args_t *args)
{
    lap_binding_t binding = lap_op_bind(op, args);
    LAP_TRY(lap_runnable_prepare(runnable, &binding, true));
    binding.beta = 1;
    return op->problem.desc.accumulate ? lap_runnable_prepare(runnable, &binding, true) : LAP_OK;
}

/*
 * Scratch for the full capacity, the first schedule, and how its GEMMs are done if the caller's
 * matrices are the usual ones: what a call needs is there before the first call.
 */
static lap_status_t prepare(lap_op_t *op)
{
    op->target.device.graphs = op->target.device.graphs && !op->buffer->no_graphs;
    lap_op_cached_t *cached;
    lap_device_t *device = op->engine->device;
    void *scale;
    LAP_TRY(device->ops->alloc(device, sizeof(*op->own_scale), &scale));
    op->own_scale = scale;
    LAP_TRY(lap_op_cached(op, op->problem.capacity, &cached));
    op->scratch_bytes = lap_runnable_schedule(cached->runnable)->scratch_bytes;
    for (size_t b = 1; op->choice && b < op->choice->nbands; b++)
        LAP_TRY(count_scratch(op, op->problem.capacity >> b));
    if (op->choice && op->foreign) /* what does all rows but one is another method */
        LAP_TRY(count_scratch(op, op->problem.capacity - 1));
    LAP_TRY(scratch_grow(op->scratch, device, op->scratch_bytes));
    lap_op_args_t usual = lap_args_usual(&op->problem);
    LAP_TRY(prepare_gemms(op, cached->runnable, &usual));
    /* GEMMs that take their scales from memory are other ones to a device. */
    const float *somewhere = op->own_scale;
    usual.a_scale_ptr = lap_dtype_is_fp8(op->problem.types.a) ? somewhere : NULL;
    usual.b_scale_ptr = lap_dtype_is_fp8(op->problem.types.b) ? somewhere : NULL;
    const bool scaled = usual.a_scale_ptr || usual.b_scale_ptr;
    return scaled ? prepare_gemms(op, cached->runnable, &usual) : LAP_OK;
}

/* Collective. */
static lap_status_t create_foreign(lap_op_t *op)
{
    const lap_problem_t *p = &op->problem;
    const lap_foreign_shape_t shape = {.kind = p->kind,
                                       .m = p->capacity,
                                       .n = p->n,
                                       .k = p->k,
                                       .a = p->types.a,
                                       .b = p->types.b,
                                       .out = p->types.out,
                                       .wire = p->types.wire,
                                       .epilogue = p->epilogue,
                                       .algorithm = p->desc.algorithm,
                                       .num_sm = p->desc.num_sm};
    return lap_cublasmp_create(op->group, &shape, &op->foreign);
}

static lap_status_t create(lap_group_t *group, const lap_op_desc_t *given, lap_scratch_t *scratch,
                           lap_op_t **op_p)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    size_t bytes = 0, nsignals = 0;
    lap_op_t *op = lap_alloc(1, sizeof(*op));
    lap_status_t status = LAP_OK;
    if (op) {
        op->group = lap_group_keep(group);
        op->scratch = scratch ? scratch : &op->own_scratch;
    } else {
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory for an operator");
    }
    lap_terms_t terms = {.of = "lap_op_create"};
    if (status == LAP_OK)
        status = plan(op, given, &desc, &bytes, &nsignals);
    if (status == LAP_OK)
        list_terms(op, &terms);
    status = lap_terms_agree(&terms, group, status);
    lap_terms_clear(&terms);
    if (status == LAP_OK)
        status = take_buffer(op, &desc, bytes, nsignals);
    if (status == LAP_OK)
        status = choose(op, &desc);
    if (status == LAP_OK && lap_builder_is_foreign(op->builder))
        status = create_foreign(op);
    if (status == LAP_OK)
        status = lap_group_agree(group, prepare(op));
    if (status != LAP_OK)
        goto err_op;
    op->index = ++op->buffer->nops;
    op->buffer->background = desc.background != 0;
    if (op->buffer->reserved < nsignals)
        op->buffer->reserved = nsignals;
    if (op->buffer->reserved_bytes < bytes)
        op->buffer->reserved_bytes = bytes;
    *op_p = op;
    return LAP_OK;

err_op:
    lap_op_destroy(op);
    return status;
}

lap_status_t lap_op_create(lap_group_t *group, const lap_op_desc_t *desc, lap_op_t **op_p)
{
    return lap_op_create_sharing(group, desc, NULL, op_p);
}

lap_status_t lap_op_create_sharing(lap_group_t *group, const lap_op_desc_t *desc,
                                   lap_scratch_t *scratch, lap_op_t **op_p)
{
    if (!group || !op_p)
        return lap_error(LAP_ERR_INVALID, "lap_op_create: %s is NULL", group ? "op_p" : "group");
    const char *before = lap_enter(group->world, "lap_op_create");
    const lap_status_t status = create(group, desc, scratch, op_p);
    lap_leave(group->world, before);
    return status;
}

void lap_op_destroy(lap_op_t *op)
{
    lap_saved_error_t saved;
    if (!op)
        return;
    lap_error_save(&saved);
    if (op->runnable)
        (void)lap_op_end(op);
    if (op->stays_in_flight) { /* what it enqueued still uses what follows */
        (void)lap_engine_await_enqueued(op->engine);
        (void)lap_engine_check(op->engine);
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    }
    for (int i = 0; i < LAP_OP_PROGRAMS; i++)
        lap_runnable_destroy(op->cache[i].runnable);
    if (op->foreign)
        op->foreign->destroy(op->foreign);
    if (op->own_scratch.memory)
        lap_scratch_clear(&op->own_scratch, op->engine->device);
    if (op->own_scale)
        op->engine->device->ops->free(op->engine->device, op->own_scale);
    if (op->owns_buffer)
        lap_buffer_destroy(op->buffer);
    else
        lap_buffer_let_go(op->buffer);
    lap_group_t *group = op->group;
    lap_free(op);
    lap_group_let_go(group);
    lap_error_restore(&saved);
}
