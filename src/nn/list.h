/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank does in a forward, a loss, a backward and a step of an optimizer, as data: a list of entries, each a kernel
 * or the call of an operator, over named regions of memory. It is a pure function of a plan and a
 * rank: no device, no pointers. Which operators there are, the memory that layers need and where
 * each matrix lies in it, what is issued and what is proved: all follow from this list.
 */
#ifndef LAP_NN_LIST_H
#define LAP_NN_LIST_H

#include "kernel/kernel.h"
#include "nn/plan.h"

#define LAP_NN_NONE UINT32_MAX /* no region, no block */

typedef enum lap_nn_memory {
    LAP_NN_EXTERNAL = 0, /* the caller's: x, y, dy, dx, the target of a loss */
    LAP_NN_LASTING,      /* lives as long as the layers: parameters, gradients, scales */
    LAP_NN_PRIVATE,      /* lives from its first use to its last one */
    LAP_NN_STATE,        /* lives as long as the optimizer: moments, and what its step computes */
    LAP_NN_MEMORIES
} lap_nn_memory_t;

/* The rows of a matrix: a fixed number, or those of a pass. */
typedef enum lap_nn_extent {
    LAP_NN_FIXED = 0,
    LAP_NN_ALL_ROWS,
    LAP_NN_OWN_ROWS,    /* this rank's, or all without sequence parallelism */
    LAP_NN_SHARED_ROWS, /* this rank's */
    LAP_NN_RANKS_ROWS,  /* all, once for each rank */
    /* Context parallel: of tokens of all sequences, and so of rows of `batch` times as many columns. */
    LAP_NN_GROUP_ROWS,   /* those of ranks that exchange heads, */
    LAP_NN_GROUP_TOKENS, /* ... as tokens, */
    LAP_NN_SEQ_TOKENS,   /* all tokens of a sequence, */
    LAP_NN_PARTS_ROWS,   /* and those here, once for each rank that exchanges heads, */
    LAP_NN_PARTS_TOKENS, /* ... as tokens */
} lap_nn_extent_t;

/* A matrix with a name. One that is part of another lives in its memory. */
typedef struct lap_nn_region {
    const char *name;
    uint32_t block; /* LAP_NN_NONE: of no block */
    lap_nn_memory_t memory;
    lap_nn_extent_t extent;
    lap_dtype_t dtype;
    size_t rows, cols, stride; /* rows: the most that a pass can have */
    uint32_t part_of;          /* LAP_NN_NONE: of none */
    uint32_t scale, amax;      /* FP8: the slot of its scale, and its magnitude; else LAP_NN_NONE */
    bool made;                 /* lasting: the first pass, or what is before it, writes it; of an
                             optimizer: each step does */
    uint32_t slot;             /* of a pipeline: the slot that it belongs to; else LAP_NN_NONE */
    bool outlives;             /* of a pipeline: outlives the action that uses it first */
    uint32_t first, last;      /* private: the first and the last entry that use it */
    size_t offset;             /* in bytes: in the memory of its kind, or in what it is part of */
} lap_nn_region_t;

/* With the gaps between its rows. */
static inline size_t lap_nn_region_bytes(const lap_nn_region_t *region)
{
    return region->rows * region->stride * lap_dtype_size(region->dtype);
}

/*
 * The kinds of work that are no rows of kernels.def: the constant LAP_NN_..., the name in proofs and pictures, and who
 * issues it: the function issue_... of issue.c.
 */
