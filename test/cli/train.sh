#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train` as a user sees it: what it prints and refuses, that losses do not depend on how the ranks are laid out, and
# what happens when a rank dies. The layers are tiny: nothing here depends on how fast the machine is.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
tiny='--auto=no --seq 12 --heads 12 --head-dim 4 --iters 3'

# train ARGUMENTS...: as lap, with tiny layers.
# shellcheck disable=SC2086
train() {
    lap train $tiny "$@"
}

# losses ARGUMENTS...: what the iterations of a run ended with, in $losses; one line each.
losses() {
    train --json "$@"
    is "'lap train $*' ends well" "$status$err" 0
    losses=$(grep -oE '"loss":[^,]+' "$work/out" | cut -d: -f2)
}

# Each loss is below the one before.
falls() {
    awk -v a="$1" 'BEGIN {
        n = split(a, x, "\n")
        for (i = 2; i <= n; i++)
            bad = bad || !(x[i] < x[i - 1])
        exit bad || n < 2
    }'
}

lap train --help
is '--help ends well' "$status$err" 0
has '... and tells about options' "$out" --layer --tp --num-replicas --iters --batch --seq --heads --head-dim \
    --layers --seed --lr --optimizer --dtype --fp8 --no-comm-overlap --tp-comm-overlap-cfg --grad-sync-dtype \
    --debug --json --link 'adamw or sgd'
has '... and all recipes of FP8' "$(tr -s ' \n' ' ' <"$work/out")" 'none (no FP8), delayed (the default) or current'
is '... in lines of a page' "$(awk 'length > 100' "$work/out")" ''
lap --help
has 'lap --help tells about train' "$out" '  train '

# ---- what makes no sense costs a sentence, before any rank starts ----

refuse "heads is 24, expected a multiple of the 5 tensor-parallel ranks" --tp 5
refuse "--seq is '0'" --seq 0
refuse "--layer is 'mlp'" --layer mlp
refuse "did you mean 'transformer'?" --layer trasformer
refuse "--tp is '0'" --tp 0
refuse "a grid of tp 600, cp 1, pp 1, dp 2 is 1200 ranks" --tp 600 --num-replicas 2
refuse "--batch is 3; expected a multiple of the 2 replicas" --batch 3 --num-replicas 2
refuse "--iters is '0'" --iters 0
refuse "--lr is '-1'" --lr -1
refuse "--lr is 'fast'" --lr fast
refuse "--lr is 'inf'; expected a number, 0 to 1e+30" --lr inf
refuse "--lr is '1e31'; expected a number, 0 to 1e+30" --lr 1e31
refuse "--seed is 'abc'; expected a whole number" --seed abc
refuse "--seed is '-1'; expected a whole number" --seed -1
refuse "did you mean 'adamw'?" --optimizer adam
refuse "--grad-sync-dtype is 'fp16'; expected fp32 or bf16" --grad-sync-dtype fp16
refuse "--fp8 is 'late'; expected none, delayed or current" --fp8=late
refuse 'of memory; expected at most' --layers 1000 --heads 400 --head-dim 128 --tp 4
refuse 'of memory; expected at most' --seq 100M
refuse "--grad-sync-dtype is 'x'; expected fp32 or bf16" --grad-sync-dtype x
refuse "--layers is '100001'; expected a size such as 2048 or 2K, 1 to 100000" --layers 100001
refuse "--dtype is 'fp64'; expected float32, bfloat16 or float16" --dtype fp64
refuse "--dtype is 'e4m3'; expected float32, bfloat16 or float16 (for GEMMs in FP8, add --fp8)" --dtype e4m3
refuse "--dtype is 'fp8'; expected float32, bfloat16 or float16 (for GEMMs in FP8, add --fp8)" --dtype fp8
refuse "unexpected argument 'delayed'; did you mean '--fp8=delayed'?" --tp 2 --fp8 delayed
refuse "layers is 2 with linear, expected 1: the output of such a layer cannot be the input of another" --layers 2 --layer linear
refuse "unknown option '--iter'; did you mean '--iters'?" --iter 3
refuse "unexpected argument 'now'" now
for more in --compare '--auto --auto' '--tp-comm-overlap-cfg x' --disable-tp-comm-overlap-ag --disable-tp-comm-bulk-wgrad \
    --tp-comm-overlap-rs-dgrad; do
    # shellcheck disable=SC2086
    refuse "${more% *} needs overlap; expected no --no-comm-overlap" $more --no-comm-overlap
