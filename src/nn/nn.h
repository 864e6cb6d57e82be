/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of layers: a list of what their passes do, bound to memory, operators and a device. */
#ifndef LAP_NN_NN_H
#define LAP_NN_NN_H

#include <lap/optimizer.h>

#include "core/terms.h"
#include "core/world.h"
#include "kernel/kernel.h"
#include "nn/context.h"
#include "nn/program.h"
#include "overlap/op.h"
#include "schedule/execute.h"
#include "schedule/trace.h"

/* An operator of a pass, as list.steps has them. */
typedef struct lap_nn_call {
    lap_op_t *op;
    lap_trace_t *trace; /* NULL until asked for */
    size_t bytes;       /* of symmetric memory */
} lap_nn_call_t;

/* The numbers of a reduction of one matrix, which must live until it has run. */
typedef struct lap_nn_reduction {
    const float *scale;
    lap_finish_t finish;
} lap_nn_reduction_t;

/*
 * Parts of the list as a program that runs, for a number of active tokens, in a mode; and what it was
 * bound to last.
 */
#define LAP_NN_GIVEN 5 /* matrices of the caller's */
typedef struct lap_nn_pass {
    lap_exec_t *exec; /* NULL: free */
    unsigned parts;   /* bits: of LAP_NN_FORWARD and so on */
    size_t seq;
    lap_nn_mode_t mode;
    uint64_t used;   /* when, in passes of these layers */
    uint64_t digest; /* of the program */

    bool bound, traced;
    const float *given_looks;
    lap_tensor_t given[LAP_NN_GIVEN];

    bool background_traced;
    bool timed; /* kernels are */

    bool is_in_flight;
    lap_in_flight_t in_flight[LAP_NN_GROUPS];
    uint32_t failures_before; /* engine->failures when it began */
} lap_nn_pass_t;

#define LAP_NN_PASSES 12 /* that layers keep */

/*
 * What replicas add to the last backward of a step, or do after it. The functions are given `context`, the number of a
 * bucket and one of its fragments.
 */
typedef struct lap_nn_background {
    lap_nn_replicas_t replicas;
    lap_group_t *group;
    lap_buffer_t *buffer;
    bool overlap;        /* backward sends gradients as it completes them; else LAP_NN_SYNC does */
    bool ahead;          /* forward gathers the weights of a shared optimizer; else its step does */
    bool starts;         /* ... the first of them its step, as it has made them */
    bool traced;         /* calls are */
    void *const *memory; /* of LAP_NN_WIRE and LAP_NN_SUM, on the device */
    /* The operator of a call, and the trace of it. */
    lap_op_t *(*call)(void *context, size_t index, int which, lap_trace_t **trace_p);
    void *context;
} lap_nn_background_t;

/* Whose the gradients are, where lap_dp has joined the layers with replicas. */
typedef enum lap_nn_sync {
    LAP_NN_OWN = 0, /* this replica's */
    LAP_NN_LEAVING, /* the last backward of a step has begun to make them those of all */
    LAP_NN_SUMMED,  /* of all replicas */
} lap_nn_sync_t;

/* The programs of layers, and which of them are in flight: run.c's. */
typedef struct lap_nn_passes {
    lap_nn_pass_t cache[LAP_NN_PASSES];
    uint64_t count;                              /* that were asked for so far */
    lap_nn_pass_t *in_flight[LAP_NN_LIST_PARTS]; /* that have not ended: one of each part at most */
    size_t nin_flight;
    lap_nn_pass_t *in_background; /* a backward whose buckets have not been ended */
    unsigned seen;                /* bits: parts that have run: the next is not their first pass */
} lap_nn_passes_t;

/* The tokens of a model, in shared memory: model_pass.c's. */
typedef struct lap_nn_tokens {
    int32_t *ids;   /* [rows, LAP_ID_COLS] of the latest pass */
    float *entropy; /* what gradients of logits are multiplied by */
    size_t *starts; /* memory of the host: where each token begins when they are sorted */
} lap_nn_tokens_t;

