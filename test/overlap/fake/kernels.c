/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of kernels.cu as loops on the host, one element after the other. */
#include "fake.h"

#include <math.h>
#include <string.h>

#include <lap/op.h>

#include "core/convert.h"
#include "device/cuda/cuda_kernels.h"

static float load(int32_t dtype, const void *memory, size_t i)
{
    float value;
    const char *host = fake_host((uintptr_t)memory);
    lap_to_float((lap_dtype_t)dtype, host + i * lap_dtype_size((lap_dtype_t)dtype), &value, 1);
    return value;
}

static void store(int32_t dtype, void *memory, size_t i, float value)
{
    char *host = fake_host((uintptr_t)memory);
    lap_from_float((lap_dtype_t)dtype, &value, host + i * lap_dtype_size((lap_dtype_t)dtype), 1);
}

/* ---- signals ---- */

static uint64_t tag_of(uint64_t tag, const uint32_t *calls)
{
    return tag ^ *(const uint32_t *)fake_host((uintptr_t)calls) * 0xd1b54a32d192ed03u;
}

static void raise_one(const lap_cuda_raise_t *raise)
{
    lap_cuda_word_t *word = fake_host((uintptr_t)raise->word);
    __atomic_store_n(&word->tag, tag_of(raise->tag, raise->calls), __ATOMIC_RELAXED);
    __atomic_fetch_add(&word->value, 1, __ATOMIC_RELEASE);
}

static void run_raise(const void *args)
{
    const lap_cuda_raises_t *raises = args;
    for (uint32_t i = 0; i < raises->n; i++)
        raise_one(&raises->at[i]);
}

static void report(lap_cuda_slot_t *slot, const lap_cuda_wait_t *wait, uint32_t come,
                   uint32_t state)
{
    __atomic_store_n(&slot->state, LAP_CUDA_RUNS, __ATOMIC_SEQ_CST);
    slot->buffer = wait->buffer;
    slot->story = wait->story;
    slot->peer = wait->peer;
    slot->signal = wait->signal;
    slot->count = wait->count;
    slot->come = come;
    slot->number++;
    __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
}

static int is_aborted(const lap_cuda_waits_t *waits)
{
    return __atomic_load_n(&waits->board->abort, __ATOMIC_ACQUIRE) != 0;
}

/* Returns 0 when it was ended from outside. */
static int wait_for(const lap_cuda_waits_t *waits, const lap_cuda_wait_t *wait, int *told)
{
    const lap_cuda_word_t *word = fake_host((uintptr_t)wait->word);
    const uint32_t base = *(const uint32_t *)fake_host((uintptr_t)wait->consumed);
    for (int first = 1;; first = 0) {
        const uint32_t come = __atomic_load_n(&word->value, __ATOMIC_ACQUIRE) - base;
        if ((int32_t)(come - wait->count) >= 0)
            return 1;
        if (first)
            report(waits->slot, wait, come, LAP_CUDA_STALLED);
        *told = 1;
        waits->slot->come = come;
        if (is_aborted(waits))
            return 0;
        fake_nap();
    }
}

static void run_wait(const void *args)
{
    const lap_cuda_waits_t *waits = args;
    int told = 0;
    for (uint32_t i = 0; i < waits->n; i++)
        if (!wait_for(waits, &waits->at[i], &told))
            return;
    for (uint32_t i = 0; i < waits->n && waits->checks_tag; i++) {
        const lap_cuda_wait_t *wait = &waits->at[i];
        const lap_cuda_word_t *word = fake_host((uintptr_t)wait->word);
        if (__atomic_load_n(&word->tag, __ATOMIC_RELAXED) == tag_of(wait->tag, wait->calls))
            continue;
        report(waits->slot, wait, 0, LAP_CUDA_MISMATCH);
        while (!is_aborted(waits))
            fake_nap();
        return;
    }
    if (told)
        __atomic_store_n(&waits->slot->state, LAP_CUDA_RUNS, __ATOMIC_RELEASE);
}

static void run_advance(const void *args)
{
    const lap_cuda_advance_t *advance = args;
    uint32_t *consumed = fake_host((uintptr_t)advance->consumed);
    if (advance->calls)
        ++*(uint32_t *)fake_host((uintptr_t)advance->calls);
    for (uint32_t i = 0; i < advance->n; i++)
        consumed[i] += advance->raised[i];
}

static void run_stamp(const void *args)
{
    const lap_cuda_stamp_t *stamp = args;
    __atomic_store_n((uint64_t *)fake_host((uintptr_t)stamp->at), fake_now(), __ATOMIC_RELEASE);
}

static void run_pace(const void *args)
{
    const lap_cuda_pace_t *pace = args;
    uint64_t due = *(const uint64_t *)fake_host((uintptr_t)pace->issued);
    uint64_t *link_free = pace->link_free ? fake_host((uintptr_t)pace->link_free) : NULL;
    if (link_free) {
        due = (*link_free > due ? *link_free : due) + pace->carry_ns;
        *link_free = due;
    }
    while (fake_now() < due + pace->latency_ns &&
           !__atomic_load_n(&pace->board->abort, __ATOMIC_ACQUIRE))
        fake_nap();
    raise_one(&pace->raise);
}

