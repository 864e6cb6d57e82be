/* SPDX-License-Identifier: Apache-2.0 */
/* The builders of each operator, and the choice among them. */
#ifndef LAP_OVERLAP_OVERLAP_H
#define LAP_OVERLAP_OVERLAP_H

#include <string.h>

#include "schedule/schedule.h"
#include "schedule/target.h"

/* The most that m, n, k and a stride may be: GEMM libraries count in int. */
#define LAP_SIZE_MOST INT32_MAX
#define LAP_BLOCKS_MOST 1024 /* of a shard, and splits of n: each is a few steps */
#define LAP_SMS_MOST 1024    /* of a GPU that there may be */

#define LAP_AUTO "auto" /* the method that chooses one: see auto.h */
static inline bool lap_op_is_automatic(const lap_op_desc_t *desc)
{
    return desc->method && strcmp(desc->method, LAP_AUTO) == 0;
}

/* The methods of each operator, serial first; each list ends with a name of NULL. */
extern const lap_builder_t lap_ag_gemm_builders[];
extern const lap_builder_t lap_gemm_rs_builders[];
extern const lap_builder_t lap_gemm_ar_builders[];
extern const lap_builder_t lap_gemm_builders[];
extern const lap_builder_t lap_bulk_ag_builders[];
extern const lap_builder_t lap_bulk_rs_builders[];
extern const lap_builder_t lap_external_ag_builders[];
extern const lap_builder_t lap_external_rs_builders[];

/* The names of the kinds, in their order; NULL at the end. */
extern const char *const lap_op_kind_names[];

/* The methods of a kind, and the one of that name; NULL: there is none, or no name. */
const lap_builder_t *lap_builders(lap_op_kind_t kind);
const lap_builder_t *lap_builder_find(lap_op_kind_t kind, const char *method);

/* The method of a kind that is a call of cuBLASMp, found by its name only; NULL: there is none. */
#define LAP_FOREIGN_METHOD "cublasmp"
const lap_builder_t *lap_foreign_builder(lap_op_kind_t kind);
/* LAP_ERR_UNSUPPORTED says what of a problem that method cannot do. */
lap_status_t lap_foreign_check(const lap_problem_t *problem);
/* The same of a call; `others`: another method does what it cannot do because of the rows. */
lap_status_t lap_foreign_check_args(const lap_problem_t *problem, bool others,
                                    const lap_op_args_t *args);

static inline bool lap_builder_is_foreign(const lap_builder_t *builder)
{
    return (builder->needs & LAP_CAN_FOREIGN) != 0;
}

/* Whether a transport that `can` can do the method; else a sentence that says what it lacks. */
lap_status_t lap_builder_suits(const lap_builder_t *builder, lap_op_kind_t kind, unsigned can);

/*
 * Checks a description for a group of `size` ranks and finds its builder; `can` is what the
 * transport can do.
 * Writes the problem with all defaults filled in (rank 0, m = capacity). LAP_ERR_INVALID or
 * LAP_ERR_UNSUPPORTED names the argument, its value, and what was expected; for a method, the
 * methods there are. For LAP_AUTO the builder is one that cannot build.
 */
lap_status_t lap_problem_init(lap_problem_t *problem, const lap_builder_t **builder_p,
                              const lap_op_desc_t *desc, int size, unsigned can);

/* Whether the GEMM of a kind, if it has one, is local, with no communication; and whether it moves an x. */
static inline bool lap_kind_is_local(lap_op_kind_t kind)
{
    return kind >= LAP_GEMM && kind <= LAP_BULK_RS;
}

static inline bool lap_kind_moves(lap_op_kind_t kind)
{
    return kind >= LAP_BULK_AG && kind <= LAP_EXTERNAL_RS;
}

/* Whether a kind has a GEMM at all; and whether it sums an x over the ranks. */
static inline bool lap_kind_multiplies(lap_op_kind_t kind)
{
    return kind < LAP_EXTERNAL_AG;
}

static inline bool lap_kind_sums_x(lap_op_kind_t kind)
{
    return kind == LAP_BULK_RS || kind == LAP_EXTERNAL_RS;
}

/* The stream of the `i`-th of several GEMMs that do not need each other. */
static inline uint16_t lap_lane(const lap_problem_t *problem, size_t i)
{
    return problem->lanes && i % 2 ? LAP_STREAM_LANE : LAP_STREAM_COMPUTE;
}

/* Of what has come, or is here: one rank has nothing to hide, and does not wait for what others receive. */
static inline uint16_t lap_receive_stream(const lap_problem_t *problem)
{
    return problem->size > 1 ? LAP_STREAM_RECEIVE : LAP_STREAM_COMPUTE;
}

/* Whether what travels is FP8: it has scales, which travel with it. */
static inline bool lap_is_scaled(const lap_problem_t *problem)
{
    return lap_dtype_is_fp8(problem->types.wire);
}

/* The active rows that `rank` holds, and the peer that is `step` places after this rank. */
static inline size_t lap_rows_of(const lap_problem_t *problem, int rank)
{
    return lap_shard(problem->m, problem->size, rank, NULL);
}

/* The n and k of the GEMM of `rank`. */
static inline size_t lap_share_of(const lap_problem_t *problem, size_t total, int rank)
{
    return problem->desc.shard_parts *
           lap_shard_features(total / problem->desc.shard_parts, problem->size, rank, NULL);
}

static inline size_t lap_n_of(const lap_problem_t *problem, int rank)
{
    return problem->desc.sharded == LAP_SHARDED_N ? lap_share_of(problem, problem->n, rank)
                                                  : problem->n;
}

static inline size_t lap_k_of(const lap_problem_t *problem, int rank)
{
    return problem->desc.sharded == LAP_SHARDED_K ? lap_share_of(problem, problem->k, rank)
                                                  : problem->k;
}

static inline int lap_peer_at(const lap_problem_t *problem, int step)
{
    return (problem->rank + step + problem->size) % problem->size;
}

/* Waits until `peer` lets this rank write into its memory; until it has read what it needs here. */
void lap_await_credit(const lap_problem_t *problem, lap_schedule_t *schedule, uint16_t stream,
                      int peer);
void lap_await_done(const lap_problem_t *problem, lap_schedule_t *schedule, uint16_t stream,
                    int peer);

/* The builder of all methods of operators with alltoall: see alltoall.c. */
void lap_build_alltoall(const lap_problem_t *problem, lap_schedule_t *schedule, bool serial);

/* Builds the schedule of one rank. The caller clears it, also after a failure. */
lap_status_t lap_build(const lap_builder_t *builder, const lap_problem_t *problem,
                       lap_schedule_t *schedule);

/* As lap_op_check, for a target that need not be there. */
lap_status_t lap_op_check_for(const lap_op_desc_t *descs, const size_t *rows, size_t ncalls,
                              int nranks, const lap_target_t *target);

/* The schedules of all ranks for some calls: that of rank r in call c is list[c * size + r]. */
typedef struct lap_all_ranks {
    lap_schedule_t *schedules;
    const lap_schedule_t **list;
    size_t size, count;
} lap_all_ranks_t;

/* Makes room for them; lap_all_ranks_clear gives it back, however many were built. */
lap_status_t lap_all_ranks_create(int size, size_t ncalls, lap_all_ranks_t *all_p);
/* Builds those of one call; the rank of the problem does not count. */
lap_status_t lap_all_ranks_build(lap_all_ranks_t *all, size_t call, const lap_builder_t *builder,
                                 const lap_problem_t *given);
void lap_all_ranks_clear(lap_all_ranks_t *all);

#endif
