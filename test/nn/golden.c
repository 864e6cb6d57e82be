/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers against PyTorch: y, dx and the gradients of all parameters of golden/ (made by
 * scripts/make_golden.py), for several numbers of ranks, with each way to overlap, to recompute and
 * to be parallel. Inputs and weights are exact in every type, so that what differs is rounding: the
 * bounds count the roundings on the way. In float32 all methods of overlap give the same bits, if
 * the GEMM gives the same ones to parts of a product and to the whole.
 *
 *     golden [--device cpu|ref|cuda] [--dtype float32|float16|bfloat16] [--ranks n] [--chaos seed]
 *            [--layers name]
 *
 * Ranks are threads, or those that `lap run` has started. With --chaos the steps of operators are
 * delayed at random: kernels that do not wait for them, or that they do not wait for, show.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "golden.h"
#include "memory.h"
#include "overlap/op.h"
#include "tap.h"

#define SEQ 7
#define BATCH 2

/* ---- cases and the ways to run them ---- */

typedef struct layers {
    const char *file;
    lap_nn_kind_t kind;
    size_t layers, hidden, features, ffn, heads, kv_heads;
    lap_norm_t norm;
    lap_activation_t activation;
    int bias, row;
    double steps; /* roundings in a row, about: GEMMs, norms and the sums they take */
} layers_t;

static const layers_t all_layers[] = {
    {"linear", LAP_NN_LINEAR, 1, 16, 24, 0, 0, 0, LAP_LAYERNORM, LAP_GELU, 1, 0, 2},
    {"linear_row", LAP_NN_LINEAR, 1, 24, 16, 0, 0, 0, LAP_LAYERNORM, LAP_GELU, 1, 1, 2},
    {"layernorm_linear", LAP_NN_LAYERNORM_LINEAR, 1, 16, 48, 0, 0, 0, LAP_LAYERNORM, LAP_GELU, 1, 0,
     4},
    {"layernorm_mlp", LAP_NN_LAYERNORM_MLP, 1, 16, 0, 48, 0, 0, LAP_LAYERNORM, LAP_GELU, 1, 0, 6},
    {"rmsnorm_swiglu", LAP_NN_LAYERNORM_MLP, 1, 16, 0, 24, 0, 0, LAP_RMSNORM, LAP_SWIGLU, 0, 0, 6},
    {"attention", LAP_NN_ATTENTION, 1, 16, 0, 0, 24, 0, LAP_LAYERNORM, LAP_GELU, 1, 0, 6},
    {"grouped", LAP_NN_ATTENTION, 1, 16, 0, 0, 48, 24, LAP_RMSNORM, LAP_GELU, 0, 0, 6},
    {"transformer", LAP_NN_TRANSFORMER, 1, 16, 0, 48, 24, 0, LAP_LAYERNORM, LAP_GELU, 1, 0, 12},
    {"transformer2", LAP_NN_TRANSFORMER, 2, 16, 0, 48, 24, 0, LAP_RMSNORM, LAP_SWIGLU, 1, 0, 24},
};

typedef struct way {
    const char *name;
    int overlap, rs_dgrad, sequence;
    lap_recompute_t recompute;
    bool same_bits; /* as the first way, in float32 */
    bool few;       /* only with some numbers of ranks */
} way_t;

