/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators: a description that all ranks agree on, the symmetric buffer and scratch memory it
 * works in, a cache of the schedules it has built (one per number of active rows), and the calls
 * themselves.
 */
#include "overlap/op.h"

#include <string.h>

#include "core/options.h"
#include "core/terms.h"
#include "overlap/auto.h"
#include "overlap/knobs.h"
#include "schedule/flight.h"
#include "schedule/lower.h"
#include "schedule/run.h"
#include "util/alloc.h"
#include "util/clock.h"

/* ---- making one ---- */

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
    if (lap_builder_is_foreign(op->builder))
        LAP_TRY(lap_foreign_check(&op->problem));
    if (lap_builder_is_foreign(op->builder) && op->scratch != &op->own_scratch)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "method '%s' cannot be part of layers: expected one of lap_op_methods",
                         op->builder->name);
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

static lap_status_t build(const lap_op_t *op, size_t m, lap_schedule_t *schedule);

static lap_status_t get_entry(lap_op_t *op, size_t m, lap_op_entry_t **entry_p);

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
    lap_status_t status = build(op, m, &schedule);
    if (status == LAP_OK && schedule.scratch_bytes > op->scratch_bytes)
        op->scratch_bytes = schedule.scratch_bytes;
    lap_schedule_clear(&schedule);
    return status;
}

/* Lets the device find out how to do the GEMMs of calls with such arguments. */
static lap_status_t prepare_gemms(lap_op_t *op, lap_program_t *program, const lap_op_args_t *args)
{
    lap_binding_t binding = lap_op_bind(op, args);
    LAP_TRY(lap_program_prepare(program, &binding, true));
    binding.beta = 1;
    return op->problem.desc.accumulate ? lap_program_prepare(program, &binding, true) : LAP_OK;
}

/*
 * Scratch for the full capacity, the first schedule, and how its GEMMs are done if the caller's
 * matrices are the usual ones: what a call needs is there before the first call.
 */
static lap_status_t prepare(lap_op_t *op)
{
    op->target.device.graphs = op->target.device.graphs && !op->buffer->no_graphs;
    lap_op_entry_t *entry;
    lap_device_t *device = op->engine->device;
    void *scale;
    LAP_TRY(device->ops->alloc(device, sizeof(*op->own_scale), &scale));
    op->own_scale = scale;
    LAP_TRY(get_entry(op, op->problem.capacity, &entry));
    op->scratch_bytes = lap_program_schedule(entry->program)->scratch_bytes;
    for (size_t b = 1; op->choice && b < op->choice->nbands; b++)
        LAP_TRY(count_scratch(op, op->problem.capacity >> b));
    if (op->choice && op->foreign) /* what does all rows but one is another method */
        LAP_TRY(count_scratch(op, op->problem.capacity - 1));
    LAP_TRY(scratch_grow(op->scratch, device, op->scratch_bytes));
    lap_op_args_t usual = lap_args_usual(&op->problem);
    LAP_TRY(prepare_gemms(op, entry->program, &usual));
    /* GEMMs that take their scales from memory are other ones to a device. */
    const float *somewhere = op->own_scale;
    usual.a_scale_ptr = lap_dtype_is_fp8(op->problem.types.a) ? somewhere : NULL;
    usual.b_scale_ptr = lap_dtype_is_fp8(op->problem.types.b) ? somewhere : NULL;
    const bool scaled = usual.a_scale_ptr || usual.b_scale_ptr;
    return scaled ? prepare_gemms(op, entry->program, &usual) : LAP_OK;
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
    return op->buffer->ops->foreign_create(op->group, &shape, &op->foreign);
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
        status = choose(op, &desc);
    if (status != LAP_OK)
        goto err_op;
    op->buffer = desc.buffer ? lap_buffer_keep(desc.buffer) : NULL;
    if (!op->buffer) {
        status = lap_buffer_create(group, bytes, nsignals, NULL, &op->buffer);
        if (status != LAP_OK)
            goto err_op;
        op->owns_buffer = true;
    }
    if (lap_builder_is_foreign(op->builder))
        status = create_foreign(op);
    if (status != LAP_OK)
        goto err_op;
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
    if (op->program)
        (void)lap_op_end(op);
    if (op->stays_in_flight) { /* what it enqueued still uses what follows */
        (void)lap_engine_settle(op->engine);
        (void)lap_engine_check(op->engine);
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    }
    for (int i = 0; i < LAP_OP_PROGRAMS; i++)
        lap_program_destroy(op->cache[i].program);
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

const char *lap_op_method(const lap_op_t *op)
{
    return op ? op->builder->name : "";
}

lap_status_t lap_op_prediction(const lap_op_t *op, size_t index, const char **method_p,
                               double *seconds_p)
{
    if (!op || !method_p || !seconds_p)
        return lap_error(LAP_ERR_INVALID, "lap_op_prediction: %s is NULL",
                         !op         ? "op"
                         : !method_p ? "method_p"
                                     : "seconds_p");
    if (!op->choice)
        return lap_error(LAP_ERR_INVALID, "this operator was made with method '%s', expected '%s'",
                         op->builder->name, LAP_AUTO);
    if (index >= op->choice->capacity.count)
        return lap_error(LAP_ERR_INVALID, "index is %zu, expected less than %zu", index,
                         op->choice->capacity.count);
    *method_p = op->choice->capacity.candidates[index].label;
    *seconds_p = op->choice->capacity.seconds[index];
    return LAP_OK;
}

lap_buffer_t *lap_op_buffer(lap_op_t *op)
{
    return op ? op->buffer : NULL;
}

void lap_op_set_chaos(lap_op_t *op, uint64_t seed)
{
    op->chaos = seed;
}

/* ---- the cache of schedules ---- */

/* What calls with `m` active rows are made from. */
static const lap_builder_t *find_builder(const lap_op_t *op, size_t m, lap_problem_t *problem_p)
{
    const lap_candidate_t *chosen = op->choice ? lap_auto_for(op->choice, m) : NULL;
    *problem_p = chosen ? chosen->problem : op->problem;
    problem_p->rank = op->group->rank;
    problem_p->desc.buffer = op->problem.desc.buffer;
    problem_p->m = m;
    return chosen ? chosen->builder : op->builder;
}

lap_op_desc_t lap_op_chosen(const lap_op_t *op, size_t m)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    problem.desc.method = builder->name;
    return problem.desc;
}

