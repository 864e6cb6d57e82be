/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions on every device: sums of matrices of all types into all, finished as those of GEMMs
 * are, and sums of columns. finish.c has the GEMMs.
 */
#include "finished.h"

#define SOURCES 6

/* The sum as it is promised: products in fp32, then sums in fp32 in the order of sources. */
static float sum_of(const matrix_t *srcs, size_t nsrc, const float *scales, size_t i, size_t j)
{
    float sum = 0;
    for (size_t s = 0; s < nsrc; s++) {
        const float x = srcs[s].values[i * srcs[s].stride + j];
        const float term = scales ? x * scales[s] : x;
        sum = s == 0 ? term : sum + term;
    }
    return sum;
}

/* Whether the same sum comes to the last source as to a matrix of its own. */
static bool sums_in_place(const lap_reduce_t *apart, matrix_t *last, const matrix_t *expected)
{
    lap_reduce_t reduce = *apart;
    reduce.dst = last->data;
    reduce.dst_stride = stride_of(last);
    ops->reduce(stream, &reduce);
    bool same = ops->stream_synchronize(stream) == LAP_OK && gaps_kept(last);
    for (size_t i = 0; i < reduce.rows; i++)
        for (size_t j = 0; j < reduce.cols; j++)
            same = same && got(last, i, j) == got(expected, i, j);
    return same;
}

static void try_reduce(uint64_t seed, lap_dtype_t from, lap_dtype_t to, const variant_t *v,
                       size_t rows, size_t cols)
{
    static const float factors[SOURCES] = {0.7f, 1.9f, 1.3f, -0.6f, 1.1f, 0.4f};
    float *scales = new_shared(device, sizeof(factors));
    memcpy(scales, factors, sizeof(factors));
    const float *scale_ps[SOURCES];
    matrix_t srcs[SOURCES];
    const void *sources[SOURCES];
    size_t strides[SOURCES];
    const size_t nsrc = 1 + seed % SOURCES;
    for (size_t s = 0; s < SOURCES; s++) {
        srcs[s] = new_matrix(seed * 11 + s, from, rows, cols);
        sources[s] = srcs[s].data;
        strides[s] = stride_of(&srcs[s]);
        scale_ps[s] = &scales[s];
    }
    results_t r = new_results(seed * 11 + 5, to, v, rows, cols);
    const bool scaled = seed / 3 % 2, plain = v->epilogue == 0 && v->beta == 0;
    const lap_reduce_t reduce = {.from = from,
                                 .to = to,
                                 .dst = r.d.data,
                                 .dst_stride = stride_of(&r.d),
                                 .srcs = sources,
                                 .src_strides = strides,
                                 .scales = scaled ? scale_ps : NULL,
                                 .nsrc = nsrc,
                                 .rows = rows,
                                 .cols = cols,
                                 .finish = plain ? NULL : &r.finish,
                                 .aux = v->aux ? r.aux.data : NULL};
    ops->reduce(stream, &reduce);
    const lap_status_t status = ops->stream_synchronize(stream);
    score_t score = {0, 0};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            truth_t aux;
            const float sum = sum_of(srcs, nsrc, scaled ? scales : NULL, i, j);
            const truth_t d = finished(&r, (truth_t){.x = (double)sum}, i, j, &aux);
            if (plain)
                score.worst = fmax(score.worst, got(&r.d, i, j) == tap_rounded(to, sum) ? 0 : 2);
            else
                compare(&score, d, got(&r.d, i, j));
            if (v->aux && v->epilogue & LAP_EPILOGUE_GELU)
                compare(&score, aux, got(&r.aux, i, j));
        }
    if (plain && from == to && !sums_in_place(&reduce, &srcs[nsrc - 1], &r.d))
        score.worst = 2;
    if (status != LAP_OK || score.worst > 1 || !gaps_kept(&r.d) || !gaps_kept(&r.aux))
        tap_ok(false, "%s: a sum of %zu %s into %s, epilogue %u, beta %g: %g", ops->name, nsrc,
               lap_dtype_name(from), lap_dtype_name(to), v->epilogue, (double)v->beta, score.worst);
    total.worst = fmax(total.worst, score.worst);
    total.loosest = fmax(total.loosest, score.loosest);
    for (size_t s = 0; s < SOURCES; s++)
        free_matrix(&srcs[s]);
    free_shared(device, scales);
    free_results(&r);
}

