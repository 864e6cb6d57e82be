/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of layers: the list of a pass, with the schedules of its operators, linked. */
#ifndef LAP_NN_PROGRAM_H
#define LAP_NN_PROGRAM_H

#include "nn/buckets.h"
#include "nn/list.h"
#include "schedule/link.h"
#include "schedule/target.h"
#include "schedule/trace.h"

/*
 * Where the schedules of operators come from: that of a step of the list, for its rank and m active
 * rows, lowered. The caller clears it, also after a failure.
 */
typedef struct lap_nn_source {
    lap_status_t (*build)(void *context, const lap_nn_list_t *list, uint32_t step, size_t m,
                          lap_schedule_t *schedule_p);
    void *context;
} lap_nn_source_t;

/* As the operators of layers have chosen their methods; it lives as long as the layers. */
struct lap_nn;
lap_nn_source_t lap_nn_chosen(struct lap_nn *nn);

/* The replicas of layers as they run: those that lap_dp_create has joined, else those of `shards`. */
typedef struct lap_nn_replication lap_nn_replication_t;
lap_nn_replication_t lap_nn_replication(const struct lap_nn *nn);

/* The active rows of an operator of the list in a pass with `seq` tokens of each sequence. */
size_t lap_nn_step_rows(const lap_nn_list_t *list, uint32_t step, size_t seq);

/*
 * Which of a part's entries a pass has: those that look for magnitudes, those of the first pass. And
 * whether gradients go to replicas as they are completed. Where replicas share the optimizer, weights
 * come from them, in LAP_NN_REFRESH or as a forward needs them.
 */
typedef struct lap_nn_mode {
    bool looks, first;
    bool more; /* a micro-batch after the first of a step: delayed FP8 scales stay as they are */
    const lap_nn_replicas_t *replicas; /* NULL: they do not */
    bool sends, gathers; /* of a program of several parts: which of the two `replicas` is for */
    bool starts;         /* ... and that its step begins to gather, */
    bool refreshes;      /* ... or gathers all of, */
    bool started;        /* or that the step before has begun to, for its forward */
} lap_nn_mode_t;

/* What a fragment with that origin is: "qkv_fprop", "norm1" or "bucket 2"; and its layer, -1: of none. */
void lap_nn_fragment_name(const lap_nn_list_t *list, uint32_t origin, char *text, size_t bytes);
long lap_nn_fragment_layer(const lap_nn_list_t *list, uint32_t origin);

/* What a fragment of layers, of a bucket or of an optimizer communicates for; `size` ranks do, in `buffer`. */
lap_traffic_t lap_nn_fragment_traffic(int size, uint32_t buffer);

/* The bytes of activations that are live while an entry runs. */
uint64_t lap_nn_live_bytes(const lap_nn_list_t *list, uint32_t origin);

/* Whether an entry is a fragment of a program. */
bool lap_nn_entry_runs(const lap_nn_entry_t *entry, lap_nn_mode_t mode);

/*
 * The memories of a program, after those of lists: scratch, the buckets that travel, the sum of tied gradients of a
 * pipeline; and one for each matrix of the caller's, by its region. Programs outlive what is added to their lists.
 */
enum {
    LAP_NN_SCRATCH_MEMORY = LAP_NN_MEMORIES,
    LAP_NN_WIRE_MEMORY = LAP_NN_SCRATCH_MEMORY + LAP_NN_SCRATCHES,
    LAP_NN_TIED_MEMORY = LAP_NN_WIRE_MEMORY + LAP_NN_WIRE_REGIONS,
    LAP_NN_GIVEN_MEMORY
};

/* What regions that last go through in a program: no fragment uses one after a fragment of a later phase. */
typedef enum lap_nn_phase {
    LAP_NN_PHASE_SCALES = 1, /* of FP8 weights are found, */
    LAP_NN_PHASE_GATHER,     /* weights come from those that share the optimizer, */
    LAP_NN_PHASE_COPIES,     /* and copies of them are made: as layers need them */
    LAP_NN_PHASE_LAYERS,     /* forward, loss and backward, of all micro-batches */
    LAP_NN_PHASE_TIED,       /* gradients of tied weights become their sums, */
    LAP_NN_PHASE_SYNC,       /* ... and those of replicas */
    LAP_NN_PHASE_STEP,       /* of the optimizer; then weights for the next pass, as above */
} lap_nn_phase_t;

/* Fragments of a program from `first` on, which are of weights, come after the step. */
static inline void lap_nn_set_after_step(lap_linked_t *linked, uint32_t first)
{
    for (uint32_t f = first; f < linked->nfragments; f++)
        linked->fragments[f].phase += LAP_NN_PHASE_STEP;
}

/* The region of a program that a region of its list is, and where in it. */
uint32_t lap_nn_linked_region(const lap_nn_list_t *list, uint32_t region, size_t *offset_p);

/* The matrix of a region, or of nothing for LAP_NN_NONE, in the program of the list. */
lap_link_place_t lap_nn_place(const lap_nn_list_t *list, uint32_t region);

