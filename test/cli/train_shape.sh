#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sizes of the layers of `lap train`, the names that other programs have for its options, and rules from standard input.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB LAP_STDIN_RULES

# losses ARGUMENTS...: what the iterations of a run ended with, in $losses; one line each.
losses() {
    lap train --auto=no --json "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(grep -oE '"loss":[^,]+' "$work/out" | cut -d: -f2)
}

# same ARGUMENTS... -- ARGUMENTS...: two command lines mean the same.
same() {
    local first=()
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    shift
    losses "${first[@]}"
    local before=$losses
    losses "$@"
    is '... and is the same' "$losses" "$before"
}

# ---- sizes ----

tiny='--tp 2 --iters 2 --seq 6'
# shellcheck disable=SC2086
{
    same $tiny --heads 4 --head-dim 8 -- $tiny --hidden 32 --heads 4
    same $tiny --heads 4 --head-dim 8 -- $tiny --hidden 32 --head-dim 8
    same $tiny --heads 4 --head-dim 8 -- $tiny --hidden 32 --heads 4 --head-dim 8 --ffn 128
    same $tiny --heads 2 --head-dim 32 -- $tiny --hidden 64
    same $tiny --layer layernorm_mlp --heads 5 --head-dim 7 -- $tiny --layer layernorm_mlp --hidden 35
    same $tiny --layer layernorm_mlp --hidden 35 --ffn 70 -- $tiny --layer layernorm_mlp --hidden 35 --mlp-expansion-factor 2
}
# Heads that are not as wide together as the rows, and features that the ranks do not share evenly.
odd='--iters 2 --seq 6 --hidden 32 --heads 4 --head-dim 4 --ffn 50'
# shellcheck disable=SC2086
losses --tp 1 $odd
alone=$losses
# shellcheck disable=SC2086
losses --tp 2 $odd
ok 'sizes of which none follows from another' near "$losses" "$alone" 5e-5
losses --tp 1 --iters 2 --seq 6 --hidden 32 --heads 4 --head-dim 4
ok '... and each counts' eval '! near "$losses" "$alone" 5e-5'
has '... the hidden size' "$out" '"hidden":32,'

refuse '--hidden is 100; expected a multiple of the 24 heads, or --head-dim as well' --hidden 100 --heads 24
refuse '--hidden is 100; expected a multiple of the 32 features of a head, or --heads or another --head-dim' --hidden 100
refuse "--hidden is '0'" --hidden 0
refuse '--ffn is for the MLP; expected --layer layernorm_mlp or transformer' --ffn 64 --layer attention
refuse '--mlp-expansion-factor is for the MLP' --mlp-expansion-factor 2 --layer linear
refuse '--ffn and --mlp-expansion-factor are both given' --ffn 64 --mlp-expansion-factor 2
refuse '--heads has no effect with --hidden on a layer without attention' --layer layernorm_mlp --hidden 64 --heads 4
refuse '--batch and --batch-size are both given' --batch 2 --batch-size 2
refuse 'this needs about' --tp 2 --hidden 64 --ffn 1G --layer layernorm_mlp
refuse 'this needs more than' --tp 2 --hidden 100000000 --heads 4 # one matrix alone has more elements than are counted
refuse 'this needs more than' --tp 2 --pp 2 --model gpt2-124m --hidden 100000000 --heads 4

# ---- names of TransformerEngine's examples ----

same --layer layernorm_mlp --tp 2 --num-replicas 2 --iters 2 --seq 6 --batch 4 --heads 4 --head-dim 8 -- \
    --layer-type LayerNormMLP --tp-size 2 --num-replicas 2 --num-iters 2 --seq-length 6 --batch-size 2 --num-heads 4 -d 8
same --layer layernorm_mlp --tp 2 --iters 2 --seq 6 --batch 1 --heads 4 --head-dim 8 --ffn 96 --no-comm-overlap -- \
    --layer-type=layernormmlp --tp-size=2 -i 2 -s6 -b 1 --num-heads=4 -d 8 --mlp-expansion-factor 3 --no-comm-overlap
