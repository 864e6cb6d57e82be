/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Language models: layers of the kind LAP_NN_MODEL of lap/nn.h. Tokens are embedded, go through
 * transformer layers and a last norm, and become logits of the next token. The loss is the mean
 * cross-entropy of the targets. Optimizer, replicas, checks and all calls of lap/nn.h work on them
 * as on other layers, but for lap_nn_forward, lap_nn_backward and lap_nn_loss, whose places the
 * calls below take.
 *
 * The P ranks of the group share the vocabulary: each has rows of the embedding and columns of the
 * logits. Shares are those of lap_shard_features; from 1024 tokens on, of a number that is rounded
 * up to a multiple of 64. Logits are never gathered. With `fp8` the GEMMs of the layers take FP8,
 * those of logits do not. Parameters are those of the layers and
 *
 *   embedding.weight         [vocab, hidden]; with `tied` it makes the logits, too
 *   positions.weight         [max_positions, hidden], with LAP_POSITIONS_LEARNED
 *   final_norm.weight, bias  [hidden]
 *   head.weight              [vocab, hidden], without `tied`; it has no bias
 *
 *     lap_nn_desc_t desc = LAP_NN_DESC_INIT;
 *     lap_model_preset("gpt2-124m", &desc);
 *     lap_nn_create(group, &desc, &nn);
 *     for (int i = 0; i < steps; i++) {
 *         lap_nn_zero_gradients(nn);
 *         lap_model_forward(nn, desc.seq, tokens, targets);
 *         lap_model_backward(nn);
 *         lap_optimizer_step(optimizer, 1, NULL);
 *         lap_nn_loss_value(nn, &loss);
 *     }
 */
#ifndef LAP_MODEL_H
#define LAP_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <lap/export.h>
#include <lap/nn.h>
#include <lap/status.h>
#include <lap/tensor.h>

LAP_BEGIN_DECLS

/*
 * Sets the kind and the fields of a model of a known name: layers, seq, hidden, ffn, heads,
 * kv_heads, head_dim, norm, activation, epsilon, bias, vocab, positions, max_positions, tied,
 * rope_theta, init_std. All other fields stay as they are. Any of them can be changed afterwards.
 *
 *   gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b    the sizes of GPT-2
 *   llama-tiny, llama-1b, llama-8b, llama-70b,    a toy, and sizes of Llama 3 with 8192 tokens
 *   llama-405b
 *   gpt3-175b                                     GPT-3
 *   gpt, llama                                    small models of the same make, to be resized
 *
 * Local. Changes *desc on success. Returns LAP_ERR_INVALID with the nearest name for one that there
 * is not.
 */
LAP_API lap_status_t lap_model_preset(const char *name, lap_nn_desc_t *desc);

/* The name of preset `index`, and a line about it (may be NULL). Local. NULL past the last one. */
LAP_API const char *lap_model_presets(size_t index, const char **summary_p);

/*
 * Computes logits from tokens, and, with targets, the mean cross-entropy and its gradients.
 * Collective; every rank gives the same arguments. `tokens` and `targets` are [batch, seq], a
 * sequence after the other, in memory of the host; both may change when the call has returned.
 * targets[i] is what follows tokens[i]; one below 0 does not count. Without targets (NULL) there
 * is no loss and no backward.
 * Blocks and returns as lap_nn_forward. LAP_ERR_INVALID names a token beyond the vocabulary, and
 * targets of which none counts.
 */
LAP_API lap_status_t lap_model_forward(lap_nn_t *nn, size_t seq, const int32_t *tokens,
                                       const int32_t *targets);

/*
 * For dropout: the number of the first sequence of the next forward with targets, among all that the
 * model is trained on. Sequence b of it has `first` + b. The forward after it goes on from there.
 * Masks are a function of the seed and of that number, so that ranks that share the sequences in another way
 * have the same masks if they have the same numbers. They begin with 0. Local. Returns
 * LAP_ERR_INVALID (NULL, no model).
 */
LAP_API lap_status_t lap_model_samples(lap_nn_t *nn, uint64_t first);

/*
 * Computes the gradients of the weights from the latest forward, which had targets. They are added
 * up as in lap_nn_backward. Collective. Blocks and returns as lap_nn_backward.
 */
LAP_API lap_status_t lap_model_backward(lap_nn_t *nn);

/*
 * This rank's columns of the logits of the latest forward, which had no targets, after lap_nn_wait:
 * [seq * batch, columns], rows sequence-major, of desc.dtype, in memory of the device; and where
 * they begin in the vocabulary (may be NULL). They are valid until the next pass.
 * Local. Writes *logits_p and *first_p on success. Returns LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_model_logits(lap_nn_t *nn, lap_tensor_t *logits_p, size_t *first_p);

LAP_END_DECLS

#endif
