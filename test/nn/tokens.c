/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of language models of every device against loops in double: embeddings and their
 * gradients, rotary positions, and cross-entropy whose columns several ranks share. Bounds are as
 * in kernels.c.
 */
#include "kernel/kernel.h"
#include "nn/matrix.h"

static const lap_kernels_t *kernels;

static const lap_dtype_t dtypes[] = {LAP_FLOAT32, LAP_FLOAT16, LAP_BFLOAT16};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* ---- tokens ---- */

#define VOCAB 37

/* Tokens, some of them often; targets, every fifth of them none; and the order by tokens. */
static int32_t *new_ids(uint64_t seed, size_t rows, size_t vocab)
{
    int32_t *ids = new_shared(device, rows * LAP_ID_COLS * sizeof(int32_t));
    size_t count = 0;
    for (size_t i = 0; i < rows; i++) {
        const uint64_t random = tap_random(seed, i);
        ids[i * LAP_ID_COLS + LAP_ID_TOKEN] =
            random % 3 == 0 ? (int32_t)(random % 2) : (int32_t)(random / 8 % vocab);
        ids[i * LAP_ID_COLS + LAP_ID_TARGET] =
            i % 5 == 4 ? -1 - (int32_t)i : (int32_t)(random / 64 % vocab);
    }
    for (size_t token = 0; token < vocab; token++)
        for (size_t i = 0; i < rows; i++)
            if (ids[i * LAP_ID_COLS + LAP_ID_TOKEN] == (int32_t)token)
                ids[count++ * LAP_ID_COLS + LAP_ID_BY_TOKEN] = (int32_t)i;
    return ids;
}

static size_t id_of(const int32_t *ids, size_t row, int col)
{
    return (size_t)ids[row * LAP_ID_COLS + (size_t)col];
}

/* ---- embeddings ---- */

/* The rows of the vocabulary that a rank has. */
typedef struct part {
    size_t first, count;
} part_t;

static const part_t parts[] = {{0, VOCAB}, {0, 2}, {1, 13}, {20, 17}};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static size_t try_embedding(uint64_t seed, lap_dtype_t dtype, shape_t shape, part_t part,
                            size_t batch, bool positions)
{
    const size_t cols = shape.cols, places = (shape.rows + batch - 1) / batch;
    matrix_t out = new_matrix(0, dtype, shape);
    int32_t *ids = new_ids(seed, shape.rows, VOCAB);
    float *table = new_floats(seed + 1, part.count * cols);
    float *places_table = new_floats(seed + 2, places * cols);
    double *lost = calloc(shape.rows * cols + 1, sizeof(double));
    const lap_embedding_t embedding = {.batch = batch,
                                       .ids = ids,
                                       .first = part.first,
                                       .count = part.count,
                                       .table = table,
                                       .positions = positions ? places_table : NULL,
                                       .out = tensor_of(&out)};
    size_t wrong = finish(kernels->embedding(stream, &embedding));
    for (size_t i = 0; i < shape.rows * cols; i++) {
        const size_t row = i / cols, col = i % cols, token = id_of(ids, row, LAP_ID_TOKEN);
        if (token < part.first || token >= part.first + part.count)
            continue; /* zeros */
        out.values[i] = (double)table[(token - part.first) * cols + col];
        if (positions)
            out.values[i] += (double)places_table[row / batch * cols + col];
        lost[i] = positions ? 8 : 0;
    }
    wrong += count_wrong(&out, lost);
    free_matrix(&out);
    free_shared(device, ids);
    free_shared(device, table);
    free_shared(device, places_table);
    free(lost);
    return wrong;
}