/* The schedule of this rank, as it was built. The caller clears it, also after a failure. */
static lap_status_t build(const lap_op_t *op, size_t m, lap_schedule_t *schedule)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    return lap_build(builder, &problem, schedule);
}

lap_status_t lap_op_schedule(const lap_op_t *op, size_t m, int rank, lap_schedule_t *schedule_p)
{
    lap_problem_t problem;
    const lap_builder_t *builder = find_builder(op, m, &problem);
    problem.rank = rank;
    LAP_TRY(lap_build(builder, &problem, schedule_p));
    return lap_lower(schedule_p, 1, &op->target, NULL);
}

lap_status_t lap_op_program(lap_op_t *op, size_t m, lap_program_t **program_p)
{
    lap_schedule_t schedule;
    const lap_status_t status = lap_op_schedule(op, m, op->group->rank, &schedule);
    if (status != LAP_OK) {
        lap_schedule_clear(&schedule);
        return status;
    }
    return lap_program_create(op->engine, &schedule, program_p);
}

/* Of those that can go, the one used longest ago; NULL: all must stay. */
static lap_op_entry_t *find_room(lap_op_t *op)
{
    lap_op_entry_t *oldest = NULL;
    for (int i = 0; i < LAP_OP_PROGRAMS; i++)
        if (!op->cache[i].captured && (!oldest || op->cache[i].used < oldest->used))
            oldest = &op->cache[i];
    return oldest;
}

static lap_status_t make_entry(lap_op_t *op, size_t m, lap_op_entry_t **entry_p)
{
    lap_program_t *program;
    lap_op_entry_t *entry = find_room(op);
    if (!entry)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "captured graphs hold calls of this operator with %d different values of "
                         "m, which is the maximum",
                         LAP_OP_PROGRAMS);
    if (entry->program && op->stays_in_flight) /* it may still run */
        LAP_TRY(lap_engine_settle(op->engine));
    LAP_TRY(lap_op_program(op, m, &program));
    lap_program_destroy(entry->program);
    *entry = (lap_op_entry_t){.program = program, .m = m};
    *entry_p = entry;
    return LAP_OK;
}

static lap_status_t get_entry(lap_op_t *op, size_t m, lap_op_entry_t **entry_p)
{
    lap_op_entry_t *entry = NULL;
    for (int i = 0; i < LAP_OP_PROGRAMS && !entry; i++)
        if (op->cache[i].program && op->cache[i].m == m)
            entry = &op->cache[i];
    if (!entry)
        LAP_TRY(make_entry(op, m, &entry));
    entry->used = ++op->calls;
    *entry_p = entry;
    return LAP_OK;
}

