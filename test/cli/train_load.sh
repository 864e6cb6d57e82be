#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --load into another model: whatever its weights are of no use to is refused, by the name of the field or tensor; only damage
# leaves a checkpoint out.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
same=(--auto=no --no-predict --no-trace --quiet --batch 6)
gpt=(--model gpt2-124m --layers 2 --hidden 48 --heads 6 --seq 20 --vocab 101 "${same[@]}" --tp 2)
llama=(--model llama-tiny --layers 2 --hidden 96 --seq 17 --vocab 50 --ffn 70 "${same[@]}" --tp 2)

# refuses NAME WORDS ARGUMENTS...: status 1, the words on standard error, and nothing left out.
refuses() {
    local name=$1 words=$2
    shift 2
    lap train "$@"
    has "$name" "$status $err" '1 ' "$words"
    is '... as that of other layers, not as damaged' "$(grep -c 'left out' <<<"$err")" 0
}

# Rotary positions of Llama 3.2.
lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 1 --rope-factor 8 --rope-original 16 --save scaled
ok 'scaled rotary positions are in config.json' grep -q '"rope_scaling":{"rope_type":"llama3","factor":8,' scaled/step-00000001/config.json
refuses 'and in the checkpoint' 'rope_factor is 8 in the checkpoint and 1 here' "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --load scaled
is '... which one rank says' "$(grep -c 'rope_factor is 8' <<<"$err")" 1
rm scaled/step-00000001/manifest.json
refuses 'a checkpoint that has lost its manifest is none of weights alone' "'scaled/step-00000001' has optimizer.safetensors and no manifest.json: a checkpoint \
that was not finished, or has lost it; expected a whole one, or 'scaled/step-00000001/model.safetensors' for its weights alone" \
    "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --load scaled/step-00000001
is '... which one rank says' "$(grep -c 'optimizer.safetensors' <<<"$err")" 1
rm scaled/step-00000001/optimizer.safetensors
refuses '... nor where it has lost its moments, too' "'scaled/step-00000001' has the name of a checkpoint and no manifest.json: a checkpoint" \
    "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --rope-factor 8 --rope-original 16 --load scaled/step-00000001
