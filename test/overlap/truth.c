/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the results of a call should be: see data.h. Plain loops in double precision over the
 * elements as op.h describes them, independent of the library's own, but for the conversion of
 * single elements, which has tests of its own.
 *
 * With every number goes a bound for how far from it a right result may be, in units of u = 2^-24:
 * a sum of k products in fp32, in any order, is off by at most k u (the sum of their sizes), and
 * every operation or rounding after it by what it adds itself; 1.01 covers the terms of higher
 * order for any k that a test uses.
 */
#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define U 0x1p-24

/* A number on its way to a result. */
typedef struct number {
    double value; /* without any rounding */
    double error; /* how far from it a right result may be */
    float exact;  /* the only right result with exact data, after the roundings that there are */
} number_t;

static double size_of(const number_t *x)
{
    return fabs(x->value) + x->error;
}

/* What storing a number of this size in a type can add to its error. */
static double rounding(lap_dtype_t dtype, double size)
{
    if (size == 0)
        return 0;
    return dtype == LAP_FLOAT32 ? U * size : tap_half_unit(dtype, size);
}

/* x is stored as a multiple of a scale. */
static void store(number_t *x, lap_dtype_t dtype, float scale)
{
    if (scale != 1)
        x->error += U * size_of(x); /* of the division */
    x->error += (double)scale * rounding(dtype, size_of(x) / (double)scale);
    x->exact = tap_rounded(dtype, x->exact / scale) * scale;
}

/* What reads it multiplies it by the scale again. */
static void load(number_t *x, float scale)
{
    if (scale != 1)
        x->error += U * size_of(x);
}

static void add(number_t *x, const number_t *y)
{
    x->value += y->value;
    x->error += y->error;
    x->error += U * size_of(x);
    x->exact += y->exact;
}

/* ---- products ---- */

/*
 * Room for the elements of a [m, k] and b [n, k], or what LAP_WGRAD has there: a result needs each
 * of them many times.
 */
static void operands_init(test_call_t *call)
{
    const lap_op_desc_t *desc = &call->desc;
    const bool wgrad = desc->layout == LAP_WGRAD;
    const size_t counts[2] = {call->m * (wgrad ? desc->n : desc->k),
                              (wgrad ? call->m : desc->n) * desc->k};
    for (int i = 0; i < 2; i++) {
        call->operands[i] = malloc((counts[i] + 1) * sizeof(double));
        for (size_t j = 0; call->operands[i] && j < counts[i]; j++)
            call->operands[i][j] = NAN;
    }
}

static void operands_clear(test_call_t *call)
{
    for (int i = 0; i < 2; i++)
        free(call->operands[i]);
}

static double operand(const test_call_t *call, test_matrix_t matrix, int owner, size_t row,
                      size_t col, size_t cols)
{
    double *known = call->operands[matrix] ? &call->operands[matrix][row * cols + col] : NULL;
    if (known && !isnan(*known))
        return *known;
    const double value = (double)test_element(call, matrix, owner, row, col);
    if (known)
        *known = value;
    return value;
}

static double product(const test_call_t *call, size_t row, size_t col, size_t at)
{
    const size_t n = call->desc.n, k = call->desc.k;
    const int owner = test_is_local(call->desc.kind) ? call->rank : 0;
    if (call->desc.layout == LAP_WGRAD)
        return operand(call, TEST_MATRIX_A, owner, at, row, n) *
               operand(call, TEST_MATRIX_B, owner, at, col, k);
    return operand(call, TEST_MATRIX_A, owner, row, at, k) *
           operand(call, TEST_MATRIX_B, owner, col, at, k);
}

