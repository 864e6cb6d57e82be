/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of NeMo and Megatron that concern us, for config.c and config_values.c alone. */
#ifndef LAP_CLI_CONFIG_ROWS_H
#define LAP_CLI_CONFIG_ROWS_H

typedef enum kind {
    COUNT,   /* a whole number, at least 1 */
    WHOLE,   /* a whole number */
    NUMBER,  /* at least 0 */
    BETAS,   /* two numbers below 1 */
    HOLD,    /* a whole number: the last steps, in which the rate falls no more */
    TEXT,    /* as it is */
    WORD,    /* one of `words` */
    ON_TRUE, /* true or false: the option has no value, and is given for the one or the other */
    ON_FALSE,
    ONLY,     /* one of `words`, and nothing comes of it: more is not there yet */
    BIAS,     /* true or false, as the model has it */
    WINDOW,   /* tokens that a token attends to; as many as a sequence has, or more, are all */
    ROPE_3_1, /* true: the angles of Llama 3.1 */
    GPUS, /* a whole number of them, or of hosts; for lap train, and in other words, it has no effect */
    MOOT,      /* true or false, and it has no effect: both are the same here */
    NO_EFFECT, /* known, and none of our business */
} kind_t;

typedef struct row {
    const char *key; /* the last name of its path, or more of them: "sched.name" */
    kind_t kind;
    const char *option;
    /* "theirs=ours ..."; without ours: the option is not given. "null=ours" says what null is. */
    const char *words;
} row_t;

/* Of Hugging Face, whose "gelu" is that of the error function: ours is that of tanh. */
#define HIDDEN_ACTS "silu=swiglu swish=swiglu gelu_new=gelu gelu_fast=gelu gelu_pytorch_tanh=gelu"