static void test_reduce(void)
{
    uint64_t seed = 0;
    for (lap_dtype_t from = LAP_FLOAT32; from < TYPES; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to < TYPES; to++)
            for (size_t v = 0; v < VARIANTS; v++, seed++)
                try_reduce(seed, from, to, &variants[v], 1 + seed % 4,
                           seed % 7 ? 1 + tap_random(4, seed) % 20
                                    : 250 + tap_random(4, seed) % 20);
    report("reductions of all types into all, with scales and epilogues", 1e-5);
}

/*
 * Rows that a device may take in larger pieces. By the seed, bias and aux have all types; 6 and 15
 * give them the type of the result, with 1 source and 4.
 */
static void test_aligned_reduce(void)
{
    uint64_t seed = 0;
    aligned = true;
    for (lap_dtype_t from = LAP_FLOAT32; from <= LAP_BFLOAT16; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to <= LAP_BFLOAT16; to++)
            for (size_t v = 0; v < VARIANTS; v++)
                for (size_t i = 0; i < 9; i++, seed++)
                    try_reduce(seed, from, to, &variants[v], 1 + tap_random(5, seed) % 9,
                               8 * (1 + tap_random(6, seed) % 12));
    for (size_t v = 2; v < VARIANTS; v++)
        try_reduce(v % 2 ? 6 : 15, v % 3 ? LAP_FLOAT32 : LAP_BFLOAT16, LAP_BFLOAT16, &variants[v],
                   70, 1048);
    try_reduce(6, LAP_FLOAT32, LAP_BFLOAT16, &variants[10], 1601, 1048);
    try_reduce(15, LAP_BFLOAT16, LAP_BFLOAT16, &variants[3], 1601, 1048);
    aligned = false;
    report("reductions of sizes that are multiples of 8", 1e-5);
}

/* Returns how many are wrong. */
static size_t try_sums(lap_dtype_t from, lap_dtype_t to, size_t rows, size_t cols)
{
    matrix_t x = new_matrix(from * 7 + to, from, rows, cols);
    matrix_t sum = new_matrix(100, to, 1, cols);
    const lap_column_sums_t sums = {.from = from,
                                    .to = to,
                                    .src = x.data,
                                    .src_stride = stride_of(&x),
                                    .rows = rows,
                                    .cols = cols,
                                    .scale = 1.9f,
                                    .dst = sum.data};
    ops->column_sums(stream, &sums);
    size_t wrong = ops->stream_synchronize(stream) != LAP_OK || !gaps_kept(&sum);
    for (size_t j = 0; j < cols; j++) {
        double exactly = 0;
        for (size_t i = 0; i < rows; i++)
            exactly += value(&x, i, j);
        exactly *= (double)1.9f;
        const float want =
            to == LAP_FLOAT32 ? (float)exactly : tap_rounded(to, lap_round_to_odd(exactly));
        wrong += tap_wrong(got(&sum, 0, j) != want,
                           "%zu rows of %s to %s: column %zu is %.9g, expected %.9g", rows,
                           lap_dtype_name(from), lap_dtype_name(to), j, (double)got(&sum, 0, j),
                           (double)want);
    }
    free_matrix(&x);
    free_matrix(&sum);
    return wrong;
}

/*
 * A sum of 300 rows in float would lose what the bits of double keep; one of sums rounded to the
 * type on the way, much more.
 */
static void test_column_sums(void)
{
    size_t wrong = 0;
    for (lap_dtype_t from = LAP_FLOAT32; from < TYPES; from++)
        for (lap_dtype_t to = LAP_FLOAT32; to < TYPES; to++) {
            const size_t few = (size_t)(from + to) % 4;
            wrong += try_sums(from, to, from == to ? 300 : few, 259);
            aligned = true;
            wrong += try_sums(from, to, from == to ? 1300 : few, 264);
            aligned = false;
        }
    aligned = true;
    wrong += try_sums(LAP_BFLOAT16, LAP_FLOAT32, 300, 17000); /* wide, and in larger pieces too */
    aligned = false;
    tap_ok(wrong == 0, "%s: sums of rows are taken in double and rounded once, %zu wrong",
           ops->name, wrong);
}

static void test_device(void)
{
    unit = SINGLE; /* reductions are the same on every host */
    test_reduce();
    test_aligned_reduce();
    test_column_sums();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
