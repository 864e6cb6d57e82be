#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --config: settings by the names of NeMo and Megatron do what the options do; wrong ones have their line.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1

losses() { python3 -c 'import json; [print(repr(i["loss"])) for i in json.load(open("out"))["iterations"]]'; }

cat >model.yaml <<'YAML'
# as NeMo writes them
trainer:
  devices: 8
  max_steps: 3
  precision: bf16-mixed
  gradient_clip_val: 0.5
exp_manager:
  name: megatron
  resume_if_exists: true
  files: [a, [b, c]]
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: True
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 48
  num_attention_heads: 4
  num_query_groups: 2
  encoder_seq_length: 16
  global_batch_size: 4
  normalization: rmsnorm
  activation: fast-swiglu
  hidden_dropout: 0.1
  ub_tp_comm_overlap: true
  tp_comm_bulk_wgrad: false
  tp_comm_split_ag: true
  activations_checkpoint_granularity: selective
  grad_sync_dtype: bf16
  optim:
    name: distributed_fused_adam
    lr: 2e-3
    betas:
    - 0.8
    - 0.95
    eps: 1e-3
    overlap_grad_sync: false
    sched:
      name: CosineAnnealing
      warmup_steps: 1
      min_lr: 1e-4
YAML
sed -i '/grad_sync_dtype/d' model.yaml
lap train --config model.yaml --json
is 'a file of NeMo: status 0' "$status" 0
config=$(losses)
alone='lap train: model.yaml:31: without effect with one replica: --no-overlap-grad-sync, optim.name'
is '... its keys without effect are listed once, and those that only replicas have a use for' "$err" "$alone
lap train: model.yaml: without effect: trainer.devices, exp_manager.name, exp_manager.resume_if_exists, exp_manager.files"
lap train --tp 2 --layers 2 --hidden 32 --ffn 48 --heads 4 --kv-heads 2 --seq 16 --batch 4 --norm rmsnorm --activation swiglu --dtype bf16 \
    --disable-tp-comm-bulk-wgrad --recompute selective --optimizer adamw --lr 0.002 --adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 0.001 --iters 3 \
    --lr-decay-style cosine --lr-warmup-iters 1 --min-lr 0.0001 --clip-grad 0.5 --json
is '... the losses are those of the same options, to the last bit' "$status $(losses)" "0 $config"
# The optimizer as Megatron names it.
python3 - model.yaml >megatron.yaml <<'PY'
import sys
text = open(sys.argv[1]).read()
text = text[:text.index("  optim:")] + """
  overlap_grad_sync: false
optimizer:
  optimizer: adam
  lr: 2e-3
  min_lr: 1e-4
  adam_beta1: 0.8
  adam_beta2: 0.95
  adam_eps: 0.001
scheduler:
  lr_decay_style: cosine
  lr_warmup_iters: 1
"""
print(text)
PY
lap train --config megatron.yaml --json
is '... and of the names of Megatron' "$status $(losses)" "0 $config"
lap train --config model.yaml --lr 0.5 --json
ok '... options count more' test "$status $(losses)" != "0 $config"
for clip in null 0 '~'; do
    sed "s/gradient_clip_val: .*/gradient_clip_val: $clip/" model.yaml >clip.yaml
    lap train --config clip.yaml --json
    has "gradient_clip_val: $clip is no clipping" "$status $out" '0 ' '"grad_norm":null'
done
lap train --config model.yaml --iters 2 --json
is '... and they are fewer then' "$status $(losses | wc -l)" '0 2'
lap train --config model.yaml
has 'what has no effect is printed where people read' "$out" '|-- model.yaml: without effect: trainer.devices'
lap train --config model.yaml --quiet
has '... also by --quiet, which leaves standard output to results' "$err" 'lap train: model.yaml: without effect: trainer.devices'
lap check train --config model.yaml
has 'lap check train takes the same file' "$status $out" '0 ' 'transformer, 2 layers, 2 ranks'
has '... and tells the same of it' "$err" 'lap check train: model.yaml: without effect: trainer.devices'
printf '%s\n' 'qkv_fprop:' '  method: ring_exchange' >rules.yaml
lap train --config rules.yaml
has 'a file of rules is for another option' "$status $err" '2 ' 'rules.yaml:' 'qkv_fprop is a rule of overlap' '--tp-comm-overlap-cfg'

