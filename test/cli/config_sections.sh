#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --config: keys count in the sections of NeMo, Megatron, Lightning and Hugging Face, and in no others; a section that nobody knows, or
# that is none, has its line.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1

model_loss() { head -n 1 out | grep -oE '"loss":[0-9.]+'; }
# Sections count by their names: of NeMo, Megatron, Lightning and Hugging Face. Those of other tools have keys of their own.
sizes() { python3 -c 'import json; r = json.loads(open("out").readlines()[-1]); print(*(r[k] for k in ("model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "batch", "dtype", "norm", "activation", "positions", "tied")))'; }
cat >lightning.yaml <<'YAML'
trainer:
  strategy: auto
  precision: bf16-mixed
  max_steps: 1
  logger: {class_path: of.a.Logger, init_args: {num_layers: 9}}
model:
  class_path: a.GPT
  init_args: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 32, seq_length: 8}
optimizer: {class_path: an.AdamW, init_args: {lr: 1e-3, betas: [0.9, 0.95]}}
YAML
cat >nemo2.yaml <<'YAML'
model: {_target_: a.Model, config: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 32}}
trainer:
  max_steps: 1
  strategy: {tensor_model_parallel_size: 1, ddp: {overlap_grad_reduce: true}}
  plugins: {precision: bf16-mixed}
data: {seq_length: 8, micro_batch_size: 1, global_batch_size: 2}
optim: {config: {optimizer: adam, lr: 1e-3, adam_beta2: 0.95}, lr_scheduler: {warmup_steps: 0, min_lr: 1e-4}}
log: {ckpt: {save_last: true}}
YAML
cat >llama.json <<'JSON'
{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
 "vocab_size": 32, "rms_norm_eps": 1e-06, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.02,
 "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
 "attention_bias": false, "mlp_bias": false, "sliding_window": null, "max_position_embeddings": 131072, "architectures": ["LlamaForCausalLM"]}
JSON
while IFS='|' read -r file options expected; do
    # shellcheck disable=SC2086
    lap train --config "$file" --json --no-predict $options
    is "$file" "$status $(sizes)" "0 $expected"
done <<'FILES'
lightning.yaml|--tp 1|gpt 2 16 2 2 64 32 8 2 bfloat16 layernorm gelu learned True
nemo2.yaml||gpt 2 16 2 2 64 32 8 2 bfloat16 layernorm gelu learned True
llama.json|--tp 1 --seq 8 --iters 1|llama 2 16 2 1 24 32 8 2 float32 rmsnorm swiglu rope True
FILES
numbers=$(model_loss)
lap train --model llama --tp 1 --layers 2 --hidden 16 --heads 2 --kv-heads 1 --ffn 24 --vocab 32 --norm-epsilon 1e-6 --rope-theta 500000 --tied --init-std 0.02 \
    --rope-factor 32 --rope-low-freq 1 --rope-high-freq 4 --rope-original 8192 --seq 8 --iters 1 --json --no-predict
is '... which is the model of the same options' "$status $(model_loss)" "0 $numbers"
printf '%s\n' 'teacher: {hidden_size: 128, num_layers: 7, modle: {x: 1}}' 'hydra: {run: {dir: x}}' 'model: {hidden_size: 32, num_layers: 1, num_attention_heads: 4}' >teacher.yaml
lap check train --config teacher.yaml --tp 1 --seq 8
has 'sections of other tools have no keys of ours' "$status $out $err" '0 transformer, 1 layer' 'without effect: teacher.hidden_size, teacher.num_layers'

# What is no section, or one that nobody knows.
while IFS='|' read -r lines sentence; do
    tr ';' '\n' <<<"$lines" >bad.yaml
    lap train --config bad.yaml --iters 1
    is "sections: $lines" "$status $err" "2 lap train: --config: bad.yaml:$sentence"
done <<'SECTIONS'
modle: {num_layers: 3}|1: unknown section 'modle'; did you mean 'model'?
model:;  optm: {lr: 1}|2: unknown section 'model.optm'; did you mean 'optim'?
something: {else: {num_layers: 3}}|1: unknown section 'something', expected such as model, trainer, data, optim or exp_manager
trainer: {else: {max_steps: 2}}|1: unknown section 'trainer.else', expected such as model, trainer, data, optim or exp_manager
something.else.num_layers: 3|1: unknown section 'something.else', expected such as model, trainer, data, optim or exp_manager
model: [1, 2]|1: model is [1,2], expected a section: keys with values
hidden_size: 8;model: 5|2: model is '5', expected a section: keys with values
num_layers: {a: 3}|1: num_layers is a mapping, expected one value
model: &a {b: *a}|1: b is an alias, expected what it stands for: aliases are not followed
other: &o [1];model: *o|2: model is an alias, expected what it stands for: aliases are not followed
model:;  <<: *gone|2: << is an alias, expected what it stands for: aliases are not followed
SECTIONS
finish