#define LAP_NN_OTHER_LIST(X)                                                                       \
    X(OPERATOR, "operator", nothing) /* a call: the executor issues it */                          \
    X(REORDER, "reorder", reorder)   /* tokens in the order of ranks: by position, or back */      \
    X(CONVERT, "convert", reduction) /* to another type */                                         \
    X(PACK, "pack", pack)            /* heads, a matrix for each rank that swaps them, or back */  \
    X(ACTIVATE, "gelu", reduction)   /* where no GEMM does it */                                   \
    X(COPY, "copy", copy)                                                                          \
    X(CAST, "cast", cast)                /* to FP8 */                                              \
    X(TRANSPOSE, "transpose", transpose) /* the FP8 copy of a weight */                            \
    X(ADD, "add", reduction)             /* grad += a gradient of one backward, or = */            \
    X(READY, "ready", nothing) /* a gradient is complete: calls what lap_nn_on_gradient has */     \
    X(LOOK, "amax", look)      /* finds the largest magnitude, when asked to: see finite.c */

/* The kind of work of an entry: LAP_NN_NORM is LAP_KERNEL_NORM, and so on; then the others. */
typedef enum lap_nn_work {
#define KERNEL(id, slot, args_t, label, reads, writes) LAP_NN_##id,
#define KERNEL_AS KERNEL
#include "kernel/kernels.def"
#define WORK(work, name, issuer) LAP_NN_##work,
    LAP_NN_OTHER_LIST(WORK)
#undef WORK
} lap_nn_work_t;

/* The regions of an entry, by kind of work; LAP_NN_NONE: not used. */
enum { /* operators */
       LAP_NN_A = 0,
       LAP_NN_B = 1,
       LAP_NN_X = 2,
       LAP_NN_BIAS = 3,
       LAP_NN_AUX_IN = 4,
       LAP_NN_D = 0,
       LAP_NN_SECOND = 1, /* gathered, or y */
       LAP_NN_AUX_OUT = 2,
       LAP_NN_BIAS_GRAD = 3,
       LAP_NN_SCALES = 4,
};
enum { LAP_NN_READS = LAP_KERNEL_READS, LAP_NN_WRITES = LAP_KERNEL_WRITES };

/*
 * The passes in which an entry runs: all; the first; or, of each step but the first one, its first. Delayed FP8
 * scales change between steps only.
 */
typedef enum lap_nn_when { LAP_NN_ALWAYS = 0, LAP_NN_FIRST, LAP_NN_LATER } lap_nn_when_t;

typedef struct lap_nn_entry {
    lap_nn_work_t work;
    const char *name; /* of the part of a layer, such as "qkv" */
    uint32_t block;   /* LAP_NN_NONE: of no block */
    uint32_t reads[LAP_NN_READS];
    uint32_t writes[LAP_NN_WRITES];
    uint32_t
        keeps; /* not read here, but nothing takes its memory before this has run; LAP_NN_NONE */
    /*
     * operator: its call; ready, squares: the parameter; look, add, activate, convert: a number among
     * those; scale: how many of the first ones are e4m3; update: whether weights decay; attention to a
     * block: the group whose keys it has, and after the last for those of all; reorder, pack:
     * 1 for back; dropout: where in the model, see mask.h
     */
    uint32_t index;
    lap_nn_when_t when;
    bool weight_grad;  /* of backward: no stage before waits for it */
    float alpha, beta; /* beta is not 0: the first of `writes` is read, too */
} lap_nn_entry_t;

/*
 * Scratch memory of operators: one and the next of the list may run at the same time, so that they
 * have two of them in turn.
 */
#define LAP_NN_SCRATCHES 2u

/* An operator of a pass. Both variants of backward call the same ones. */
typedef struct lap_nn_step {
    uint32_t block;         /* LAP_NN_NONE: no GEMM: sums of gradients, magnitudes */
    lap_tp_gemm_t gemm;     /* of a block; of the sums: 0 reduces, 1 gathers */
    lap_op_desc_t desc;     /* without a buffer */
    lap_nn_extent_t extent; /* of m */
    int group;              /* whose call it is: see context.h */
} lap_nn_step_t;

/*
 * A parameter. What GEMMs read, matrices and their biases, may have a copy in another type; vectors
 * have a gradient of one backward.
 */