static const way_t ways[] = {
    {"overlapped", 1, 0, 1, LAP_RECOMPUTE_NONE, false, false},
    {"serial", 0, 0, 1, LAP_RECOMPUTE_NONE, true, false},
    {"rs_dgrad", 1, 1, 1, LAP_RECOMPUTE_NONE, true, true},
    {"selective", 1, 0, 1, LAP_RECOMPUTE_SELECTIVE, true, true},
    {"full", 1, 0, 1, LAP_RECOMPUTE_FULL, true, true},
    {"full rs_dgrad", 1, 1, 1, LAP_RECOMPUTE_FULL, true, true},
    {"all-reduced", 1, 0, 0, LAP_RECOMPUTE_NONE, false, true},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

typedef struct setting {
    const char *device;
    lap_dtype_t dtype;
    uint64_t chaos;
    bool exact; /* all methods of overlap give the same bits */
    const layers_t *layers;
    const golden_t *golden;
} setting_t;

static lap_nn_desc_t describe(const setting_t *setting, const way_t *way, int nranks,
                              lap_tp_overlap_t *overlap)
{
    const layers_t *layers = setting->layers;
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    lap_tp_switches_t switches = LAP_TP_SWITCHES_INIT;
    desc.kind = layers->kind;
    desc.layers = layers->layers;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.hidden = layers->hidden;
    desc.features = layers->features;
    desc.ffn = layers->ffn;
    desc.heads = layers->heads;
    desc.kv_heads = layers->kv_heads;
    desc.head_dim = 2;
    desc.dtype = setting->dtype;
    desc.norm = layers->norm;
    desc.activation = layers->activation;
    desc.bias = layers->bias;
    desc.row_parallel = layers->row;
    desc.sequence_parallel = way->sequence;
    desc.recompute = way->recompute;
    switches.overlap = way->overlap;
    switches.overlap_rs_dgrad = way->rs_dgrad;
    (void)lap_tp_overlap_init(nranks, overlap);
    (void)lap_tp_overlap_switch(overlap, &switches);
    desc.overlap = overlap;
    return desc;
}

/* ---- one rank ---- */

static double unit_of(lap_dtype_t dtype)
{
    return dtype == LAP_FLOAT32 ? 0x1p-23 : dtype == LAP_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

/* This rank's part of a golden matrix, as the layers want it. */
static lap_tensor_t part_of(const setting_t *setting, const char *name, const lap_nn_part_t *part)
{
    const matrix_t *matrix = find(setting->golden, name, "");
    const size_t element = lap_dtype_size(setting->dtype);
    char *data = malloc(part->rows * part->cols * element + 1);
    for (size_t i = 0; i < part->rows && matrix; i++)
        lap_from_float(setting->dtype,
                       matrix->values + (part->first_row + i) * matrix->cols + part->first_col,
                       data + i * part->cols * element, part->cols);
    return lap_tensor(data, setting->dtype, part->rows, part->cols);
}

/* A matrix of the device, with what a matrix of the host holds. */
static lap_tensor_t on_device(lap_nn_t *nn, const lap_tensor_t *host)
{
    const size_t bytes = host->rows * host->cols * lap_dtype_size(host->dtype);
    lap_tensor_t tensor = *host;
    if (nn->engine->device->ops->alloc(nn->engine->device, bytes + 1, &tensor.data) != LAP_OK)
        exit(1);
    (void)nn_copy(nn, tensor.data, host->data, bytes);
    return tensor;
}

/* How far rows of a matrix are from the golden one, in parts of its largest element. */
typedef struct distance {
    double most, largest;
} distance_t;

static void compare_row(distance_t *distance, lap_dtype_t dtype, const void *row,
                        const float *golden, size_t cols)
{
    for (size_t c = 0; c < cols; c++) {
        float value;
        lap_to_float(dtype, (const char *)row + c * lap_dtype_size(dtype), &value, 1);
        const double off = fabs((double)value - (double)golden[c]);
        if (!(off <= distance->most)) /* also what is not a number */
            distance->most = isnan(off) ? INFINITY : off;
    }
}

static bool is_close(const setting_t *setting, const char *name, const matrix_t *matrix,
                     distance_t distance)
{
    for (size_t i = 0; i < (size_t)matrix->rows * matrix->cols; i++) {
        const double size = fabs((double)matrix->values[i]);
        if (size > distance.largest)
            distance.largest = size;
    }
    const double bound = setting->layers->steps * unit_of(setting->dtype) * distance.largest;
    if (getenv("GOLDEN_SHOW"))
        tap_note("%s: %.3f of the bound", name, distance.most / bound);
    if (distance.most <= bound)
        return true;
    tap_note("%s is off by %g, expected at most %g", name, distance.most, bound);
    return false;
}

static bool check_tensor(const setting_t *setting, const char *name, const char *golden_name,
                         const lap_tensor_t *tensor, const lap_nn_part_t *part)
{
    const matrix_t *matrix = find(setting->golden, golden_name, "");
    distance_t distance = {0, 0};
    for (size_t i = 0; i < part->rows; i++)
        compare_row(&distance, tensor->dtype,
                    (char *)tensor->data + i * part->cols * lap_dtype_size(tensor->dtype),
                    matrix->values + (part->first_row + i) * matrix->cols + part->first_col,
                    part->cols);
    return is_close(setting, name, matrix, distance);
}

static bool check_grads(const setting_t *setting, lap_nn_t *nn, const float *grads)
{
    size_t count;
    const float *all = lap_nn_gradients(nn, &count);
    bool close = true;
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        const matrix_t *matrix = find(setting->golden, param->name, ".grad");
        distance_t distance = {0, 0};
        const float *shard = grads + ((float *)param->grad.data - all);
        for (size_t i = 0; i < param->rows; i++)
            compare_row(&distance, LAP_FLOAT32, shard + i * param->cols,
                        matrix->values + whole_row(param, i) * matrix->cols + param->global_col,
                        param->cols);
        close &= is_close(setting, param->name, matrix, distance);
    }
    return close;
}

/* The bits of all results of a rank. */
typedef struct bits {
    void *data;
    size_t bytes;
} bits_t;

static void add_bits(bits_t *bits, const void *data, size_t bytes)
{
    bits->data = realloc(bits->data, bits->bytes + bytes + 1);
    memcpy((char *)bits->data + bits->bytes, data, bytes);
    bits->bytes += bytes;
}

static bits_t bits_of(const lap_tensor_t *y, const lap_tensor_t *dx, const float *grads,
                      size_t count)
{
    const size_t element = lap_dtype_size(y->dtype);
    bits_t bits = {NULL, 0};
    add_bits(&bits, y->data, y->rows * y->cols * element);
    add_bits(&bits, dx->data, dx->rows * dx->cols * element);
    add_bits(&bits, grads, count * sizeof(float));
    return bits;
}

enum { X, Y, DY, DX, TENSORS };

/* Forward and backward on the device; brings y and dx back. */
static bool pass(lap_nn_t *nn, const lap_tensor_t *host)
{
    const lap_device_ops_t *ops = nn->engine->device->ops;
    const size_t element = lap_dtype_size(host[Y].dtype);
    lap_tensor_t t[TENSORS];
    for (size_t i = 0; i < TENSORS; i++)
        t[i] = on_device(nn, &host[i]);
    const bool ran = tap_success(lap_nn_forward(nn, SEQ, &t[X], &t[Y]), "forward") &&
                     tap_success(lap_nn_backward(nn, &t[DY], &t[DX]), "backward") &&
                     tap_success(lap_nn_wait(nn), "both end") &&
                     nn_copy(nn, host[Y].data, t[Y].data, t[Y].rows * t[Y].cols * element) &&
                     nn_copy(nn, host[DX].data, t[DX].data, t[DX].rows * t[DX].cols * element);
    for (size_t i = 0; i < TENSORS; i++)
        ops->free(nn->engine->device, t[i].data);
    return ran;
}

/* Runs the layers one way; returns the bits of the results. */
static bits_t run_way(lap_world_t *world, const setting_t *setting, const way_t *way)
{
    const int nranks = lap_world_size(world), rank = lap_world_rank(world);
    lap_tp_overlap_t overlap;
    const lap_nn_desc_t desc = describe(setting, way, nranks, &overlap);
    lap_nn_t *nn;
    bits_t bits = {NULL, 0};
    if (!tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "%s of %d ranks, %s",
                     setting->layers->file, nranks, way->name))
        return bits;
    for (size_t i = 0; i < nn->ncalls && setting->chaos; i++)
        lap_op_set_chaos(nn->calls[i].op, setting->chaos + i);
    const lap_nn_part_t in = lap_nn_input(nn, 0), out = lap_nn_output(nn, 0);
    lap_tensor_t tensors[] = {part_of(setting, "x", &in), part_of(setting, "y", &out),
                              part_of(setting, "dy", &out), part_of(setting, "x", &in)};
    memset(tensors[Y].data, 0, out.rows * out.cols * lap_dtype_size(setting->dtype));
    memset(tensors[DX].data, 0, in.rows * in.cols * lap_dtype_size(setting->dtype));
    size_t nfloats;
    const float *all = lap_nn_gradients(nn, &nfloats);
    float *grads = calloc(nfloats, sizeof(float));
    bool good = grads && load_params(nn, setting->golden) && pass(nn, tensors) &&
                nn_copy(nn, grads, all, nfloats * sizeof(float));
    if (good) {
        good &= check_tensor(setting, "y", "y", &tensors[Y], &out);
        good &= check_tensor(setting, "dx", "x.grad", &tensors[DX], &in);
        good &= check_grads(setting, nn, grads);
        bits = bits_of(&tensors[Y], &tensors[DX], grads, nfloats);
    }
    free(grads);
    tap_ok(good, "%s, %s, rank %d of %d: y, dx and gradients are those of PyTorch",
           setting->layers->file, way->name, rank, nranks);
    for (size_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
    lap_nn_destroy(nn);
    return bits;
}

static void run_rank(lap_world_t *world, void *arg)
{
    const setting_t *setting = arg;
    const int nranks = lap_world_size(world);
    /* On `ref` GELU is computed again from what was rounded, and not quite as its GEMM does it. */
    const bool ref = strcmp(setting->device, "ref") == 0;
    bits_t first = {NULL, 0};
    for (size_t w = 0; w < WAYS; w++) {
        if (ways[w].few && nranks != 1 && nranks != 4)
            continue;
        bits_t bits = run_way(world, setting, &ways[w]);
        const bool other = ref && ways[w].recompute == LAP_RECOMPUTE_SELECTIVE;
        if (w > 0 && setting->exact && ways[w].same_bits && !other)
            tap_ok(bits.data && first.data && bits.bytes == first.bytes &&
                       memcmp(bits.data, first.data, bits.bytes) == 0,
                   "%s of %d ranks: %s has the bits of %s", setting->layers->file, nranks,
                   ways[w].name, ways[0].name);
        if (w == 0)
            first = bits;
        else
            free(bits.data);
    }
    free(first.data);
}

/* ---- whether bits can be expected ---- */

/* Rows [0, rows) and columns [0, cols) of a product, each computed in a GEMM of just that size. */
static bool multiply(lap_group_t *group, lap_layout_t layout, size_t rows, size_t cols, size_t k,
                     float *a, float *b, float *d)
{
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    lap_op_args_t args = LAP_OP_ARGS_INIT;
    lap_op_t *op;
    desc.kind = LAP_GEMM;
    desc.layout = layout;
    desc.m = args.m = rows;
    desc.n = cols;
    desc.k = k;
    args.a = lap_tensor(a, LAP_FLOAT32, rows, k);
    args.b = layout == LAP_FORWARD ? lap_tensor(b, LAP_FLOAT32, cols, k)
                                   : (lap_tensor_t){b, LAP_FLOAT32, k, cols, 48};
    args.d = (lap_tensor_t){d, LAP_FLOAT32, rows, cols, 48};
    if (lap_op_create(group, &desc, &op) != LAP_OK)
        return false;
    const bool ran = lap_op_run(op, &args) == LAP_OK;
    lap_op_destroy(op);
    return ran;
}

typedef struct probe {
    bool splits; /* parts of a product have the bits of the whole */
} probe_t;

/* OpenBLAS does not promise it: it may take another loop for another size. */
static void probe_rank(lap_world_t *world, void *arg)
{
    static const size_t depths[] = {2, 6, 12, 16, 24, 48};
    static float a[14 * 48], b[48 * 48], whole[14 * 48], part[14 * 48];
    probe_t *probe = arg;
    for (size_t i = 0; i < sizeof(b) / sizeof(b[0]); i++)
        b[i] = (float)(tap_random(1, i) % 1000) / 999 - 0.5f;
    for (size_t i = 0; i < sizeof(a) / sizeof(a[0]); i++)
        a[i] = (float)(tap_random(2, i) % 1000) / 999 - 0.5f;
    for (size_t t = 0; t < 6 * 2 * 14 * 4; t++) {
        const size_t k = depths[t % 6], rows = t / 12 % 14 + 1, cols = 12 * (t / 168 + 1);
        const lap_layout_t layout = t / 6 % 2 ? LAP_DGRAD : LAP_FORWARD;
        probe->splits &= multiply(lap_world_group(world), layout, 14, 48, k, a, b, whole) &&
                         multiply(lap_world_group(world), layout, rows, cols, k, a, b, part);
        for (size_t i = 0; i < rows; i++)
            probe->splits &= memcmp(whole + i * 48, part + i * 48, cols * sizeof(float)) == 0;
    }
}

/* As the ranks of a launcher, or as threads: one number of them, or several. */
static void run_layers(const setting_t *given, const lap_world_options_t *options, int ranks,
                       lap_world_t *world)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8};
    golden_t golden;
    setting_t setting = *given;
    setting.golden = &golden;
    if (!read_golden(setting.layers->file, &golden))
        return;
    if (world)
        run_rank(world, &setting);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && !world; s++)
        if ((ranks == 0 || ranks == sizes[s]) && setting.layers->heads % (size_t)sizes[s] == 0)
            tap_ranks(sizes[s], options, run_rank, &setting);
    free_golden(&golden);
}