/* A group of ranks whose calls a list has, and the buffer that these work in: see context.h. */
typedef struct lap_nn_wire {
    lap_group_t *group;
    lap_buffer_t *buffer;
    bool owns_group;
} lap_nn_wire_t;

struct lap_nn {
    lap_nn_list_t list;
    lap_group_t *group;
    lap_group_t *context;               /* of ranks that share sequences; NULL: none */
    lap_group_t *sharers;               /* of those that share the optimizer; NULL: none */
    lap_nn_wire_t wires[LAP_NN_GROUPS]; /* without a group: there is none; of replicas: never */
    lap_engine_t *engine;
    const lap_kernels_t *kernels;
    lap_buffer_t *buffer;
    bool owns_buffer;
    size_t keepers;    /* optimizers and replicas that were made for it and are still there */
    bool is_destroyed; /* by its owner: it goes with the last of them */

    lap_nn_call_t *calls; /* one for each of list.steps */
    size_t ncalls;
    lap_scratch_t scratch[LAP_NN_SCRATCHES]; /* of the calls in turn */
    lap_tensor_t *tensors; /* of each region; of those of the caller: in the latest pass */
    lap_nn_reduction_t *reductions;
    void *memory[LAP_NN_MEMORIES]; /* of the device, for all regions of a kind */
    lap_nn_ready_t ready;
    void *ready_context;

    uint32_t micro;    /* of a pipeline: the micro-batch whose entry is being issued */
    double *loss;      /* shared memory: the sum of squares of the latest loss here, */
    size_t loss_count; /* and how many elements the whole has; of a model: targets that count */
    uint64_t sample;   /* of a model: the number of the first sequence of the next forward */
    lap_nn_tokens_t tokens;
    float *grad_scale; /* shared memory: 1 / loss_scale */
    float loss_factor; /* what the loss is scaled by besides: see lap_nn_scale_loss */
    float
        *looks; /* shared memory: largest magnitudes of what finite.c looks at; NULL: it does not */

    lap_event_t *end; /* of the compute stream, when all is waited for */
    lap_nn_passes_t passes;
    const lap_nn_background_t *background; /* NULL: gradients do not go to replicas */
    uint32_t backgrounds;                  /* how often that was set */
    /* Of a pipeline: waits for the passes of its step, and for what they have sent to replicas, too, with
       `background`; given `stage`. NULL: there is none. */
    lap_status_t (*end_stage)(void *stage, bool background);
    lap_status_t (*prove_stage)(void *stage); /* its step: see lap_nn_prove_own; NULL: not yet */
    void *stage;
    bool tracing;
    lap_trace_t *timeline; /* NULL: passes are in none */
    uint64_t *live_bytes;  /* for it, of each entry; NULL until there is one */
    bool fresh;            /* the next backward overwrites gradients */
    bool accumulates;      /* the next backward is not the last of its step */
    bool begun;            /* a step has: there was a backward since weights changed */
    size_t held;           /* backwards of this step, if the latest was not its last; else 0 */
    bool stale;            /* ranks share the optimizer, and have not gathered its weights, */
    bool started;          /* but for those that the latest step has begun to gather */
    bool joined;           /* with replicas: */
    lap_nn_sync_t sync;    /* ... whose gradients are the sums */
    size_t seq;            /* of the latest forward; 0: none */
    uint64_t digests,
        digest; /* of the programs of this step so far, and of all of the latest one */

    lap_group_t *replicas; /* NULL: none have been joined */
    bool has_optimizer;
    lap_optimizer_desc_t optimizer;
    lap_rates_t *rates;      /* shared memory: of its next step, and what came of the latest one */
    lap_group_t *norm_group; /* of a pipeline: the ranks of all stages, whose norms are summed in */
    lap_buffer_t *norm_buffer; /* ... memory of its own; NULL: those of the layers serve */
};