typedef struct lap_nn_weight {
    lap_nn_param_t param; /* its tensors have memory once layers are made */
    char name[48];
    uint32_t index;
    uint32_t place;         /* its number among masters and gradients as they lie in memory */
    uint32_t tensor;        /* its number in the whole model */
    size_t layer;           /* the head: as many as there are; embeddings: LAP_NN_NONE */
    bool twin;              /* of tied weights, the copy of the stage with the head */
    bool plain;             /* no GEMM reads it: it has no copy */
    bool wide;              /* its copy is no FP8 */
    size_t rows;            /* in memory: zeros may follow those of param */
    bool summed;            /* ranks hold its gradient in part: it is among the sums */
    uint32_t master, grad;  /* regions */
    uint32_t copy;          /* what GEMMs read: perhaps the master */
    uint32_t turned;        /* with FP8 the same, transposed: what dgrad takes; else the copy */
    uint32_t partial, sums; /* vectors: the gradient of one backward, here and of all ranks */
} lap_nn_weight_t;

/* The regions of a block. Those with two have one in forward and one in backward: perhaps the same. */
typedef struct lap_nn_block {
    lap_nn_shape_t shape;
    lap_nn_weight_t *gamma, *beta, *column, *column_bias, *row, *row_bias; /* NULL: none */
    uint32_t x, y;
    uint32_t norm_out[2];      /* [m_r, width] */
    uint32_t full[2];          /* [m, width]: x or norm_out of all ranks */
    uint32_t pre[2];           /* [m, this rank's share of pre] */
    uint32_t mid[2];           /* [m, this rank's share of mid] */
    uint32_t mean, rstd;       /* [m_r] */
    uint32_t lse;              /* [heads / P * batch, seq], of the queries here */
    uint32_t input8, mid8;     /* what the two fprops take in FP8 */
    uint32_t qkv[2], out[2];   /* context parallel: what attention takes and makes, */
    uint32_t kv[2], kv_all[2]; /* ... keys and values here, and of all ranks */
} lap_nn_block_t;

/* The parts of the list, each a range of entries. */
enum {
    LAP_NN_FORWARD = 0,
    LAP_NN_LOSS_PART,
    LAP_NN_BACKWARD,      /* gradients take the place of those before */
    LAP_NN_BACKWARD_MORE, /* gradients are added to those before */
    LAP_NN_LOOK_GRADIENTS,
    LAP_NN_SYNC, /* has no entries: gradients go to replicas, if they have not gone in backward */
    LAP_NN_REFRESH, /* the copies of weights, before the first forward and whenever they change */
    LAP_NN_STEP,    /* of an optimizer, if there is one; the copies of weights follow it */
    LAP_NN_LIST_PARTS
};

/*
 * What one micro-batch at a time uses: the activations of a chunk, and the entries on them. Layers
 * without a pipeline have one.
 */
typedef struct lap_nn_slot {
    uint32_t chunk;
    uint32_t forward, backward, end; /* entries: forward and loss; backward that adds */
    uint32_t x, y, dy, dx;           /* regions */
} lap_nn_slot_t;

/* Matrices whose delayed scales are renewed together: those of a chunk, of e4m3 first. */
typedef struct lap_nn_renewal {
    uint32_t first, count,
        narrow; /* the first of all with a scale, and how many; so many are e4m3 */
} lap_nn_renewal_t;

struct lap_nn_buckets;

/* Ranks that share masters gather weights in the types in which they are read: those of each lie together. */
enum { LAP_NN_WIDE = 0, LAP_NN_NARROW, LAP_NN_EIGHT, LAP_NN_TYPES };
typedef struct lap_nn_gathered {
    uint32_t region; /* LAP_NN_NONE: there are none */
    lap_dtype_t dtype;
    size_t begin; /* floats of all gradients before them */
} lap_nn_gathered_t;

