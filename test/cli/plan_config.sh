#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap plan --config: a plan of a file of NeMo or Megatron is that of the same options; wrong files have their line.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1

# plan ARGUMENTS...: $plan is all that the plan of one grid has, but for its name.
plan() {
    lap plan --gpus 16 --virtual-pp 1 --schedule 1f1b --explain --json "$@"
    plan="$status $(python3 -c 'import json; a = json.load(open("out")); print(a["precision"], a["seq"], a["global_batch"], json.dumps(a["plan"]))')"
}

# A model of Megatron, whose heads are not as wide as its hidden size divided by them.
cat >megatron.yaml <<'YAML'
language_model:
  num_layers: 4
  hidden_size: 2560
  ffn_hidden_size: 6912
  num_attention_heads: 20
  num_query_groups: 4
  kv_channels: 96
  normalization: RMSNorm
  activation_func: silu
  gated_linear_unit: true
  add_bias_linear: false
  layernorm_epsilon: 1e-6
  num_moe_experts: null
  window_size: null
  hidden_dropout: 0.0
  attention_dropout: 0.0
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  context_parallel_size: 2
  sequence_parallel: true
  bf16: True
  fp16: False
  tp_comm_overlap: true
  overlap_p2p_comm: true
position_embedding_type: rope
untie_embeddings_and_output_weights: True
rotary_base: 500000
vocab_size: 32000
use_distributed_optimizer: true
overlap_grad_reduce: true
overlap_param_gather: true
grad_sync_dtype: fp32
optimizer: adam
adam_beta1: 0.9
adam_beta2: 0.95
adam_eps: 1e-8
lr: 2.5e-3
lr_decay_style: cosine
lr_decay_iters: 100
lr_warmup_iters: 0
min_lr: 2.5e-4
weight_decay: 0.1
clip_grad: 1.0
loss_scale: null
initial_loss_scale: 1024
seed: 1234
train_iters: 3
seq_length: 2048
global_batch_size: 32
micro_batch_size: 1
YAML
same=(--model llama --layers 4 --hidden 2560 --ffn 6912 --heads 20 --kv-heads 4 --head-dim 96 --vocab 32000 --seq 2048 --tp 2 --pp 2 --cp 2
    --micro-batch 1 --global-batch 32)
plan "${same[@]}" --recompute none
before=$plan
plan --config megatron.yaml --recompute none
is 'a file of Megatron: the plan of the same options' "$plan" "$before"
is '... and nothing is told of settings of training' "$err" ''
has '... heads have the width of the file, too' "$before" '0 bf16 2048 32 '
plan "${same[@]}" --recompute none --head-dim 128
ok '... and other FLOPs than those of the hidden size: of queries, keys, values, scores and the way back' python3 - "$before" "$plan" <<'PY'
import json, sys
def flops(width):
    layer = 2560 * (20 + 2 * 4) * width + 20 * width * 2560 + 3 * 2560 * 6912 + 2048 * 20 * width
    return 4 * layer + 2560 * 32000
counted = [plan["mfu"] * plan["step_s"] for plan in (json.loads(text[text.index("{"):]) for text in sys.argv[1:])]
assert abs(counted[1] / counted[0] / (flops(128) / flops(96)) - 1) < 1e-4, counted
PY

# Each of these is an option, and another plan. They add up.
echo 'recompute_granularity: null' >>megatron.yaml
while IFS='|' read -r key options; do
    sed -i "s/${key%%:*}: .*/$key/" megatron.yaml
    # shellcheck disable=SC2206
    same+=($options)
    plan "${same[@]}"
    expected=$plan
    plan --config megatron.yaml
    is "$key is $options" "$err$plan" "$expected"
    ok '... which is another plan' test "$plan" != "$before"
    before=$plan
done <<'KEYS'
recompute_granularity: selective|--recompute selective
recompute_granularity: full|--recompute layer
tp_comm_overlap: false|--no-overlap-tp
overlap_p2p_comm: false|--no-overlap-pp
overlap_grad_reduce: false|--no-overlap-dp
use_distributed_optimizer: false|--no-distributed-optimizer
sequence_parallel: false|--no-sequence-parallel
normalization: LayerNorm|--norm layernorm
kv_channels: null|--head-dim 128
KEYS