/*
 * As lap_nn_create, of what a rank of a pipeline has of a model: it has no passes of its own, but for
 * LAP_NN_REFRESH. Collective over `group`, the ranks that share its layers.
 */
lap_status_t lap_nn_create_stage(lap_group_t *group, const lap_nn_desc_t *desc,
                                 const lap_nn_cut_t *cut, lap_nn_t **nn_p);

/* Around the life of what is made for layers: those destroyed before go with the last of it. */
lap_nn_t *lap_nn_keep(lap_nn_t *nn);
void lap_nn_let_go(lap_nn_t *nn);

/* ---- nn.c ---- */

/*
 * The step of an optimizer: its part of the list, its memory and then, once all ranks have that, its
 * operators and its program. The second is collective over `group`: the ranks of the layers, or of all
 * stages of a pipeline. lap_nn_drop_step undoes both, also after a
 * failure.
 */
lap_status_t lap_nn_add_step(lap_nn_t *nn, lap_group_t *group, const lap_optimizer_desc_t *desc);
lap_status_t lap_nn_start_step(lap_nn_t *nn);
void lap_nn_drop_step(lap_nn_t *nn);

/* Whether two groups have the same ranks in the same order. */
bool lap_nn_is_same_group(const lap_group_t *a, const lap_group_t *b);

/* ---- nn_terms.c ---- */

/* Lists all of a description that the ranks of a group must have alike. */
void lap_nn_list_terms(const lap_nn_plan_t *plan, lap_terms_t *terms);

/*
 * Compares layers, and their optimizer if they have one, with their replicas, after the terms that
 * there are already. Collective over `replicas`; `mine` is as in lap_terms_agree.
 */
lap_status_t lap_nn_compare_replicas(lap_nn_t *nn, lap_group_t *replicas, lap_terms_t *terms,
                                     lap_status_t mine);

/*
 * Compares the optimizers of the ranks that share the weights, and those of replicas that there are.
 * Collective over both; `mine` is as in lap_terms_agree.
 */
lap_status_t lap_nn_take_optimizer(lap_nn_t *nn, lap_group_t *group,
                                   const lap_optimizer_desc_t *desc, lap_status_t mine);

/* ---- param.c ---- */

/* Issues what gives the parameters their first values. */
lap_status_t lap_nn_fill_params(lap_nn_t *nn);

/* ---- pass.c ---- */

/* Sums a part of the loss over the ranks that share sequences, if there are any. Collective over them. */
lap_status_t lap_nn_add_contexts(lap_nn_t *nn, double *sum_p);

/* Waits for what was issued to the compute stream, and to all before it. Calls are not ended. */
lap_status_t lap_nn_settle(lap_nn_t *nn);

/* Whether the gradients are those of a whole step; `caller` is for the sentence. */
lap_status_t lap_nn_step_ended(const lap_nn_t *nn, const char *caller);

/* Whether a pass can have so many active tokens of each sequence. */
lap_status_t lap_nn_check_seq(const lap_nn_t *nn, size_t seq);

/* What comes before a forward: the one before has ended. Collective with FP8. */
lap_status_t lap_nn_begin_forward(lap_nn_t *nn, size_t seq);

/* Runs the parts of the list up to the last: LAP_NN_FORWARD, or the loss as well. */
lap_status_t lap_nn_run_forward(lap_nn_t *nn, int last);

/* A backward whose matrices are known. */
lap_status_t lap_nn_run_backward(lap_nn_t *nn);

/*
 * Forward, loss and backward of a micro-batch whose matrices are known, and if it `steps` the step of the optimizer, whose
 * rates are set: as one program, where they can be.
 */
lap_status_t lap_nn_run_micro(lap_nn_t *nn, bool steps);

/* lap_nn_forward, lap_nn_loss and lap_nn_backward so, where dy takes the place of y. */
lap_status_t lap_nn_micro(lap_nn_t *nn, size_t seq, const lap_tensor_t *x, const lap_tensor_t *y,
                          const lap_tensor_t *target, const lap_tensor_t *dx, bool steps);