typedef struct lap_nn_list {
    lap_nn_plan_t plan;
    int rank;                     /* among those that share weights */
    int cp_rank;                  /* among those that share sequences */
    int shard;                    /* among those that share the optimizer */
    const lap_kernels_t *kernels; /* for the sizes of their scratch memory */
    lap_status_t status;          /* the first failure: nothing is added after it */
    double refused;               /* bytes of a matrix that no memory has; 0: there is none */
    /*
     * Backward is listed twice, with the same operators and regions: the second time those of the
     * first are taken again, in their order.
     */
    bool more;         /* the backward being listed adds to gradients */
    bool same_regions; /* regions are those listed before, from next_region on */
    bool same_steps;   /* and so are operators, from next_step on */
    uint32_t next_step, next_region;
    uint32_t slot;                   /* the one being listed: its blocks */
    uint32_t first_block, end_block; /* are these */
    lap_nn_entry_t spare;            /* what lap_nn_add_entry returns after a failure */

    lap_nn_region_t *regions;
    uint32_t nregions;
    size_t regions_room;
    lap_nn_entry_t *entries;
    uint32_t nentries;
    size_t entries_room;
    uint32_t parts[LAP_NN_LIST_PARTS + 1]; /* part i is [parts[i], parts[i + 1]) */
    lap_nn_step_t *steps;
    uint32_t nsteps;
    size_t steps_room;
    lap_nn_weight_t *weights;
    uint32_t nweights;
    uint32_t *order; /* of weights as they lie in memory: the index of each */
    /* What ranks share of the optimizer; NULL: each has all. */
    struct lap_nn_buckets *shards;
    lap_nn_block_t *blocks;
    lap_nn_slot_t *slots;
    uint32_t nslots;
    uint32_t ntensors; /* parameters of the whole model so far */
    uint32_t nlooks, nreductions;
    uint32_t nfp8;         /* matrices with a scale: those of weights first, then of forward, */
    uint32_t nfp8_weights; /* ... so many of weights */
    lap_nn_renewal_t renewals[LAP_NN_CHUNKS]; /* delayed scaling: of each chunk */
    uint32_t next_fp8; /* of the slot being listed: matrices that had a scale before */

    uint32_t x, y, dy, dx, target;          /* the caller's; of a model: private, and no target */
    uint32_t tokens, ids;                   /* of a model: the caller's, and the copy of them */
    uint32_t stats, all_stats;              /* of its logits, here and of all ranks */
    uint32_t rope;                          /* [seq, head_dim]: cosines and sines */
    lap_nn_weight_t *embedding, *positions; /* NULL: none */
    uint32_t masters, grads;                /* of all parameters, as one array each */
    lap_nn_gathered_t
        gathered[LAP_NN_TYPES];      /* where ranks share masters; else the first are these */
    uint32_t sums, sums_r, sums_all; /* gradients of norms: here, own rows, of all */
    uint32_t scales;                 /* P floats: where gathers put those of what they gather */
    uint32_t fp8_scales, fp8_amax;   /* a slot and a float for each of the nfp8 */
    uint32_t fp8_history;            /* delayed scaling: the magnitudes of all ranks before */
    uint32_t renew, nrenew;          /* the entries that renew delayed scales: before forward */
    uint32_t scaled;                 /* the entry of LAP_NN_REFRESH after the scales of weights */
    uint32_t moments[2], rates;      /* of an optimizer; LAP_NN_NONE: no second moment */
    uint32_t own_regions, own_steps; /* without those of an optimizer */
    size_t bytes[LAP_NN_MEMORIES];   /* of each kind of memory; the caller's: 0 */
} lap_nn_list_t;

/*
 * Lists what `rank` does, of plan.nranks ranks, or of as many for each that shares sequences, or the
 * optimizer: those that share weights are neighbours. `kernels` of NULL: those of the device cpu. The caller clears the list,
 * also after a failure.
 */
lap_status_t lap_nn_list_init(lap_nn_list_t *list, const lap_nn_plan_t *plan, int rank,
                              const lap_kernels_t *kernels);
void lap_nn_list_clear(lap_nn_list_t *list);