lap plan --config megatron.yaml --gpus 16 --virtual-pp 1 --explain
has 'the name of the plan is that of the file' "$status $out" '0 megatron.yaml on 16 x H100'
lap plan --config megatron.yaml --model llama-8b --gpus 16 --virtual-pp 1 --explain
has '... unless the command line names a model, of which the file changes the sizes' "$status $out" '0 llama-8b on 16 x H100' ', 2048 tokens x 32 sequences'

# As NeMo writes a file, whose vocabulary is that of a tokenizer. FP8 counts more than the type of weights, wherever it stands.
cat >nemo.yaml <<'YAML'
trainer:
  devices: 8
  num_nodes: 1
  precision: bf16-mixed
  max_steps: 3
  gradient_clip_val: 1.0
model:
  fp8: true
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  micro_batch_size: 1
  global_batch_size: 16
  encoder_seq_length: 256
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 2
  hidden_size: 128
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 4
  hidden_dropout: 0.1
  tp_comm_split_ag: true
  cp_comm_type: a2a
  bias: true
  data:
    num_workers: 2
    seq_length: 128
  optim:
    name: fused_adam
    lr: 1e-3
    betas: [0.9, 0.95]
    bucket_cap_mb: 400
    sched:
      name: CosineAnnealing
      warmup_steps: 1
      constant_steps: 2
YAML
gpt=(--model gpt --layers 2 --hidden 128 --ffn 384 --heads 4 --seq 128 --tp 2 --pp 1 --micro-batch 1 --global-batch 16 --precision fp8
    --no-distributed-optimizer --cp 1 --recompute none)
nemo=(--config nemo.yaml --cp 1 --recompute none)
plan "${gpt[@]}" --vocab 512
expected=$plan
plan "${nemo[@]}" --vocab 512
is 'a file of NeMo: the plan of the same options' "$plan" "$expected"
is '... what is not planned is told once, and behind it keys of other tools' "$err" \
    'lap plan: nemo.yaml: without effect: model.hidden_dropout, model.cp_comm_type, model.optim.bucket_cap_mb, model.data.num_workers'
many() { cat nemo.yaml && printf 'exp_manager:\n' && printf '  key_%s: 1\n' {1..20}; }
many >many.yaml
plan "${nemo[@]/nemo.yaml/many.yaml}" --vocab 512
has '... which are a count where they are many' "$status $err" '0 ' 'model.optim.bucket_cap_mb, 21 other keys (--config-keys lists them)'
many | "$LAP" plan --gpus 16 --config - --cp 1 --recompute none --vocab 512 --config-keys >"$work/out" 2>"$work/err"
has '... and are listed on request, also those of a pipe' "$? $(cat "$work/out" "$work/err")" '0 standard input on 16 x H100' \
    'lap plan: standard input: without effect: model.hidden_dropout,' 'exp_manager.key_1,' exp_manager.key_20
for name in distributed_fused_adam mcore_distributed_optim; do
    sed "s/fused_adam/$name/" nemo.yaml >shared.yaml
    plan "${gpt[@]/--no-distributed-optimizer/--explain}" --vocab 512
    expected=$plan
    plan --config shared.yaml --cp 1 --recompute none --vocab 512
    is "... replicas share $name" "$plan" "$expected"