/* Waits until the gradients of a step are the sums over replicas, and sends them if backward has not. */
lap_status_t lap_nn_send_all(lap_nn_t *nn);

/* Where ranks share the optimizer: gathers the weights from them. Collective over them; blocks. */
lap_status_t lap_nn_gather_weights(lap_nn_t *nn);

/* The step of an optimizer whose rates are set. */
lap_status_t lap_nn_run_step(lap_nn_t *nn);

/* It is issued: gradients are those of all replicas, and weights new ones, which others perhaps have yet to gather. */
void lap_nn_note_step(lap_nn_t *nn);

/* ---- model_pass.c ---- */

/* The memory of tokens, and the angles of rotary positions; nothing where there are none. */
lap_status_t lap_nn_model_start(lap_nn_t *nn);

/*
 * Of a pipeline: looks at the tokens and targets of a micro-batch and puts them where its entries find
 * them. Writes how many targets count.
 */
lap_status_t lap_nn_put_micro(lap_nn_t *nn, uint32_t micro, size_t seq, const int32_t *tokens,
                              const int32_t *targets, size_t *counted_p);

/* lap_model_forward and lap_model_backward as lap_nn_run_micro. */
lap_status_t lap_model_micro(lap_nn_t *nn, size_t seq, const int32_t *tokens,
                             const int32_t *targets, bool steps);

/* The angle, in radians for each token, of pair i of a head with rotary positions. */
double lap_nn_rope_rate(const lap_nn_desc_t *desc, size_t i);

/* What gradients of the loss are multiplied with. */
static inline float lap_nn_loss_factor(const lap_nn_t *nn)
{
    return nn->list.plan.desc.loss_scale * nn->loss_factor;
}

/* Forward of the latest tokens once more, without a loss. */
lap_status_t lap_model_again(lap_nn_t *nn);

/* ---- pass_program.c ---- */

/* This rank among those of all replicas, as far as they are known. */
int lap_nn_number(const lap_nn_t *nn);

/* Proves the programs of all ranks as they run, with the methods that operators have chosen. */
lap_status_t lap_nn_prove_own(lap_nn_t *nn);

static inline bool lap_nn_has_part(unsigned parts, int part)
{
    return parts >> part & 1;
}

static inline int lap_nn_first_part(unsigned parts)
{
    int part = 0;
    while (!lap_nn_has_part(parts, part))
        part++;
    return part;
}

/* The operator that a fragment is a call of, and the trace of the call if there is one; NULL: it is a kernel. */
lap_op_t *lap_nn_call_of(const lap_nn_t *nn, uint32_t origin, lap_trace_t **trace_p);

/* The program of parts (bits), made if need be; that used longest ago makes room. */
lap_status_t lap_nn_get_pass(lap_nn_t *nn, unsigned parts, size_t seq, lap_nn_mode_t mode,
                             lap_nn_pass_t **pass_p);
void lap_nn_free_passes(lap_nn_t *nn);
/* Frees the programs with a part, of which nothing is in flight. */
void lap_nn_free_part(lap_nn_t *nn, int part);

/*
 * From now on, or no more with NULL, the gradients of a step go to replicas. Nothing of it is in flight.
 */
void lap_nn_set_background(lap_nn_t *nn, const lap_nn_background_t *background);

/* ---- run.c ---- */

/*
 * After a failure of a pass here, with its sentence: breaks all groups in which the layers communicate, so that the ranks of
 * each learn why this one's part does not come. Those that learn it in one of them break the others in turn.
 */
void lap_nn_break(const lap_nn_t *nn, lap_status_t status);

/* Whether there was a forward, and a backward: only the first of each scales FP8 without a history. */
void lap_nn_get_seen(const lap_nn_t *nn, bool *forward_p, bool *backward_p);
void lap_nn_set_seen(lap_nn_t *nn, bool forward, bool backward);

