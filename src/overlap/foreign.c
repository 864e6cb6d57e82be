/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods that are calls of another library: a schedule of one step, in which nobody can look. They are
 * in none of the lists of methods, so that "auto" does not take them and `lap check` does not prove
 * them; who wants one names it.
 */
#include <string.h>

#include "core/status.h"
#include "overlap/overlap.h"
#include "transport/transport.h"

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

/* Types of A, B and D, as its documentation lists them. */
static lap_status_t check_types(const lap_problem_t *p)
{
    const lap_types_t *t = &p->types;
    const bool fp8 = lap_dtype_is_fp8(t->a) && lap_dtype_is_fp8(t->b);
    if (fp8 && p->kind == LAP_AG_GEMM)
        return refuse("gather FP8, whose shards have a scale each", "an a of 16 or 32 bits");
    if (fp8 && t->a == LAP_FLOAT8_E5M2 && t->b == LAP_FLOAT8_E5M2)
        return refuse("multiply float8_e5m2 by itself", "a or b of float8_e4m3");
    if (t->a != t->b && !fp8)
        return refuse("multiply matrices of two types", "a and b of one type, or both of FP8");
    if (lap_dtype_is_fp8(t->out) || (!fp8 && t->out != t->a && t->out != LAP_FLOAT32))
        return refuse("write d in that type", "out_dtype as a, or float32");
    if (p->kind != LAP_AG_GEMM && t->wire != t->out && t->wire != LAP_FLOAT32)
        return refuse("send sums in that type", "wire_dtype as d, or float32");
    return LAP_OK;
}

lap_status_t lap_foreign_check(const lap_problem_t *p)
{
    const bool ag = p->kind == LAP_AG_GEMM;
    const unsigned has = ag ? LAP_EPILOGUE_BIAS | LAP_EPILOGUE_GELU : LAP_EPILOGUE_BIAS;
    if (p->layout != LAP_FORWARD)
        return refuse("do the layouts of a backward pass", "forward");
    if (p->epilogue & ~has)
        return refuse("do this epilogue", ag ? "none, BIAS or GELU" : "none or BIAS");
    if (p->desc.accumulate)
        return refuse("add to d", "accumulate = 0");
    if (p->desc.buffer && lap_buffer_is_paced(p->desc.buffer))
        return refuse("be slowed down by an emulated link", "a buffer without one");
    if (p->desc.background)
        return refuse("run in the background", "background = 0");
    if (p->desc.shard_parts > 1)
        return refuse("share a weight of several parts", "shard_parts = 1");
    LAP_TRY(check_types(p));
    LAP_TRY(check_share("m", p->capacity, p->size));
    return check_share(ag ? "n" : "k", ag ? p->n : p->k, p->size);
}

static bool is_packed(const lap_tensor_t *tensor)
{
    return !tensor->data || tensor->stride == tensor->cols || tensor->rows == 1;
}

lap_status_t lap_foreign_check_args(const lap_problem_t *p, bool others, const lap_op_args_t *args)
{
    const bool aux = (p->epilogue & LAP_EPILOGUE_GELU) && args->aux.data;
    if (args->m != p->capacity && others)
        return LAP_OK;
    if (args->m != p->capacity)
        return lap_error(LAP_ERR_UNSUPPORTED,
                         "method '%s' cannot do fewer rows: m = %zu, expected %zu",
                         LAP_FOREIGN_METHOD, args->m, p->capacity);
    if (!is_packed(&args->a) || !is_packed(&args->b) || !is_packed(&args->d) ||
        (aux && !is_packed(&args->aux)))
        return refuse("skip memory between rows", "packed matrices");
    if (((p->epilogue & LAP_EPILOGUE_BIAS) && args->bias.dtype != p->types.out) ||
        (aux && args->aux.dtype != p->types.out))
        return refuse("take a bias or an aux of that type", "the type of d");
    return LAP_OK;
}