# FP8 is what fp8 says; its recipe says how. What only plans know has its sentence.
while IFS='|' read -r keys expected; do
    { cat model.yaml && tr ';' '\n' <<<"$keys"; } >fp8.yaml
    lap train --config fp8.yaml --json --no-predict --iters 1
    has "$keys" "$status $err$out" "$expected"
done <<'KEYS'
fp8: hybrid|"fp8":"delayed"
fp8_recipe: tensorwise;fp8: true|"fp8":"current"
fp8: false;fp8_recipe: delayed|"fp8":"none"
fp8_recipe: delayed|"fp8":"none"
fp8_recipe: delayed|, fp8_recipe
fp8: null;fp8_recipe: mxfp8;fp4: null|"fp8":"none"
fp8: hybrid;fp8_recipe: mxfp8|fp8_recipe is 'mxfp8', expected one of delayed, tensorwise: there are only plans of mxfp8 (lap plan)
fp8: hybrid;fp8_recipe: blockwise|2 lap train: --config: fp8.yaml:
fp8: true;fp8_hybrid: false|fp8_hybrid is 'false', expected true: what is multiplied is in e4m3, gradients in e5m2
fp8: false;fp8_hybrid: false;fp8_margin: 0.0;fp8_e4m3: False|"fp8":"none"
fp8: e4m3|fp8 is 'e4m3', expected one of true, false, hybrid: gradients are in e5m2
fp4: e2m1|fp4 is 'e2m1', expected null or false: there are only plans of FP4 (lap plan)
KEYS

# A model: by its vocabulary, or its positions.
printf '%s\n' 'vocab_size: 99' 'hidden_size: 32' 'num_attention_heads: 4' 'num_layers: 1' 'seq_length: 8' 'grad_sync_dtype: bf16' \
    'global_batch_size: 4' 'micro_batch_size: 2' >gpt.yaml
lap train --config gpt.yaml --tp 1 --iters 1 --json
has 'a vocabulary makes it a model, and what is of no use to one rank is no mistake' "$status $out" '0 ' '"model":"gpt","vocab":99' '"micro_batches":2'
printf '%s\n' 'position_embedding_type: rope' 'share_embeddings_and_output_weights: false' 'hidden_size: 32' 'num_attention_heads: 4' 'num_query_groups: 2' \
    'num_layers: 1' 'seq_length: 8' >llama.yaml
lap train --config llama.yaml --tp 1 --iters 1 --json
has 'rotary positions make it a Llama' "$status $out" '0 ' '"model":"llama"' '"positions":"rope","tied":false' '"norm":"rmsnorm"' '"kv_heads":2'