/* The products [begin, begin + count) of an element, scaled: by alpha, a's and b's scale. */
static number_t part_of(const test_call_t *call, size_t row, size_t col, size_t begin, size_t count,
                        float a_scale, float b_scale)
{
    const double scale = (double)call->args.alpha * (double)a_scale * (double)b_scale;
    double sum = 0, size = 0, least = 0, most = 0;
    for (size_t at = begin; at < begin + count; at++) {
        const double one = product(call, row, col, at);
        sum += one;
        size += fabs(one);
        least = fmin(least, sum);
        most = fmax(most, sum);
    }
    double error = 1.01 * (double)(count + 4) * U * size;
    /* Of any number of tokens, wgrad makes a multiple of 16 with zeros. */
    const size_t depth = call->desc.layout == LAP_WGRAD ? (count + 15) / 16 * 16 : count;
    if (call->device && lap_dtype_is_fp8(test_types(&call->desc).a))
        error += tap_fp8_loss(depth, most - least);
    return (number_t){scale * sum, error * fabs(scale), (float)(scale * sum)};
}

static int owner_of_row(const test_call_t *call, size_t row)
{
    int rank = 0;
    for (size_t begin; row >= (lap_shard(call->m, call->size, rank, &begin) + begin);)
        rank++;
    return rank;
}

/* The sum over ranks of parts that have travelled, if there is more than one rank. */
static number_t sum_of_parts(const test_call_t *call, size_t row, size_t col)
{
    const test_types_t types = test_types(&call->desc);
    number_t sum = {0, 0, 0};
    for (int r = 0; r < call->size; r++) {
        size_t begin, count = lap_shard_features(call->desc.k, call->size, r, &begin);
        number_t one =
            part_of(call, row, col, begin, count, test_a_scale(call, r), test_b_scale(call, r));
        if (call->size == 1)
            return one;
        store(&one, types.wire, test_wire_scale(call, r));
        load(&one, test_wire_scale(call, r));
        add(&sum, &one);
    }
    if (call->desc.kind == LAP_GEMM_AR)
        store(&sum, types.out, 1);
    return sum;
}

/* x, before the epilogue; (row, col) of this rank's d. */
static number_t sum_of(const test_call_t *call, size_t row, size_t col)
{
    const lap_op_desc_t *desc = &call->desc;
    size_t first;
    switch (desc->kind) {
    case LAP_AG_GEMM:
        lap_shard_features(desc->n, call->size, call->rank, &first);
        return part_of(call, row, first + col, 0, desc->k,
                       test_a_scale(call, owner_of_row(call, row)), test_b_scale(call, call->rank));
    case LAP_GEMM_RS:
        lap_shard(call->m, call->size, call->rank, &first);
        return sum_of_parts(call, first + row, col);
    case LAP_GEMM_AR:
        return sum_of_parts(call, row, col);
    default:
        return part_of(call, row, col, 0, desc->layout == LAP_WGRAD ? call->m : desc->k,
                       test_a_scale(call, call->rank), test_b_scale(call, call->rank));
    }
}

/* ---- the epilogue ---- */

