/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules that say which overlap goes where in a transformer layer under tensor and sequence
 * parallelism: one for each of its twelve GEMMs, {qkv, proj, fc1, fc2} x {fprop, dgrad, wgrad}. qkv
 * and fc1 are column parallel, proj and fc2 are row parallel. The communication of each GEMM
 * follows from its name:
 *
 *   qkv, fc1   fprop   AG+GEMM    the input is gathered              ring_exchange
 *   proj, fc2  fprop   GEMM+RS    the output is reduced              pipeline; ring_exchange
 *   proj, fc2  dgrad   AG+GEMM    the output's gradient is gathered  ring_exchange
 *   qkv, fc1   dgrad   meanwhile the input is gathered again         bulk
 *              or      GEMM+RS    the input's gradient is reduced    ring_exchange; pipeline
 *   qkv, fc1   wgrad   meanwhile the input's gradient is reduced     bulk; nothing in the latter case
 *   proj, fc2  wgrad   nothing: dgrad has gathered what it needs     external
 *
 * The first method of each line is its default; serial and auto can take its place everywhere.
 * The rules can be read from the YAML files that NeMo and Megatron use for the same purpose.
 */
#ifndef LAP_TP_OVERLAP_H
#define LAP_TP_OVERLAP_H

#include <stddef.h>

#include <lap/export.h>
#include <lap/op.h>
#include <lap/status.h>

LAP_BEGIN_DECLS

/* The GEMMs of a layer. */
typedef enum lap_tp_gemm {
    LAP_QKV_FPROP = 0,
    LAP_QKV_DGRAD = 1,
    LAP_QKV_WGRAD = 2,
    LAP_PROJ_FPROP = 3,
    LAP_PROJ_DGRAD = 4,
    LAP_PROJ_WGRAD = 5,
    LAP_FC1_FPROP = 6,
    LAP_FC1_DGRAD = 7,
    LAP_FC1_WGRAD = 8,
    LAP_FC2_FPROP = 9,
    LAP_FC2_DGRAD = 10,
    LAP_FC2_WGRAD = 11,
} lap_tp_gemm_t;

/* How many GEMMs there are. */
#define LAP_TP_GEMMS 12

/* How the communication of a GEMM is overlapped. */
typedef enum lap_tp_method {
    LAP_TP_SERIAL = 0,        /* first one, then the other; "serial", "none" or null in a file */
    LAP_TP_RING_EXCHANGE = 1, /* shard by shard */
    LAP_TP_PIPELINE = 2,      /* by parts of the output's columns */
    LAP_TP_BULK = 3,          /* at the same time as a GEMM that does not need it */
    LAP_TP_EXTERNAL = 4,      /* the gather of dgrad serves wgrad too */
    LAP_TP_AUTO = 5,          /* measured and chosen when the operator is made */
} lap_tp_method_t;

/*
 * The rule of one GEMM. In parentheses: the default with the methods ring_exchange and auto; then
 * the default with all others, if it differs. P is the number of ranks.
 */
typedef struct lap_tp_rule {
    lap_tp_method_t method;
    int is_reduce_scatter; /* qkv, fc1 dgrad: whether they reduce; else by name */
    int num_sm;            /* (1; 16) SMs of a communication kernel, 1 to 1024 */
    int cga_size;          /* (1; 2) its thread-block clusters, 1 to 4 */
    int set_sm_margin;     /* (0; 1) the GEMM leaves these SMs free */
    int num_splits;        /* (P; 4) pipeline: parts of the columns, 1 to 1024 */
    int aggregate;         /* (0) ring_exchange of an AG: pairs of shards; P must be even */
    int atomic_gemm;       /* (0) one GEMM with signals for its blocks, in FP8 or not */
    int use_ce;            /* (1) copy engines copy, not kernels */
    int fp8_buf;           /* (1 when the GEMM gathers) FP8 is sent as FP8 */
    int comm_priority;     /* (-5) of streams, as CUDA counts: -5, the highest, to 0 */
    int gemm_priority;     /* (0) */
    int pipeline_rs_overlap_first_gemm; /* (0) */
    unsigned given; /* the fields that a file has named: bit n is the n-th after method */
} lap_tp_rule_t;