model_losses() { grep -oE '^\{"step":[0-9]+,"loss":[0-9.]+' out; }
model_loss() { head -n 1 out | grep -oE '"loss":[0-9.]+'; }
lap train --config llama.yaml --tp 1 --iters 1 --json --rope-theta 50 --norm-epsilon 0.01
numbers=$(model_loss)
printf '%s\n' 'rotary_base: 50' 'layernorm_epsilon: 1e-2' >>llama.yaml
lap train --config llama.yaml --tp 1 --iters 1 --json
is 'the base of rotary positions and the epsilon of norms are those of the file' "$status $(model_loss)" "0 $numbers"
lap train --config llama.yaml --tp 1 --iters 1 --json --rope-theta 10000
ok '... options count more' test "$status" = 0 -a "$(model_loss)" != "$numbers"
# Those of Llama 3.1 are stretched, by numbers that Megatron has built in; slow ones, which a large base makes.
slow() { lap train --config llama.yaml --tp 1 --iters 1 --json --rope-theta 500000 "$@"; }
slow
plain="$status $(model_loss)"
slow --rope-factor 8 --rope-low-freq 1 --rope-high-freq 4 --rope-original 8192
stretched="$status $(model_loss)"
ok 'stretched angles are others' test "$stretched" != "$plain"
printf '%s\n' 'scale_positional_embedding: false' >>llama.yaml
slow
is '... which a file does not ask for' "$status $(model_loss)" "$plain"
sed -i 's/scale_positional_embedding: false/scale_positional_embedding: True/' llama.yaml
slow
is '... or does, as Llama 3.1 has them' "$status $(model_loss)" "$stretched"
# A window that a sequence fits into is none.
printf '%s\n' 'window_size: [8, 0]' >>llama.yaml
lap check train --config llama.yaml --tp 1
as='as of Llama, since it has rotary positions and says nothing else:'
is 'a window of attention as long as sequences; and what the file does not say is told' "$status $err" \
    "0 lap check train: llama.yaml: without effect: none; $as norm rmsnorm and activation swiglu"
lap check train --config llama.yaml --tp 1 --activation gelu
has '... but for what the command line says' "$status $err" '0 ' "$as norm rmsnorm"
ok '... which is not told' test "${err%swiglu}" = "$err"
{ echo 'exp_manager: {name: it}'; echo 'normalization: rmsnorm'; cat llama.yaml; } >said.yaml
lap train --config said.yaml --tp 1 --iters 1
has '... and behind keys without effect' "$status $out" '0 ' "|-- said.yaml: without effect: exp_manager.name; $as activation swiglu"
echo 'swiglu: true' >>said.yaml
lap check train --config said.yaml --tp 1
is '... while a whole file has nothing to be told' "$status $err" '0 lap check train: said.yaml: without effect: exp_manager.name'
lap check train --config llama.yaml --tp 1 --seq 16
has '... and a shorter one' "$status $err" '2 ' 'window_size is [8,0], expected null, or one of at least the 16 tokens of a sequence'
# The pair does not count the token itself, and -1 is no limit; a number alone counts it.
while read -r tokens ends window; do
    printf '%s\n' 'vocab_size: 32' 'num_attention_heads: 2' 'hidden_size: 16' "window_size: $window" >window.yaml
    lap check train --config window.yaml --tp 1 --seq "$tokens"
    is "a window of $window and $tokens tokens" "$status" "$ends"
done <<'WINDOWS'
16 0 [15, 0]
17 2 [15, 0]
9 0 [-1, 0]
9 0 [-1, -1]
1 0 [0, 0]
2 2 [0, 0]
9 0 -1
8 0 8
9 2 8
WINDOWS
# Layers with attention have none either; those without attention have nothing that a window would limit.
while IFS='|' read -r what ends window; do
    printf '%s\n' 'num_attention_heads: 2' 'hidden_size: 16' 'num_layers: 1' "window_size: $window" >layers.yaml
    # shellcheck disable=SC2086
    lap $what --config layers.yaml --tp 1 --seq 16
    is "$what: a window of $window and 16 tokens" "$status" "$ends"
    [ "$ends" = 0 ] || has '... and the sentence is that of models' "$err" \
        "layers.yaml:4: window_size is $(tr -d ' ' <<<"$window"), expected null, or one of at least the 16 tokens of a sequence: attention to fewer"