/* The region that is an operand of an entry: those that it reads have the first numbers, those that it writes the rest. */
uint32_t lap_nn_operand_region(const lap_nn_entry_t *entry, uint32_t role);

/* The rows of a matrix that are an operand of an entry, of a pass with `seq` active tokens; false: there is none. */
bool lap_nn_operand(const lap_nn_list_t *list, const lap_nn_entry_t *entry, uint32_t role,
                    size_t seq, lap_link_place_t *place_p, size_t *rows_p);

/* Of a pipeline: the caller's matrices of all micro-batches follow one another; where those of one begin, in bytes. */
static inline size_t lap_nn_micro_offset(const lap_nn_list_t *list, uint32_t region, uint32_t micro)
{
    return list->regions[region].memory == LAP_NN_EXTERNAL
               ? micro * lap_nn_region_bytes(&list->regions[region])
               : 0;
}

/* What the places are of an entry that is the call of an operator. */
void lap_nn_call_places(const lap_nn_list_t *list, const lap_nn_entry_t *entry, lap_op_kind_t kind,
                        lap_link_place_t places[LAP_CALL_OPERANDS]);

/* Whether a region is the caller's and has contents before a pass. */
bool lap_nn_is_given(const lap_nn_list_t *list, uint32_t region);

/*
 * Gives a program the regions of a list, with the same numbers, and the scratch of its operators.
 * `first`: scales and copies of weights are yet to be made.
 */
void lap_nn_link_regions(const lap_nn_list_t *list, bool first, lap_linked_t *linked);

/*
 * Adds the fragments of a part of a list, whose origin is the number of their entry; and those of buckets,
 * if gradients go to replicas: as backward completes them, or all in LAP_NN_SYNC.
 */
lap_status_t lap_nn_link_part(const lap_nn_list_t *list, int part, size_t seq, lap_nn_mode_t mode,
                              const lap_nn_source_t *source, lap_linked_t *linked);

/* The same of a forward, which gathers its weights from `mode.replicas`: prefetch.c. */
lap_status_t lap_nn_link_prefetch(const lap_nn_list_t *list, size_t seq, lap_nn_mode_t mode,
                                  const lap_nn_source_t *source, lap_linked_t *linked);

/*
 * How far the weights that a step gathers are linked; `gathered` are buckets: the last of the list is the first that
 * forward needs.
 */
typedef struct lap_nn_prefetch {
    const lap_nn_list_t *list;
    const lap_nn_buckets_t *buckets;
    size_t gathered;
    uint32_t refreshed; /* the first entry of LAP_NN_REFRESH that is not linked */
} lap_nn_prefetch_t;

/* None of them is yet. */
lap_nn_prefetch_t lap_nn_prefetch(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets);

/*
 * What is to be linked before entry `index`, one after the other: a bucket of weights, or where *entry_p is
 * not LAP_NN_NONE, that entry of LAP_NN_REFRESH. LAP_NN_NONE: all that is left. False: nothing more.
 */
bool lap_nn_prefetch_next(lap_nn_prefetch_t *walk, uint32_t index, size_t *bucket_p,
                          uint32_t *entry_p);

/* The buckets that a step begins to gather as it has made them: those that the first GEMM of forward waits for. */
size_t lap_nn_prefetch_started(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets);

/* What weights and their copies have of a step before is not to be read: the proof takes it for nothing. */
void lap_nn_forget_weights(const lap_nn_list_t *list, lap_linked_t *linked);

/* Adds the fragment of an entry, whose origin is its number. */
lap_status_t lap_nn_link_entry(const lap_nn_list_t *list, uint32_t index, size_t seq,
                               const lap_nn_source_t *source, lap_linked_t *linked);

/*
 * Adds those of a step of an optimizer, which the list has, and of the copies of weights after it; with
 * `replicas` that share the optimizer also those of the buckets of weights.
 */
lap_status_t lap_nn_link_step(const lap_nn_list_t *list, const lap_nn_source_t *source,
                              const lap_nn_replicas_t *replicas, lap_linked_t *linked);

/* The same of a step that begins to gather the weights of the next forward: prefetch.c. */
lap_status_t lap_nn_link_step_start(const lap_nn_list_t *list, const lap_nn_source_t *source,
                                    const lap_nn_replicas_t *replicas, lap_linked_t *linked);

/*
 * The programs of all ranks that share weights, for a forward, a loss, a backward and perhaps a step of
 * an optimizer; with replicas those of all replicas, one after the other.
 */
typedef struct lap_nn_programs {
    int size;
    bool separate_step; /* see lap_nn_linking_t, */
    bool late;          /* and lap_nn_replication_t */
    lap_nn_list_t *lists;
    lap_linked_t *programs;
    const lap_linked_t **list; /* to be checked */
} lap_nn_programs_t;