static const row_t rows[] = {
    {"trainer.devices", GPUS, "devices", NULL},
    {"trainer.num_nodes", GPUS, "num-nodes", NULL},
    {"tensor_model_parallel_size", COUNT, "tp", NULL},
    {"pipeline_model_parallel_size", COUNT, "pp", NULL},
    {"virtual_pipeline_model_parallel_size", COUNT, "virtual-pp", NULL},
    {"context_parallel_size", COUNT, "cp", NULL},
    {"cp_comm_type", TEXT, "cp-comm-type", NULL},
    {"sequence_parallel", ON_FALSE, "no-sequence-parallel", NULL},
    {"vocab_size", COUNT, "vocab", NULL},
    {"position_embedding_type", WORD, "positions",
     "learned_absolute=learned learned=learned rope=rope none=none"},
    {"share_embeddings_and_output_weights", WORD, "tied", "true=yes false=no"},
    {"untie_embeddings_and_output_weights", WORD, "tied", "true=no false=yes"},
    {"max_position_embeddings", COUNT, "max-positions", NULL},
    {"override_vocab_size", COUNT, "vocab", NULL},
    {"micro_batch_size", COUNT, "micro-batch", NULL},
    {"num_layers", COUNT, "layers", NULL},
    {"hidden_size", COUNT, "hidden", NULL},
    {"ffn_hidden_size", COUNT, "ffn", NULL},
    {"num_attention_heads", COUNT, "heads", NULL},
    {"num_query_groups", COUNT, "kv-heads", NULL},
    {"kv_channels", COUNT, "head-dim", NULL},
    {"encoder_seq_length", COUNT, "seq", NULL},
    /* Those of the samples, which NeMo trains on; encoder_seq_length may allow for more. */
    {"data.seq_length", COUNT, "seq", NULL},
    {"seq_length", COUNT, "seq", NULL},
    {"global_batch_size", COUNT, "batch", NULL},
    /*
     * layernorm1p keeps the gain less one. Gains do not decay here either, so that a gain that begins
     * with one is trained to the same.
     */
    {"normalization", WORD, "norm",
     "layernorm=layernorm LayerNorm=layernorm layernorm1p=layernorm rmsnorm=rmsnorm "
     "RMSNorm=rmsnorm"},
    {"layernorm_epsilon", NUMBER, "norm-epsilon", NULL},
    {"rotary_base", NUMBER, "rope-theta", NULL},
    {"activation", WORD, "activation", "gelu=gelu swiglu=swiglu fast-swiglu=swiglu"},
    {"swiglu", WORD, "activation", "true=swiglu false=gelu"},
    {"gated_linear_unit", WORD, "activation", "true=swiglu false=gelu"},
    {"activation_func", WORD, "activation", "gelu=gelu silu=swiglu swiglu=swiglu"},
    {"activations_checkpoint_granularity", WORD, "recompute", "selective=selective full=full"},
    {"recompute_granularity", WORD, "recompute", "selective=selective full=full"},
    {"precision", WORD, "dtype",
     "32=float32 fp32=float32 32-true=float32 16=float16 fp16=float16 16-mixed=float16 "
     "bf16=bfloat16 "
     "bf16-mixed=bfloat16"},
    {"bf16", WORD, "dtype", "true=bfloat16 false"},
    {"fp16", WORD, "dtype", "true=float16 false"},
    {"fp8", WORD, "fp8", "true=delayed false=none hybrid=delayed e4m3=e4m3"},
    {"fp8_recipe", TEXT, "fp8-recipe", NULL}, /* which nobody has: see settle_fp8 */
    {"fp8_param", ON_TRUE, "fp8-param-gather", NULL},
    {"fp8_params", ON_TRUE, "fp8-param-gather", NULL},
    {"fp8_param_gather", ON_TRUE, "fp8-param-gather", NULL},
    {"fp8_e4m3", ONLY, NULL, "true false"}, /* see settle_fp8 */
    {"fp8_hybrid", ONLY, NULL, "true false"},
    {"fp8_amax_history_len", COUNT, "fp8-amax-history-len", NULL},
    {"fp8_amax_compute_algo", ONLY, NULL, "max most_recent"},
    {"fp4", WORD, "fp4", "e2m1=e2m1 false"},
    {"ub_tp_comm_overlap", ON_FALSE, "no-comm-overlap", NULL},
    {"tp_comm_overlap", ON_FALSE, "no-comm-overlap", NULL},
    {"tp_comm_overlap_ag", ON_FALSE, "disable-tp-comm-overlap-ag", NULL},
    {"tp_comm_overlap_rs", ON_FALSE, "disable-tp-comm-overlap-rs", NULL},
    {"tp_comm_split_ag", ON_FALSE, "disable-tp-comm-overlap-ag", NULL}, /* as NeMo called them */
    {"tp_comm_split_rs", ON_FALSE, "disable-tp-comm-overlap-rs", NULL},
    {"tp_comm_overlap_rs_dgrad", ON_TRUE, "tp-comm-overlap-rs-dgrad", NULL},
    {"tp_comm_bulk_dgrad", ON_FALSE, "disable-tp-comm-bulk-dgrad", NULL},
    {"tp_comm_bulk_wgrad", ON_FALSE, "disable-tp-comm-bulk-wgrad", NULL},
    {"tp_comm_overlap_cfg", TEXT, "tp-comm-overlap-cfg", NULL},
    {"ub_tp_comm_overlap_cfg", TEXT, "tp-comm-overlap-cfg", NULL},
    {"overlap_grad_sync", ON_FALSE, "no-overlap-grad-sync", NULL},
    {"overlap_grad_reduce", ON_FALSE, "no-overlap-grad-sync", NULL},
    {"overlap_param_sync", ON_FALSE, "no-overlap-param-sync", NULL},
    {"overlap_param_gather", ON_FALSE, "no-overlap-param-sync", NULL},
    {"overlap_param_gather_with_optimizer_step", ON_TRUE,
     "overlap-param-gather-with-optimizer-step", NULL},
    {"use_distributed_optimizer", ON_TRUE, "distributed-optimizer", NULL},
    {"grad_sync_dtype", WORD, "grad-sync-dtype", "fp32=fp32 32=fp32 bf16=bf16"},
    {"bucket_size", COUNT, "bucket-size", NULL},
    {"bucket_cap_mb", COUNT, "bucket-cap-mb", NULL}, /* see settle_bucket */
    {"optim.name", WORD, "optimizer",
     "fused_adam=adamw distributed_fused_adam=adamw mcore_distributed_optim=adamw adamw=adamw "
     "adam=adamw "
     "sgd=sgd"},
    {"optim.lr", NUMBER, "lr", NULL},
    {"optim.weight_decay", NUMBER, "weight-decay", NULL},
    {"betas", BETAS, NULL, NULL},
    /* The same as Megatron names them. */
    {"optimizer.optimizer", WORD, "optimizer", "adam=adamw adamw=adamw sgd=sgd"},
    {"optimizer.lr", NUMBER, "lr", NULL},
    {"optimizer.min_lr", NUMBER, "min-lr", NULL},
    {"optimizer.weight_decay", NUMBER, "weight-decay", NULL},
    /* Megatron's own files have them outside of any section. */
    {"optimizer", WORD, "optimizer", "adam=adamw adamw=adamw sgd=sgd"},
    {"adam_beta1", NUMBER, "adam-beta1", NULL},
    {"adam_beta2", NUMBER, "adam-beta2", NULL},
    {"adam_eps", NUMBER, "adam-eps", NULL},
    {"optim.eps", NUMBER, "adam-eps", NULL},
    {"optimizer.eps", NUMBER, "adam-eps", NULL},
    {"lr_decay_style", WORD, "lr-decay-style", "cosine=cosine linear=linear constant=constant"},
    {"lr_warmup_iters", WHOLE, "lr-warmup-iters", NULL},
    {"lr_decay_iters", COUNT, "lr-decay-iters", NULL},
    {"sched.name", WORD, "lr-decay-style",
     "CosineAnnealing=cosine WarmupAnnealing=linear WarmupHoldPolicy=constant"},
    {"sched.max_steps", COUNT, "lr-decay-iters", NULL}, /* unlike those of the trainer */
    {"lr_scheduler.max_steps", COUNT, "lr-decay-iters", NULL},
    {"warmup_steps", WHOLE, "lr-warmup-iters", NULL},
    {"constant_steps", HOLD, "lr-decay-iters", NULL},
    {"sched.min_lr", NUMBER, "min-lr", NULL},
    {"lr", NUMBER, "lr", NULL},
    {"min_lr", NUMBER, "min-lr", NULL},
    {"weight_decay", NUMBER, "weight-decay", NULL},
    {"gradient_clip_val", NUMBER, "clip-grad", "null=0"}, /* as Lightning has it: no clipping */
    {"clip_grad", NUMBER, "clip-grad", NULL},
    {"loss_scale", NUMBER, "loss-scale", NULL},
    {"initial_loss_scale", NUMBER, "initial-loss-scale", NULL},
    {"native_amp_init_scale", NUMBER, "initial-loss-scale", NULL},
    {"min_loss_scale", NUMBER, "min-loss-scale", NULL},
    {"loss_scale_window", COUNT, "loss-scale-window", NULL},
    {"native_amp_growth_interval", COUNT, "loss-scale-window", NULL},
    {"hysteresis", COUNT, "hysteresis", NULL},
    {"max_steps", COUNT, "iters", NULL},
    {"train_iters", COUNT, "iters", NULL},
    {"seed", WHOLE, "seed", NULL},
    {"init_method_std", NUMBER, "init-std", NULL},
    {"hidden_dropout", NUMBER, "hidden-dropout", NULL},
    {"attention_dropout", NUMBER, "attention-dropout", NULL},
    /* A config.json of Hugging Face, of models like GPT-2 and Llama. */
    {"model_type", WORD, "positions", "llama=rope mistral=rope gpt2=learned gpt gpt3"},
    {"n_embd", COUNT, "hidden", NULL},
    {"n_layer", COUNT, "layers", NULL},
    {"n_head", COUNT, "heads", NULL},
    {"n_inner", COUNT, "ffn", NULL},
    {"n_positions", COUNT, "max-positions", NULL},
    {"num_hidden_layers", COUNT, "layers", NULL},
    {"intermediate_size", COUNT, "ffn", NULL},
    {"num_key_value_heads", COUNT, "kv-heads", NULL},
    {"head_dim", COUNT, "head-dim", NULL},
    {"rms_norm_eps", NUMBER, "norm-epsilon", NULL},
    {"layer_norm_epsilon", NUMBER, "norm-epsilon", NULL},
    {"rope_theta", NUMBER, "rope-theta", NULL},
    {"rope_type", ONLY, NULL, "llama3 default"},
    {"rope_scaling.type", ONLY, NULL, "llama3 default"},
    {"rope_scaling.factor", NUMBER, "rope-factor", NULL},
    {"rope_parameters.factor", NUMBER, "rope-factor", NULL},
    {"low_freq_factor", NUMBER, "rope-low-freq", NULL},
    {"high_freq_factor", NUMBER, "rope-high-freq", NULL},
    {"original_max_position_embeddings", COUNT, "rope-original", NULL},
    {"tie_word_embeddings", WORD, "tied", "true=yes false=no"},
    {"hidden_act", WORD, "activation", HIDDEN_ACTS},
    {"activation_function", WORD, "activation", HIDDEN_ACTS},
    {"initializer_range", NUMBER, "init-std", NULL},
    {"attn_pdrop", NUMBER, "attention-dropout", NULL},
    {"resid_pdrop", NUMBER, "hidden-dropout", NULL},
    {"embd_pdrop", NUMBER, "hidden-dropout", NULL},
    {"sliding_window", WINDOW, NULL, NULL},
    {"attention_bias", BIAS, NULL, NULL},
    {"mlp_bias", BIAS, NULL, NULL},
    /* Names that are near to some of these, and mean something else. */
    {"expert_model_parallel_size", ONLY, NULL, "1"},
    {"expert_tensor_parallel_size", ONLY, NULL, "1"},
    /* Other values make another model, or other numbers, which would train without a word of it. */
    {"num_moe_experts", ONLY, NULL, "null 0 1"},
    {"rotary_percentage", ONLY, NULL, "1.0 1"},
    {"rotary_percent", ONLY, NULL, "1.0 1"},
    {"rotary_interleaved", ONLY, NULL, "false"},
    {"seq_len_interpolation_factor", ONLY, NULL, "null 1.0 1"},
    {"rotary_seq_len_interpolation_factor", ONLY, NULL, "null 1.0 1"},
    {"scale_positional_embedding", ROPE_3_1, "rope-factor", NULL},
    {"transformer_block_type", ONLY, NULL, "pre_ln"},
    {"apply_residual_connection_post_layernorm", ONLY, NULL, "false"},
    {"headscale", ONLY, NULL, "false"},
    {"attention_type", ONLY, NULL, "multihead"},
    {"attn_mask_type", ONLY, NULL, "causal"},
    {"normalize_attention_scores", ONLY, NULL, "true"},
    {"scale_attn_weights", ONLY, NULL, "true"},
    {"scale_attn_by_inverse_layer_idx", ONLY, NULL, "false"},
    {"softmax_scale", ONLY, NULL, "null"},
    {"softmax_type", ONLY, NULL, "vanilla"},
    {"attn_logit_softcapping", ONLY, NULL, "null"},
    {"final_logit_softcapping", ONLY, NULL, "null"},
    {"embedding_multiplier", ONLY, NULL, "1"},
    {"residual_multiplier", ONLY, NULL, "1"},
    {"logits_scaling", ONLY, NULL, "1"},
    {"partial_rotary_factor", ONLY, NULL, "null 1"},
    {"rope_scaling_factor", ONLY, NULL, "8"}, /* as scale_positional_embedding has it */
    {"no_rope_freq", ONLY, NULL, "null"},
    {"window_attn_skip_freq", ONLY, NULL, "null"},
    {"use_qk_norm", ONLY, NULL, "false"},
    {"use_parallel_residual", ONLY, NULL, "false"},
    {"parallel_attention", ONLY, NULL, "false"},
    {"alibi", ONLY, NULL, "false"},
    {"num_experts", ONLY, NULL, "null 0 1"},
    {"num_local_experts", ONLY, NULL, "null 0 1"},
    {"n_routed_experts", ONLY, NULL, "null 0 1"},
    {"mtp_num_layers", ONLY, NULL, "null 0"},
    {"is_encoder_decoder", ONLY, NULL, "false"},
    {"activation_func_clamp_value", ONLY, NULL, "null"},
    {"init_method_xavier_uniform", ONLY, NULL, "false"},
    {"embedding_init_method_std", ONLY, NULL, "null"},
    {"fp32_residual_connection", ONLY, NULL, "false"},
    {"fp16_lm_cross_entropy", ONLY, NULL, "false"},
    {"fp8_margin", ONLY, NULL, "0"},
    {"fp8_interval", ONLY, NULL, "1"},
    {"fp8_wgrad", ONLY, NULL, "true"},
    {"reduce_amax", ONLY, NULL, "true"},
    {"fp8_dot_product_attention", ONLY, NULL, "false"},
    {"fp8_multi_head_attention", ONLY, NULL, "false"},
    {"first_last_layers_bf16", ONLY, NULL, "false"},
    {"rampup_batch_size", ONLY, NULL, "null"},
    {"accumulate_grad_batches", ONLY, NULL, "1"},
    {"gradient_accumulation_steps", ONLY, NULL, "1"},
    {"gradient_clip_algorithm", ONLY, NULL, "norm"},
    {"train_samples", ONLY, NULL, "null"},
    {"lr_decay_samples", ONLY, NULL, "null"},
    {"lr_warmup_samples", ONLY, NULL, "null 0"},
    {"lr_warmup_fraction", ONLY, NULL, "null"},
    {"lr_warmup_init", ONLY, NULL, "0"},
    {"warmup_ratio", ONLY, NULL, "null 0"},
    {"weight_decay_incr_style", ONLY, NULL, "constant"},
    {"amsgrad", ONLY, NULL, "false"},
    {"adam_w_mode", ONLY, NULL, "true"},
    {"decoupled_weight_decay", ONLY, NULL, "true"},
    {"bias_correction", ONLY, NULL, "true"},
    {"optim.momentum", ONLY, NULL, "0"},
    {"label_smoothing", ONLY, NULL, "0"},
    {"qk_layernorm", ONLY, NULL, "false"},
    {"multi_latent_attention", ONLY, NULL, "false"},
    {"window_size", WINDOW, NULL, NULL},
    {"squared_relu", ONLY, NULL, "false"},
    {"ffn_dropout", ONLY, NULL, "0.0 0 0."},
    {"bias", BIAS, NULL, NULL},
    {"add_bias_linear", BIAS, NULL, NULL},
    {"qkv_bias", BIAS, NULL, NULL},
    {"add_qkv_bias", BIAS, NULL, NULL},
    {"overlap_p2p_comm", ON_FALSE, "no-overlap-p2p", NULL},
    /* Messages between stages are single puts into slots of the receiver: there is no batch of calls to make. */
    {"batch_p2p_comm", MOOT, NULL, NULL},
    /* First weights are random, of one deviation for all matrices. */
    {"use_scaled_init_method", MOOT, NULL, NULL},
    {"tp_comm_atomic_ag", NO_EFFECT, NULL, NULL},
    {"tp_comm_atomic_rs", NO_EFFECT, NULL, NULL},
    {"fp4_recipe", NO_EFFECT, NULL, NULL},
    {"fp4_param", NO_EFFECT, NULL, NULL},
    {"max_epochs", NO_EFFECT, NULL, NULL},
    {"max_time", NO_EFFECT, NULL, NULL},
    {"make_vocab_size_divisible_by", NO_EFFECT, NULL, NULL},
    {"use_distributed_sampler", NO_EFFECT, NULL, NULL},
    {"model_name", NO_EFFECT, NULL, NULL},
    {"model_size", NO_EFFECT, NULL, NULL},
    {"model_dtype", NO_EFFECT, NULL, NULL},
    {"align_param_gather", NO_EFFECT, NULL, NULL},
    {"pipeline_model_parallel_layout", NO_EFFECT, NULL, NULL},
    {"decoder_seq_length", NO_EFFECT, NULL, NULL},
    {"tie_encoder_decoder", NO_EFFECT, NULL, NULL},
    {"max_length", NO_EFFECT, NULL, NULL},
    {"min_length", NO_EFFECT, NULL, NULL},
    {"num_labels", NO_EFFECT, NULL, NULL},
    {"num_beam_groups", NO_EFFECT, NULL, NULL},
    {"model_parallel_size", NO_EFFECT, NULL, NULL}, /* of a callback: a product of the others */
    {"buffer_size", NO_EFFECT, NULL, NULL},
    {"vocab_file", NO_EFFECT, NULL, NULL},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

#endif
