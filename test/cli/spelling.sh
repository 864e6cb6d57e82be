#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An option that has several names is called by the one that was typed, in every sentence: of the parser, of checks, of ranks, and
# about what a file of --config has.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
gpt=(--model gpt --layers 1 --hidden 32 --heads 4 --seq 8 --vocab 64 --no-predict --no-trace)

# says NAME STATUS SENTENCE ARGUMENTS...: what lap train says is one line, with the sentence.
says() {
    local name=$1 code=$2 sentence=$3
    shift 3
    lap train "$@"
    is "$name: status $code and one line" "$status:$(wc -l <"$work/err")" "$code:1"
    has '... the sentence' "$err" "$sentence"
}

# The names of the table, of an alias, and letters: joined to their values, apart from them, without one.
says 'the name of the table' 2 "--iters is 'x'; expected a whole number" --iters x
says 'another name' 2 "--steps is 'x'; expected a whole number" --steps x
says '... with its value' 2 "--num-iters is 'x'; expected a whole number" --num-iters=x
says 'a letter' 2 "-i is 'x'; expected a whole number" -i x
says '... with its value' 2 "-i is 'x'; expected a whole number" -ix
says '... and that counts which came last' 2 "--steps is 'y'; expected a whole number" --iters x --steps y
says 'a value is missing' 2 "option '--global-batch' needs a value: --global-batch COUNT" "${gpt[@]}" --global-batch
says 'a value too many' 2 "option '--use-distributed-optimizer' takes no value, but was given 'yes'" --use-distributed-optimizer=yes

# Two options in a sentence, and sentences of rules about several.
says 'replicas' 2 "--dp is '0'; expected a whole number" "${gpt[@]}" --dp 0
says 'a batch' 2 '--global-batch is 3; expected a multiple of the 2 replicas' "${gpt[@]}" --dp 2 --global-batch 3
says '... by the name of the table' 2 '--batch is 3; expected a multiple of the 2 replicas' "${gpt[@]}" --dp 2 --batch 3
says '... of micro-batches' 2 '--global-batch is 4; expected a multiple of 6, the --micro-batch of 3 for each of 2 replicas' \
    "${gpt[@]}" --dp 2 --global-batch 4 --micro-batch 3
says '... of a replica' 2 '--batch-size is 3; expected a multiple of the 2 micro-batches' "${gpt[@]}" --dp 2 --batch-size 3 --micro-batches 2
says '... and its micro-batches' 2 '-b is 3; expected a multiple of the --micro-batch of 2' "${gpt[@]}" --dp 2 -b 3 --micro-batch 2
says 'two of the same' 2 '--global-batch and --batch-size are both given' "${gpt[@]}" --global-batch 2 --batch-size 2
says 'a rule' 2 '--save-interval needs a place; expected --save DIR' "${gpt[@]}" --save-interval 2
says '... that names another option' 2 '--no-overlap-param-sync is for a shared optimizer; expected --distributed-optimizer' \
    "${gpt[@]}" --dp 2 --no-overlap-param-sync
says 'a value is none of our words' 2 "--steps is '--iters'; expected a whole number" --steps --iters

# What the library finds wrong with a field is wrong with an option.
says 'heads' 2 'lap train: --num-heads is 4, expected a multiple of the 3 tensor-parallel ranks (--tp 2' "${gpt[@]}" --num-heads 4 --tp 3
for command in check show; do
    lap $command train --model gpt2-1.5b --num-heads 25 --tp 4
    has "... that lap $command train is asked about" "$status $err" '2 ' \
        "lap $command train: --num-heads is 25, expected a multiple of the 4 tensor-parallel ranks" \
        '(--tp 5 or --num-heads 20 would do)'
done
# Advice that can be followed: a launcher has started so many ranks, and all of them train.
lap run -n 4 "$LAP" train "${gpt[@]}" --hidden 48 --num-heads 6
has '... of ranks that a launcher started' "$status $err" '2 ' \
    '--num-heads is 6, expected a multiple of the 4 tensor-parallel ranks (--tp 2 with --num-replicas 2 or --num-heads 4 would do)'
lap run -n 4 "$LAP" train "${gpt[@]}" --hidden 48 --num-heads 6 --tp 2 --num-replicas 2 --steps 1 --quiet
is '... which train so' "$status$err" 0
lap run -n 4 "$LAP" train "${gpt[@]}" --hidden 48 --num-heads 3 --tp 2 --num-replicas 2
has '... with replicas' "$status $err" '2 ' '(--tp 1 with --num-replicas 4 or --num-heads 2 would do)'
says '... of keys and values' 2 'lap train: --kv-heads is 3, expected' "${gpt[@]}" --kv-heads 3 --tp 1
says 'a rate' 2 'lap train: --min-lr is 1, expected at most lr, 0.1' "${gpt[@]}" --tp 1 --lr 0.1 --min-lr 1 --lr-decay-style linear
says '... that falls' 2 'lap train: --lr-decay-iters is 5, expected more than the 9 steps of warmup' \
    "${gpt[@]}" --tp 1 --lr-decay-style linear --lr-warmup-iters 9 --lr-decay-iters 5
