#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --data: every grid of ranks sees the same tokens in the same order, also across a checkpoint; and a model learns from the
# licence of the repository what frequencies of letters alone do not tell.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1
"$LAP" data tokenize --bytes "$LAP_SOURCE_DIR"/README.md "$LAP_SOURCE_DIR"/docs/{usage,features,building}.md -o corpus.bin >/dev/null

# losses: of the steps of a run in JSON, with all their digits.
losses() { python3 -c '
import json, sys
lines = [json.loads(line) for line in open("out")]
steps = [line for line in lines if "step" in line]
assert [s["loss"] for s in steps] == [i["loss"] for i in lines[-1]["iterations"]]
for s in steps: print(repr(s["loss"]))'; }

# ---- grids ----

small=(--auto=no --model gpt --hidden 24 --heads 6 --ffn 40 --layers 2 --seq 16 --data corpus.bin)
lap train "${small[@]}" --tp 1 --batch 12 --steps 5 --json
alone=$(losses)
is 'one rank' "$status $(wc -l <<<"$alone")" '0 5'
for grid in '--tp 2 --dp 2 --micro-batch 1' '--tp 1 --dp 3 --micro-batches 2'; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" $grid --global-batch 12 --steps 5 --json
    ok "$grid: the losses of one rank" near "$(losses)" "$alone" 1e-5
done
has 'a step in JSON has all that is asked of it' "$(head -n 1 out)" '"step":1,"loss":' '"grad_norm":' '"lr":' '"ms":' '"tokens_per_s":' '"comm":{'
lap train "${small[@]}" --tp 2 --batch 12 --steps 2
has 'a step has a line' "$out" 'Step 2/2: loss ' ', norm ' ', lr ' ' tokens/s, ' ' TFLOP/s, ' ' MiB, tp '
# Other tokens, other losses: they are those of the files.
tr a-y b-z <"$LAP_SOURCE_DIR/README.md" >other.txt
"$LAP" data tokenize --bytes other.txt -o other.bin >/dev/null
lap train "${small[@]}" --data other.bin --tp 1 --batch 12 --steps 5 --json
ok 'other files have other losses' test "$(losses)" != "$alone"

# Shards, by a list or a pattern, are one sequence.
python3 - <<'PY'
import struct
data = open("corpus.bin", "rb").read()[1024:]
count = len(data) // 2
for i, (a, b) in enumerate(((0, 1001), (1001, 1500), (1500, count))):
    open("part%d.bin" % i, "wb").write(struct.pack("<256i", 20240520, 1, b - a, *[0] * 253) + data[2 * a:2 * b])
PY
for files in part0.bin,part1.bin,part2.bin 'part*.bin' 'part0.bin,part[12].bin'; do
    lap train "${small[@]}" --data "$files" --tp 1 --batch 12 --steps 5 --json
    is "$files: the same, to the last bit" "$status $(losses)" "0 $alone"
done

# ---- checkpoints ----

lap train "${small[@]}" --tp 2 --batch 12 --steps 6 --json
whole=$(losses)
lap train "${small[@]}" --tp 2 --batch 12 --steps 3 --save run --json
is 'three steps and a checkpoint' "$status $(losses)" "0 $(head -n 3 <<<"$whole")"
ok '... as Hugging Face has it' python3 - <<'PY'
import json, struct
data = open("run/step-00000003/model.safetensors", "rb").read()
header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
assert header["transformer.h.1.attn.c_attn.weight"]["shape"] == [24, 72] and header["transformer.wte.weight"]["shape"] == [256, 24]
config = json.load(open("run/step-00000003/config.json"))
assert config["model_type"] == "gpt2" and config["n_embd"] == 24 and config["n_inner"] == 40 and config["vocab_size"] == 256
assert json.load(open("run/step-00000003/manifest.json"))["samples"] == 36
PY
lap train "${small[@]}" --tp 2 --batch 12 --steps 6 --load run --json
is '... three more: six, to the last bit' "$status $(losses)" "0 $(tail -n 3 <<<"$whole")"
lap train "${small[@]}" --tp 3 --dp 2 --batch 12 --steps 6 --load run --json
ok '... on another grid up to rounding' near "$(losses)" "$(tail -n 3 <<<"$whole")" 1e-5
# With half the batch the same samples follow, with their masks: weights that do not change have the same mean loss on them.
for more in '' '--hidden-dropout 0.2 --attention-dropout 0.1' '--pp 2 --micro-batches 2 --hidden-dropout 0.2'; do
    # shellcheck disable=SC2086
    lap train "${small[@]}" --tp 1 --batch 6 --steps 5 --load run --json --lr 0 $more
    halves=$(losses | awk '{ sum += $1 } END { printf "%.9f\n", sum / NR }')
    # shellcheck disable=SC2086
    lap train "${small[@]}" --tp 1 --batch 12 --steps 4 --load run --json --lr 0 $more
    ok "another batch goes on where the data were${more:+, $more}" near "$(losses)" "$halves" 1e-6
done

# ---- a random order ----

lap train "${small[@]}" --tp 1 --batch 12 --steps 6
has 'the order is random, and said' "$out" '|-- Data: ' ' samples of 16 tokens, in a random order, of seed 1234'
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --shuffle
shuffled=$(losses)
ok '... whether or not it is asked for' near "$shuffled" "$(head -n 6 <<<"$whole")" 1e-5
lap train "${small[@]}" --tp 2 --dp 3 --batch 12 --steps 6 --json --data-seed 1234
ok '... the same on another grid' near "$(losses)" "$shuffled" 1e-5
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --data-seed 5
seeded=$(losses)
ok '... another seed, another order' test "$seeded" != "$shuffled"
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --shuffle=no
ordered=$(losses)
ok '... that of the files, too' test "$ordered" != "$shuffled"
lap train "${small[@]}" --tp 1 --batch 12 --steps 3 --json --data-seed 5 --save order
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --load order
is '... goes on with a checkpoint, whose seed need not be given' "$status $(losses)$err" "0 $(tail -n 3 <<<"$seeded")"
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --load order --shuffle=no
has '... which says that the order was another one' "$err" '--shuffle is on with seed 5 in the checkpoint and off here'
# What was begun in the order of the files goes on in it, also where that was the only one.
lap train "${small[@]}" --tp 1 --batch 12 --steps 3 --json --shuffle=no --save order
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --load order --save next
has 'a checkpoint in the order of the files goes on in it' "$status$err$out" 0 'in the order of the files'
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --load order
is '... to the last bit' "$status $(losses)$err" "0 $(tail -n 3 <<<"$ordered")"
has '... and so does what it saves' "$(<next/step-00000006/manifest.json)" '"--shuffle":"off"'
lap train "${small[@]}" --tp 1 --batch 12 --steps 6 --json --load order --shuffle
has '... unless another one is asked for' "$err" '--shuffle is off in the checkpoint and on with seed 1234 here'
lap train --model gpt --shuffle
has '... and is one of files' "$status $err" '2 ' '--shuffle is for files of tokens; expected --data with it'

# ---- the end, and what is wrong ----

lap train "${small[@]}" --tp 1 --batch 12 --steps 2 --no-data-wrap
is 'data that are enough' "$status" 0
"$LAP" data tokenize --bytes --force "$LAP_SOURCE_DIR/LICENSE" -o short.bin >/dev/null
head -c 2048 short.bin >cut.bin
lap train "${small[@]}" --data cut.bin --tp 1
has 'a file that was cut' "$status $err" '2 ' "'cut.bin' has 2048 bytes, expected" 'it was cut'
lap train "${small[@]}" --data short.bin --tp 1 --batch 12 --steps 1000 --no-data-wrap
has 'data that are too few' "$status $err" '2 ' 'samples of 16 tokens; expected 1000 iterations of 12 to need no more'
lap train "${small[@]}" --data short.bin --tp 1 --batch 12 --steps 100
is '... begin again without it' "$status" 0
lap train "${small[@]}" --vocab 100 --tp 2 --batch 12 --steps 5
has 'a token beyond the vocabulary, with its place' "$status $err" '1 ' "'corpus.bin': token " ', expected less than 100'
is '... which is told once, though both ranks have it' "$(wc -l <"$work/err")" 1
{ printf 'a%.0s' {1..24} && printf '\303\251%.0s' {1..40}; } >late.txt
"$LAP" data tokenize --bytes late.txt -o late.bin >/dev/null
lap train "${small[@]}" --shuffle=no --data late.bin --vocab 150 --tp 1 --dp 2 --batch 2 --steps 5
is '... and where another rank has it' "$status $err" \
    "1 lap train: invalid argument: rank 1: 'late.bin': token 24 (byte 1072) is 195, expected less than 150, the size of the vocabulary"
# A save that has begun becomes whole, where data end the training on all ranks. Each iteration begins one.
python3 - <<'PY'
import struct
tokens = [i % 100 for i in range(16 * 40 + 1)]
tokens[16 * 9] = 195  # of the fifth iteration of two samples
open("fifth.bin", "wb").write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack("<%dH" % len(tokens), *tokens))
PY
for grid in '--tp 2' '--tp 1 --dp 2' '--tp 1 --pp 2 --micro-batches 2'; do
    rm -rf begun
    # shellcheck disable=SC2086
    lap train "${small[@]}" --shuffle=no --data fifth.bin --vocab 150 $grid --batch 2 --steps 9 --save begun --save-every 2
    has "$grid: data end a training while it saves" "$status $err" '1 ' "'fifth.bin': token 144 (byte 1312) is 195"
    is '... whose checkpoint is whole' "$(ls begun/step-00000004/manifest.json)" begun/step-00000004/manifest.json
    has '... as is said' "$out" 'Saved step 4 in begun'