/* ---- calling ---- */

lap_status_t lap_op_check_fits(const lap_op_t *op, const lap_schedule_t *schedule)
{
    if (schedule->scratch_bytes > op->scratch_bytes ||
        schedule->symmetric_bytes > op->buffer->bytes || schedule->nsignals > op->buffer->nsignals)
        return lap_error(LAP_ERR_INTERNAL, "%s for m = %zu needs more memory than for m = %zu",
                         schedule->method, schedule->m, op->problem.capacity);
    return LAP_OK;
}

static lap_bound_place_t place_of(const lap_tensor_t *tensor)
{
    const size_t element = lap_dtype_size(tensor->dtype);
    return (lap_bound_place_t){tensor->data, tensor->cols * element, tensor->stride * element};
}

lap_binding_t lap_op_bind(lap_op_t *op, const lap_op_args_t *args)
{
    const lap_problem_t *p = &op->problem;
    const bool ag = p->kind == LAP_AG_GEMM;
    const lap_candidate_t *chosen = op->choice ? lap_auto_for(op->choice, args->m) : NULL;
    const lap_op_desc_t *desc = chosen ? &chosen->problem.desc : &p->desc;
    const float sent_scale = ag ? args->a_scale : args->wire_scale;
    const float *sent_ptr = ag ? args->a_scale_ptr : args->wire_scale_ptr;
    if (!op->engine->device->ops->transport && !sent_ptr) /* memory of the host */
        *op->own_scale = sent_scale;
    lap_binding_t binding = {
        .places[LAP_INPUT] = place_of(&args->a),
        .places[LAP_WEIGHT] = place_of(&args->b),
        .places[LAP_MOVED] = place_of(&args->x),
        .places[LAP_SCALE] = {(char *)(uintptr_t)(sent_ptr ? sent_ptr : op->own_scale), 0, 0},
        .places[LAP_OUTPUT] = place_of(&args->d),
        .places[LAP_GATHERED] = place_of(ag ? &args->gathered : &args->y),
        .places[LAP_SCALES] = {(char *)args->scales, 0, 0},
        .places[LAP_SCRATCH] = {op->scratch->memory, 0, 0},
        /* The scales of a gathered a come with its shards. */
        .scale = args->alpha * args->b_scale * (ag ? 1 : args->a_scale),
        .beta = args->beta,
        .a_scale = args->a_scale,
        .d_scale = args->d_scale,
        .wire_scale = args->wire_scale,
        .sent_scale = sent_scale,
        .sets_scale = !sent_ptr,
        .a_scale_ptr = args->a_scale_ptr,
        .b_scale_ptr = args->b_scale_ptr,
        .bias = args->bias,
        .bias_grad = args->bias_grad,
        .copy_sms = desc->num_sm,
        .spare_sms = desc->set_sm_margin ? desc->num_sm : 0,
        .buffer = op->buffer,
        .foreign = op->foreign,
        .op_index = op->index,
        .traced = args->trace != NULL,
        .chaos = op->chaos ? op->chaos + op->calls : 0,
    };
    if (p->epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU))
        binding.aux = args->aux;
    return binding;
}

lap_status_t lap_op_ready(lap_op_t *op, const lap_op_args_t *args, lap_op_entry_t **entry_p,
                          lap_binding_t *binding_p)
{
    LAP_TRY(get_entry(op, args->m, entry_p));
    LAP_TRY(lap_op_check_fits(op, lap_program_schedule((*entry_p)->program)));
    *binding_p = lap_op_bind(op, args);
    return LAP_OK;
}

lap_status_t lap_op_break(lap_op_t *op, lap_status_t status)
{
    return lap_flight_break(op->group, op->buffer, status);
}

/* What this rank is in, for sentences. */
static lap_flight_t flight_of(const lap_op_t *op)
{
    return (lap_flight_t){.engine = op->engine,
                          .group = op->group,
                          .what = lap_op_kind_name(op->problem.kind),
                          .method = op->builder->name};
}

lap_status_t lap_op_check_usable(lap_op_t *op)
{
    const lap_flight_t flight = flight_of(op);
    if (op->program)
        return lap_error(LAP_ERR_BUSY, "the last call of this operator has not been ended");
    return lap_flight_check_usable(&flight, op->group, op->buffer, "was about to call");
}

lap_status_t lap_op_find_cause(const lap_op_t *op, lap_status_t status)
{
    const lap_flight_t flight = flight_of(op);
    return lap_flight_find_cause(&flight, status);
}

