/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Language models against Hugging Face's transformers: logits, the loss, all gradients, and all
 * parameters after three steps of AdamW, of a tiny GPT-2 and a tiny Llama in golden/ (made by
 * scripts/make_golden_models.py), on several numbers of ranks. What differs is rounding, and the
 * angles of rotary positions, which transformers computes in float32.
 *
 *     golden_models [cpu|ref|cuda]
 */
#include <lap/model.h>

#include <math.h>

#include "golden.h"

#define SEQ 7
#define BATCH 2
#define VOCAB 37
#define STEPS 3

typedef struct setting {
    const char *file;
    const golden_t *golden;
    bool llama;
} setting_t;

static lap_nn_desc_t describe(bool llama)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    (void)lap_model_preset(llama ? "llama" : "gpt", &desc);
    desc.layers = 2;
    desc.seq = SEQ;
    desc.batch = BATCH;
    desc.vocab = VOCAB;
    desc.hidden = llama ? 24 : 12;
    desc.ffn = llama ? 24 : 48;
    desc.heads = llama ? 12 : 6;
    desc.kv_heads = 6;
    desc.head_dim = llama ? 4 : 2;
    desc.max_positions = llama ? 0 : 9;
    return desc;
}

/* The most that values are off, in parts of the largest golden one. */
static double distance(const float *values, size_t stride, size_t rows, size_t cols,
                       const float *golden, size_t golden_stride)
{
    double most = 0;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            const double off =
                fabs((double)values[i * stride + j] - (double)golden[i * golden_stride + j]);
            if (!(off <= most)) /* also what is not a number */
                most = isnan(off) ? INFINITY : off;
        }
    return most;
}

static double largest(const matrix_t *matrix)
{
    double most = 0;
    for (size_t i = 0; i < (size_t)matrix->rows * matrix->cols; i++) {
        const double size = fabs((double)matrix->values[i]);
        if (size > most)
            most = size;
    }
    return most;
}

/* Compares what all parameters have, masters or gradients, with the matrices of a suffix. */
static size_t count_wrong(const setting_t *setting, lap_nn_t *nn, const float *all, bool grads,
                          const char *suffix, double bound)
{
    size_t count, wrong = 0;
    const float *first = grads ? lap_nn_gradients(nn, &count) : lap_nn_masters(nn, &count);
    for (size_t p = 0; p < lap_nn_params(nn); p++) {
        const lap_nn_param_t *param = lap_nn_param(nn, p);
        const matrix_t *matrix = find(setting->golden, param->name, suffix);
        const float *data = grads ? param->grad.data : param->master.data;
        const float *shard = all + (data - first);
        double most = 0;
        for (size_t i = 0; i < param->rows && matrix; i++)
            most = fmax(most, distance(shard + i * param->cols, 0, 1, param->cols,
                                       matrix->values + whole_row(param, i) * matrix->cols +
                                           param->global_col,
                                       0));
        wrong += tap_wrong(!matrix || !(most <= bound * largest(matrix)),
                           "%s%s is off by %.3g of the largest, expected at most %.3g", param->name,
                           suffix, matrix ? most / largest(matrix) : INFINITY, bound);
    }
    return wrong;
}

static void get_tokens(const setting_t *setting, int32_t *tokens, int32_t *targets)
{
    const matrix_t *from = find(setting->golden, "tokens", "");
    const matrix_t *to = find(setting->golden, "targets", "");
    for (size_t i = 0; i < BATCH * SEQ; i++) {
        tokens[i] = (int32_t)from->values[i];
        targets[i] = (int32_t)to->values[i];
    }
}