/*
 * The bytes that layers take on a rank, with `state` bytes of the optimizer for each weight. Of many layers
 * no list is made: each of them needs as much as the third. LAP_ERR_NO_MEMORY: *bytes_p is what a matrix would take that no
 * memory has, or 0.
 */
lap_status_t lap_nn_list_bytes(const lap_nn_plan_t *plan, int rank, const lap_kernels_t *kernels,
                               double state, double *bytes_p);

/* Whether the gradient of a parameter is complete only when backward ends, whatever layer it is of. */
bool lap_nn_is_late(const lap_nn_list_t *list, const lap_nn_weight_t *weight);

/* The type in which ranks that share masters gather the weights of a parameter. */
lap_dtype_t lap_nn_gathered_type(const lap_nn_list_t *list, const lap_nn_weight_t *weight);

/* The weights that an optimizer here works on, with the zeros between: this rank's part of them. */
size_t lap_nn_optimized(const lap_nn_list_t *list);

/* The rows that a region has in a pass with `seq` active tokens of each sequence. */
size_t lap_nn_region_rows(const lap_nn_list_t *list, uint32_t region, size_t seq);

/* The region that a region is part of in the end, and where in it; the same where it is whole. */
uint32_t lap_nn_region_root(const lap_nn_list_t *list, uint32_t region, size_t *offset_p);

bool lap_nn_list_fp8(const lap_nn_list_t *list);

/* Whether it is that of a rank of a pipeline; and the chunk of the slot that is being listed. */
static inline bool lap_nn_list_is_stage(const lap_nn_list_t *list)
{
    return list->plan.cut.nchunks > 0;
}
lap_nn_chunk_t lap_nn_list_chunk(const lap_nn_list_t *list);

/* The micro-batches whose tokens and losses are there at once. */
static inline size_t lap_nn_micros(const lap_nn_list_t *list)
{
    return lap_nn_list_is_stage(list) ? list->plan.cut.micros : 1;
}

/* Whether it is that of a language model. */
static inline bool lap_nn_list_is_model(const lap_nn_list_t *list)
{
    return list->plan.desc.kind == LAP_NN_MODEL;
}

/* ---- what those who fill the list use ---- */

/* A new region; the rows of those of a pass are found by themselves. Returns its index. */
uint32_t lap_nn_add_region(lap_nn_list_t *list, const char *name, uint32_t block,
                           lap_nn_memory_t memory, lap_nn_extent_t extent, lap_dtype_t dtype,
                           size_t rows, size_t cols);

/* A matrix within a region, `offset` bytes into it. */
uint32_t lap_nn_add_part(lap_nn_list_t *list, const char *name, uint32_t part_of, size_t offset,
                         size_t rows, size_t cols, size_t stride);

/* A new entry that uses no region yet. Never NULL. */
lap_nn_entry_t *lap_nn_add_entry(lap_nn_list_t *list, lap_nn_work_t work, const char *name,
                                 uint32_t block);

/* A call of an operator that is described; NULL after a failure. */
lap_nn_entry_t *lap_nn_add_call(lap_nn_list_t *list, const char *name, uint32_t block,
                                lap_tp_gemm_t gemm, const lap_op_desc_t *desc);

/* A look at a matrix, and at a parameter and its copy: that of a large number may be none. */
void lap_nn_list_look(lap_nn_list_t *list, const char *name, uint32_t b, uint32_t region);
void lap_nn_list_look_weight(lap_nn_list_t *list, uint32_t b, const lap_nn_weight_t *weight);

/* ---- model.c: what language models have besides blocks ---- */

/* Their regions, in the place of the caller's matrices; and the angles of rotary positions. */
void lap_nn_list_model(lap_nn_list_t *list);
void lap_nn_list_rope(lap_nn_list_t *list);