done
for more in --disable-tp-comm-overlap-ag --disable-tp-comm-bulk-wgrad --tp-comm-overlap-rs-dgrad; do
    refuse "$more needs sequence parallelism; expected no --no-sequence-parallel" $more --no-sequence-parallel
done
refuse '--kv-heads is for attention' --layer linear --kv-heads 3
refuse '--kv-heads is for attention' --layer layernorm_mlp --kv-heads 3
refuse '--activation is for the MLP' --layer attention --activation swiglu
refuse '--norm has no effect on --layer linear' --layer linear --norm rmsnorm
refuse "--bucket-by is 'block'; expected size or layer" --tp 1 --dp 2 --bucket-by block
refuse '--compare is for ranks that communicate' --compare --tp 1
refuse '--link is for ranks that communicate' --link 1GB/s --tp 1
LAP_TIMEOUT_S=abc refuse "LAP_TIMEOUT_S is 'abc', expected a number of seconds, 0.001 to 1000000000" --tp 2
for seconds in 0 0.0009 1000000001; do
    LAP_TIMEOUT_S=$seconds refuse "LAP_TIMEOUT_S is $seconds, expected a number of seconds, 0.001 to 1000000000" --tp 2
    refuse "--timeout is $seconds, expected a number of seconds, 0.001 to 1000000000" --tp 2 --timeout $seconds
done
LAP_RANK=x LAP_SIZE=2 refuse "LAP_RANK is 'x', expected a number from 0 to 1" --tp 2
LAP_RANK=0 LAP_SIZE=0 refuse "LAP_SIZE is '0', expected a number from 1 to 4096" --tp 2
LAP_RANK=0 LAP_SIZE=2 refuse 'but neither LAP_DIR nor LAP_JOB says where the ranks meet' --tp 2
printf 'fc1_fprop:\n  method: pipeline\n' >"$work/bad.yaml"
if "$LAP" info | grep -q '  libyaml .*not found'; then
    yaml=no
    refuse 'this build cannot read YAML, expected a build with libyaml' --tp-comm-overlap-cfg "$work/bad.yaml"
else
    yaml=yes
    refuse "is a directory, not a regular file, expected one" --tp-comm-overlap-cfg "$work"
    refuse "cannot open '$work/none.yaml': No such file or directory" --tp-comm-overlap-cfg "$work/none.yaml"
    refuse "$work/bad.yaml:2: method of fc1_fprop is pipeline" --tp-comm-overlap-cfg "$work/bad.yaml"
    printf 'qkv_fprop: None\n' >"$work/none_.yaml"
    refuse 'or null, the YAML word for None' --tp-comm-overlap-cfg "$work/none_.yaml"
fi
lap run -n 3 "$LAP" train --tp 2
is 'ranks that are too many are refused' "$status$out" 2
has '... by each of them' "$err" 'a grid of tp 2, cp 1, pp 1, dp 1 is 2 ranks, but 3 ranks were started'

# ---- what it prints ----

train --layer layernorm_mlp --tp 2 --num-replicas 2 --debug
is 'two replicas of two ranks' "$status$err" 0
for line in '[rank0:node0] |-- Created tensor-parallel group: [0, 1]' \
    '[rank2:node0] |-- Created tensor-parallel group: [2, 3]' \
    '[rank0:node0] |-- Created data-parallel group: [0, 2]' \
    '[rank1:node0] |-- Created data-parallel group: [1, 3]' \
    '[rank0:node0] |-- Register buffer: fc1_fprop ' '[rank2:node0] |-- Register buffer: fc1_fprop ' \
    '[rank0:node0] Iter 3' '[rank2:node0] Iter 3' '[rank0:node0] |-- Generate random input batch' \
    '[rank0:node0] |-- Forward pass' '[rank0:node0] |-- Compute loss' '[rank0:node0] |-- Backward pass' \
    '[rank0:node0] |-- Optimizer step' '[rank0:node0] |-- Loss: 0.' '[rank0:node0] |-- Time: ' '[rank0:node0] |-- Norm of the gradients: '; do
    has "... says '$line'" "$out" "$line"