#define SLOPE 0.79788456080286535588 /* sqrt(2/pi) */
#define CUBIC 0.044715

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(SLOPE * (x + CUBIC * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(SLOPE * (x + CUBIC * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SLOPE * (1 + 3 * CUBIC * x * x);
}

/* The slope of GELU is nowhere above 1.13; devices may be off by 8 u of it and 4 u. */
static void apply_gelu(number_t *x)
{
    x->value = gelu(x->value);
    x->error = 1.13 * x->error + (8 * fabs(x->value) + 4) * U;
}

/* aux is given: only the error of x counts, and 13 u that devices may be off in the slope. */
static void apply_gelu_slope(number_t *x, double aux)
{
    const double slope = gelu_slope(aux);
    x->error = fabs(slope) * x->error + (13 + fabs(slope)) * U * size_of(x);
    x->value *= slope;
}

/* A library may add beta d before the products, and round after each of them. */
static void accumulate(const test_call_t *call, number_t *x, size_t row, size_t col)
{
    const float before =
        test_element(call, TEST_MATRIX_BEFORE, test_owner(call), row, col) * call->args.d_scale;
    const double more = (double)call->args.beta * (double)before;
    const size_t depth = call->desc.layout == LAP_WGRAD ? call->m : call->desc.k;
    const number_t term = {more, 1.01 * (double)(depth + 4) * U * fabs(more), (float)more};
    if (call->args.beta != 0)
        add(x, &term);
}

/* What becomes d, or aux. */
static number_t finish(const test_call_t *call, bool aux, size_t row, size_t col)
{
    const lap_epilogue_t epilogue = call->desc.epilogue;
    number_t x = sum_of(call, row, col);
    accumulate(call, &x, row, col);
    if (epilogue & LAP_EPILOGUE_BIAS) {
        const float bias = test_element(call, TEST_MATRIX_BIAS, test_owner(call), 0, col);
        const number_t term = {(double)bias, 0, bias};
        add(&x, &term);
    }
    if (aux)
        return x;
    if (epilogue & LAP_EPILOGUE_GELU)
        apply_gelu(&x);
    if (epilogue & LAP_EPILOGUE_DGELU)
        apply_gelu_slope(&x,
                         (double)test_element(call, TEST_MATRIX_AUX, test_owner(call), row, col));
    return x;
}

/*
 * The sum of a column of d, as it was returned, or of a. It is rounded only once: in double
 * precision its own error does not count.
 */
static number_t column_sum(const test_call_t *call, size_t col)
{
    const bool wgrad = call->desc.layout == LAP_WGRAD;
    const lap_tensor_t *of = wgrad ? &call->args.a : &call->args.d;
    double sum = 0, size = 0;
    for (size_t i = 0; i < of->rows; i++) {
        sum += (double)test_get(of, i, col);
        size += fabs((double)test_get(of, i, col));
    }
    const double scale = (double)(wgrad ? test_a_scale(call, call->rank) : call->args.d_scale);
    return (number_t){sum * scale, 0x1p-50 * size * scale, (float)(sum * scale)};
}

/* An element of the sum of x over ranks. */
static number_t sum_of_moved(const test_call_t *call, size_t row, size_t col)
{
    number_t sum = {0, 0, 0};
    size_t first;
    lap_shard(call->m, call->size, call->rank, &first);
    for (int r = 0; r < call->size; r++) {
        const float scale = test_wire_scale(call, r);
        const float x = test_element(call, TEST_MATRIX_X, r, first + row, col);
        number_t one = {(double)x * (double)scale, 0, x * scale};
        load(&one, scale);
        add(&sum, &one);
    }
    return sum;
}

/* ---- comparing ---- */

/* A result of a call, NULL when it has none such. */
static const lap_tensor_t *result_of(const test_call_t *call, test_result_t which)
{
    const lap_op_args_t *args = &call->args;
    const lap_tensor_t *const results[TEST_RESULTS] = {&args->d, &args->aux, &args->bias_grad,
                                                       &args->y};
    bool there = results[which]->data;
    if (which == TEST_AUX)
        there = there && call->desc.epilogue & LAP_EPILOGUE_GELU;
    if (which == TEST_Y)
        there = there && test_sums_x(call->desc.kind);
    return there ? results[which] : NULL;
}

static float scale_of(const test_call_t *call, test_result_t which)
{
    return which == TEST_D ? call->args.d_scale : 1;
}

static number_t truth_of(const test_call_t *call, test_result_t which, size_t row, size_t col)
{
    number_t truth = which == TEST_GRAD ? column_sum(call, col)
                     : which == TEST_Y  ? sum_of_moved(call, row, col)
                                        : finish(call, which == TEST_AUX, row, col);
    store(&truth, result_of(call, which)->dtype, scale_of(call, which));
    return truth;
}

/* GELU and its derivative are exact for nobody, and so are the sums of what they give. */
static bool is_exact(const test_call_t *call, test_result_t which)
{
    const bool curved = call->desc.epilogue & (LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU);
    return call->exact && !(curved && (which == TEST_D || which == TEST_GRAD));
}

static double error_at(const test_call_t *call, test_result_t which, size_t row, size_t col)
{
    static const char *const names[TEST_RESULTS] = {"d", "aux", "bias_grad", "y"};
    const number_t truth = truth_of(call, which, row, col);
    const float got = test_get(result_of(call, which), row, col) * scale_of(call, which);
    const bool exact = is_exact(call, which);
    const double error = fabs((double)got - truth.value);
    const double part = exact        ? (got == truth.exact ? 0 : INFINITY)
                        : error == 0 ? 0
                        : isnan(got) ? INFINITY
                                     : error / truth.error;
    tap_wrong(part > 1, "rank %d: %s[%zu, %zu] is %.9g, expected %.9g, %g away at most", call->rank,
              names[which], row, col, (double)got, exact ? (double)truth.exact : truth.value,
              exact ? 0 : truth.error);
    return part;
}

static bool padding_untouched(const lap_tensor_t *tensor)
{
    const size_t element = lap_dtype_size(tensor->dtype);
    const unsigned char *bytes = tensor->data;
    for (size_t i = 0; i < tensor->rows; i++)
        for (size_t j = tensor->cols * element; j < tensor->stride * element; j++)
            if (tap_wrong(bytes[i * tensor->stride * element + j] != 0xff,
                          "byte %zu of row %zu, behind its %zu columns, was written", j, i,
                          tensor->cols))
                return false;
    return true;
}

/* Gathered matrices are what was sent, and their scales those of who sent them. */
static bool gathered_right(const test_call_t *call)
{
    const bool ag = call->desc.kind == LAP_AG_GEMM;
    const lap_tensor_t *gathered = ag ? &call->args.gathered : &call->args.y;
    if (!gathered->data || test_sums_x(call->desc.kind))
        return true;
    for (size_t i = 0; i < gathered->rows; i++)
        for (size_t j = 0; j < gathered->cols; j++)
            if (tap_wrong(test_get(gathered, i, j) !=
                              test_element(call, ag ? TEST_MATRIX_A : TEST_MATRIX_X, 0, i, j),
                          "rank %d: [%zu, %zu] of what was gathered is %.9g, expected %.9g",
                          call->rank, i, j, (double)test_get(gathered, i, j),
                          (double)test_element(call, ag ? TEST_MATRIX_A : TEST_MATRIX_X, 0, i, j)))
                return false;
    for (int r = 0; r < call->size && lap_dtype_is_fp8(gathered->dtype); r++) {
        const bool empty = lap_shard(call->m, call->size, r, NULL) == 0;
        const float scale = ag ? test_a_scale(call, r) : test_wire_scale(call, r);
        if (tap_wrong(empty ? !isnan(call->args.scales[r]) : call->args.scales[r] != scale,
                      "rank %d: the scale of rank %d is %.9g, expected %.9g", call->rank, r,
                      (double)call->args.scales[r], empty ? (double)NAN : (double)scale))
            return false;
    }
    return padding_untouched(gathered);
}

double test_result_error(const test_call_t *call, test_result_t which)
{
    const lap_tensor_t *result = result_of(call, which);
    double worst = 0;
    if (!result)
        return 0;
    if (!padding_untouched(result))
        return INFINITY;
    test_call_t looked_up = *call;
    if (which == TEST_D || which == TEST_AUX)
        operands_init(&looked_up);
    for (size_t i = 0; i < result->rows; i++)
        for (size_t j = 0; j < result->cols; j++)
            worst = fmax(worst, error_at(&looked_up, which, i, j));
    operands_clear(&looked_up);
    return worst;
}

double test_call_error(const test_call_t *call)
{
    double worst = gathered_right(call) ? 0 : INFINITY;
    for (int which = 0; which < TEST_RESULTS; which++)
        worst = fmax(worst, test_result_error(call, (test_result_t)which));
    return worst;
}

bool test_call_spoil(test_call_t *call, test_result_t which)
{
    const lap_tensor_t *result = result_of(call, which);
    if (!result || !result->rows || !result->cols)
        return false;
    const size_t i = result->rows / 2, j = result->cols / 2;
    const number_t truth = truth_of(call, which, i, j);
    const double scale = (double)scale_of(call, which);
    /*
     * Half a unit more, so that it is still beyond when it has been rounded; and towards zero, where
     * nothing saturates.
     */
    const double way = truth.value > 0 ? -1 : 1;
    const double least = (truth.value + way * 1.001 * truth.error) / scale;
    double beyond = least + way * 1.001 * rounding(result->dtype, fabs(least));
    if (beyond == 0) /* what has to be 0 is far off with any number that the type has */
        beyond = way;
    test_set(result, i, j, nextafterf((float)beyond, (float)way * INFINITY));
    return true;
}