/* Issues a pass: parts of the list (bits), as one program. */
lap_status_t lap_nn_run(lap_nn_t *nn, unsigned parts);

/* Whether parts can be one program: nothing of it is the host's, or differs from pass to pass. */
bool lap_nn_can_join(const lap_nn_t *nn, unsigned parts);

/* Whether a pass of this part is issued and not ended; both backwards are one. */
bool lap_nn_is_in_flight(const lap_nn_t *nn, int part);

/* Ends the pass of this part, if it is in flight, and those issued before it. */
lap_status_t lap_nn_end_part(lap_nn_t *nn, int part);

/* Ends all passes in flight, in their order; the first failure is that of all. */
lap_status_t lap_nn_end_passes(lap_nn_t *nn);

/* Waits for what has been sent to replicas, if anything has. */
lap_status_t lap_nn_end_background(lap_nn_t *nn);

/* ---- timeline.c ---- */

/*
 * From the next pass on, what passes do is added to a timeline when they have ended, if they are traced;
 * NULL: no more. The timeline outlives the layers, or what sets another.
 */
lap_status_t lap_nn_set_timeline(lap_nn_t *nn, lap_trace_t *timeline);

/* Adds a fragment that has ended: the call of an operator of a group, or a kernel. */
void lap_nn_add_fragment(const lap_nn_t *nn, lap_exec_t *exec, uint32_t f, const lap_group_t *group,
                         lap_trace_label_t label);

/* The same for one of a pass of the list; op is NULL for a kernel. */
void lap_nn_add_to_timeline(const lap_nn_t *nn, lap_exec_t *exec, uint32_t f, const lap_op_t *op);

/* ---- optimizer.c ---- */

/* Sets the rates of the next step, of which `scale` is that of the gradients, before it is issued. */
lap_status_t lap_optimizer_prepare(lap_optimizer_t *optimizer, float scale);

/* ---- query.c ---- */

/* The operator of GEMM `index` of lap_nn_gemm. */
const lap_op_t *lap_nn_gemm_op(const lap_nn_t *nn, size_t index);

/* ---- issue.c ---- */

/* A kernel of a list that is being issued. */
typedef struct lap_nn_issue {
    const lap_nn_t *nn;
    const lap_nn_entry_t *entry;
    const lap_operands_t *operands;
    lap_stream_t *stream;
} lap_nn_issue_t;

/* The operands that it reads and writes, by their numbers in the entry; without memory where there is none. */
const lap_arg_t *lap_nn_in(const lap_nn_issue_t *issue, uint32_t i);
const lap_arg_t *lap_nn_out(const lap_nn_issue_t *issue, uint32_t i);

/* What a kernel takes besides these: see constants.c. */
void lap_nn_add_constants(const lap_nn_issue_t *issue, lap_kernel_args_t *args);

/* As in lap_exec_owner_t: where memories are; the numbers of a call that is an entry; and kernels: entries, and the casts of
   buckets. */
lap_bound_place_t lap_nn_base(void *nn, uint32_t memory);
lap_binding_t lap_nn_numbers(const lap_nn_t *nn, const lap_nn_entry_t *entry, size_t m);
lap_status_t lap_nn_issue_kernel(void *nn, uint32_t origin, const lap_operands_t *operands,
                                 lap_stream_t *stream);
lap_status_t lap_nn_issue_entry(const lap_nn_t *nn, uint32_t entry, const lap_operands_t *operands,
                                lap_stream_t *stream);
lap_status_t lap_nn_issue_cast(const lap_nn_t *nn, size_t index, int which,
                               const lap_operands_t *operands, lap_stream_t *stream);

/* A region in this pass; LAP_NN_NONE: a tensor without data. */
lap_tensor_t lap_nn_tensor(const lap_nn_t *nn, uint32_t region);

/* The compute stream, behind all issued so far. */
lap_status_t lap_nn_stream(lap_nn_t *nn, lap_stream_t **stream_p);

#endif