done
is '... and one rank of a group speaks' "$(grep -c 'Iter ' "$work/out")" 6
has '... then a table of iterations' "$out" 'iteration          loss' 'tokens/s  communication   hidden  exposed' 'exposed   waited     wire     late     core' ' tokens/s, '
for gemm in 'fc1_fprop   ag_gemm   ring' 'fc1_dgrad   bulk_ag   direct' 'fc1_wgrad   bulk_rs   direct' \
    'fc2_fprop   gemm_rs   pipeline' 'fc2_dgrad   ag_gemm   ring' 'gradients to replicas' 'all  '; do
    has "... and of '$gemm'" "$out" "$gemm"
done
is '... but of no GEMM that is not there, or communicates nothing' "$(grep -cE 'qkv|fc2_wgrad' "$work/out")" 0
ok '... and last a line of what was hidden' grep -qE '^Communication [0-9.]+ ms of a step, [0-9]+ % hidden, [0-9.]+ ms exposed\.$' <(tail -n 1 "$work/out")
train --layer layernorm_mlp --tp 2 --iters 1
is 'a start says in a line what is overlapped, and in one which memory is shared' "$(grep -cE 'buffer|fc1' <(grep rank0 "$work/out"))" 2
has '... with the methods' "$out" '|-- Overlap: ring for fc1_fprop, fc2_dgrad; direct for fc1_dgrad, fc1_wgrad; pipeline for fc2_fprop' \
    '|-- 5 GEMMs that communicate share a buffer of '

number='-?[0-9.]+(e[-+][0-9]+)?'
comm="\"comm_ms\":$number,\"hidden_ms\":$number,\"exposed_ms\":$number,\"waited_ms\":$number,"
comm+="\"waited_wire_ms\":$number,\"waited_late_ms\":$number,\"waited_core_ms\":$number"
rates="\"tokens_per_s\":$number,\"tflops\":$number,\"mfu\":null,\"wire_gbps\":$number"
iteration="\{\"loss\":$number,\"grad_norm\":$number,\"ms\":$number,$comm,\"passes_ms\":$number,\"issue_ms\":$number,\"traced\":true,$rates\}"
gemm="\{\"gemm\":\"[a-z0-9_]+\",\"op\":\"[a-z_]+\",\"method\":\"[a-z]+\",\"bytes\":[0-9]+,$comm\}"
train --layer attention --tp 2 --json --no-comm-overlap --link 1GB/s,5us
is 'JSON: one line, nothing else' "$status$err $(wc -l <"$work/out")" '0 1'
form="^\{\"layer\":\"attention\",\"tp\":2,\"cp\":1,\"pp\":1,\"dp\":1,\"dtype\":\"float32\",\"device\":\"cpu\",\"overlap\":false,"
form+="\"iterations\":\[$iteration,$iteration,$iteration\],\"gemms\":\[($gemm,){5}$gemm\],\"collectives\":\{$comm\},\"gradients\":\{$comm\},\"all\":\{$comm\},\"digest\":null,\"predicted_ms\":$number,\"passes_ms\":$number,$rates,"
form+="\"fp8\":\"none\",\"hidden\":48,\"seq\":12,\"batch\":2,\"micro_batches\":1,\"layers\":1,\"transport\":\"shm\",\"heads\":12,\"kv_heads\":12,"
form+="\"head_dim\":4,\"ffn\":192,\"activation\":\"gelu\",\"norm\":\"layernorm\",\"optimizer\":\"adamw\",\"lr\":0.00100000005,\"tuned\":null,\"link\":\{.*\"emulated\":true\},"
form+="\"tokens\":24,\"gemm_flops\":$number,\"seed\":1234,\"cores\":[0-9]+,\"local_ranks\":2,\"host\":.*,\"date\":\"[^\"]*\"\}\$"
ok '... of the promised form' grep -qE "$form" "$work/out"
is '... and everything is serial' "$(grep -oE '"method":"[a-z]+"' "$work/out" | sort -u)" '"method":"serial"'
train --layer transformer --tp 2 --json --kv-heads 4 --ffn 60 --activation swiglu --norm rmsnorm --optimizer sgd --lr 0.25 --iters 1
has 'JSON tells of layers and optimizer what was asked' "$out" '"heads":12,"kv_heads":4,"head_dim":4,"ffn":60,"activation":"swiglu",' \
    '"norm":"rmsnorm","optimizer":"sgd","lr":0.25'

# ---- prediction ----