(cd scaled/step-00000001 && "$LAP" train "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --rope-factor 8 --rope-original 16 --load .) >out 2>&1
has '... from within' "$? $(<out)" '1 ' "'.' has the name of a checkpoint"
mv scaled/step-00000001 scaled/weights
refuses 'positions, also of weights alone' 'rope_factor is 8 in the checkpoint and 1 here' \
    "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --load scaled/weights
lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --rope-factor 8 --rope-original 16 --load scaled/weights
is '... which the same load' "$status$err" 0
rm scaled/weights/config.json
for weights in scaled/weights scaled/weights/model.safetensors; do
    lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --rope-factor 8 --rope-original 16 --load $weights
    has "$weights, of which nothing says what they are" "$status $err" '0 ' "there is no config.json beside the weights of '$weights': heads, norms and \
positions are expected to be those of these layers"
    is '... which one rank says' "$(grep -c 'no config.json' <<<"$err")" 1
done

# What shapes do not tell.
lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --save llama
is 'a checkpoint' "$status" 0
# config.json of a checkpoint.
goes_on=("${llama[@]}" --heads 4 --kv-heads 2 --iters 3 --load llama)
cp llama/step-00000002/config.json whole.json
rm llama/step-00000002/config.json
lap train "${goes_on[@]}"
has 'a checkpoint without config.json loads, with a warning' "$status $err" '0 ' "checkpoint 'llama/step-00000002' has no config.json, by which other programs"
is '... once' "$(grep -c 'no config.json' <<<"$err")" 1
for damage in 's/, *"num_hidden_layers.*//,is damaged at byte 121' 's/"num_attention_heads":4/"num_attention_heads":8/,is of another model: heads is 4 in the checkpoint and 8 here'; do
    sed "${damage%,*}" whole.json >llama/step-00000002/config.json
    for load in llama llama/step-00000002; do
        lap train "${goes_on[@]}" --load $load
        has "a config.json that ${damage##*,}, with --load $load: no whole checkpoint" "$status $err" '1 ' "'llama/step-00000002/config.json' ${damage##*,}"
    done
done
cp whole.json llama/step-00000002/config.json
mv llama/step-00000002/manifest.json whole.json
echo '{' >llama/step-00000002/manifest.json
refuses 'weights beside a damaged manifest' "'llama/step-00000002/manifest.json' is damaged" "${goes_on[@]}" --load llama/step-00000002/model.safetensors
mv whole.json llama/step-00000002/manifest.json
refuses 'other heads' "checkpoint 'llama/step-00000002' is of other layers: heads is 4 in the checkpoint and 8 here, kv_heads is 2 in the checkpoint and 4 here, head_dim is 24" \
    "${llama[@]}" --heads 8 --kv-heads 4 --iters 3 --load llama
refuses 'no positions' 'positions is rope in the checkpoint and none here' "${llama[@]}" --heads 4 --kv-heads 2 --positions none --iters 3 --load llama
refuses 'heads, of weights only' 'heads is 4 in the checkpoint and 8 here' \
    "${llama[@]}" --heads 8 --kv-heads 4 --iters 3 --load llama/step-00000002/model.safetensors
lap train "${llama[@]}" --heads 4 --kv-heads 2 --seq 11 --batch 3 --seed 5 --dtype bf16 --recompute full --iters 3 --load llama
is 'what does not change what weights are for may change' "$status" 0

# Weights as from Hugging Face, of a model with another base of angles and another epsilon than any preset.
mkdir other
cp llama/step-00000002/model.safetensors other
sed 's/"rope_theta":[^,]*/"rope_theta":12345/; s/"rms_norm_eps":[^,]*/"rms_norm_eps": 1e-06/' llama/step-00000002/config.json >other/config.json
llama+=(--heads 4 --kv-heads 2 --iters 1)
refuses 'other numbers of config.json' 'epsilon is 1e-06 in the checkpoint and 1e-05 here, rope_theta is 12345 in the checkpoint and 10000 here' \
    "${llama[@]}" --load other
refuses '... each' 'epsilon is 1e-06 in the checkpoint and 1e-05 here' "${llama[@]}" --rope-theta 12345 --load other
lap train "${llama[@]}" --rope-theta 12345 --norm-epsilon 1e-6 --load other --save again
is '... which options give' "$status" 0
ok '... and checkpoints have' grep -q '"rms_norm_eps":9.99999997e-07,"rope_theta":12345' again/step-00000001/config.json
sed 's/"hidden_act":"silu"/"hidden_act": "gelu"/' llama/step-00000002/config.json >other/config.json
refuses 'another activation' 'activation is gelu with erf in the checkpoint and swiglu here' "${llama[@]}" --load other
sed 's/"hidden_act":"silu"/"hidden_act": "relu2"/' llama/step-00000002/config.json >other/config.json
refuses '... one that nobody here has' 'activation is relu2 in the checkpoint and swiglu here' "${llama[@]}" --load other
# config NAME WORDS EXPRESSION ARGUMENTS...: of a config.json that sed has changed.
config() {
    local name=$1 words=$2
    sed "$3" llama/step-00000002/config.json >other/config.json
    shift 3
    refuses "$name" "$words" "${llama[@]}" "$@" --load other
}
config 'half of each head turned' 'of other layers: partial_rotary_factor is 0.5 in the checkpoint and 1 here' 's/^{/{"partial_rotary_factor": 0.5,/'
config 'a window' 'of other layers: sliding_window is 16 in the checkpoint and none here' 's/^{/{"sliding_window": 16,/; s/"llama"/"mistral"/'
config 'biases of attention' 'attention_bias is true in the checkpoint and false here' 's/"attention_bias":false/"attention_bias": true/'
config '... and of the MLP' 'mlp_bias is true in the checkpoint and false here' 's/"mlp_bias":false/"mlp_bias": true/'
config 'tied embeddings' 'of other layers: tied is 1 in the checkpoint and 0 here' 's/"tie_word_embeddings":false/"tie_word_embeddings": true/'
config 'positions that are stretched' 'of other layers: rope_type is linear in the checkpoint and default here' 's/^{/{"rope_scaling": {"type": "linear", "factor": 4.0},/'
config '... otherwise' 'of other layers: rope_type is yarn in the checkpoint and llama3 here' \
    's/^{/{"rope_parameters": {"factor": 8.0, "rope_type": "yarn"},/' --rope-factor 8 --rope-original 16
config '... only here' 'of other layers: rope_factor is 1 in the checkpoint and 8 here' 's/^{/{"rope_scaling": null,/' --rope-factor 8 --rope-original 16
config 'a base that is not written' 'of other layers: rope_theta is 10000 in the checkpoint and 12345 here' 's/"rope_theta":[^,]*,//' --rope-theta 12345
config 'a model with tensors of the same names' 'of other layers: model_type is granite in the checkpoint and llama here' 's/"llama"/"granite"/'
config 'a config.json that ends too soon' "'other/config.json' is damaged at byte 121: expected , or }" 's/, *"num_hidden_layers.*//'
config '... that is none' "'other/config.json' is damaged at byte 0: expected {" 's/^{/no/'
config '... with a text behind it' "other/config.json' is damaged at byte" 's/}$/} x/'
long=$(printf '"%0.s", ' {1..6000})
config 'a long config.json' 'of other layers: model_type is granite in the checkpoint and llama here' "s/^{/{\"labels\": [${long%, }],/; s/\"llama\"/\"granite\"/"
for change in '"quantization_config": {"model_type": "other", "head_dim": 3, "sliding_window": 2}' '"words": ["rope_theta", 5, "hidden_act", "x"]' \
    '"sliding_window": null' '"sliding_window": 17' '"sliding_window": 4, "use_sliding_window": false' '"partial_rotary_factor": 1.0' \
    '"rope_scaling": null' '"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "model_type": "mistral"'; do
    sed "s/^{/{$change,/" llama/step-00000002/config.json >other/config.json
    lap train "${llama[@]}" --load other
    is "$change changes nothing" "$status $err" '0 '
done
lap train "${gpt[@]}" --iters 1 --save plain
mv plain/step-00000001 plain/weights
rm plain/weights/{manifest.json,optimizer.safetensors}
cp plain/weights/config.json .
for change in '"scale_attn_weights": false,true' '"scale_attn_by_inverse_layer_idx": true,false'; do
    sed "s/^{/{${change%,*},/" config.json >plain/weights/config.json
    refuses "GPT-2's ${change%:*}" "of other layers: $(sed 's/"//g; s/:/ is/; s/,/ in the checkpoint and /' <<<"$change") here" \
        "${gpt[@]}" --iters 1 --load plain/weights
done
lap train "${gpt[@]}" --tied=no --iters 1 --save untied
mkdir untied/weights && mv untied/step-00000001/model.safetensors untied/weights
refuses 'a head of its own' "has tensor 'lm_head.weight', which these layers do not have" "${gpt[@]}" --iters 1 --load untied/weights
is '... and nothing else' "$(grep -c '(nor' <<<"$err")" 0
lap train "${gpt[@]}" --max-positions 40 --iters 1 --save wide
ok 'learned positions beyond a sequence' grep -q '"n_positions":40' wide/step-00000001/config.json
refuses '... are loaded as they are' "tensor 'transformer.wpe.weight' is [40, 48]" "${gpt[@]}" --iters 2 --load wide
lap train "${gpt[@]}" --max-positions 40 --seq 30 --iters 2 --load wide
is '... by a model that has as many' "$status" 0
lap train "${gpt[@]}" --max-positions 8
has '... and no fewer than tokens' "$status $err" '2 ' '--seq is 20, expected at most the 8 of max_positions'
lap train "${gpt[@]}" --rope-theta 5
has 'bases of angles are for rotary positions' "$status $err" '2 ' '--rope-theta is for rotary positions'
lap train "${llama[@]}" --max-positions 40
has '... and numbers of positions for learned ones' "$status $err" '2 ' '--max-positions is for learned positions'
llama=("${llama[@]:0:${#llama[@]}-6}")

layers=(--layer transformer --hidden 24 --ffn 40 --seq 16 --layers 2 "${same[@]}" --tp 2)
lap train "${layers[@]}" --heads 4 --iters 2 --save layers
refuses 'layers, too: heads' 'heads is 4 in the checkpoint and 2 here' "${layers[@]}" --heads 2 --iters 3 --load layers
lap train --layer layernorm_mlp --hidden 24 --seq 16 "${same[@]}" --iters 2 --tp 2 --save mlp
lap train --layer layernorm_mlp --heads 3 --head-dim 8 --seq 16 "${same[@]}" --iters 3 --tp 2 --load mlp
is 'heads are nothing to layers without attention' "$status $err" '0 '

# Tensors that there are too many of, or too few.
lap train "${gpt[@]}" --layers 1 --iters 1 --save gpt
lap train "${gpt[@]}" --iters 2 --save gpt
refuses 'more layers' "has tensor 'transformer.h.1." "${gpt[@]}" --layers 1 --iters 3 --load gpt
has '... with the field' "$err" 'which these layers do not have' 'layers is 2 in the checkpoint and 1 here'
refuses 'fewer layers' "no tensor 'transformer.h.2." "${gpt[@]}" --layers 3 --iters 3 --load gpt
lap train "${llama[@]}" --heads 4 --iters 2 --save untied
refuses 'a head of its own' "has tensor 'lm_head.weight', which these layers do not have" "${llama[@]}" --heads 4 --tied --iters 3 --load untied
refuses 'weights only, of more layers' 'which these layers do not have (nor 11 others)' \
    "${gpt[@]}" --layers 1 --iters 3 --load gpt/step-00000002/model.safetensors
mkdir folder && cp untied/step-00000002/model.safetensors folder
refuses 'weights only, with a head' "'folder/model.safetensors' has tensor 'lm_head.weight', which these layers do not have" \
    "${llama[@]}" --heads 4 --tied --iters 3 --load folder

cp llama/step-00000002/{model.safetensors,config.json} folder
refuses 'heads, by config.json' "checkpoint 'folder' is of other layers: heads is 4 in the checkpoint and 8 here, kv_heads is 2" \
    "${llama[@]}" --heads 8 --kv-heads 4 --iters 3 --load folder
refuses '... of a file beside it' "checkpoint 'folder/model.safetensors' is of other layers: heads is 4" \
    "${llama[@]}" --heads 8 --kv-heads 4 --iters 3 --load folder/model.safetensors
lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 2 --load folder
is '... and the same heads load' "$status $err" '0 '

# A head that is written twice is the same one.
lap train "${gpt[@]}" --iters 3 --load gpt/step-00000002/config.json
is 'a file that has no weights' "$status $err" "1 lap train: invalid argument: 'gpt/step-00000002/config.json' is no file of safetensors: its first 8 bytes \
are not the length of a header; expected weights as safetensors"
lap train "${gpt[@]}" --iters 1 --json --load gpt/step-00000002/model.safetensors
once=$(grep -o '"loss":[^,]*' <<<"$out")
mkdir twice
python3 - <<'PY'
import json, struct
data = open("gpt/step-00000002/model.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), data[8 + length:]
wte = header["transformer.wte.weight"]
begin, end = wte["data_offsets"]
header["lm_head.weight"] = dict(wte, data_offsets=[len(body), len(body) + end - begin])
header["transformer.h.0.attn.bias"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(body) + end - begin, len(body) + end - begin + 4]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open("twice/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body + body[begin:end] + bytes(4))
PY
lap train "${gpt[@]}" --iters 1 --json --load twice
is 'a head that repeats the embeddings, and a mask, are no tensors too many' "$status $(grep -o '"loss":[^,]*' <<<"$out")" "0 $once"

# Settings that may change, and change the losses.
decay=(--lr-decay-style cosine)
lap train "${gpt[@]}" "${decay[@]}" --iters 2 --save decay
lap train "${gpt[@]}" "${decay[@]}" --iters 4 --lr-decay-iters 2 --load decay
is 'the same settings are nothing to speak of' "$status $err" '0 '
lap train "${gpt[@]}" "${decay[@]}" --iters 4 --load decay
is 'a decay that ends elsewhere is reported, in one line' "$status $err" \
    '0 lap train: --load decay: --lr-decay-iters is 2 in the checkpoint and 4 here'
lap train "${gpt[@]}" "${decay[@]}" --iters 4 --lr-decay-iters 2 --lr 0.25 --dtype bf16 --load decay
is 'so are the learning rate and the type, a line each' "$status $err" "0 lap train: --load decay: --dtype is float32 in the checkpoint and bfloat16 here
lap train: --load decay: --lr is $(grep -o '"--lr":"[^"]*' decay/step-00000002/manifest.json | cut -d'"' -f4) in the checkpoint and 0.25 here"
python3 -c 'import array, sys
header = array.array("i", [20240520, 1, 500] + [0] * 253)
sys.stdout.buffer.write(header.tobytes() + array.array("H", [i % 50 for i in range(500)]).tobytes())' >'a "b".bin'
changed=("${llama[@]}" --heads 4 --kv-heads 2 "${decay[@]}" --lr-decay-iters 5 --batch 4 --seq 10 --seed 3 --data 'a "b".bin')
lap train "${changed[@]}" --iters 4 --load llama --save other
has 'so are others' "$status $err" '0 ' '--seq is 17 in the checkpoint and 10 here' '--batch is 6 in the checkpoint and 4 here' \
    '--seed is 1234 in the checkpoint and 3 here' '--lr-decay-style is constant in the checkpoint and cosine here' \
    '--data is none in the checkpoint and a ?b?.bin here'
lap train "${changed[@]}" --iters 5 --load other
is '... once, since the next checkpoint has them' "$status $err" '0 '

# A checkpoint of before.
python3 - <<'PY'
import json
path = "llama/step-00000002/manifest.json"
manifest = json.load(open(path))
del manifest["manifest_checksum"], manifest["layers"], manifest["training"]
manifest["lap_checkpoint"] = 1
text = json.dumps(manifest, separators=(",", ":"))[:-1] + ","
total = 0xcbf29ce484222325
for byte in text.encode():
    total = (total ^ byte) * 0x100000001b3 % 2**64
open(path, "w").write(text + '"manifest_checksum":"%016x"}\n' % total)
PY
lap train "${llama[@]}" --heads 4 --kv-heads 2 --iters 3 --load llama
has 'an older checkpoint loads, with a warning' "$status $err" '0 ' "checkpoint 'llama/step-00000002' is of an older version"
is '... once' "$(grep -c 'older version' <<<"$err")" 1
finish