done
sed 's/^model:/&\n  share_embeddings_and_output_weights: false/' nemo.yaml >untied.yaml
plan "${gpt[@]}" --vocab 512 --tied=no
expected=$plan
plan --config untied.yaml --cp 1 --recompute none --vocab 512
is '... embeddings are no weights of logits' "$plan" "$expected"
plan "${nemo[@]}" --vocab 512
ok '... which is another plan' test "$plan" != "$expected"
plan "${gpt[@]}" --vocab 512 --hidden 256 --ffn 768
expected=$plan
plan "${nemo[@]}" --vocab 512 --hidden 256
is '... the MLP is a multiple of the hidden size of the command line' "$plan" "$expected"
plan "${gpt[@]}" --vocab 512 --ffn 512
expected=$plan
plan "${nemo[@]}" --vocab 512 --ffn 512
is '... whose --ffn counts more' "$plan" "$expected"
plan "${gpt[@]}" --vocab 512 --tp 4 --seq 64 --global-batch 32 --precision bf16
expected=$plan
plan "${nemo[@]}" --vocab 512 --tp 4 --seq 64 --global-batch 32 --precision bf16
is '... as all options do' "$plan" "$expected"
printf '%s\n' 'fp8_recipe: delayed' 'fp8: false' 'precision: 16' 'optimizer: sgd' >types.yaml
plan "${gpt[@]}" --precision fp16
expected=$plan
plan "${gpt[@]:0:20}" --config types.yaml --no-distributed-optimizer --cp 1 --recompute none
is 'FP8 that is off is off, whatever its recipe' "$plan" "$expected"
is '... which is told, and that another optimizer than AdamW is not planned' "$err" 'lap plan: types.yaml: without effect: optimizer, fp8_recipe'
# type_of LINE...: of GEMMs, in a plan of these keys.
type_of() {
    printf '%s\n' "$@" >types.yaml
    lap plan --model llama-8b --layers 4 --gpu b200 --tp 1 --pp 1 --cp 1 --config types.yaml --json
    python3 -c 'import json; print(json.load(open("out"))["precision"])'
}
is 'a recipe alone turns on no FP8' "$(type_of 'fp8_recipe: delayed') $(type_of 'fp8: null' 'fp8_recipe: blockwise')" 'bf16 bf16'
is 'of a recipe of blocks MXFP8 is planned, wherever it stands' "$(type_of 'fp8: e4m3' 'bf16: true' 'fp8_recipe: mxfp8') $(type_of 'fp8_recipe: mxfp8' 'fp8: hybrid')" 'mxfp8 mxfp8'
is '... of others FP8' "$(type_of 'fp8: hybrid' 'fp8_recipe: tensorwise') $(type_of 'fp8: e4m3')" 'fp8 fp8'
is 'FP4' "$(type_of 'fp4: e2m1' 'bf16: true' 'fp4_recipe: nvfp4') $(type_of 'fp4: null')" 'fp4 bf16'

# gpus_of LINE...: of the cluster, in a plan of these keys of a trainer.
gpus_of() {
    printf '%s\n' 'trainer:' "$@" >gpus.yaml
    lap plan --model llama-8b --layers 4 --tp 1 --pp 1 --cp 1 --config gpus.yaml --global-batch 48 --json
    python3 -c 'import json; print(json.load(open("out"))["gpus"])'
}
is 'the GPUs of all hosts of a file' "$(gpus_of '  devices: 4' '  num_nodes: 3') $(gpus_of '  devices: 4')" '12 4'
is '... or those of --gpus, and without any 8' "$(gpus_of '  devices: auto' '  num_nodes: 3') $(gpus_of '  devices: [0, 1]')" '8 8'
lap plan --model llama-8b --layers 4 --tp 1 --pp 1 --cp 1 --config gpus.yaml --global-batch 48 --gpus 2
is '... which is told' "$status $err" '0 lap plan: gpus.yaml: without effect: trainer.devices'

printf '%s\n' 'num_layers: 2' 'hidden_size: 128' 'num_attention_heads: 4' 'vocab_size: 512' 'seq_length: 128' 'position_embedding_type: rope' >rope.yaml
lap plan --config rope.yaml --tp 1 --pp 1 --cp 1
is 'what the file leaves to a Llama is told, as by lap train' "$status $err" \
    '0 lap plan: rope.yaml: without effect: none; as of Llama, since it has rotary positions and says nothing else: norm rmsnorm and activation swiglu'
# shellcheck disable=SC2046
lap plan --config rope.yaml --tp 1 --pp 1 --cp 1 --norm layernorm --activation gelu $(printf -- '--top 3 %.0s' {1..400})
is '... however long that is' "$status $err" '0 '
lap plan --config rope.yaml --tp 1 --pp 1 --cp 1 --norm layernorm --activation gelu
is '... but for what the command line says' "$status $err" '0 '