shown() { grep -oE '"loss":[^,]*' "$work/out"; }
for more in '' '--micro-batches 2' '--fp8' '--activation swiglu --recompute selective' '--layer linear' '--transport self' '--auto'; do
    # shellcheck disable=SC2086
    train --tp 2 --json --iters 2 $more
    ok "a pass is predicted $more" grep -qE '"predicted_ms":[0-9.]*[1-9]' "$work/out"
    before=$(shown)
    # shellcheck disable=SC2086
    train --tp 2 --json --iters 2 --no-predict $more
    has '... unless not asked for' "$status $out" '0 ' '"predicted_ms":null'
    is '... which changes no bit' "$(shown)" "$before"
done
train --tp 2 --compare
is 'predicted and measured, for both ways' "$(grep -cE '^passes [0-9.]+ ms, predicted [0-9.]+ ms \([+-][0-9]+ %\)$' "$work/out")" 2
for more in '--tp 2' '--tp 1 --micro-batches 3 --grad-sync-dtype bf16' '--tp 1 --no-comm-overlap'; do
    # shellcheck disable=SC2086
    train --num-replicas 2 --json --iters 1 $more
    ok "with replicas, too: $more" grep -qE '"predicted_ms":[0-9.]*[1-9]' "$work/out"
done

train --layer layernorm_mlp --tp 2 --compare --link ratio:0.4
is '--compare ends well' "$status$err" 0
has '... and compares' "$out" 'Iter 3, with overlap' 'Iter 3, without overlap' 'With overlap:' 'Without overlap:' 'without overlap  ' 'emulated link' \
    'The losses are the same to the last bit.'

train --layer layernorm_mlp --tp 1 --iters 1
is 'one rank overlaps nothing' "$status$err$(grep -cE 'ring|pipeline|direct' "$work/out")" 00

# Somebody who has read enough leaves: nothing is printed of it, and it ends as anything does that writes to nobody.
for more in '' '--transport self'; do
    # shellcheck disable=SC2086
    "$LAP" train $tiny --tp 2 --iters 1000000 $more 2>"$work/err" </dev/null | head -c 1 >/dev/null
    is "a reader that leaves $more" "${PIPESTATUS[0]}$(cat "$work/err")" 141
done

train --layer layernorm_mlp --tp 2 --no-trace --json
has '--no-trace says nothing of communication' "$out" '"comm_ms":null,"hidden_ms":null' '"passes_ms":'
train --layer layernorm_mlp --tp 2 --no-trace --compare --num-replicas 2
is '... nor in tables' "$status$err" 0
is '... which have no columns and rows of it' "$(grep -cE 'communication| -  |^all|^fc1' "$work/out") $(grep -c 'An iteration is' "$work/out")" '0 1'
train --layer layernorm_mlp --tp 1 --quiet
is 'nor has a rank alone' "$status $(grep -ciE 'communication|^all|^fc1' "$work/out")" '0 0'

# ---- rules ----

if [ $yaml = yes ]; then
    printf '%s\n' 'fc1_fprop: {method: ring_exchange, aggregate: 1, num_sm: 2}' 'fc2_fprop: {method: ring_exchange}' \
        'fc1_dgrad: {method: pipeline, num_splits: 2, cga_size: 2}' 'fc1_wgrad: null' >"$work/good.yaml"
    train --layer layernorm_mlp --tp 2 --num-replicas 2 --tp-comm-overlap-cfg "$work/good.yaml"
    is 'rules from a file' "$status$err" 0
    has '... are used' "$out" 'fc2_fprop   gemm_rs   ring' 'fc1_dgrad   gemm_rs   pipeline'
    is '... with a wgrad that communicates nothing' "$(grep -c fc1_wgrad "$work/out")" 0
    is '... and what has no effect is reported once' "$(grep -o 'without effect.*' "$work/out")" \
        'without effect on device cpu: num_sm, cga_size'
    train --layer layernorm_mlp --tp 2 --tp-comm-overlap-cfg "$work/good.yaml" --iters 1 --no-sequence-parallel
    is '... where rows are whole, too' "$(grep -o 'without effect with .*' "$work/out")" \
        'without effect with --no-sequence-parallel: rules that gather rows'
    train --layer layernorm_mlp --tp 2 --tp-comm-overlap-cfg "$work/good.yaml" --compare --iters 1
    is '... also by --compare' "$(grep -c 'without effect' "$work/out")" 1
    train --layer layernorm_mlp --tp 2 --tp-comm-overlap-cfg "$work/good.yaml" --compare --iters 1 --json
    is '... and by --json' "$status$err $(wc -l <"$work/out")" \
        "0lap train: $work/good.yaml: without effect on device cpu: num_sm, cga_size 1"
