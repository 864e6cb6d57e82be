/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning: the time and the memory of a step of training on a cluster that nobody has here. A layer
 * is listed, linked and simulated as it would run, for the ranks of one tensor-parallel group and
 * with the rates of a machine description; a table of the pipeline and the buckets of data
 * parallelism make a step of it. Ranks that do the same are counted, not simulated.
 */
#ifndef LAP_PLAN_PLAN_H
#define LAP_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include <lap/nn.h>

#include "plan/machine.h"

#define LAP_PLAN_GPUS_MOST (1 << 20)
#define LAP_PLAN_BATCH_MOST (1 << 24) /* sequences of a step */

typedef enum lap_plan_recompute {
    LAP_PLAN_RECOMPUTE_NONE = 0,
    LAP_PLAN_RECOMPUTE_SELECTIVE, /* as lap_recompute_t */
    LAP_PLAN_RECOMPUTE_FULL,
    LAP_PLAN_RECOMPUTE_LAYER, /* all of a layer's forward once more, from its input */
    LAP_PLAN_RECOMPUTES
} lap_plan_recompute_t;
extern const char *const lap_plan_recompute_names[LAP_PLAN_RECOMPUTES + 1];

/* One way to run a model: the grid, and what is overlapped. */
typedef struct lap_plan_config {
    /* A model with its whole sequence and the width of its heads, 0 where there is none; batch does not matter. */
    lap_nn_desc_t model;
    lap_plan_type_t type;
    size_t gpus, tp, pp, cp, dp;
    size_t virtual_pp; /* stages of a rank */
    const char *schedule;
    size_t micro_batch, global_batch;
    lap_plan_recompute_t recompute;
    bool tp_overlap, cp_overlap, dp_overlap, pp_overlap;
    bool sequence_parallel;
    bool sharded_optimizer; /* over replicas, as a distributed optimizer does */
    bool fsdp;              /* weights are sharded over replicas, too */
    bool unfused_attention; /* scores are written to memory, as before FlashAttention */
    double grad_bytes;      /* of a gradient on its way to replicas */
} lap_plan_config_t;

/* A grid with one GPU, and all overlap. */
lap_plan_config_t lap_plan_config(const lap_nn_desc_t *model);

/* ---- layer.c ---- */

/* A part of a pass: what it takes, and what of that is not hidden communication. */
typedef struct lap_plan_span {
    double seconds;
    double compute;    /* as if every wire were infinitely fast */
    double tp, cp;     /* exposed */
    double tp_s, cp_s; /* on the wire, hidden or not */
} lap_plan_span_t;

enum { LAP_PLAN_FORWARD = 0, LAP_PLAN_BACKWARD, LAP_PLAN_PASSES };

/* The costs of a micro-batch on a rank of one tensor-parallel group. */
typedef struct lap_plan_layer {
    lap_plan_span_t layer[LAP_PLAN_PASSES], head[LAP_PLAN_PASSES], embedding[LAP_PLAN_PASSES];
    double weight_grad; /* of a layer's backward, the part that nobody waits for */
    double weights, head_weights, embedding_weights; /* parameters of a rank */
    double weight_bytes; /* that GEMMs read, of a parameter of a layer */
    double saved_bytes;  /* from forward to backward, of a layer */
    double head_bytes, work_bytes;
} lap_plan_layer_t;

lap_status_t lap_plan_layer(const lap_plan_config_t *config, const lap_machine_t *machine,
                            lap_plan_layer_t *layer_p);

/* ---- step.c ---- */

typedef enum lap_plan_kind {
    LAP_PLAN_COMPUTE = 0,
    LAP_PLAN_TP,
    LAP_PLAN_CP,
    LAP_PLAN_BUBBLE,
    LAP_PLAN_PP,
    LAP_PLAN_DP,
    LAP_PLAN_OPTIMIZER,
    LAP_PLAN_KINDS
} lap_plan_kind_t;
extern const char *const lap_plan_kind_names[LAP_PLAN_KINDS + 1];