int main(int argc, char **argv)
{
    setting_t setting = {.device = "cpu", .dtype = LAP_FLOAT32};
    lap_world_t *world = NULL;
    const char *only = NULL;
    int ranks = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--device") == 0)
            setting.device = argv[i + 1];
        else if (strcmp(argv[i], "--ranks") == 0)
            ranks = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--layers") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--chaos") == 0)
            setting.chaos = strtoull(argv[i + 1], NULL, 10);
        else if (lap_dtype_parse(argv[i + 1], &setting.dtype) != LAP_OK)
            return 2;
    }
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = setting.device;
    if (setting.dtype == LAP_FLOAT32 && strcmp(setting.device, "cuda") != 0) {
        probe_t probe = {.splits = true};
        tap_ranks(1, &options, probe_rank, &probe);
        setting.exact = probe.splits;
        if (!probe.splits)
            tap_skip("bits of overlapped and serial results: this OpenBLAS gives a product other "
                     "bits when it is computed in parts");
    }
    if (getenv("LAP_RANK") && !tap_success(lap_world_create(&options, &world), "a world"))
        return tap_done();
    for (size_t i = 0; i < sizeof(all_layers) / sizeof(all_layers[0]); i++) {
        setting.layers = &all_layers[i];
        if (!only || strcmp(only, all_layers[i].file) == 0)
            run_layers(&setting, &options, ranks, world);
    }
    lap_world_destroy(world);
    return tap_done();
}
