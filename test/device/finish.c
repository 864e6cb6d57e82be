/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of the sums of GEMMs, on every device: all mixtures of types, layouts, scales,
 * accumulation and epilogues, against plain sums in double that are finished as op.h says, within a
 * bound that follows from the types and k. gemm.c has the signals and shapes, reduce.c what
 * reductions make of sums.
 */
#include "finished.h"

/* A number of the type that is a little farther from a result than the bound, towards 0. */
static float beyond(lap_dtype_t dtype, truth_t t)
{
    const double largest = (double)tap_rounded(dtype, 3e38f); /* rounding there is no saturating */
    const double far = t.bound + 2.1 * half_unit(dtype, fmin(fabs(t.x) + 2 * t.bound, largest));
    return tap_rounded(dtype, (float)(t.x > 0 ? t.x - far : t.x + far));
}

/* ---- GEMM ---- */

typedef struct problem {
    results_t r;
    matrix_t a, b;
    bool a_transposed, b_plain;
    size_t m, n, k;
    float scale, *a_scale;
} problem_t;

static problem_t new_problem(uint64_t seed, const lap_dtype_t *types, const variant_t *v,
                             int layout, size_t m, size_t n, size_t k)
{
    problem_t p = {.m = m, .n = n, .k = k, .scale = 1.7f};
    p.a_scale = new_shared(device, sizeof(float));
    *p.a_scale = 0.6f;
    p.a_transposed = layout & 1;
    p.b_plain = layout & 2;
    p.a = new_matrix(seed * 7 + 1, types[0], p.a_transposed ? k : m, p.a_transposed ? m : k);
    p.b = new_matrix(seed * 7 + 2, types[1], p.b_plain ? k : n, p.b_plain ? n : k);
    p.r = new_results(seed * 7 + 3, types[2], v, m, n);
    return p;
}

static void free_problem(problem_t *p)
{
    free_matrix(&p->a);
    free_matrix(&p->b);
    free_results(&p->r);
    free_shared(device, p->a_scale);
}

/* In two blocks, the second with the scale of a and the first without. */
static lap_status_t multiply(problem_t *p)
{
    const size_t half = p->m / 2;
    lap_gemm_block_t blocks[2];
    for (size_t i = 0; i < 2; i++) {
        const size_t row = i * half;
        blocks[i] = (lap_gemm_block_t){
            .a = element(&p->a, p->a_transposed ? 0 : row, p->a_transposed ? row : 0),
            .d = element(&p->r.d, row, 0),
            .rows = i ? p->m - half : half,
            .a_stride = stride_of(&p->a),
            .d_stride = stride_of(&p->r.d),
            .a_scale = i ? p->a_scale : NULL,
            .aux = p->r.with_aux ? element(&p->r.aux, row, 0) : NULL};
    }
    const lap_gemm_t gemm = {.a_dtype = p->a.dtype,
                             .b_dtype = p->b.dtype,
                             .d_dtype = p->r.d.dtype,
                             .a_transposed = p->a_transposed,
                             .b_plain = p->b_plain,
                             .scale = p->scale,
                             .n = p->n,
                             .k = p->k,
                             .b = p->b.data,
                             .b_stride = stride_of(&p->b),
                             .finish = &p->r.finish,
                             .blocks = blocks,
                             .nblocks = 2};
    LAP_TRY(ops->gemm(stream, &gemm));
    return ops->stream_synchronize(stream);
}

/* Whether tensor cores may add it up with fewer bits: k is made a multiple of 16 for them. */
static bool is_coarse(const problem_t *p)
{
    return has_tensor_cores() && p->a_transposed && p->b_plain && lap_dtype_is_fp8(p->a.dtype) &&
           lap_dtype_is_fp8(p->b.dtype);
}

/* k products and sums, and the two scales: each is off by a unit at most. */
static truth_t product(const problem_t *p, size_t i, size_t j)
{
    const double scale = (double)p->scale * (i < p->m / 2 ? 1.0 : (double)*p->a_scale);
    double sum = 0, size = 0, least = 0, most = 0;
    for (size_t k = 0; k < p->k; k++) {
        const double term = (p->a_transposed ? value(&p->a, k, i) : value(&p->a, i, k)) *
                            (p->b_plain ? value(&p->b, k, j) : value(&p->b, j, k));
        sum += term;
        size += fabs(term);
        least = fmin(least, sum);
        most = fmax(most, sum);
    }
    double bound = ((double)p->k + 3) * unit * size * 1.01;
    if (is_coarse(p))
        bound += tap_fp8_loss((p->k + 15) / 16 * 16, most - least);
    return (truth_t){.x = scale * sum, .bound = bound * fabs(scale)};
}