static void check_logits(const setting_t *setting, lap_nn_t *nn, const int32_t *tokens)
{
    const matrix_t *golden = find(setting->golden, "logits", "");
    lap_tensor_t logits;
    size_t first;
    if (!tap_success(lap_model_forward(nn, SEQ, tokens, NULL), "forward") ||
        !tap_success(lap_nn_wait(nn), "it ends") ||
        !tap_success(lap_model_logits(nn, &logits, &first), "logits"))
        return;
    const size_t count = (logits.rows - 1) * logits.stride + logits.cols;
    float *values = nn_fetch(nn, logits.data, count);
    const double off =
        distance(values, logits.stride, logits.rows, logits.cols, golden->values + first, VOCAB) /
        largest(golden);
    tap_ok(logits.rows == SEQ * BATCH && off <= 32 * 0x1p-23,
           "%s: logits are those of transformers, up to %.2g", setting->file, off);
    free(values);
}

static void check_steps(const setting_t *setting, lap_nn_t *nn, lap_optimizer_t *optimizer,
                        const int32_t *tokens, const int32_t *targets)
{
    const matrix_t *losses = find(setting->golden, "losses", "");
    size_t count;
    for (int i = 0; i < STEPS; i++) {
        double loss = 0;
        lap_nn_zero_gradients(nn);
        if (!tap_success(lap_model_forward(nn, SEQ, tokens, targets), "forward") ||
            !tap_success(lap_model_backward(nn), "backward") ||
            !tap_success(lap_nn_wait(nn), "both end") ||
            !tap_success(lap_nn_loss_value(nn, &loss), "loss"))
            return;
        tap_ok(fabs(loss / (double)losses->values[i] - 1) < 1e-5,
               "%s: loss %d is that of transformers: %.9g, %.9g", setting->file, i + 1, loss,
               (double)losses->values[i]);
        if (i == 0) {
            const float *all = lap_nn_gradients(nn, &count);
            float *grads = nn_fetch(nn, all, count);
            tap_ok(count_wrong(setting, nn, grads, true, ".grad", 64 * 0x1p-23) == 0,
                   "%s: all gradients are", setting->file);
            free(grads);
        }
        if (!tap_success(lap_optimizer_step(optimizer, 1, NULL), "a step"))
            return;
    }
    (void)lap_nn_wait(nn);
    const float *all = lap_nn_masters(nn, &count);
    float *masters = nn_fetch(nn, all, count);
    tap_ok(count_wrong(setting, nn, masters, false, ".after", 256 * 0x1p-23) == 0,
           "%s: all parameters are after %d steps", setting->file, STEPS);
    free(masters);
}

static void run_rank(lap_world_t *world, void *arg)
{
    const setting_t *setting = arg;
    const lap_nn_desc_t desc = describe(setting->llama);
    lap_optimizer_desc_t adamw = LAP_OPTIMIZER_DESC_INIT;
    lap_optimizer_t *optimizer = NULL;
    lap_nn_t *nn = NULL;
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    adamw.lr = 0.01f;
    adamw.beta1 = 0.9f;
    adamw.beta2 = 0.95f;
    adamw.epsilon = 1e-3f;
    adamw.weight_decay = 0.1f;
    get_tokens(setting, tokens, targets);
    if (tap_success(lap_nn_create(lap_world_group(world), &desc, &nn), "%s of %d ranks",
                    setting->file, lap_world_size(world)) &&
        tap_success(lap_optimizer_create(nn, lap_world_group(world), &adamw, &optimizer),
                    "an optimizer") &&
        tap_ok(load_params(nn, setting->golden), "the file has all parameters")) {
        check_logits(setting, nn, tokens);
        check_steps(setting, nn, optimizer, tokens, targets);
    }
    lap_optimizer_destroy(optimizer);
    lap_nn_destroy(nn);
}

int main(int argc, char **argv)
{
    lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
    options.device = argc > 1 ? argv[1] : "cpu";
    for (int llama = 0; llama < 2; llama++) {
        golden_t golden;
        setting_t setting = {llama ? "llama" : "gpt2", &golden, llama};
        if (!read_golden(setting.file, &golden))
            continue;
        for (int ranks = 1; ranks <= 3; ranks++)
            tap_ranks(ranks, &options, run_rank, &setting);
        free_golden(&golden);
    }
    return tap_done();
}