static size_t try_embedding_backward(uint64_t seed, lap_dtype_t dtype, shape_t shape, part_t part,
                                     size_t batch, bool positions, float beta)
{
    const size_t cols = shape.cols;
    matrix_t dy = new_matrix(seed, dtype, shape);
    int32_t *ids = new_ids(seed + 1, shape.rows, VOCAB);
    float *grad = new_floats(seed + 2, part.count * cols + 1);
    double *sums = calloc(part.count * cols + 1, 2 * sizeof(double));
    double *sizes = sums + part.count * cols;
    for (size_t i = 0; i < part.count * cols; i++)
        sums[i] = beta == 0 ? 0 : (double)beta * (double)grad[i];
    const lap_embedding_backward_t back = {.batch = batch,
                                           .ids = positions ? NULL : ids,
                                           .first = part.first,
                                           .count = part.count,
                                           .dy = tensor_of(&dy),
                                           .grad = grad,
                                           .alpha = 0.5f,
                                           .beta = beta};
    const float guard = grad[part.count * cols];
    size_t wrong = finish(kernels->embedding_backward(stream, &back));
    for (size_t i = 0; i < shape.rows * cols; i++) {
        const size_t row = i / cols;
        const size_t number =
            (positions ? row / batch : id_of(ids, row, LAP_ID_TOKEN)) - part.first;
        if (number >= part.count)
            continue;
        sums[number * cols + i % cols] += 0.5 * dy.values[i];
        sizes[number * cols + i % cols] += fabs(dy.values[i]);
    }
    for (size_t i = 0; i < part.count * cols; i++)
        wrong += tap_wrong(!is_near(LAP_FLOAT32, (double)grad[i], sums[i],
                                    UNIT * (4 + (double)shape.rows * sizes[i])),
                           "gradient [%zu, %zu] is %.9g, expected %.9g", i / cols, i % cols,
                           (double)grad[i], sums[i]);
    wrong += tap_wrong(grad[part.count * cols] != guard, "what follows the gradient was written");
    free_matrix(&dy);
    free_shared(device, ids);
    free_shared(device, grad);
    free(sums);
    return wrong;
}

static void test_embeddings(void)
{
    static const shape_t shapes[] = {{1, 1, 0, 0},   {7, 8, 0, 0},   {30, 40, 8, 0},
                                     {24, 33, 2, 1}, {90, 64, 0, 0}, {12, 600, 0, 0}};
    size_t wrong = 0, wrong_back = 0;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t t = 0; t < DTYPES; t++)
            for (size_t p = 0; p < PARTS; p++) {
                const size_t batch = 1 + p;
                const part_t all = {0, (shapes[s].rows + batch - 1) / batch + p};
                for (int on = 0; on < 2; on++) {
                    wrong += try_embedding(s, dtypes[t], shapes[s], parts[p], batch, on);
                    wrong_back += try_embedding_backward(s + 1, dtypes[t], shapes[s], parts[p],
                                                         batch, false, (float)on);
                    wrong_back += try_embedding_backward(s + 1, dtypes[t], shapes[s], all, batch,
                                                         true, (float)on);
                }
            }
    tap_ok(wrong == 0, "%s: embeddings: %zu wrong", ops->name, wrong);
    tap_ok(wrong_back == 0, "%s: gradients of embeddings: %zu wrong", ops->name, wrong_back);
}

/* ---- rotary positions ---- */

static size_t try_rope(uint64_t seed, lap_dtype_t dtype, shape_t shape, size_t dim, size_t heads,
                       size_t batch, bool backward)
{
    const size_t cols = shape.cols, half = dim / 2;
    const size_t places = (shape.rows + batch - 1) / batch;
    matrix_t x = new_matrix(seed, dtype, shape);
    float *table = new_floats(seed + 1, places * dim);
    double *before = calloc(shape.rows * cols + 1, sizeof(double));
    double *lost = calloc(shape.rows * cols + 1, sizeof(double));
    memcpy(before, x.values, shape.rows * cols * sizeof(double));
    const lap_rope_t rope = {.batch = batch,
                             .heads = heads,
                             .dim = dim,
                             .x = tensor_of(&x),
                             .table = table,
                             .backward = backward};
    size_t wrong = finish(kernels->rope(stream, &rope));
    for (size_t i = 0; i < shape.rows * cols; i++) {
        const size_t row = i / cols, col = i % cols, at = col % dim;
        if (col >= heads * dim)
            continue;
        const float *angles = table + row / batch * dim;
        const double c = (double)angles[at % half];
        const double s = (double)angles[half + at % half] * (backward ? -1 : 1);
        const double other = before[at < half ? i + half : i - half];
        x.values[i] = before[i] * c + (at < half ? -s : s) * other;
        lost[i] = 4 * (fabs(before[i] * c) + fabs(other * s));
    }
    wrong += count_wrong(&x, lost);
    free_matrix(&x);
    free_shared(device, table);
    free(before);
    free(lost);
    return wrong;
}