void lap_op_enter_flight(lap_op_t *op)
{
    op->in_flight.group = op->group;
    op->in_flight.foreign = op->foreign;
    op->in_flight.what = lap_op_kind_name(op->problem.kind);
    op->in_flight.method = op->builder->name;
    op->in_flight.buffer = op->buffer;
    lap_engine_add_in_flight(op->engine, &op->in_flight);
}

lap_status_t lap_op_begin_trace(const lap_op_t *op, const lap_program_t *program,
                                lap_trace_t *trace)
{
    const lap_schedule_t *schedule = lap_program_schedule(program);
    trace->group = op->group->kind;
    return lap_trace_begin(trace, op->problem.kind, schedule->method, op->group->size, schedule->m,
                           lap_buffer_is_paced(op->buffer), lap_program_records(program));
}

/* Gets ready and issues; whatever fails here leaves the peers without this rank's part. */
static lap_status_t issue(lap_op_t *op, const lap_op_args_t *args)
{
    lap_op_entry_t *entry;
    lap_binding_t binding;
    LAP_TRY(lap_op_ready(op, args, &entry, &binding));
    lap_program_t *program = entry->program;
    if (args->trace)
        LAP_TRY(lap_op_begin_trace(op, program, args->trace));
    op->failures_before = op->engine->failures;
    op->trace = args->trace;
    if (op->trace)
        lap_trace_start(op->trace);
    lap_status_t status = lap_program_issue(program, &binding);
    op->program = program;
    op->buffer->in_flight++;
    return status;
}

lap_status_t lap_op_begin(lap_op_t *op, const lap_op_args_t *given)
{
    if (!op || !given)
        return lap_error(LAP_ERR_INVALID, "lap_op_begin: %s is NULL", op ? "args" : "op");
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    LAP_TRY(lap_read_options(&args, sizeof(args), given, "LAP_OP_ARGS"));
    LAP_TRY(lap_op_check_usable(op));
    LAP_TRY(lap_engine_check_free(op->engine));
    LAP_TRY(lap_args_check(op, &args));
    if (!op->stays_in_flight)
        lap_op_enter_flight(op);
    lap_status_t status = issue(op, &args);
    if (status == LAP_OK)
        return LAP_OK;
    status = lap_op_find_cause(op, status);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    lap_op_break(op, status);
    if (op->program) { /* steps already issued may wait for peers: they have been let go */
        lap_error_restore(&saved);
        lap_engine_fail(op->engine, status, NULL);
        (void)lap_op_end(op);
    } else if (!op->stays_in_flight) {
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    }
    lap_error_restore(&saved);
    return status;
}

void lap_op_end_trace(const lap_program_t *program, lap_trace_t *trace)
{
    trace->end = lap_now_ns();
    lap_program_read_trace(program, trace);
    for (size_t i = 0; i < trace->nrecords; i++)
        lap_record_settle(&trace->records[i]);
}

lap_status_t lap_op_end(lap_op_t *op)
{
    if (!op || !op->program)
        return lap_error(LAP_ERR_INVALID, "lap_op_end: %s",
                         op ? "no call was begun" : "op is NULL");
    const uint64_t number = lap_program_number(op->program);
    lap_await_begin(op->group->world, op->buffer, number, number);
    lap_status_t status = lap_op_find_cause(op, lap_program_wait(op->program));
    lap_await_end(op->group->world);
    /*
     * A rank that fails lets its streams run out, into memory of its peers, after it has broken the
     * group: if that is whole now, nothing of this call was touched.
     */
    const lap_flight_t flight = flight_of(op);
    if (status == LAP_OK && op->engine->device->ops->waits_by_itself)
        status = lap_flight_check(&flight, op->group, "was in");
    if (status != LAP_OK)
        lap_engine_fail(op->engine, status, NULL); /* for all calls in flight */
    if (!op->stays_in_flight)
        lap_engine_remove_in_flight(op->engine, &op->in_flight);
    op->buffer->in_flight--;
    if (op->trace)
        lap_op_end_trace(op->program, op->trace);
    op->program = NULL;
    op->trace = NULL;
    if (op->engine->failures != op->failures_before)
        return lap_op_break(op, lap_error(op->engine->status, "%s", op->engine->text));
    return LAP_OK;
}

lap_status_t lap_op_run(lap_op_t *op, const lap_op_args_t *args)
{
    LAP_TRY(lap_op_begin(op, args));
    return lap_op_end(op);
}