# What is fixed, and what is searched for.
searched() { python3 -c 'import json, sys; print(*sorted({p[sys.argv[1]] for p in json.load(open("out"))["plans"]}))' "$1"; }
lap plan "${nemo[@]}" --vocab 512 --gpus 8 --top 64 --json
is 'the sizes of a grid that the file has are fixed' "$status $(searched tp) $(searched pp) $(searched micro_batch)" '0 2 1 1'
lap plan "${nemo[@]}" --vocab 512 --gpus 8 --top 64 --json --tp any --pp any --micro-batch any
is '... and any has them searched for' "$status $(searched tp)|$(searched pp)|$(searched micro_batch)" '0 1 2 4|1 2|1 2 4 8'
lap plan --config megatron.yaml --gpus 16 --top 64 --json
is '... as what it has as null is; recomputation is fixed' "$status $(searched virtual_pp) $(searched recompute)" '0 1 2 3 layer'
lap plan --config megatron.yaml --gpus 16 --top 64 --json --recompute any
is '... or not' "$status $(searched recompute)" '0 full layer none selective'

# refused NAME SENTENCE ARGUMENTS: status 2 and the sentence.
refused() {
    local name=$1 sentence=$2
    shift 2
    lap plan "$@"
    is "$name: status 2" "$status$out" 2
    has "... with a sentence" "$err" "$sentence"
}
refused 'a vocabulary that nobody has given' \
    'lap plan: --vocab is not given and nemo.yaml has no key for it, expected one of them, or --model NAME' "${nemo[@]}"
lap plan "${nemo[@]}" --model gpt2-124m --gpus 8
is '... but for that of a model' "$status" 0
sed '/max_position/d' nemo.yaml >nothing.yaml
refused 'a file that makes no model' '--model is not given and nothing.yaml has neither a vocabulary nor positions' --config nothing.yaml
refused 'no such size' "--gpus is 'any'; expected a size" "${nemo[@]}" --vocab 512 --gpus any
refused 'two sizes of an MLP' '--ffn and --mlp-expansion-factor are both given' --model gpt --ffn 8 --mlp-expansion-factor 4
refused 'a file and published steps' '--config is given with --validate, expected one of them' --validate steps.csv --config nemo.yaml
# bad KEY: VALUE SENTENCE: the file with one value changed, or a line more; the sentence begins with a key and has its line.
bad() {
    { grep -v "^ *${1%%:*}:" megatron.yaml; echo "$1"; } >bad.yaml
    local place
    place=$(grep -nE "^ *(${2%% *}|${1%%:*}):" bad.yaml | head -n 1)
    refused "$1" "bad.yaml:${place%%:*}: $2" --config bad.yaml --gpus 64
}
sed -i 's/normalization: LayerNorm/normalization: RMSNorm/' megatron.yaml
bad 'num_attention_heads: 10' 'num_query_groups is 4, expected a divisor of the 10 heads'
bad 'global_batch_size: 3' 'global_batch_size is 3, expected a multiple of dp'
bad 'tensor_model_parallel_size: 16' 'num_attention_heads is 20, expected a multiple of tensor_model_parallel_size, 16'
bad 'num_moe_experts: 8' "num_moe_experts is '8', expected one of null, 0, 1: anything else is not there yet"
bad 'add_bias_linear: true' 'add_bias_linear is true, expected false'
bad 'window_size: [1000, 0]' 'window_size is [1000,0], expected null, or one of at least the 2048 tokens of a sequence'
bad 'num_layer: 4' "unknown key 'num_layer'; did you mean 'num_layers'?"
printf '%s\n' 'fp8: hybrid' 'fp8_recipe: blockwise' >types.yaml
refused 'a recipe that is not planned' "types.yaml:2: fp8_recipe is 'blockwise', expected one of delayed, tensorwise, mxfp8" --model gpt --config types.yaml
bad 'hidden_size: wide' "hidden_size is 'wide', expected a whole number, 1 or more"
lap plan --config nowhere.yaml
has 'no file' "$status $err" "1 lap plan: --config: cannot open 'nowhere.yaml'"
finish