static void test_rope(void)
{
    static const size_t dims[] = {2, 6, 16, 64, 600};
    size_t wrong = 0;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
        for (size_t t = 0; t < DTYPES; t++)
            for (size_t heads = 1; heads < 4; heads++) {
                const shape_t shape = {13, (heads + 1) * dims[d], d % 2 * 8, d % 3};
                wrong += try_rope(d + 1, dtypes[t], shape, dims[d], heads, heads, false);
                wrong += try_rope(d + 1, dtypes[t], shape, dims[d], heads, heads, true);
            }
    tap_ok(wrong == 0, "%s: rotary positions: %zu wrong", ops->name, wrong);
}

/* ---- cross-entropy ---- */

#define RANKS 3

/* All ranks one after the other, each with its columns; returns what is wrong. */
static size_t try_entropy(uint64_t seed, lap_dtype_t dtype, shape_t shape, size_t ranks)
{
    const size_t rows = shape.rows, cols = shape.cols;
    matrix_t all = new_matrix(seed, dtype, (shape_t){rows, cols, 0, 0}), own[RANKS];
    int32_t *ids = new_ids(seed + 1, rows, cols);
    float *stats = new_floats(seed, ranks * rows * LAP_LOGIT_STATS);
    double *sums = new_shared(device, sizeof(double)), first_sum = 0, total = 0;
    double *lost = calloc(rows * cols + 1, sizeof(double));
    float *scale = new_floats(seed, 1);
    *scale = 0.25f;
    size_t wrong = 0;
    lap_cross_entropy_t entropy[RANKS];
    for (size_t r = 0; r < ranks; r++) {
        size_t begin;
        const size_t count = lap_shard(cols, (int)ranks, (int)r, &begin);
        own[r] = new_matrix(0, dtype, (shape_t){rows, count, shape.gap, shape.shift});
        for (size_t row = 0; row < rows; row++)
            for (size_t col = 0; col < count; col++) {
                const float x = (float)all.values[row * cols + begin + col];
                lap_from_float(
                    dtype, &x,
                    (char *)own[r].data + (row * own[r].stride + col) * lap_dtype_size(dtype), 1);
            }
        entropy[r] = (lap_cross_entropy_t){.logits = tensor_of(&own[r]),
                                           .cols = count,
                                           .first = begin,
                                           .ids = ids,
                                           .stats = stats + r * rows * LAP_LOGIT_STATS,
                                           .ranks = ranks,
                                           .scale = scale,
                                           .sum = sums};
        wrong += finish(kernels->logit_stats(stream, &entropy[r]));
    }
    for (size_t row = 0; row < rows; row++) {
        const bool counts = row % 5 != 4;
        double sum = 0;
        for (size_t col = 0; col < cols; col++)
            sum += exp(all.values[row * cols + col]);
        if (counts)
            total += log(sum) - all.values[row * cols + id_of(ids, row, LAP_ID_TARGET)];
        for (size_t r = 0; r < ranks; r++)
            for (size_t col = 0; col < own[r].shape.cols; col++) {
                const size_t whole = entropy[r].first + col;
                const double p = exp(all.values[row * cols + whole]) / sum;
                const bool hit = counts && whole == id_of(ids, row, LAP_ID_TARGET);
                own[r].values[row * own[r].shape.cols + col] =
                    counts ? (p - hit) * (double)*scale : 0;
            }
    }
    /* Exponentials lose a unit or so for each of the numbers that they are of, sums one a term. */
    for (size_t i = 0; i < rows * cols; i++)
        lost[i] = 64;
    for (size_t r = 0; r < ranks; r++) {
        entropy[r].stats = stats;
        wrong += finish(kernels->cross_entropy(stream, &entropy[r]));
        wrong += count_wrong(&own[r], lost);
        first_sum = r == 0 ? *sums : first_sum;
        wrong += tap_wrong(*sums != first_sum, "rank %zu has a loss of its own", r);
        wrong += tap_wrong(fabs(*sums - total) > 64 * UNIT * (1 + (double)rows * 8),
                           "the loss is %.12g, expected %.12g", *sums, total);
        free_matrix(&own[r]);
    }
    free_matrix(&all);
    free_shared(device, ids);
    free_shared(device, stats);
    free_shared(device, sums);
    free_shared(device, scale);
    free(lost);
    return wrong;
}