/* From tokens to x, from logits to their gradients, from dx to the gradients of embeddings. */
void lap_nn_list_tokens(lap_nn_list_t *list);
void lap_nn_list_embedding(lap_nn_list_t *list);
void lap_nn_list_entropy(lap_nn_list_t *list);
void lap_nn_list_embedding_backward(lap_nn_list_t *list, uint32_t dx);

/* What attention reads for its masks: LAP_NN_NONE where nothing is dropped. */
static inline uint32_t lap_nn_attention_ids(const lap_nn_list_t *list)
{
    return list->plan.desc.attention_dropout > 0 ? list->ids : LAP_NN_NONE;
}

/* out = x times its mask, plus `skip` unless that is LAP_NN_NONE; rows are this rank's. */
void lap_nn_list_dropout(lap_nn_list_t *list, uint32_t b, uint32_t site, uint32_t x, uint32_t skip,
                         uint32_t out);

/* ---- fp8.c ---- */

/* The arrays of slots and magnitudes, which grow with each matrix. Nothing without FP8. */
void lap_nn_list_slots(lap_nn_list_t *list);

/* Lets a region be FP8 with a scale of its own, or with that of another region. */
void lap_nn_add_scale(lap_nn_list_t *list, uint32_t region);
void lap_nn_share_scale(lap_nn_list_t *list, uint32_t region, uint32_t other);

/* The matrix as an operand: itself without FP8, else its FP8 copy, which is made and scaled here. */
uint32_t lap_nn_list_cast(lap_nn_list_t *list, uint32_t b, uint32_t source, uint32_t copy);

/* Renews delayed scales: before forward, and once all matrices are known. */
void lap_nn_list_renew(lap_nn_list_t *list);
void lap_nn_list_renew_end(lap_nn_list_t *list);

/*
 * The matrices whose scales are delayed; 0: none. Of each a name that is the same on every grid, such as
 * "layer0.fc1.input", and where the magnitude of the `age`-th renewal before the latest is in fp8_history.
 */
size_t lap_nn_fp8_delayed(const lap_nn_list_t *list);
void lap_nn_fp8_name(const lap_nn_list_t *list, size_t i, char *text, size_t bytes);
size_t lap_nn_fp8_history(const lap_nn_list_t *list, size_t i, size_t age);

/* The copies of all weights. */
void lap_nn_list_refresh(lap_nn_list_t *list);

/* ---- step.c ---- */

/*
 * Adds the step of an optimizer to a list that is made and has none, or takes it out again, also after
 * a failure. What was in the list before keeps its place. `nranks` have parts of the norm: those that
 * share the layers and, of a pipeline, those of all its stages.
 */
lap_status_t lap_nn_list_step(lap_nn_list_t *list, const lap_optimizer_desc_t *desc, int nranks);
void lap_nn_list_drop_step(lap_nn_list_t *list);

/* The operator that gathers the sums of squares of so many ranks, without a buffer. */
lap_op_desc_t lap_nn_norm_desc(int nranks);

/*
 * When regions are in use; then the places of private memory by that, and of memory that lasts; and those of the
 * memory of an optimizer: list_memory.c.
 */
void lap_nn_find_lifetimes(lap_nn_list_t *list);
lap_status_t lap_nn_lay_out(lap_nn_list_t *list);
void lap_nn_lay_out_state(lap_nn_list_t *list);

/* ---- param.c ---- */

/* The parameters of all blocks and their regions. */
void lap_nn_list_params(lap_nn_list_t *list);

/* ---- block.c ---- */

/* The regions of a block but for those of its parameters; the blocks before have theirs. */
void lap_nn_list_block(lap_nn_list_t *list, uint32_t b);
void lap_nn_list_forward(lap_nn_list_t *list, uint32_t b);
/* Returns the region of dx, which block b - 1 takes as its dy. */
uint32_t lap_nn_list_backward(lap_nn_list_t *list, uint32_t b, uint32_t dy);

/* The gradient of a parameter is complete, but for the sum over backwards. */
void lap_nn_list_ready(lap_nn_list_t *list, lap_nn_weight_t *weight);

#endif