/* The rules of all GEMMs. */
typedef struct lap_tp_overlap {
    size_t size;                       /* sizeof(lap_tp_overlap_t), set by lap_tp_overlap_init */
    int tp;                            /* ranks of a tensor-parallel group */
    lap_tp_rule_t rules[LAP_TP_GEMMS]; /* by lap_tp_gemm_t */
} lap_tp_overlap_t;

/* The switches of a layer. */
typedef struct lap_tp_switches {
    size_t size;          /* sizeof(lap_tp_switches_t), set by LAP_TP_SWITCHES_INIT */
    int overlap;          /* the master switch: 0 makes all rules serial */
    int overlap_ag;       /* 0: the AG+GEMMs are serial */
    int overlap_rs;       /* 0: the GEMM+RSs are serial */
    int overlap_rs_dgrad; /* 1: dgrads of qkv and fc1 that are bulk become GEMM+RS, pipelined */
    int bulk_dgrad;       /* 0: gathers during dgrad are serial */
    int bulk_wgrad;       /* 0: reductions during wgrad are serial */
    int automatic;        /* 1: rules that are not serial after that become auto */
} lap_tp_switches_t;

/* The switches of a layer that has all overlap. */
#define LAP_TP_SWITCHES_INIT                                                                       \
    {                                                                                              \
        sizeof(lap_tp_switches_t), 1, 1, 1, 0, 1, 1, 0                                             \
    }

/* The name of a GEMM, such as "qkv_fprop", and of a method. Local. Never NULL. */
LAP_API const char *lap_tp_gemm_name(lap_tp_gemm_t gemm);
LAP_API const char *lap_tp_method_name(lap_tp_method_t method);

/*
 * The default rules for groups of `tp` ranks. Local. Writes *overlap_p on success.
 * Returns LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_tp_overlap_init(int tp, lap_tp_overlap_t *overlap_p);

/*
 * Reads rules from a YAML file: a mapping from names of GEMMs to mappings of the fields above.
 * GEMMs and fields that the file does not name have their defaults; null for a GEMM makes it
 * serial. The wgrad of a dgrad that reduces communicates nothing, and must not be named with a
 * method. Fields, and values of fields, may have anchors and be aliases of others, and `<<` merges
 * fields into others.
 * Local. Writes *overlap_p on success.
 * Returns LAP_ERR_INVALID with file, line and, for an unknown name, the nearest one;
 * LAP_ERR_SYSTEM (the file cannot be read), LAP_ERR_UNSUPPORTED (a build without libyaml),
 * LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_tp_overlap_load(const char *path, int tp, lap_tp_overlap_t *overlap_p);

/*
 * The same from `bytes` bytes of text; `name` takes the place of the path in sentences.
 * Local. Writes *overlap_p on success. Returns as lap_tp_overlap_load.
 */
LAP_API lap_status_t lap_tp_overlap_parse(const char *name, const char *text, size_t bytes, int tp,
                                          lap_tp_overlap_t *overlap_p);

/*
 * Turns switches on rules that were made or loaded. Local. Changes *overlap on success.
 * Returns LAP_ERR_INVALID, LAP_ERR_UNSUPPORTED (a switch of a newer version).
 */
LAP_API lap_status_t lap_tp_overlap_switch(lap_tp_overlap_t *overlap,
                                           const lap_tp_switches_t *switches);

/*
 * Fills the kind, layout, method, aggregate and num_splits of the operator that the rule of a GEMM
 * asks for; no more splits than desc->n, if that is known. Local. Changes *desc on success.
 * Returns LAP_ERR_INVALID for a rule that makes no sense: with its name, its value and what was
 * expected.
 */
LAP_API lap_status_t lap_tp_overlap_describe(const lap_tp_overlap_t *overlap, lap_tp_gemm_t gemm,
                                             lap_op_desc_t *desc);

/*
 * Lists the fields named in a file that have no effect on a device with these methods, as in
 * "num_sm, cga_size". Local. Writes at most `bytes` bytes to `text`, with their end; returns the
 * number of fields.
 */
LAP_API size_t lap_tp_overlap_unused(const lap_tp_overlap_t *overlap, const char *device,
                                     char *text, size_t bytes);

LAP_END_DECLS

#endif