done
rm -rf begun
cp corpus.bin shrinks.bin
"$LAP" train "${small[@]}" --data shrinks.bin --tp 2 --batch 2 --steps 100000 --shuffle --save begun --save-every 1 --keep 3 >out 2>err </dev/null &
launcher=$!
until_true test -e begun/step-00000002/manifest.json
truncate -s 1100 shrinks.bin
collect
has 'a file that is cut while it is in use' "$status $err" '1 ' "'shrinks.bin' ends at byte " 'it was cut while it was in use'
is '... is told once' "$(wc -l <<<"$err")" 1
ok '... and the newest checkpoint is whole' test -e "$(find begun -name 'step-*' | sort | tail -n 1)/manifest.json"
lap train "${small[@]}" --data nowhere.bin --tp 1
has 'no such file' "$status $err" '1 ' "cannot open 'nowhere.bin'"
lap train "${small[@]}" --data corpus.bin,,part0.bin --tp 1
has 'a name that is empty' "$status $err" '2 ' "--data is 'corpus.bin,,part0.bin'; expected names"
lap train --layer transformer --data corpus.bin
has 'layers learn no tokens' "$status $err" '2 ' '--data is for language models; expected --model'
lap train --model gpt --no-data-wrap
has 'an end of nothing' "$status $err" '2 ' '--no-data-wrap is for files of tokens'
lap train "${small[@]}" --micro-batch 5 --batch 12 --tp 1
has 'a micro-batch that does not fit' "$status $err" '2 ' '--batch is 12; expected a multiple of 5'
lap train "${small[@]}" --micro-batch 2 --micro-batches 2
has 'two ways to cut a batch' "$status $err" '2 ' '--micro-batch and --micro-batches are both given'