static void test_entropy(void)
{
    static const shape_t shapes[] = {{1, 3, 0, 0},    {6, 8, 0, 0},    {9, 50, 6, 0},
                                     {33, 257, 0, 1}, {600, 24, 0, 0}, {5, 9000, 0, 0}};
    size_t wrong = 0;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t t = 0; t < DTYPES; t++)
            for (size_t ranks = 1; ranks <= RANKS; ranks++)
                wrong += try_entropy(s + 7, dtypes[t], shapes[s], ranks);
    tap_ok(wrong == 0, "%s: cross-entropy: %zu wrong", ops->name, wrong);
}

/* Losses and gradients of many rows: the same bits in all calls. */
static void test_repeats(void)
{
    const shape_t shape = {700, 136, 0, 0};
    matrix_t x = new_matrix(3, LAP_FLOAT32, shape);
    int32_t *ids = new_ids(4, shape.rows, VOCAB);
    float *stats = new_floats(5, shape.rows * LAP_LOGIT_STATS);
    float *grad = new_floats(6, VOCAB * shape.cols), *scale = new_floats(7, 1);
    const size_t bytes = shape.rows * shape.cols * sizeof(float);
    const size_t grad_bytes = VOCAB * shape.cols * sizeof(float);
    float *logits = malloc(bytes), *first = malloc(bytes), *first_grad = malloc(grad_bytes);
    double *sum = new_shared(device, sizeof(double)), first_sum = 0;
    memcpy(logits, x.data, bytes);
    const lap_cross_entropy_t entropy = {.logits = tensor_of(&x),
                                         .cols = shape.cols,
                                         .ids = ids,
                                         .stats = stats,
                                         .ranks = 1,
                                         .scale = scale,
                                         .sum = sum};
    const lap_embedding_backward_t back = {
        .batch = 1, .ids = ids, .count = VOCAB, .dy = tensor_of(&x), .grad = grad, .alpha = 1};
    size_t wrong = 0, others = 0;
    for (int i = 0; i < 10; i++) {
        memcpy(x.data, logits, bytes);
        wrong += finish(kernels->logit_stats(stream, &entropy));
        wrong += finish(kernels->cross_entropy(stream, &entropy));
        wrong += finish(kernels->embedding_backward(stream, &back));
        if (i == 0) {
            memcpy(first, x.data, bytes);
            memcpy(first_grad, grad, grad_bytes);
            first_sum = *sum;
        }
        others += memcmp(first, x.data, bytes) != 0 || memcmp(&first_sum, sum, sizeof(*sum)) != 0;
        others += memcmp(first_grad, grad, grad_bytes) != 0;
    }
    tap_ok(wrong == 0 && others == 0, "%s: the same bits in 10 calls: %zu others", ops->name,
           others);
    free_matrix(&x);
    free_shared(device, ids);
    free_shared(device, stats);
    free_shared(device, grad);
    free_shared(device, sum);
    free_shared(device, scale);
    free(logits);
    free(first);
    free(first_grad);
}

static void test_device(void)
{
    if (!tap_success(lap_kernels_of(device, &kernels), "%s: kernels", ops->name))
        return;
    test_embeddings();
    test_rope();
    test_entropy();
    test_repeats();
}

int main(void)
{
    return test_devices(NULL, test_device);
}
