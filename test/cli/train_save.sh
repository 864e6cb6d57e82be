#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap train --save and --load: training goes on with the losses that it would have had, on the same grid of ranks to the last bit, on
# another one up to rounding, after a kill at any moment, and past a disk that is full.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
small=(--auto=no --layer transformer --hidden 24 --heads 4 --ffn 40 --seq 16 --batch 4 --layers 2 --lr-warmup-iters 2 --lr-decay-style cosine --min-lr 0.0001)

# losses: of all iterations of a training in JSON, with all their digits.
losses() { python3 -c 'import json; [print(repr(i["loss"])) for i in json.load(open("out"))["iterations"]]'; }

# All ranks of $ranks have ended, to the last thread.
all_ended() {
    local rank
    for rank in $ranks; do
        [ ! -e "/proc/$rank/stat" ] || grep -q ') Z ' "/proc/$rank/stat" || return 1
    done
}

for grid in '--tp 1 --no-predict' '--tp 2' '--tp 2 --num-replicas 2 --no-predict'; do
    # shellcheck disable=SC2086
    set -- $grid
    lap train "${small[@]}" "$@" --iters 6 --json
    whole=$(losses)
    is "$grid: six iterations" "$status $(wc -l <<<"$whole")" '0 6'
    rm -rf dir
    lap train "${small[@]}" "$@" --iters 3 --lr-decay-iters 6 --json --save dir
    is "$grid: three, which end with a checkpoint" "$status $(ls dir) $(ls dir/step-00000003 | tr '\n' ' ')" \
        '0 step-00000003 manifest.json model.safetensors optimizer.safetensors '
    is '... have the losses of the first three' "$(losses)" "$(head -n 3 <<<"$whole")"
    lap train "${small[@]}" "$@" --iters 6 --json --load dir
    is "$grid: the other three, to the last bit" "$status $(losses)" "0 $(tail -n 3 <<<"$whole")"
done
lap train "${small[@]}" --tp 4 --iters 6 --json --load dir
ok 'on another grid up to rounding' near "$(losses)" "$(tail -n 3 <<<"$whole")" 0.00001
lap train "${small[@]}" --tp 1 --iters 6 --load dir
has 'what is printed counts on from there' "$out" 'Loaded step 3 from dir' '
        4  ' '
        6  '

rm -rf few
lap train "${small[@]}" --tp 2 --iters 7 --save few --save-every 2 --keep 2
is 'only the newest checkpoints stay' "$status $(ls few | tr '\n' ' ')" '0 step-00000006 step-00000007 '
lap train "${small[@]}" --tp 2 --iters 8 --load few --save few --keep 1
is '... and then one' "$status $(ls few)" '0 step-00000008'
lap train "${small[@]}" --tp 2 --iters 10 --load few --save few --save-every 1 --keep 3
echo '{' >few/step-00000010/manifest.json
rm few/step-00000009/manifest.json
lap train "${small[@]}" --tp 2 --iters 11 --load few --save few --keep 2 --quiet
is '... of which damaged ones, and those that were not finished, are none' "$status $(ls few | tr '\n' ' ')" \
    '0 step-00000008 step-00000009 step-00000010 step-00000011 '
lap train "${small[@]}" --tp 2 --iters 12 --load few --save few --keep 2 --quiet
is '... and go with those that are older' "$status $(ls few | tr '\n' ' ')" '0 step-00000011 step-00000012 '