/* Replicas, and how gradients travel to them: as lap_dp_options_t. */
struct lap_nn_replication {
    int replicas;  /* 0 or 1: there are none */
    size_t bucket; /* elements */
    bool by_layer;
    lap_dtype_t wire;
    bool late;   /* gradients travel when backward has ended */
    bool ahead;  /* the weights of a shared optimizer travel as the next forward needs them */
    bool starts; /* ... the first of them as the step has made them */
    bool held;   /* gradients stay here: another backward of the step adds to them */
};

/* How a pass is linked. */
typedef struct lap_nn_linking {
    const lap_target_t *target;
    bool more;                     /* gradients are added to those before */
    bool first;                    /* the first pass, with the copies of weights before it */
    bool as_built;                 /* no pass of lowering runs */
    const char *after;             /* the pass of lowering to stop after; NULL: all run */
    const lap_nn_source_t *source; /* of schedules; NULL: those that the plan describes */
    lap_nn_replication_t replication;
    const lap_optimizer_desc_t *optimizer; /* NULL: there is no step */
    bool separate_step; /* the host comes between backward and the step: only counts launches so */
    size_t micros;      /* that a step has; 0: one */
} lap_nn_linking_t;

/* The schedule of an operator of `size` ranks from its description, for m active rows; "auto" is taken as serial. */
lap_status_t lap_nn_build_described(const lap_nn_linking_t *how, const lap_op_desc_t *given,
                                    int size, int rank, size_t m, lap_schedule_t *schedule_p);

/* Whether the step before, which was linked in the same way, has begun to gather what this forward reads. */
static inline bool lap_nn_is_started(const lap_nn_linking_t *linking)
{
    return linking->replication.starts && linking->replication.ahead && !linking->first &&
           !linking->more && linking->optimizer;
}

/* ---- expect.c ---- */

/*
 * How many fragments are to write each region of a program, as its list says; where the program has them is not
 * asked. Those of an entry, of all from `first` on that run, and of a bucket: so much is expected once more.
 */
void lap_nn_expect_entry(const lap_nn_list_t *list, uint32_t index, size_t seq,
                         lap_linked_t *linked);
void lap_nn_expect_entries(const lap_nn_list_t *list, uint32_t first, uint32_t end, size_t seq,
                           lap_nn_mode_t mode, lap_linked_t *linked);

/*
 * The copies of weights, which come from `buckets` unless that is NULL: the last `started` of them are there already. And a
 * step of an optimizer, which gathers so many of the next ones.
 */
void lap_nn_expect_copies(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets,
                          size_t started, lap_linked_t *linked);
void lap_nn_expect_step(const lap_nn_list_t *list, const lap_nn_buckets_t *buckets, size_t started,
                        lap_linked_t *linked);

/* All of a pass that is linked in that way. */
void lap_nn_expect(const lap_nn_list_t *list, const lap_nn_linking_t *linking,
                   const lap_nn_buckets_t *buckets, lap_linked_t *linked);

/* ---- programs.c ---- */

/*
 * Links the pass of a plan. Methods that are "auto" are taken as serial. The caller clears it, also
 * after a failure.
 */
lap_status_t lap_nn_programs_init(lap_nn_programs_t *programs, const lap_nn_plan_t *plan,
                                  const lap_nn_linking_t *linking);
void lap_nn_programs_clear(lap_nn_programs_t *programs);

/* Proves them: each call by itself, and all ranks together. */
lap_status_t lap_nn_programs_prove(const lap_nn_programs_t *programs, const lap_target_t *target);

/* What was proved: of the rank that has most. */
typedef struct lap_nn_proof {
    size_t fragments, kernels, steps, links;
    size_t automatic; /* operators whose method `auto` chooses where they run: proved as serial */
    size_t launches;  /* of passes that are repeated */
    size_t private_bytes, lasting_bytes; /* of the device */
    size_t given_bytes, made_bytes;      /* the caller's: x and the target; y and dx */
    size_t scratch_bytes;                /* of all operators */
    size_t symmetric_bytes;              /* of the buffer */
    size_t bucket_bytes;                 /* of gradients on their way to replicas */
    size_t weights;                      /* that an optimizer works on */
    size_t state_bytes;                  /* of the optimizer; 0: its step is not linked */
    size_t program_bytes;                /* of the host: programs, lists, operators, and tasks */
    size_t records, shared_records; /* of a trace of a step; and of its calls of several ranks */
    uint64_t digest; /* of the programs of all ranks in a step that is repeated: see digest.h */
} lap_nn_proof_t;
lap_nn_proof_t lap_nn_programs_count(const lap_nn_programs_t *programs);

/*
 * Links and proves the pass of a plan: the first one, and later ones with both variants of backward; where a step has
 * several micro-batches, those before the last, too. Counts a later one that sets gradients, and the bytes of all
 * programs that layers keep.
 */
lap_status_t lap_nn_prove(const lap_nn_plan_t *plan, const lap_target_t *target,
                          lap_nn_proof_t *proof_p);
/* The same of passes that are linked as `how` says, but for `more` and `first`. */
lap_status_t lap_nn_prove_linking(const lap_nn_plan_t *plan, const lap_nn_linking_t *how,
                                  lap_nn_proof_t *proof_p);

#endif