typedef enum lap_plan_memory {
    LAP_PLAN_WEIGHTS = 0,
    LAP_PLAN_GRADIENTS,
    LAP_PLAN_STATE, /* of the optimizer, with its masters */
    LAP_PLAN_ACTIVATIONS,
    LAP_PLAN_WORK,
    LAP_PLAN_RESERVED,
    LAP_PLAN_MEMORIES
} lap_plan_memory_t;
extern const char *const lap_plan_memory_names[LAP_PLAN_MEMORIES + 1];

typedef struct lap_plan_result {
    double seconds;                 /* of a step */
    double exposed[LAP_PLAN_KINDS]; /* of the rank with the most work: they add up to seconds */
    double hidden[LAP_PLAN_KINDS];
    double bytes[LAP_PLAN_MEMORIES], total_bytes; /* of the rank that has most */
    bool fits;
    double tokens_per_s;  /* of all GPUs */
    double model_flops;   /* of a step, attention counted causal; no recomputation */
    double mfu, mfu_full; /* attention counted causal, and as if nothing were masked */
    size_t micro_batches;
    size_t layers_most; /* of a rank */
    double bucket; /* parameters that replicas send at once; 0: no replicas, or of FSDP: a layer */
    bool larger_buckets; /* than the software of the cluster has, since there would be too many */
} lap_plan_result_t;

/*
 * The step of a configuration. LAP_ERR_INVALID says what does not divide, LAP_ERR_NO_MEMORY. `layer`
 * may be NULL; else it is that of a configuration that differs in nothing that matters to a layer.
 */
lap_status_t lap_plan_step(const lap_plan_config_t *config, const lap_machine_t *machine,
                           const lap_plan_layer_t *layer, lap_plan_result_t *result_p);

/* The table of a pipeline that is played for a configuration, which may have more micro-batches. */
typedef struct lap_plan_table {
    const char *schedule;
    size_t pp, virtual_pp, micros;
} lap_plan_table_t;
lap_plan_table_t lap_plan_table(const lap_plan_config_t *config);

/* The micro-batches of stages that a rank of it holds at once at most. */
lap_status_t lap_plan_most_live(const lap_plan_table_t *table, size_t *most_live_p);

/* What is known of the pipeline of a configuration; 0: it is found, and written here. */
typedef struct lap_plan_played {
    size_t most_live,
        rank;    /* of its table; the rank with the most work, which goes with the span */
    double span; /* seconds of all micro-batches */
} lap_plan_played_t;

/*
 * For a search, from what takes no time to plan to what takes some: the memory, with the least seconds that
 * the pipeline may take; a step without the communication between replicas, with its exposed messages
 * counted as bubble; and a step.
 */
lap_status_t lap_plan_step_least(const lap_plan_config_t *config, const lap_machine_t *machine,
                                 const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                 lap_plan_result_t *result_p);
lap_status_t lap_plan_step_local(const lap_plan_config_t *config, const lap_machine_t *machine,
                                 const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                 lap_plan_result_t *result_p);
lap_status_t lap_plan_step_played(const lap_plan_config_t *config, const lap_machine_t *machine,
                                  const lap_plan_layer_t *layer, lap_plan_played_t *played,
                                  lap_plan_result_t *result_p);

/* Whether its sizes are such as anybody has; and whether the machine multiplies its type. */
lap_status_t lap_plan_check_sizes(const lap_plan_config_t *config);
lap_status_t lap_plan_check_type(const lap_plan_config_t *config, const lap_machine_t *machine);

/* "tp 8, pp 2": the sizes of a grid that are given. */
#define LAP_PLAN_GRID_TEXT 112
void lap_plan_grid_text(const lap_plan_config_t *config, char text[LAP_PLAN_GRID_TEXT]);

/* Whether a grid is one: what it says of the first thing that does not divide. */
lap_status_t lap_plan_check(const lap_plan_config_t *config, const lap_machine_t *machine);

/*
 * How many stages a pipeline has, and the layers of each. Embedding and head count as a layer each where that divides evenly;
 * else layers are shared as lap train does it.
 */
size_t lap_plan_stages(const lap_plan_config_t *config);
size_t lap_plan_stage_layers(const lap_plan_config_t *config, size_t stage);

/* FLOPs of a step's matrices, forward and backward; `causal`: attention sees half of its scores. */
double lap_plan_flops(const lap_plan_config_t *config, bool causal);

#endif