done <<'LAYERS'
check train --layer transformer|2|[14, 0]
check train --layer transformer|0|[15, 0]
check train --layer attention|2|8
show train --layer MultiheadAttention|2|[8, -1]
train --iters 1 --layer transformer|2|15
check train --layer attention|0|-1
check train --layer layernorm_mlp|0|8
LAYERS
printf '%s\n' 'num_attention_heads: 2' 'hidden_size: 16' 'window_size: -5' >layers.yaml
lap check train --config layers.yaml --layer attention --tp 1 --seq 16
has '... and one that is none' "$status $err" '2 ' "layers.yaml:3: window_size is '-5', expected null, a number of tokens, or two"
# Two names for the same: that of the command line counts more.
lap train --config gpt.yaml --tp 1 --iters 1 --json --micro-batches 4
has '--micro-batches counts more than micro_batch_size' "$status $out" '0 ' '"micro_batches":4'
lap train --config gpt.yaml --tp 1 --iters 1 --json --batch-size 2
has '--batch-size more than global_batch_size' "$status $out" '0 ' '"batch":2'
printf '%s\n' 'ffn_hidden_size: ${multiply:4, ${.hidden_size}}' >>gpt.yaml
lap train --config gpt.yaml --tp 1 --iters 1 --json --ffn 40
has '--ffn more than a multiple of hidden_size' "$status $out" '0 ' '"ffn":40'
lap train --config gpt.yaml --tp 1 --iters 1 --ffn 40 --mlp-expansion-factor 2
has '... and both on the line are still a mistake' "$status $err" '2 ' '--ffn and --mlp-expansion-factor are both given'
printf '%s\n' 'rotary_base: 50' >>gpt.yaml
lap train --config gpt.yaml --tp 1 --iters 1 --json
is '... and nothing to learned positions' "$status" 0

# As files of NeMo are: what is nothing to us is named and refused by nobody, also where it reads like a name of ours; what is there twice
# is the same; and references to what is known are followed.
printf '%s\n' 'trainer:' '  num_nodes: 1' '  precision: bf16' '  use_distributed_sampler: false' '  max_steps: 1' 'exp_manager:' \
    '  model_parallel_size: ${multiply:${model.tensor_model_parallel_size}, ${model.pipeline_model_parallel_size}}' 'model:' '  precision: bf16' \
    '  micro_batch_size: 1' '  global_batch_size: 2' '  rampup_batch_size: null' '  tensor_model_parallel_size: 2' '  encoder_seq_length: 8' \
    '  max_position_embeddings: ${.encoder_seq_length}' '  num_layers: 1' '  hidden_size: 32' '  ffn_hidden_size: ${multiply:3, ${.hidden_size}}' \
    '  num_attention_heads: 4' '  vocab_size: 64' '  ffn_dropout: 0.0' '  attention_type: multihead' '  fp8_wgrad: true' '  tokenizer:' \
    '    vocab_file: null' '  data:' '    seq_length: ${model.encoder_seq_length}' '    num_workers: 2' '    validation: 1' \
    '  nsys_profile:' '    buffer_size: 1' >nemo.yaml
lap train --config nemo.yaml --json
has 'a file of NeMo' "$status $out" '0 ' '"tp":2' '"dtype":"bfloat16"' '"hidden":32' '"ffn":96' '"seq":8' '"vocab":64'
has '... what has no effect' "$err" 'without effect: trainer.num_nodes, trainer.use_distributed_sampler, exp_manager.model_parallel_size,' \
    model.tokenizer.vocab_file model.data.num_workers

sed 's/^  num_layers: 1/&\n  normalization: layernorm1p/' nemo.yaml >nemo1p.yaml
lap train --config nemo1p.yaml --json
has '... whose gains are kept less one' "$status $out" '0 ' '"norm":"layernorm"'

# A whole file of NeMo has many keys that are nothing to us: all are named, also the last.
{ cat nemo.yaml; printf '    a_key_that_is_nothing_to_us_%s: 1\n' {1..99}; } >long.yaml
lap train --config long.yaml --json --config-keys
has 'a long list of what has no effect is whole' "$status $err" '0 ' 'model.nsys_profile.buffer_size, model.nsys_profile.a_key_that_is_nothing_to_us_1,' \
    'model.nsys_profile.a_key_that_is_nothing_to_us_99'
