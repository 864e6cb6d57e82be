#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --config: keys that change numbers are done, or refused with their line.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1

while read -r key value expected; do
    printf '%s\n' 'model:' "  $key: $value" >bad.yaml
    lap train --config bad.yaml --iters 1
    has "$key: $value is refused" "$status $err" '2 ' "bad.yaml:2: $key is " "expected $expected"
done <<'KEYS'
partial_rotary_factor 0.5 one of null, 1: anything else is not there yet
fp8_e4m3 true false: gradients are in e5m2
fp8_margin 2 0: anything else is not there yet
fp8_interval 4 1: anything else is not there yet
fp8_wgrad false true: anything else is not there yet
fp8_amax_compute_algo mean one of max, most_recent: anything else is not there yet
fp8_amax_history_len 0 a whole number, 1 or more
init_method_std -1 a number, 0 or more
bucket_cap_mb 0 a whole number, 1 or more
rampup_batch_size [32,32,1000] one value
accumulate_grad_batches 4 1: anything else is not there yet
attn_logit_softcapping 50.0 null: anything else is not there yet
sliding_window [15] null, a number of tokens, or two
KEYS

# Each of these is an option, and other numbers.
first_losses() { python3 -c 'import json; print([repr(i["loss"]) for i in json.load(open("out"))["iterations"]][-1])'; }
while IFS='|' read -r keys options; do
    { echo 'num_layers: 1' && tr ';' '\n' <<<"$keys"; } >key.yaml
    same='--tp 1 --seq 8 --hidden 16 --heads 2 --iters 8 --json --no-predict --optimizer sgd --lr 1'
    # shellcheck disable=SC2086
    lap train $same $options
    expected="$status $(first_losses)"
    # shellcheck disable=SC2086
    lap train $same --config key.yaml
    is "$keys is $options" "$status $(first_losses)" "$expected"
    # shellcheck disable=SC2086
    lap train $same $([[ $options != *--fp8* ]] || echo --fp8 --init-std 0.5)
    ok '... and makes a difference' test "$status $(first_losses)" != "$expected"
done <<'KEYS'
init_method_std: 0.5|--init-std 0.5
initializer_range: 0.5|--init-std 0.5
fp8: true;fp8_amax_history_len: 1;init_method_std: 0.5|--fp8 --init-std 0.5 --fp8-amax-history-len 1
fp8: true;fp8_amax_compute_algo: most_recent;fp8_amax_history_len: 99;init_method_std: 0.5|--fp8 --init-std 0.5 --fp8-amax-history-len 1
KEYS
# ... or another way to the same.
method() { lap train --auto=no --tp 2 --seq 8 --hidden 16 --heads 2 --iters 1 --json --no-predict --config key.yaml && python3 -c '
import json, sys
gemms = json.load(open("out"))["gemms"]
print(*sorted({g["method"] for g in gemms if g["op"] == sys.argv[1] and g["gemm"].endswith("fprop")}))' "$1"; }
for way in 'tp_comm_split_ag ag_gemm' 'tp_comm_split_rs gemm_rs'; do
    echo "${way% *}: true" >key.yaml
    overlapped=$(method "${way#* }")
    echo "${way% *}: false" >key.yaml
    is "$way" "$(method "${way#* }")" serial
    ok '... which it is not else' test "$overlapped" != serial
done
buckets() { lap check train --layers 3 --hidden 192 --head-dim 64 --seq 8 --tp 1 --dp 2 --json "$@" && grep -oE '"(launches|steps|bucket_bytes)":[0-9]*' out; }
echo 'bucket_cap_mb: 2' >key.yaml
is 'bucket_cap_mb is --bucket-size in MiB of fp32' "$(buckets --config key.yaml)" "$(buckets --bucket-size 512K)"
echo 'grad_sync_dtype: bf16' >>key.yaml
is '... or of bfloat16' "$(buckets --config key.yaml)" "$(buckets --bucket-size 1M --grad-sync-dtype bf16)"
ok '... which are other buckets' test "$(buckets --config key.yaml)" != "$(buckets --bucket-size 512K --grad-sync-dtype bf16)"
printf '%s\n' 'num_attention_heads: 2' 'sliding_window: 8' >key.yaml
lap check train --config key.yaml --layer attention --tp 1 --seq 16
has 'sliding_window is a window of attention' "$status $err" '2 ' 'key.yaml:2: sliding_window is 8, expected null, or one of at least the 16 tokens'
finish