ok 'the files are safetensors of global tensors' python3 - <<'PY'
import json, struct
data = open("dir/step-00000003/model.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + length])
assert header.pop("__metadata__") == {"format": "pt"}
assert header["layer1.qkv.weight"]["shape"] == [72, 24] and header["layer0.fc2.weight"]["shape"] == [24, 40], header
assert all(t["dtype"] == "F32" for t in header.values())
assert max(t["data_offsets"][1] for t in header.values()) == len(data) - 8 - length
manifest = json.load(open("dir/step-00000003/manifest.json"))
assert manifest["step"] == 3 and manifest["samples"] == 12 and [f["name"] for f in manifest["files"]] == ["model.safetensors", "optimizer.safetensors"]
PY

# Every so often, and while training goes on.
rm -rf dir
lap train "${small[@]}" --tp 2 --iters 5 --save dir --save-every 2
is 'every two iterations, and at the end' "$status $(ls dir | tr '\n' ' ')" '0 step-00000002 step-00000004 step-00000005 '
has '... as is said' "$out" 'Saved step 2 in dir' 'Saved step 5 in dir'

# Killed at any moment: the newest that is whole is taken, and the losses are those that there would have been.
lap train "${small[@]}" --tp 2 --iters 12 --json
whole=$(losses)
for pause in 0.05 0.11 0.17 0.23 0.31; do
    rm -rf dir
    "$LAP" train "${small[@]}" --tp 2 --iters 100000 --lr-decay-iters 12 --save dir --save-every 1 >killed 2>&1 </dev/null &
    launcher=$!
    until_true test -e dir/step-00000001/manifest.json
    sleep "$pause"
    ranks=$(pid_of 0; pid_of 1)
    # shellcheck disable=SC2086
    kill -9 $launcher $ranks
    wait $launcher 2>/dev/null
    until_true all_ended
    newest=$(for folder in dir/step-*; do [ -e "$folder/manifest.json" ] && basename "$folder"; done | sort | tail -n 1)
    from=$((10#${newest#step-}))
    if [ $from -ge 12 ]; then
        find dir -maxdepth 1 -name 'step-*' | sort | tail -n +12 | xargs rm -rf
        from=11
    fi
    lap train "${small[@]}" --tp 2 --iters 12 --json --load dir
    is "killed after $pause s: goes on from a checkpoint, to the last bit" "$status $(losses)" "0 $(tail -n +$((from + 1)) <<<"$whole")"
done

# A rank that is killed: the others say so, and the run goes on from the last checkpoint.
rm -rf dir
"$LAP" train "${small[@]}" --tp 2 --iters 100000 --lr-decay-iters 12 --save dir --save-every 2 >out 2>err </dev/null &
launcher=$!
until_true test -e dir/step-00000002/manifest.json
kill -9 "$(pid_of 1)"
collect
has 'a rank that is killed is named' "$err" 'rank 1'
find dir -maxdepth 1 -name 'step-*' | sort | tail -n +2 | xargs rm -rf
lap train "${small[@]}" --tp 2 --iters 12 --json --load dir
is '... and the run goes on' "$status $(losses)" "0 $(tail -n +3 <<<"$whole")"

# Damage is named, and the one before is taken.
rm -rf dir
lap train "${small[@]}" --tp 2 --iters 4 --lr-decay-iters 12 --save dir --save-every 2
printf x | dd of=dir/step-00000004/optimizer.safetensors bs=1 seek=9000 conv=notrunc 2>/dev/null
lap train "${small[@]}" --tp 2 --iters 12 --json --load dir
has 'a file that is damaged is named' "$err" "checkpoint 'dir/step-00000004' is left out" optimizer.safetensors 'is damaged' checksum
is '... once' "$(grep -c 'left out' <<<"$err")" 1
is '... and the one before is taken' "$status $(losses)" "0 $(tail -n +3 <<<"$whole")"

# A full disk: files may have 12 MiB, and a checkpoint has more.
big=(--layer layernorm_mlp --hidden 512 --ffn 4096 --seq 8 --batch 2 --tp 2 --json)
lap train "${big[@]}" --iters 5
whole=$(losses)
rm -rf dir
lap train "${big[@]}" --iters 2 --save dir
(
    ulimit -f 12288
    "$LAP" train "${big[@]}" --iters 5 --load dir --save dir --save-every 3 >out 2>err </dev/null
    echo $? >status
)
err=$(cat err)
is 'without room for a checkpoint training goes on to its end, with status 1' "$(cat status) $(losses)" "1 $(tail -n +3 <<<"$whole")"
has '... it is said of each' "$err" 'the checkpoint of step 3 was not saved' 'File too large' 'the checkpoint of step 5' 'training goes on'
is '... and the old checkpoint stays' "$(ls dir)" step-00000002
lap train "${big[@]}" --iters 5 --load dir
is '... whole' "$status $(losses)" "0 $(tail -n +3 <<<"$whole")"

# A checkpoint of the same step that cannot be read may be whole: it stays, to the last byte, and the save says why.
manifest=dir/step-00000002/manifest.json
sums() { (cd dir && find . -type f -exec md5sum {} + | sort); }
while IFS='|' read -r what change why; do
    rm -rf dir
    lap train "${small[@]}" --tp 2 --iters 2 --save dir
    eval "$change"
    before=$(sums)
    lap train "${small[@]}" --tp 2 --iters 2 --save dir
    has "$what: the save fails" "$status $err" '1 ' "the checkpoint of step 2 was not saved: 'dir/step-00000002' stays, as it cannot be read: " \
        "$manifest'$why"
    is '... and all of it stays' "$(sums)" "$before"
done <<'UNREAD'
a manifest that cannot be opened|mv $manifest dir/step-00000002/kept && ln -s manifest.json $manifest|: Too many levels of symbolic links
a manifest of a newer version|sed -i 's/lap_checkpoint":2/lap_checkpoint":4/' $manifest| is of version 4 of checkpoints, expected 1 to 3
a longer one|sed -i 's/lap_checkpoint":2/lap_checkpoint":4/' $manifest && printf %20000s >>$manifest| is of version 4
a folder in its place|mv $manifest dir/step-00000002/kept && mkdir $manifest| is a directory, not a regular file
UNREAD
lap train "${small[@]}" --tp 2 --iters 12 --load dir/step-00000002
has '... nor is it loaded' "$status $err" '1 ' "$manifest' is a directory"

# One that is damaged stays until the new one is whole, and so does one whose place it has.
damage() { sed -i 's/"samples":4/"samples":5/' dir/step-00000002/manifest.json; }
lap_without_room() {
    (
        ulimit -f 12288
        "$LAP" train "${big[@]}" --iters 2 --save dir >out 2>err </dev/null
        echo $? >status
    )
}
rm -rf dir
lap train "${big[@]}" --iters 2 --save dir
damage
before=$(sums)
lap_without_room
has 'no room for another in place of a damaged one' "$(cat status err)" '1' 'the checkpoint of step 2 was not saved' 'File too large'
is '... which stays' "$(sums)" "$before"
cp -r dir/step-00000002 dir/step-00000002.old
before=$(sums)
lap_without_room
has '... nor does it take the place of an older one' "$(cat status err)" '1' "cannot rename 'dir/step-00000002' to 'dir/step-00000002.old'"
is '... and both stay' "$(sums)" "$before"
rm -r dir/step-00000002.old
lap train "${big[@]}" --iters 2 --save dir
is 'with room there is a whole one in its place' "$status $(ls dir)" '0 step-00000002'
lap train "${big[@]}" --iters 5 --load dir
is '... with the same losses' "$status $(losses)" "0 $(tail -n +3 <<<"$whole")"

rm -rf dir
lap train "${small[@]}" --tp 2 --iters 2 --lr-decay-iters 12 --save dir

# Bad input.
lap train "${small[@]}" --tp 2 --iters 12 --load nowhere
has 'a folder that is not there' "$status $err" '1 ' "cannot open 'nowhere'"
mkdir empty
lap train "${small[@]}" --tp 2 --iters 12 --load empty
has 'a folder without a checkpoint' "$status $err" '1 ' "there is no whole checkpoint in 'empty'"
lap train "${small[@]}" --lr-decay-iters 12 --tp 2 --iters 2 --load dir
has 'nothing left to do' "$status $err" '1 ' 'checkpoint of step 2; expected --iters to be more than that, not 2'
lap train "${small[@]}" --tp 2 --hidden 48 --iters 12 --load dir
has 'other layers' "$status $err" '1 ' "model.safetensors': tensor 'layer0" 'expected [48'
lap train "${small[@]}" --tp 2 --iters 12 --load dir --optimizer sgd
has 'another optimizer' "$status $err" '1 ' "no tensor 'layer0" '.momentum_buffer'
lap train "${small[@]}" --save-every 2
has 'no place' "$status $err" '2 ' '--save-every needs a place; expected --save DIR'
lap train "${small[@]}" --save dir --compare
has 'two trainings' "$status $err" '2 ' '--save is for one training'
lap train "${small[@]}" --adam-beta2 1
has 'a moment that never changes' "$status $err" '2 ' "--adam-beta2 is '1'; expected a number from 0 to less than 1"
lap train "${small[@]}" --adam-eps 0
has 'a division by 0' "$status $err" '2 ' "--adam-eps is '0'; expected a number above 0"
lap train --tp 1 --min-lr 0.1
has 'a rate to fall to, and no fall' "$status $err" '2 ' '--min-lr needs a learning rate that falls'
finish