lap train --config long.yaml --iters 1 --config-keys
has '... where people read, too' "$out" 'model.nsys_profile.a_key_that_is_nothing_to_us_99'
lap train --config long.yaml --iters 1
has '... and without that request keys of other tools are a count' "$out" \
    '|-- long.yaml: without effect: trainer.num_nodes, 105 other keys (--config-keys lists them)'
lap train --iters 1 --config-keys
is '... which is one of a file' "$status $err" '2 lap train: --config-keys is for files of settings; expected --config with it'

# Positions are as many as the file says, also where it refers to the length of sequences: the gpt of the command has 256.
positions() { python3 -c 'import json; print(json.load(open("run/step-00000001/config.json"))["n_positions"])'; }
rm -rf run
lap train --config nemo.yaml --save run
is 'max_position_embeddings that refer to encoder_seq_length' "$status $(positions)" '0 8'
sed 's/max_position_embeddings:.*/max_position_embeddings: 24/' nemo.yaml >more.yaml
rm -rf run
lap train --config more.yaml --save run
is '... and more of them' "$status $(positions)" '0 24'
sed '/vocab_size/d' nemo.yaml >positions.yaml
lap train --config positions.yaml --json
has '... and they alone make it a model, as in files of NeMo whose vocabulary is that of a tokenizer' "$status $out" '0 ' '"model":"gpt"'

# Megatron's own files have the settings of training outside of sections.
cat >flat.yaml <<'YAML'
language_model:
  num_layers: 1
  hidden_size: 32
  num_attention_heads: 4
  add_bias_linear: true
  activation_func: gelu
  num_moe_experts: null
  rotary_interleaved: False
  window_size: null
model_parallel:
  tensor_model_parallel_size: 1
  fp16: False
  bf16: True
untie_embeddings_and_output_weights: True
override_vocab_size: 64
max_position_embeddings: 16
optimizer: adam
lr: 2.5e-3
lr_decay_style: cosine
lr_warmup_iters: 0
min_lr: 2.5e-4
weight_decay: 0.1
train_iters: 3
seq_length: 8
global_batch_size: 4
YAML
lap train --model gpt --tp 1 --layers 1 --hidden 32 --heads 4 --dtype bf16 --tied=no --vocab 64 --max-positions 16 --optimizer adamw --lr 2.5e-3 \
    --lr-decay-style cosine --lr-warmup-iters 0 --min-lr 2.5e-4 --weight-decay 0.1 --iters 3 --seq 8 --batch 4 --json
given="$status $(model_losses)"
lap train --config flat.yaml --json
is 'a file of Megatron: the losses of the same options' "$status $(model_losses)" "$given"
is '... and nothing is without effect' "$err" ''

# The rate of NeMo's CosineAnnealing is the least in the last constant_steps.
rates() { python3 -c 'import json; print(*(f"{r['"'lr'"']:.3g}" for r in map(json.loads, open("out")) if "step" in r))'; }
cosine='{tensor_model_parallel_size: 1, vocab_size: 32, num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 8, global_batch_size: 2, max_steps: 6'
echo "$cosine, optim: {name: fused_adam, lr: 4e-3, sched: {name: CosineAnnealing, warmup_steps: 2, constant_steps: 2, min_lr: 2e-3}}}" >constant.yaml
lap train --config constant.yaml --json --no-predict
is 'the last steps of a cosine have the least rate' "$status $(rates)" '0 0.002 0.004 0.003 0.002 0.002 0.002'
sed -i 's/constant_steps: 2/constant_steps: 50000/' constant.yaml
lap train --config constant.yaml --json --no-predict
is '... all after the warm-up, where there are more of them than steps' "$status $(rates)" '0 0.002 0.004 0.002 0.002 0.002 0.002'