# ---- learning ----

# 200 steps on one rank and on eight, with a text that nobody changes: where words make the norm of the gradient jump, rounding grows, and a
# batch in four parts on one rank differs from a whole one as much as any grid does.
"$LAP" data tokenize --bytes "$LAP_SOURCE_DIR"/LICENSE -o licence.bin >/dev/null
entropy=$("$LAP" data info licence.bin --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["entropy"])')
losses=''
for grid in '--tp 1' '--tp 2 --pp 2 --dp 2 --micro-batches 2'; do
    alone=$losses
    # shellcheck disable=SC2086
    lap train --model gpt --hidden 64 --heads 4 --layers 2 --seq 32 --data licence.bin --shuffle=no --batch 8 --lr 0.001 --lr-warmup-iters 10 --steps 200 \
        --no-trace --no-predict --json $grid
    losses=$(losses)
    mean=$(tail -n 50 <<<"$losses" | awk '{ sum += $1 } END { print sum / NR }')
    ok "$grid: after 200 steps the loss is $mean, which is less than the $entropy of a unigram model" \
        awk -v a="$mean" -v b="$entropy" 'BEGIN { exit !(a > 0 && a < b - 0.3) }'
done
ok '... every one of the 200 losses is the same on 1 and on 8 ranks' near "$losses" "$alone" 1e-5
finish
