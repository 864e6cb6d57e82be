#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap train --cp`: ranks that are processes share sequences and have the losses and norms of one rank, whichever way keys travel; what
# cannot be is refused, lap check and lap show take the same options, and a rank that is killed ends the job with its name.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

small='--auto=no --model llama-tiny --layers 1 --hidden 32 --heads 4 --kv-heads 2 --seq 19 --batch 2 --iters 4 --dtype float32 --no-predict'

# numbers ARGUMENTS...: losses and norms of a run, in $numbers.
numbers() {
    # shellcheck disable=SC2086
    lap train $small --json "$@"
    is "'lap train $*' ends well" "$status$err" 0
    numbers=$(tail -n 1 "$work/out" | grep -oE '"(loss|grad_norm)":[^,]+' | cut -d: -f2)
}

numbers --tp 1
alone=$numbers
for grid in '--tp 2 --cp 2' '--tp 1 --cp 4 --cp-comm-type a2a+p2p'; do
    # shellcheck disable=SC2086
    numbers $grid
    ok "... the losses and norms of one rank" near "$numbers" "$alone" 1e-5
done
# shellcheck disable=SC2086
lap train $small --tp 1 --cp 2 --compare --quiet
has 'overlapped or not' "$out" 'The losses are the same to the last bit.'

# Attention hides what travels meanwhile, though it is no part of the calls that send it.
# For 16 ms, of which a rank may be kept from its core, but not in every step.
# shellcheck disable=SC2086
train_over_link() { lap train $small --seq 256 --tp 1 --cp 2 --json --link 1MB/s; }
hides() { grep -oE '"cp":[^}]*' "$work/out" | grep -oE '"hidden_ms":[^,}]+' | awk -F: '{ sum += $2 } END { exit !(sum > 0) }'; }
ok_in_three 'keys and values are hidden for a while' train_over_link hides

refuse '--cp-comm-type is a2a, where 4 ranks exchange heads, but a rank has 2 kv_heads' --model llama-tiny --kv-heads 2 --tp 1 --cp 4 --cp-comm-type a2a
refuse 'but a rank has 8 heads: expected a multiple of 5, or p2p or all_gather' --model gpt --tp 1 --cp 5 --cp-comm-type a2a
refuse "--cp-comm-type is 'ring'; expected p2p, all_gather, a2a or a2a+p2p" --model llama-tiny --tp 1 --cp 2 --cp-comm-type ring
refuse '--cp-comm-type is for context parallel; expected --cp 2 or more' --model llama-tiny --tp 1 --cp-comm-type a2a
refuse '--cp-a2a is for --cp-comm-type a2a+p2p' --model llama-tiny --tp 1 --cp 2 --cp-a2a 2
refuse '--cp is for language models' --tp 1 --cp 2
refuse 'seq is 3, expected at least a token for each of the 4 ranks of cp' --model llama-tiny --seq 3 --tp 1 --cp 4

# shellcheck disable=SC2086
lap check train ${small%% --iters*} --tp 2 --cp 2 --dp 2
has 'all of it is proved' "$status $out" '0 model, 1 layer, 4 ranks in each of 2 replicas' 'context of 2 ranks, p2p' 'are proved safe'
# shellcheck disable=SC2086
lap show train ${small%% --iters*} --tp 1 --cp 2
has 'and shown: keys travel while attention runs' "$status $out" 'external AG ring' 'attention_block_backward' 'external RS ring'

# order OPTIONS...: of backward, the attention of layer 1, the keys of layer 0 and some GEMMs, in the order of the program.
order() {
    # shellcheck disable=SC2086
    lap show train ${small%% --iters*} --layers 2 --cp 2 "$@"
    order=$(awk '$2 == "backward" && ($3 $4 == "1attention" && /block_backward/ || $3 $4 == "0keys" || $3 $4 ~ /^0(fc2|proj)_dgrad/) \
        { print $3 $4 }' "$work/out" | uniq | tr '\n' ' ')
}
order --tp 1
is 'keys of the layer below leave when attention is over, and travel while the GEMMs between the two run' \
    "$order" '1attention 0keys 0fc2_dgrad 0proj_dgrad '
order --tp 2
is '... with tensor parallelism, too' "$order" '1attention 0keys 0fc2_dgrad 0proj_dgrad '
# shellcheck disable=SC2086
lap show train ${small%% --iters*} --layers 2 --cp 2 --tp 2 --all-steps
# streams NAME: on which its calls put and wait for data.
streams() { awk -v name="$1" '$2 == "forward" || $2 == "backward" { on = / external | AG.GEMM / && index($0, " " name " ") } on && $3 ~ /^(PUT|WAIT)$/ { print $2 }' "$work/out" | sort -u | tr '\n' ' '; }
# A GPU may have fewer queues than streams: there the two share theirs, in one order.
apart='receive2 send2 and compute receive send '
[ "${LAP_DEVICE:-cpu}" != cuda ] || apart='receive send and compute2 receive send '
is '... where they do not hold up what GEMMs receive' "$(streams 'keys and values')and $(streams fc2_dgrad)" "$apart"
# shellcheck disable=SC2086
lap train $small --tp 2 --cp 2 --compare --quiet
has '... overlapped or not' "$out" 'The losses are the same to the last bit.'

kills_one 3 train --model llama-tiny --layers 1 --seq 64 --tp 1 --cp 3 --iters 1000000 --quiet --timeout 20
finish