/* Infinity when something was written where nothing belongs. */
static score_t judge(const problem_t *p, bool by_columns)
{
    score_t score = {0, 0};
    const results_t *r = &p->r;
    const size_t step = by_columns ? 1 + p->m * p->n * (p->k + 1) / 1000000 : 1;
    for (size_t e = 0; e < p->m * p->n; e += step) {
        truth_t aux;
        const size_t i = e / p->n, j = e % p->n;
        const truth_t d = finished(r, product(p, i, j), i, j, &aux);
        compare(&score, d, got(&r->d, i, j));
        if (r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU)
            compare(&score, aux, got(&r->aux, i, j));
    }
    const bool writes = r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU;
    if (!gaps_kept(&r->d) || !gaps_kept(&r->aux) ||
        (!writes && memcmp(r->aux.data, r->aux.before, r->aux.bytes) != 0))
        score.worst = INFINITY;
    return score;
}

/* What passes fails when one element of d, or of aux, moves to the next number past its bound. */
static bool notices(problem_t *p, uint64_t seed)
{
    results_t *r = &p->r;
    truth_t aux;
    const size_t i = seed % p->m, j = seed / 3 % p->n;
    const truth_t d = finished(r, product(p, i, j), i, j, &aux);
    const float right = got(&r->d, i, j), wrong = beyond(r->d.dtype, d);
    lap_from_float(r->d.dtype, &wrong, element(&r->d, i, j), 1);
    bool noticed = judge(p, false).worst > 1;
    lap_from_float(r->d.dtype, &right, element(&r->d, i, j), 1);
    if (r->with_aux && r->finish.epilogue & LAP_EPILOGUE_GELU) {
        const float off = beyond(r->aux.dtype, aux);
        lap_from_float(r->aux.dtype, &off, element(&r->aux, i, j), 1);
        noticed = noticed && judge(p, false).worst > 1;
    }
    return noticed;
}

static void try_problem(uint64_t seed, const lap_dtype_t *types, const variant_t *v, int layout,
                        size_t m, size_t n, size_t k)
{
    problem_t p = new_problem(seed, types, v, layout, m, n, k);
    const lap_status_t status = multiply(&p);
    const score_t score = judge(&p, true);
    if (status != LAP_OK || score.worst > 1)
        tap_ok(false, "%s: %s %s %s, layout %d, epilogue %u, aux %d, beta %g, %zu %zu %zu: %g",
               ops->name, lap_dtype_name(types[0]), lap_dtype_name(types[1]),
               lap_dtype_name(types[2]), layout, v->epilogue, v->aux, (double)v->beta, m, n, k,
               score.worst);
    if (m > 0 && n > 0 && m * n * k < 10000)
        unnoticed += !notices(&p, seed);
    total.worst = fmax(total.worst, score.worst);
    total.loosest = fmax(total.loosest, score.loosest);
    free_problem(&p);
}

/*
 * Every pair of types of a and b that has a use and some that have none, every d, and layout. k is
 * no multiple of 16 and n none of 4, with which a GPU may add up FP8 with fewer bits: that is in
 * gemm.c. Where both operands are turned it may do so with any k: those are `coarse`.
 */