# Replicas share the optimizer, where its name says so.
echo "$cosine, optim: {name: distributed_fused_adam, lr: 4e-3}}" >shared.yaml
lap check train --config shared.yaml --dp 2
shared=$(sed -n 's/^ *state of the optimizer *//p' out)
sed -i 's/distributed_fused_adam/fused_adam/' shared.yaml
lap check train --config shared.yaml --dp 2
whole=$(sed -n 's/^ *state of the optimizer *//p' out)
ok "distributed_fused_adam: a rank has a part of the state of the optimizer, $shared of $whole bytes" test "$((shared * 3))" -lt "$((whole * 2))"

# yaml LINES...: a file of these lines.
yaml() { printf '%s\n' "$@" >bad.yaml && lap train --config bad.yaml --iters 1; }

yaml 'model:' '  tensor_model_paralel_size: 2'
is 'a misspelt key: its line and the nearest name' "$status $err" \
    "2 lap train: --config: bad.yaml:2: unknown key 'tensor_model_paralel_size'; did you mean 'tensor_model_parallel_size'?"
yaml 'hidden_size: many'
has 'a number that is none' "$status $err" '2 ' "bad.yaml:1: hidden_size is 'many', expected a whole number, 1 or more"
yaml 'num_layers: 0'
has 'a number that is too small' "$status $err" '2 ' "bad.yaml:1: num_layers is '0'"
yaml 'num_layers: 1.5'
has 'a number that is not whole' "$status $err" '2 ' "num_layers is '1.5'"
yaml '' 'normalization: batchnorm'
has 'a word that we do not know' "$status $err" '2 ' \
    "bad.yaml:2: normalization is 'batchnorm', expected one of layernorm, LayerNorm, layernorm1p, rmsnorm, RMSNorm"
yaml 'sequence_parallel: maybe'
has 'neither true nor false' "$status $err" '2 ' "sequence_parallel is 'maybe', expected true or false"
yaml 'batch_p2p_comm: maybe'
has '... of a key that changes nothing' "$status $err" '2 ' "bad.yaml:1: batch_p2p_comm is 'maybe', expected true or false"
yaml 'batch_p2p_com: true'
has '... and its name' "$status $err" '2 ' "bad.yaml:1: unknown key 'batch_p2p_com'; did you mean 'batch_p2p_comm'?"
for value in True false; do
    printf 'model:\n  batch_p2p_comm: %s\n' $value >moot.yaml
    lap check train --config moot.yaml --tp 1 --heads 2 --seq 16
    is "... which is listed as one: $value" "$status $err" '0 lap check train: moot.yaml: without effect: model.batch_p2p_comm'
done
yaml 'expert_model_parallel_size: 4'
has 'what is not there yet' "$status $err" '2 ' "expert_model_parallel_size is '4', expected 1: anything else is not there yet"
while read -r key value expected; do
    yaml 'model:' "  $key: $value"
    has "another model is refused: $key" "$status $err" '2 ' "bad.yaml:2: $key is " "expected $expected"
done <<'KEYS'
num_moe_experts 8 one of null, 0, 1: anything else is not there yet
rotary_percentage 0.5 one of 1.0, 1: anything else is not there yet
transformer_block_type post_ln pre_ln: anything else is not there yet
qk_layernorm true false: anything else is not there yet
window_size wide null, a number of tokens, or two
window_size [15] null, a number of tokens, or two
window_size [15,0,0] null, a number of tokens, or two
KEYS
for keys in 'vocab_size: 64' 'position_embedding_type: learned_absolute'; do
    yaml "$keys" 'bias: False'
    has "$keys without biases is refused" "$status $err" '2 ' 'bad.yaml:2: bias is false, expected true: models like GPT have biases'
done
yaml 'activation_func: gelu' 'gated_linear_unit: true'
has 'a gate before another activation than that of swiglu is refused' "$status $err" '2 ' \
    "bad.yaml:2: gated_linear_unit is 'true', and activation_func in line 1 is 'gelu', expected one activation"
while IFS='|' read -r first second sentence; do
    yaml "$first" 'model:' "  $second"
    has "$first and $second contradict one another" "$status $err" '2 ' "bad.yaml:3: ${second%%:*} is '${second#* }', and ${first%%:*} in line 1 is '${first#* }', expected $sentence"
