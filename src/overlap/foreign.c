/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods that are calls of another library: a schedule of one step, in which nobody can look. They are
 * in none of the lists of methods, so that "auto" does not take them and `lap check` does not prove
 * them; who wants one names it.
 */
#include <string.h>

#include "core/status.h"
#include "overlap/overlap.h"

static void build(const lap_problem_t *problem, lap_schedule_t *schedule)
{
    (void)problem;
    lap_add_kernel(schedule, LAP_STREAM_COMPUTE, LAP_FOREIGN_METHOD);
}

static const lap_builder_t cublasmp = {LAP_FOREIGN_METHOD,
                                       "one call of cuBLASMp, which overlaps in its own way",
                                       LAP_CAN_FOREIGN, LAP_KNOB_ALGORITHM, build};

const lap_builder_t *lap_foreign_builder(lap_op_kind_t kind)
{
    return kind == LAP_AG_GEMM || kind == LAP_GEMM_RS || kind == LAP_GEMM_AR ? &cublasmp : NULL;
}

static lap_status_t refuse(const char *what, const char *expected)
{
    return lap_error(LAP_ERR_UNSUPPORTED, "method '%s' cannot %s: expected %s", LAP_FOREIGN_METHOD,
                     what, expected);
}

static lap_status_t check_share(const char *name, size_t value, int ranks)
{
    if (value % (size_t)ranks == 0)
        return LAP_OK;
    return lap_error(LAP_ERR_UNSUPPORTED,
                     "method '%s' cannot share %s = %zu among %d ranks: expected a multiple of "
                     "them",
                     LAP_FOREIGN_METHOD, name, value, ranks);
}

lap_status_t lap_foreign_check(const lap_problem_t *p)
{
    const lap_types_t *t = &p->types;
    const bool ag = p->kind == LAP_AG_GEMM;
    if (p->layout != LAP_FORWARD)
        return refuse("do the layouts of a backward pass", "forward");
    if (p->epilogue != LAP_EPILOGUE_NONE)
        return refuse("do the epilogues of this library", "none");
    if (p->desc.accumulate)
        return refuse("add to d", "accumulate = 0");
    if (p->desc.background)
        return refuse("run in the background", "background = 0");
    if (p->desc.shard_parts > 1)
        return refuse("share a weight of several parts", "shard_parts = 1");
    if (lap_dtype_is_fp8(t->a) || t->b != t->a || t->out != t->a || (!ag && t->wire != t->a))
        return refuse("mix types, nor do FP8", "a, b, d and the wire of one type");
    LAP_TRY(check_share("m", p->capacity, p->size));
    return check_share(ag ? "n" : "k", ag ? p->n : p->k, p->size);
}