says 'a context' 2 'lap train: --cp-comm-type is a2a+p2p with cp 3' "${gpt[@]}" --cp 3 --cp-comm-type a2a+p2p

# By ranks, and about a checkpoint.
lap train "${gpt[@]}" --tp 2 --steps 2 --global-batch 4 --save run --quiet
is 'a checkpoint' "$status$err" 0
lap train "${gpt[@]}" --tp 2 --steps 2 --load run --global-batch 4 --quiet
has 'a rank' "$status $err" '1 ' 'checkpoint of step 2; expected --steps to be more than that, not 2'
lap train "${gpt[@]}" --tp 2 -i 3 --load run --global-batch 2 --quiet
has 'what is not as in a checkpoint' "$status $err" '0 ' '--global-batch is 4 in the checkpoint and 2 here'
lap run -n 2 bash -c 'exec "$0" train "$@" --steps $((LAP_RANK + 1))' "$LAP" "${gpt[@]}" --tp 2
has 'ranks that differ' "$status $err" '1 ' 'rank 0 says --steps = 1, rank 1 says --steps = 2'

# By a file: its keys, unless the command line says more.
if ! "$LAP" info | grep -q '  libyaml .*not found'; then
    printf '%s\n' 'vocab_size: 64' 'global_batch_size: 3' 'micro_batch_size: 2' 'tp_comm_overlap: false' >model.yaml
    says 'keys of a file' 2 'lap train: model.yaml:2: global_batch_size is 3; expected a multiple of 2, the micro_batch_size of 2 for each of 1 replica,' \
        --config model.yaml
    printf '%s\n' 'vocab_size: 64' 'num_attention_heads: 6' 'hidden_size: 48' 'num_query_groups: 4' >heads.yaml
    says '... that the library finds wrong' 2 'lap train: heads.yaml:4: num_query_groups is 4, expected' --config heads.yaml --tp 1
    says '... that ranks cannot share' 2 \
        'lap train: heads.yaml:2: num_attention_heads is 6, expected a multiple of the 4 tensor-parallel ranks (--tp 2 would do)' \
        --config heads.yaml --tp 4
    printf '%s\n' 'vocab_size: 64' '' 'tensor_model_parallel_size: 3' >ranks.yaml
    says '... where the file has only the ranks' 2 \
        'lap train: ranks.yaml:3: --heads is 8, expected a multiple of the 3 tensor-parallel ranks (tensor_model_parallel_size 2' --config ranks.yaml
    printf '%s\n' 'vocab_size: 64' 'pipeline_model_parallel_size: 7' 'num_layers: 4' >stages.yaml
    says '... layers of stages' 2 'lap train: stages.yaml:3: num_layers is 4, expected at least one for each of 7 stages' --config stages.yaml
    printf '%s\n' 'tensor_model_parallel_size: 2' 'tp_comm_overlap_cfg: rules.yaml' >with.yaml
    printf '%s\n' 'qkv_fprop:' '  method: ring' >rules.yaml
    says '... and a file that it names' 2 "lap train: with.yaml:2: tp_comm_overlap_cfg: rules.yaml:2: unknown method 'ring' of qkv_fprop" --config with.yaml
    lap check train --config heads.yaml --tp 4
    has '... lap check' "$status $err" '2 ' 'lap check train: heads.yaml:2: num_attention_heads is 6, expected'
    says '... of which the command line has one' 2 'lap train: --global-batch is 5; expected a multiple of 2, the micro_batch_size of 2' \
        --config model.yaml --global-batch 5
    says '... and a key that is the contrary of an option' 2 '--compare needs overlap; expected no --no-comm-overlap with it' \
        --config model.yaml --global-batch 4 --tp 2 --compare
fi

# All sentences pass through lap_tell, but those of lap itself, which has no aliases, and what a launcher says with no memory left. What begins
# with a return of the carriage tells how far a command is.
is 'no sentence goes by' "$(cd "$LAP_SOURCE_DIR/cli" && grep -l 'stderr' ./*.c | sort | tr '\n' ' ')" \
    './lap.c ./launch.c ./lines.c ./progress.c ./spelling.c '
is '... in these files' "$(cd "$LAP_SOURCE_DIR/cli" && grep -h 'stderr, ' bench_print.c check.c launch.c lines.c | grep -vF '"\r' | sed 's/^ *//')" \
    'fprintf(stderr, "%s\n", text);'
finish