static void test_types(bool coarse)
{
    static const lap_dtype_t pairs[][2] = {
        {LAP_FLOAT32, LAP_FLOAT32},         {LAP_FLOAT16, LAP_FLOAT16},
        {LAP_BFLOAT16, LAP_BFLOAT16},       {LAP_FLOAT8_E4M3, LAP_FLOAT8_E4M3},
        {LAP_FLOAT8_E5M2, LAP_FLOAT8_E5M2}, {LAP_FLOAT8_E4M3, LAP_FLOAT8_E5M2},
        {LAP_FLOAT8_E5M2, LAP_FLOAT8_E4M3}, {LAP_FLOAT32, LAP_BFLOAT16},
        {LAP_FLOAT8_E4M3, LAP_FLOAT16}};
    uint64_t seed = 0;
    for (size_t pair = 0; pair < sizeof(pairs) / sizeof(pairs[0]); pair++)
        for (lap_dtype_t d = LAP_FLOAT32; d < TYPES; d++)
            for (int layout = 0; layout < 4; layout++)
                for (size_t v = 0; v < VARIANTS; v++, seed++) {
                    const lap_dtype_t types[3] = {pairs[pair][0], pairs[pair][1], d};
                    const bool turned =
                        layout == 3 && lap_dtype_is_fp8(types[0]) && lap_dtype_is_fp8(types[1]);
                    if (turned != coarse)
                        continue;
                    const size_t k = 1 + tap_random(3, seed) % 40, n = 1 + tap_random(2, seed) % 9;
                    try_problem(seed, types, &variants[v], layout, 1 + tap_random(1, seed) % 9,
                                n + (n % 4 == 0), k + (k % 16 == 0));
                }
    if (coarse)
        report("FP8 that is turned, with all epilogues", has_tensor_cores() ? 0.2 : 1e-4);
    else
        report("all mixtures of types, layouts and epilogues", 1e-4);
}

/* Sizes and rows that libraries like: they do some of this by themselves then. */
static void test_aligned(void)
{
    uint64_t seed = 30000;
    aligned = true;
    for (lap_dtype_t a = LAP_FLOAT32; a <= LAP_BFLOAT16; a++)
        for (int wide = 0; wide < 2; wide++)
            for (int layout = 0; layout < 4; layout++)
                for (size_t v = 0; v < VARIANTS; v++, seed++) {
                    const lap_dtype_t types[3] = {a, a, wide ? LAP_FLOAT32 : a};
                    try_problem(seed, types, &variants[v], layout, 32, 16, 16);
                }
    aligned = false;
    report("sizes that are multiples of 16", 1e-4);
}

/* Around the edges of what is converted and computed at once, in each of the two blocks. */
static void test_edges(void)
{
    static const size_t sizes[][3] = {{1030, 3, 5}, {3, 513, 5},    {2, 257, 3},  {5, 3, 513},
                                      {65, 9, 257}, {2, 515, 1030}, {1200, 1, 2}, {1, 1, 1}};
    static const lap_dtype_t types[][3] = {{LAP_FLOAT32, LAP_FLOAT32, LAP_FLOAT32},
                                           {LAP_FLOAT32, LAP_FLOAT32, LAP_BFLOAT16},
                                           {LAP_FLOAT8_E5M2, LAP_FLOAT8_E4M3, LAP_BFLOAT16}};
    uint64_t seed = 50000;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t t = 0; t < 3; t++)
            for (size_t v = VARIANTS - 4; v < VARIANTS; v++, seed++)
                try_problem(seed, types[t], &variants[v], (int)((i + v) % (t == 2 ? 3 : 4)),
                            sizes[i][0], sizes[i][1], sizes[i][2]);
    report("edges of tiles", 0.05); /* k = 1030 */
    for (lap_dtype_t d = LAP_FLOAT32; d < TYPES; d++)
        for (size_t v = 0; v < VARIANTS; v++, seed++) {
            const lap_dtype_t same[3] = {d, d, d};
            try_problem(seed, same, &variants[v], (int)(seed % 4), 3, 5, 0);
            try_problem(seed, same, &variants[v], (int)(seed % 4), 0, 5, 3);
            try_problem(seed, same, &variants[v], (int)(seed % 4), 3, 0, 3);
        }
    report("no rows, no columns, and k = 0, which still is finished", 1e-5);
}

/* The scale of a comes with a, after the GEMM was issued. */
static void test_late_scale(void)
{
    lap_bank_t *bank = aligned_alloc(64, (lap_bank_bytes(1) + 63) / 64 * 64);
    memset(bank, 0, lap_bank_bytes(1));
    const uint8_t a[2] = {0x38, 0x40}, b[2] = {0x38, 0x38}; /* 1, 2 and 1, 1 */
    float d = 0, a_scale = NAN;
    lap_gemm_block_t block = {.a = a,
                              .d = &d,
                              .rows = 1,
                              .a_stride = 2,
                              .d_stride = 4,
                              .a_scale = &a_scale,
                              .has_wait = true,
                              .wait = {0, 1}};
    const lap_watch_t watch = {.timeout_ns = 20000000000u};
    const lap_gemm_t gemm = {.a_dtype = LAP_FLOAT8_E4M3,
                             .b_dtype = LAP_FLOAT8_E4M3,
                             .scale = 0.5f,
                             .n = 1,
                             .k = 2,
                             .b = b,
                             .b_stride = 2,
                             .blocks = &block,
                             .nblocks = 1,
                             .wait_bank = bank,
                             .watch = &watch};
    ops->gemm(stream, &gemm);
    a_scale = 8;
    lap_bank_raise(bank, 0);
    tap_success(ops->stream_synchronize(stream), "%s: a block waits", ops->name);
    tap_ok(d == 12.0f, "%s: and then reads the scale of a", ops->name);
    free(bank);
}