fi
train --layer linear --tp 2 --timeout 1000000000
is '--timeout may be as long as LAP_TIMEOUT_S' "$status$err" 0

train --layer layernorm_mlp --tp 2 --tp-comm-overlap-rs-dgrad --disable-tp-comm-overlap-ag
has 'switches' "$out" 'fc1_fprop   ag_gemm   serial' 'fc1_dgrad   gemm_rs   pipeline'
is '... with a wgrad that communicates nothing' "$(grep -c fc1_wgrad "$work/out")" 0
train --layer layernorm_mlp --tp 2 --disable-tp-comm-bulk-dgrad --disable-tp-comm-overlap-rs
has 'other switches' "$out" 'fc1_dgrad   bulk_ag   serial' 'fc1_wgrad   bulk_rs   direct' 'fc2_fprop   gemm_rs   serial'
# What nobody has said is measured: whatever is chosen, that is told in one line.
train --layer layernorm_mlp --tp 2 --auto --iters 1
is 'methods chosen by measuring' "$status$err $(grep -c '|-- Overlap, by measurement: ' "$work/out")" '0 1'
lap train ${tiny#--auto=no } --layer layernorm_mlp --tp 2 --iters 1
is '... as they are by default' "$status$err $(grep -c '|-- Overlap, by measurement: ' "$work/out")" '0 1'
train --layer layernorm_mlp --tp 2 --no-comm-overlap --iters 1
is '... but not without overlap' "$(grep -o '|-- Overlap.*' "$work/out")" \
    '|-- Overlap: serial for fc1_fprop, fc1_dgrad, fc1_wgrad, fc2_fprop, fc2_dgrad'
if [ $yaml = yes ]; then
    lap train ${tiny#--auto=no } --layer layernorm_mlp --tp 2 --iters 1 --tp-comm-overlap-cfg "$work/good.yaml"
    has '... nor with rules of a file' "$out" '|-- Overlap: ring for fc1_fprop, fc2_fprop'
fi

# ---- losses do not depend on the layout ----

# Sums of at most 192 products in float32, four in a row, are off by less than 4 * 192 * 2^-24 of their terms, which are
# about as large as they are; a step follows the gradients, which are sums of the same kind.
bound=5e-5
# Most of the time of so small a layer goes by in measuring for its prediction: of the runs that differ in their layout alone, or are
# compared, one is predicted.
for layer in layernorm_mlp transformer; do
    losses --layer $layer --tp 1 --optimizer sgd
    alone=$losses
    ok "$layer: the loss falls" falls "$losses"
    for layout in '--tp 2' '--tp 3' '--tp 4' '--tp 1 --num-replicas 2' '--tp 2 --num-replicas 2'; do
        # shellcheck disable=SC2086
        losses --layer $layer --optimizer sgd $layout
        ok "$layer $layout: the losses of one rank" near "$losses" "$alone" $bound ||
            printf '# %s\n' $losses against $alone
        overlapped=$losses
        # shellcheck disable=SC2086
        losses --layer $layer --optimizer sgd $layout --no-comm-overlap --no-predict
        is "$layer $layout: the same bits without overlap" "$losses" "$overlapped"
    done
    losses --layer $layer --tp 1 --optimizer sgd --seed 4321 --no-predict
    ok "$layer: another seed has losses that are not near" eval '! near "$losses" "$alone" $bound'
done
# Features that the ranks cannot share evenly: ffn is 4 * 12 * 11 = 528, on 5 ranks 112, 104, 104, 104 and 104.
for more in '' '--activation swiglu --norm rmsnorm' '--layers 2 --recompute full' '--no-sequence-parallel' '--auto' \
    '--dtype bf16 --fp8'; do
    odd="--layer layernorm_mlp --head-dim 11 --optimizer sgd $more"
    # shellcheck disable=SC2086
    losses $odd --tp 1 --no-predict
    odd_alone=$losses
    for layout in '--tp 5' '--tp 7 --no-predict' '--tp 5 --num-replicas 2 --no-predict'; do
        # shellcheck disable=SC2086
        losses $odd $layout
        # FP8 sums over ranks are rounded to bf16, which has 8 bits.
        ok "ffn that $layout cannot share evenly $more: the losses of one rank" near "$losses" "$odd_alone" \
            "$([[ $more == *fp8* ]] && echo 2e-2 || echo $bound)" || printf '# %s\n' $losses against $odd_alone
    done
done
refuse "ffn is 32, expected at least one for each of 33 tensor-parallel ranks" --layer layernorm_mlp --tp 33 --heads 8 --head-dim 1
losses --layer transformer --tp 2 --num-replicas 2 --bucket-size 100 --optimizer sgd
is 'the size of buckets changes nothing' "$losses" "$overlapped"
losses --layer transformer --tp 2 --num-replicas 2 --bucket-by layer --optimizer sgd
is '... nor that they end where a layer does' "$losses" "$overlapped"
losses --layer transformer --tp 2 --num-replicas 2 --transport self --optimizer sgd
is 'nor that ranks are threads' "$losses" "$overlapped"
losses --layer transformer --tp 2 --num-replicas 2 --grad-sync-dtype bf16 --optimizer sgd
ok 'gradients that travel as bf16 are not the same' test "$losses" != "$overlapped"
ok '... but near' near "$losses" "$overlapped" 1e-2
lap run -n 4 "$LAP" train $tiny --num-replicas 2 --optimizer sgd
is 'ranks of lap run take part' "$status$err" 0
has '... as they are' "$out" 'tensor-parallel group: [0, 1]' 'data-parallel group: [0, 2]'
for more in '--optimizer adamw --lr-warmup-iters 2 --weight-decay 0.1' '--dtype bf16 --norm rmsnorm --activation swiglu' \
    '--layers 2 --recompute full' '--no-sequence-parallel' '--kv-heads 4 --device ref' '--clip-grad 0' \
    '--layer linear' '--layer layernorm_linear --dtype half' '--fp8 --dtype bf16' '--fp8=current --num-replicas 2'; do
    # shellcheck disable=SC2086
    losses --tp 2 $more
    ok "$more: the loss falls" falls "$losses"
done

# ---- matrices of one column ----

for recipe in '' --fp8 --fp8=current; do
    # shellcheck disable=SC2086
    lap train --tp 1 --heads 1 --head-dim 1 --seq 4 --batch 1 --iters 2 $recipe
    is "a layer of hidden size 1 $recipe" "$status$err" 0
done

# ---- ranks that die ----

# start ARGUMENTS...: trains for ever in the background; returns when the ranks are at it.
start() {
    : >"$work/out"
    # shellcheck disable=SC2086
    "$LAP" train $tiny --tp 2 --num-replicas 2 --iters 1000000 "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    until_true grep -q 'Iter 3$' "$work/out"
}

start
victim=$(pid_of 2)
ok 'a rank is killed' kill -9 "$victim"
collect
is '... and its status is that of all' "$status" 137
is '... which is said first' "$(head -n 1 "$work/err")" "lap train: rank 2 (pid $victim) was killed by signal 9 (Killed)"
# causes: of each line that says why ranks failed, these; said: all of these ranks in order; twice: what several lines say.
causes() { sed -nE 's/^lap train: ranks? ([0-9][-0-9, ]*): .*/\1/p' "$work/err"; }
said() { causes | sed 's/, /\n/g' | sed -E 's/^([0-9]+)-([0-9]+)$/seq \1 \2/;t;s/^/echo /' | sh | sort -n | tr '\n' ' '; }
twice() { sed -nE 's/^lap train: ranks? [0-9][-0-9, ]*: ([^;]*).*/\1/p' "$work/err" | sort | uniq -d; }
is '... and the others, each once' "$(said)" '0 1 3 '
# Those that share a sentence name it by its rank in the world; one that has a sentence to itself, by that in their group.
ok '... name it' grep -qE "peer lost: .*rank (2 \\(|[01] \\(rank 2 of the world, )pid $victim\\) has died" "$work/err"
is '... and tell what they have in common once' "$(twice)" ''
ok '... which are not ended by force' test "${err/had to be ended/}" = "$err"
ok '... in what they were doing' grep -qE 'lap train: ranks? [013][-0-9, ]*: .*rank [0-9]+ ' "$work/err"

start --timeout 5
victim=$(pid_of 3)
kill -STOP "$victim"
collect
kill -9 "$victim" 2>/dev/null
ok 'a rank that stands still ends the others' test "$status" != 0
has '... which say who' "$err" 'rank 3' 'is stopped'
finish