done <<'KEYS'
precision: 32|bf16: true|one type of numbers
bf16: True|precision: 16-mixed|one type of numbers
fp16: true|bf16: true|one type of numbers
share_embeddings_and_output_weights: true|untie_embeddings_and_output_weights: true|embeddings and output weights that are the same, or are not
untie_embeddings_and_output_weights: false|share_embeddings_and_output_weights: false|embeddings and output weights that are the same, or are not
encoder_seq_length: 16|seq_length: 8|one length of sequences
KEYS
# What says nothing, or the same, is no contradiction.
printf '%s\n' 'precision: bf16' 'bf16: false' 'fp16: False' 'share_embeddings_and_output_weights: false' 'untie_embeddings_and_output_weights: true' \
    'encoder_seq_length: 8' 'seq_length: 8' 'hidden_size: 16' 'num_attention_heads: 2' >alike.yaml
lap check train --config alike.yaml --tp 1
is 'keys that say the same, and those that say nothing' "$status $err" '0 '
# NeMo trains on samples of data.seq_length, of which encoder_seq_length may be more.
for order in cat tac; do
    printf '%s\n' 'encoder_seq_length: 16' 'data: {seq_length: 8}' | $order >samples.yaml
    lap train --config samples.yaml --tp 1 --hidden 16 --heads 2 --iters 1 --json
    has "the length of samples counts more, by $order" "$status $out" '0 ' '"seq":8'
done
yaml 'bias: True' 'add_bias_linear: false'
has 'biases that one key has, and another has not' "$status $err" '2 ' \
    'bad.yaml:2: add_bias_linear is false, and bias in line 1 is true, expected both alike'
printf '%s\n' 'vocab_size: 64' 'hidden_size: 32' 'num_attention_heads: 4' 'num_layers: 1' 'seq_length: 8' 'ffn_hidden_size: 48' >gate.yaml
parameters() {
    lap check train "$@" --tp 1 --json
    grep -o '"parameter_bytes":[0-9]*' "$work/out"
}
gated=$(parameters --config gate.yaml --activation swiglu)
is 'a gate has weights' "$((${gated#*:} > $(parameters --config gate.yaml | cut -d : -f 2)))" 1
for gate in 'gated_linear_unit: true' 'activation_func: silu' 'activation: fast-swiglu'; do
    printf '%s\n' "$gate" | cat gate.yaml - >gated.yaml
    is "$gate is swiglu" "$(parameters --config gated.yaml)" "$gated"