for module in Linear:linear LayerNormLinear:layernorm_linear MultiheadAttention:attention transformerlayer:transformer; do
    losses --layer-type ${module%:*} --tp 1 --iters 1 --seq 4 --heads 2 --head-dim 4
    has "... ${module%:*} is ${module#*:}" "$out" "{\"layer\":\"${module#*:}\""
done
lap train --help
has '--help has a line for each' "$(tr -s ' ' <"$work/out")" ' -i, --num-iters COUNT the same as --iters' \
    ' -s, --seq-length COUNT the same as --seq' ' --num-heads COUNT the same as --heads' ' --layer-type KIND the same as --layer'
refuse "unknown option '--num-iter'; did you mean '--num-iters'?" --num-iter 3
refuse "option '--num-iters' needs a value: --num-iters COUNT" --num-iters
refuse "-i is 'x'; expected a whole number" -i x

# ---- rules from standard input ----

if "$LAP" info | grep -q '  libyaml .*not found'; then
    finish
fi
# piped TEXT ARGUMENTS...: as lap, with a text on standard input.
piped() {
    local text=$1
    shift
    printf "$text" | "$LAP" "$@" >"$work/out" 2>"$work/err"
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}
small='--layer layernorm_mlp --iters 1 --seq 6 --hidden 32'
rules='fc1_fprop: &off {method: none}\nfc2_dgrad: *off\nfc2_fprop: {method: ring_exchange, num_sm: 2}\n'
for layout in '--tp 2' '--tp 2 --num-replicas 2' '--tp 3 --transport self' '--tp 1'; do
    # shellcheck disable=SC2086
    piped "$rules" train $small $layout --tp-comm-overlap-cfg -
    is "rules from standard input, $layout" "$status$err" 0
    has '... are read once' "$out" 'standard input: without effect on device cpu: num_sm'
    [ "$layout" = '--tp 1' ] ||
        has '... and are those of every rank' "$out" 'fc1_fprop   ag_gemm   serial' 'fc2_fprop   gemm_rs   ring' \
            'fc2_dgrad   ag_gemm   serial'
done
# shellcheck disable=SC2086
piped 'fc1_fprop:\n  method: pipeline\n' train $small --tp 2 --tp-comm-overlap-cfg -
is 'a mistake in it is reported once, with its line' "$status$out $err" \
    '2 lap train: --tp-comm-overlap-cfg: standard input:2: method of fc1_fprop is pipeline, expected serial, ring_exchange or auto: this GEMM gathers its input'
# shellcheck disable=SC2086
piped '' train $small --tp 2 --tp-comm-overlap-cfg -
has 'nothing on it' "$status$err" '2' 'standard input:1: the file is empty'
# shellcheck disable=SC2086
head -c 65537 /dev/zero | tr '\0' '#' | "$LAP" train $small --tp 2 --tp-comm-overlap-cfg - 2>"$work/err"
is 'much on it' "${PIPESTATUS[2]}$(cat "$work/err")" \
    '2lap train: --tp-comm-overlap-cfg: standard input has more than 65536 bytes, expected rules in YAML'
# shellcheck disable=SC2086
piped "$rules" run -n 2 "$LAP" train $small --tp-comm-overlap-cfg -
is 'ranks of a launcher cannot all read it' "$status $(grep -c 'ranks 0, 1: .*expected a file' "$work/err")" '2 1'
# shellcheck disable=SC2086
"$LAP" train $small --tp 2 --tp-comm-overlap-cfg - <&- 2>"$work/err"
is 'no standard input' "$?$(cat "$work/err")" \
    '2lap train: --tp-comm-overlap-cfg: standard input cannot be read: Bad file descriptor'
# shellcheck disable=SC2086
"$LAP" train $small --tp 2 --tp-comm-overlap-cfg - <"$work" 2>"$work/err"
has 'a directory' "$?$(cat "$work/err")" 2 'standard input cannot be read: Is a directory'
finish
