#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Language models of `lap train`: any grid has the losses of one rank, numbers of a preset can be changed, and lap check and lap show
# take the same options.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# numbers KEY ARGUMENTS...: of the iterations of a run, one line each, in $numbers.
numbers() {
    local key=$1
    shift
    lap train --json "$@"
    is "'lap train $*' ends well" "$status$err" 0
    numbers=$(tail -n 1 "$work/out" | grep -oE "\"$key\":[^,]+" | cut -d: -f2)
}

# ---- grids ----

for model in 'gpt2-124m --hidden 48 --heads 6 --vocab 300' 'llama-tiny --hidden 48 --heads 12 --kv-heads 6'; do
    small="--auto=no --model $model --layers 2 --seq 16 --batch 4 --iters 8 --lr 0.001"
    # shellcheck disable=SC2086
    {
        numbers loss $small --tp 1 --no-predict # which is most of the time; some of the grids are predicted
        alone=$numbers
        norms=$(tail -n 1 "$work/out" | grep -oE '"grad_norm":[^,]+' | cut -d: -f2)
        first=$(head -n 1 <<<"$alone") last=$(tail -n 1 <<<"$alone")
        ok "$model: the loss falls from $first to $last" awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.3) }'
        for grid in '--tp 3' '--tp 2 --num-replicas 2 --micro-batches 2 --no-sequence-parallel'; do
            numbers loss $small $grid
            ok "... $grid: the losses of one rank" near "$numbers" "$alone" 1e-5
            numbers=$(tail -n 1 "$work/out" | grep -oE '"grad_norm":[^,]+' | cut -d: -f2)
            ok "... $grid: and its norms" near "$numbers" "$norms" 1e-5
        done
        lap train $small --tp 2 --num-replicas 2 --compare --quiet
        has '... overlapped or not' "$out" 'The losses are the same to the last bit.' 'head_fprop  ag_gemm' 'head_wgrad  bulk_rs'
        numbers loss $small --tp 2 --num-replicas 2 --recompute full
        once=$numbers
        numbers loss $small --tp 2 --num-replicas 2 --recompute full --no-predict
        is '... and twice' "$numbers" "$once"
    }
done
has 'a run says what the model is' "$out" '"layer":"model"' '"model":"llama-tiny"' '"vocab":256' '"positions":"rope"' '"tied":false' \
    '"kv_heads":6'

# ---- dropout ----

small='--auto=no --model gpt --hidden 48 --heads 6 --vocab 300 --layers 2 --seq 16 --batch 4 --iters 4 --lr 0.001 --attention-dropout 0.2 --hidden-dropout 0.1'
# shellcheck disable=SC2086
{
    numbers loss $small --tp 1 --no-predict
    alone=$numbers
    numbers loss ${small% --attention*} --tp 1 --no-predict
    ok 'dropout changes losses' test "$alone" != "$numbers"
    for grid in '--tp 2 --num-replicas 2 --micro-batches 2' '--cp 2 --pp 2 --micro-batches 2 --cp-comm-type a2a' \
        '--cp 3 --cp-comm-type all_gather --recompute full'; do
        numbers loss $small $grid
        ok "... $grid: the losses of one rank, with its masks" near "$numbers" "$alone" 1e-5
    done
}
refuse '--hidden-dropout is for language models' --hidden-dropout 0.1
refuse "--hidden-dropout is '-0.1'; expected a number from 0 to less than 1" --model gpt --hidden-dropout -0.1
refuse "--attention-dropout is '1'; expected a number from 0 to less than 1" --model gpt --attention-dropout 1

# ---- norms of gradients ----

tiny='--auto=no --model gpt --hidden 16 --heads 2 --vocab 30 --layers 1 --seq 8 --batch 2 --iters 2 --tp 1 --no-predict'
# shellcheck disable=SC2086
{
    lap train $tiny --clip-grad 0 --json
    is 'a norm that is not computed is not known' "$status $(grep -oE '"grad_norm":[^,]+' <<<"$out" | sort -u)" '0 "grad_norm":null'
    lap train $tiny --clip-grad 0
    has '... and is left out of what is printed' "$status $out" '0 ' 'Step 2/2: loss ' ', lr '
    is '... and nothing else is' "$(grep -c ', norm ' <<<"$out")" 0
    lap train $tiny --clip-grad 0 --loss-scale dynamic --json
    is 'a scale that changes needs the norm' "$status $(grep -c '"grad_norm":[0-9]' <<<"$out")" '0 3'
}

# ---- numbers ----

lap train --model gpt2-124m --layers 1 --hidden 128 --seq 8 --vocab 99 --tp 1 --iters 1 --json
has 'heads keep their size, the MLP its proportion' "$out" '"heads":2,"kv_heads":2,"head_dim":64,"ffn":512,"activation":"gelu"' \
    '"positions":"learned","tied":true'
lap train --model llama-8b --layers 1 --hidden 256 --seq 8 --vocab 99 --heads 16 --tp 1 --iters 1 --json
has 'heads of keys theirs' "$out" '"heads":16,"kv_heads":4,"head_dim":16,"ffn":896,"activation":"swiglu","norm":"rmsnorm"'
lap train --model gpt --layers 1 --seq 300 --tp 1 --iters 1 --positions rope --tied=no --norm rmsnorm --activation swiglu --json
has 'all of it can be changed' "$out" '"positions":"rope","tied":false' '"norm":"rmsnorm"' '"seq":300'
lap train --model gpt --layers 1 --seq 300 --tp 1 --iters 1
is 'longer sequences have more positions' "$status" 0
lap train --layer attention --positions rope --heads 4 --head-dim 8 --seq 8 --tp 2 --iters 1
is 'layers with attention may have rotary positions' "$status" 0

# ---- the same options elsewhere ----

lap check train --model gpt2-124m --tp 2
has 'lap check train' "$out" 'model, 12 layers, 2 ranks' "forward, loss, backward and the optimizer's step are proved safe"
lap show train --model llama-tiny --layers 1 --seq 8 --tp 2
has 'lap show train' "$out" 'head_fprop' 'head_wgrad' 'external RS' 'cross_entropy' 'embedding_backward' 'rope_backward'
lap train --model gpt --layers 1 --seq 8 --tp 2 --iters 3 --debug --lr 1e30
is 'numbers that are not finite end it' "$status" 3
has '... with the first of them' "$err" 'the first tensor that is not finite is'

# ---- what is wrong ----

refuse "there is no model 'gpt2-124'; expected one of gpt2-124m," --model gpt2-124
refuse '(did you mean llama-8b?)' --model Llama-8B
refuse '(did you mean llama-70b?)' --model lama-70b
refuse "--layer is 'model'; expected --model NAME" --layer model
refuse '--layer has no effect on a model' --model gpt --layer attention
refuse '--vocab is for language models; expected --model' --vocab 9
refuse '--tied is for language models; expected --model' --tied
refuse "--tied is 'perhaps'; expected no or yes" --model gpt --tied=perhaps
refuse '--positions is for attention' --layer layernorm_mlp --positions rope
refuse "--positions is 'here'; expected none, learned or rope" --model gpt --positions here
refuse '--hidden is 100; expected a multiple of the 7 heads' --model gpt --hidden 100 --heads 7
refuse 'heads is 8, expected a multiple of the 3 tensor-parallel ranks' --model gpt --tp 3
refuse 'vocab is 1, expected at least one for each of 2 tensor-parallel ranks' --model gpt --vocab 1 --tp 2
finish
