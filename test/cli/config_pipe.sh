#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --config: settings from a pipe, or from standard input, are read once and are those of all ranks.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB LAP_PIPED_CONFIG
cd "$work" || exit 1

model_losses() { grep -oE '^\{"step":[0-9]+,"loss":[0-9.]+' out; }
cat >model.yaml <<'YAML'
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 32, seq_length: 8, precision: bf16, max_steps: 2}
YAML
# A pipe is read once, and passed on to the ranks; "-" is standard input.
lap train --config model.yaml --tp 2 --json --no-predict
piped=$(model_losses)
ok 'a file has losses' test -n "$piped"
for what in file pipe input fifo; do
    case $what in
    pipe) lap train --config <(cat model.yaml) --tp 2 --json --no-predict ;;
    input) "$LAP" train --config - --tp 2 --json --no-predict <model.yaml >out 2>err ;;
    fifo) mkfifo fifo && { cat model.yaml >fifo & lap train --config fifo --tp 2 --json --no-predict; } ;;
    esac
    is "settings from a $what" "$(model_losses)" "$piped"
done
lap check train --config <(echo 'num_layers: 0')
has '... with the line of a mistake' "$status $err" '2 ' ":1: num_layers is '0'"
lap run -n 2 "$LAP" train --config <(cat model.yaml)
has '... which ranks of a launcher cannot all read' "$status $err" '2 ' 'a pipe, which ranks of a launcher cannot all read; expected a file'
lap check train --config <(printf 'num_layers: 1\0')
has '... and which is text' "$status $err" '2 ' 'has a zero byte, expected settings in YAML'
finish