/* ---- numbers ---- */

static double gate(double x)
{
    return 1 / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    if (fabs(x) > 40)
        return x > 0;
    return gate(x) +
           x * gate(x) * gate(-x) * 2 * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

static float finish(const lap_cuda_finish_t *f, float sum, int32_t dtype, const void *d, size_t row,
                    size_t col)
{
    double x = sum;
    void *aux = f->aux ? (char *)f->aux + row * f->aux_stride : NULL;
    if (f->plain)
        return sum;
    if (f->beta != 0)
        x += (double)f->beta * load(dtype, d, col);
    if (f->epilogue & LAP_EPILOGUE_BIAS)
        x += load(f->bias_dtype, f->bias, col);
    if (f->epilogue & LAP_EPILOGUE_GELU) {
        if (aux)
            store(f->aux_dtype, aux, col, (float)x);
        x = x < -40 ? 0 : x * gate(x);
    }
    if (f->epilogue & LAP_EPILOGUE_DGELU)
        x *= gelu_slope(load(f->aux_dtype, aux, col));
    return (float)(x / f->scale);
}

static float sum_at(const lap_cuda_reduce_t *reduce, size_t row, size_t col)
{
    float sum = 0;
    for (uint32_t s = 0; s < reduce->nsrc; s++) {
        float value =
            load(reduce->from, (const char *)reduce->srcs[s] + row * reduce->strides[s], col);
        if (reduce->scales[s])
            value *= *(const float *)fake_host((uintptr_t)reduce->scales[s]);
        sum = s ? sum + value : value;
    }
    return sum;
}

static void run_reduce(const void *args)
{
    const lap_cuda_reduce_t *reduce = args;
    for (size_t i = 0; i < reduce->rows; i++)
        for (size_t j = 0; j < reduce->cols; j++) {
            char *d = (char *)reduce->dst + i * reduce->dst_stride;
            store(reduce->to, d, j,
                  finish(&reduce->finish, sum_at(reduce, i, j), reduce->to, d, i, j));
        }
}

static void run_column_sums(const void *args)
{
    const lap_cuda_column_sums_t *sums = args;
    const lap_dtype_t to = (lap_dtype_t)sums->to;
    for (size_t j = 0; j < sums->cols; j++) {
        double sum = 0;
        for (size_t i = 0; i < sums->rows; i++)
            sum += load(sums->from, (const char *)sums->src + i * sums->src_stride, j);
        sum *= sums->scale;
        lap_from_double(to, &sum, (char *)fake_host((uintptr_t)sums->dst) + j * lap_dtype_size(to),
                        1);
    }
}

static float product_at(const lap_cuda_multiply_t *g, size_t row, size_t col)
{
    float sum = 0;
    for (size_t k = 0; k < g->k; k++) {
        const size_t a_row = g->a_transposed ? k : row, b_row = g->b_plain ? k : col;
        sum +=
            load(g->a_dtype, (const char *)g->a + a_row * g->a_stride, g->a_transposed ? row : k) *
            load(g->b_dtype, (const char *)g->b + b_row * g->b_stride, g->b_plain ? col : k);
    }
    return sum * g->scale * (g->a_scale ? *(const float *)fake_host((uintptr_t)g->a_scale) : 1.0f);
}

static void run_multiply(const void *args)
{
    const lap_cuda_multiply_t *g = args;
    for (size_t i = 0; i < g->rows; i++)
        for (size_t j = 0; j < g->n; j++) {
            char *d = (char *)g->d + i * g->d_stride;
            store(g->d_dtype, d, j, finish(&g->finish, product_at(g, i, j), g->d_dtype, d, i, j));
        }
}

static void run_fill(const void *args)
{
    const lap_cuda_fill_t *fill = args;
    for (size_t i = 0; i < fill->count; i++)
        store(fill->dtype, fill->memory, i, (float)((i + fill->seed) % 7) / 8.0f - 0.4f);
}

/* ---- by name ---- */

static const struct {
    const char *name;
    size_t bytes;
    void (*run)(const void *args);
} kernels[] = {
    {"lap_wait", sizeof(lap_cuda_waits_t), run_wait},
    {"lap_raise", sizeof(lap_cuda_raises_t), run_raise},
    {"lap_advance", sizeof(lap_cuda_advance_t), run_advance},
    {"lap_stamp", sizeof(lap_cuda_stamp_t), run_stamp},
    {"lap_pace", sizeof(lap_cuda_pace_t), run_pace},
    {"lap_reduce", sizeof(lap_cuda_reduce_t), run_reduce},
    {"lap_column_sums", sizeof(lap_cuda_column_sums_t), run_column_sums},
    {"lap_multiply", sizeof(lap_cuda_multiply_t), run_multiply},
    {"lap_fill", sizeof(lap_cuda_fill_t), run_fill},
};

size_t fake_kernel_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (strcmp(kernels[i].name, name) == 0)
            return kernels[i].bytes;
    return 0;
}

void fake_kernel_run(const char *name, const void *args)
{
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (strcmp(kernels[i].name, name) == 0)
            kernels[i].run(args);
}