done
yaml 'position_embedding_type: rope' 'add_bias_linear: true'
has 'rotary positions with biases, too' "$status $err" '2 ' 'bad.yaml:2: add_bias_linear is true, expected false'
yaml 'position_embedding_type: rope' 'bias: false' 'qkv_bias: true'
has '... of query, key and value alone' "$status $err" '2 ' 'bad.yaml:3: qkv_bias is true, expected false'
printf '%s\n' 'vocab_size: 64' 'bias: false' 'qkv_bias: false' 'hidden_size: 32' 'num_attention_heads: 4' 'num_layers: 1' 'seq_length: 8' >bias.yaml
lap check train --config bias.yaml --model llama --tp 1
is 'a model of the command line has none' "$status $err" '0 '
yaml 'optim:' '  betas: 0.9'
has 'betas that are not two' "$status $err" '2 ' "bad.yaml:2: betas is '0.9', expected two numbers below 1"
yaml 'optim:' '  betas: [0.9, 2]'
has '... and two of which one is none' "$status $err" '2 ' 'bad.yaml:2: betas is [0.9,2], expected two numbers below 1'
yaml 'optimizer:' '  adam_beta2: 2'
has 'a beta as Megatron names it' "$status $err" '2 ' "bad.yaml:2: adam_beta2 is '2'; expected a number from 0 to less than 1"
yaml 'optim:' '  eps: 0'
has 'an epsilon that divides by 0' "$status $err" '2 ' "bad.yaml:2: optim.eps is '0'; expected a number above 0"
yaml 'hidden_size: ${model.width}'
has 'a reference to another key' "$status $err" '2 ' 'expected a value: this reference is not followed'
yaml 'hidden_size: 64' 'model:' '  hidden_size: 96'
has 'a key twice' "$status $err" '2 ' 'bad.yaml:3: hidden_size is there twice, first in line 1 with another value'
yaml 'sequence_parallel: false' 'model:' '  sequence_parallel: true'
has '... with another value that no option has' "$status $err" '2 ' 'bad.yaml:3: sequence_parallel is there twice'
yaml 'model:' '  bias: true' 'language_model:' '  bias: false'
has '... also where it only has to fit' "$status $err" '2 ' 'bad.yaml:4: bias is there twice, first in line 2 with another value'
yaml 'hidden_size: [1, 2]'
has 'a list' "$status $err" '2 ' 'hidden_size is [1,2], expected one value'
yaml '- a' '- b'
has 'no mapping' "$status $err" '2 ' 'bad.yaml:1: this is not a mapping'
yaml 'a: b: c'
has 'no YAML' "$status $err" '2 ' 'bad.yaml:1: this is not YAML'
yaml "$(printf 'a%.0s: {' {1..20})"
has 'too deep' "$status $err" '2 ' 'bad.yaml:'
yaml 'hidden_size: 30' 'num_attention_heads: 7'
has 'what does not fit together is reported by the options' "$status $err" '2 ' 'lap train: bad.yaml:1: hidden_size is 30; expected a multiple of the 7 heads'
lap train --config nowhere.yaml
has 'no such file' "$status $err" '1 ' "cannot open 'nowhere.yaml'"
lap train --config .
has 'a folder' "$status $err" '2 ' "'.' is a directory, not a regular file, expected one"

# Scales of the loss, by the names of Megatron and by those of NeMo's native AMP.
scales() { grep -oE '"loss_scale":[0-9]+' out | cut -d: -f2 | tr '\n' ' '; }
shape='{tensor_model_parallel_size: 1, vocab_size: 32, num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 8, global_batch_size: 2, precision: 16, max_steps: 5'
for keys in 'initial_loss_scale: 1024, loss_scale_window: 2, min_loss_scale: 1, hysteresis: 1, loss_scale: null' \
    'native_amp_init_scale: 1024, native_amp_growth_interval: 2'; do
    echo "$shape, $keys}" >scale.yaml
    lap train --config scale.yaml --json --no-predict
    is "$keys: the scale begins and grows as it is set" "$status $(scales)" '0 1024 1024 2048 2048 4096 '
done
echo "$shape, loss_scale: 64}" >scale.yaml
lap train --config scale.yaml --json --no-predict
given="$status $(grep -oE '"(loss|grad_norm)":[^,]+' out)"
echo "$shape}" >scale.yaml
lap train --config scale.yaml --json --no-predict --loss-scale 64
is 'a scale that is given stays: no other is told, and gradients are those of --loss-scale' "$given$(scales)" "0 $(grep -oE '"(loss|grad_norm)":[^,]+' out)"
# Such a scale makes gradients infinite: steps are not made, as often as the file says, and then the scale falls.
echo "$shape, initial_loss_scale: 8e8, hysteresis: 3, min_loss_scale: 3e8}" >scale.yaml
lap train --config scale.yaml --json --no-predict --continue-on-nan
is 'hysteresis and the least scale of a file' "$status $(grep -oE '"loss_scale":[^,]+' out | cut -d: -f2 | tr '\n' ' ')" '0 800000000 800000000 800000000 400000000 300000000 '
yaml 'loss_scale_window: 0'
has 'a wrong one has its line' "$status $err" '2 ' 'bad.yaml:1: loss_scale_window'
finish