/* ---- GELU by itself: k = 0, so that x is the bias ---- */

#define SAMPLES 131072u

static void finish_row(const float *bias, float *aux, lap_epilogue_t epilogue, float *d)
{
    const lap_finish_t finish = {
        .epilogue = epilogue | LAP_EPILOGUE_BIAS, .scale = 1, .bias = bias};
    lap_gemm_block_t block = {.d = d, .rows = 1, .d_stride = SAMPLES * 4, .aux = aux};
    const lap_gemm_t gemm = {
        .scale = 1, .n = SAMPLES, .finish = &finish, .blocks = &block, .nblocks = 1};
    ops->gemm(stream, &gemm);
    tap_success(ops->stream_synchronize(stream), "%s: a row of %u", ops->name, SAMPLES);
}

/* Floats of both signs from the smallest to 2^5, evenly by their bits, and the special ones. */
static void test_gelu(void)
{
    static const float specials[] = {0.0f,  -0.0f,  INFINITY, -INFINITY, NAN,
                                     3e38f, -3e38f, 1e13f,    -1e13f,    1e-45f};
    float *x = new_shared(device, SAMPLES * sizeof(float));
    float *ones = new_shared(device, SAMPLES * sizeof(float));
    float *d = new_shared(device, SAMPLES * sizeof(float));
    float *slope = new_shared(device, SAMPLES * sizeof(float));
    const size_t nspecials = sizeof(specials) / sizeof(specials[0]);
    score_t values = {0, 0}, slopes = {0, 0};
    for (uint32_t i = 0; i < SAMPLES; i++) {
        x[i] = lap_float_of_bits(i / 2 * (0x42000000u / (SAMPLES / 2)) | i % 2 << 31);
        ones[i] = 1;
    }
    memcpy(x, specials, sizeof(specials));
    finish_row(x, NULL, LAP_EPILOGUE_GELU, d);
    finish_row(ones, x, LAP_EPILOGUE_DGELU, slope);
    for (size_t i = nspecials; i < SAMPLES; i++) {
        const truth_t exactly = {.x = (double)x[i]};
        compare(&values, stored(LAP_FLOAT32, gelu(exactly)), d[i]);
        const truth_t s = {.x = gelu_slope((double)x[i]), .bound = 12 * unit + 0x1p-50};
        compare(&slopes, stored(LAP_FLOAT32, s), slope[i]);
    }
    tap_ok(values.worst <= 1, "%s: gelu is within 7 u of itself and 2 u of 1 (%.3f of it)",
           ops->name, values.worst);
    tap_ok(slopes.worst <= 1, "%s: its slope is within 12 u (%.3f of it)", ops->name, slopes.worst);
    tap_ok(d[0] == 0 && d[1] == 0 && d[2] == INFINITY && d[3] == 0 && isnan(d[4]) &&
               d[5] == 3e38f && d[6] == 0 && d[7] == 1e13f && d[8] == 0,
           "%s: gelu of zeros, infinities, NaN and huge numbers", ops->name);
    tap_ok(slope[0] == 0.5f && slope[1] == 0.5f && slope[2] == 1 && slope[3] == 0 &&
               isnan(slope[4]) && slope[5] == 1 && slope[6] == 0 && slope[7] == 1 &&
               slope[8] == 0 && slope[9] == 0.5f,
           "%s: and its slope there", ops->name);
    free_shared(device, x);
    free_shared(device, ones);
    free_shared(device, d);
    free_shared(device, slope);
}

static void test_device(void)
{
    unit = strcmp(ops->name, "ref") == 0 ? 0x1p-52 : SINGLE;
    test_types(false);
    test_types(true);
    test_aligned();
    test_edges();
    if (ops->facts.gemm_signals)
        test_late_scale();
    test_gelu();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
