#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job that is started again by the same command line, with --load of its own --save: it begins, goes on after a kill, and after its end
# has nothing to do. What was there and is damaged, and any other folder without a checkpoint, is a mistake.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1
small=(--auto=no --model gpt --layers 1 --hidden 32 --heads 4 --seq 8 --vocab 64 --batch 2 --lr 0.01 --no-predict --no-trace --tp 2)

losses() { sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\).*/\1 \2/p' out; }

# All ranks of $ranks have ended, to the last thread.
all_ended() {
    local rank
    for rank in $ranks; do
        [ ! -e "/proc/$rank/stat" ] || grep -q ') Z ' "/proc/$rank/stat" || return 1
    done
}

lap train "${small[@]}" --steps 14 --json
whole=$(losses)
is 'a training that nobody interrupts' "$status $(wc -l <<<"$whole")" '0 14'

"$LAP" train "${small[@]}" --steps 100000 --save run --load run --save-every 1 >out 2>err </dev/null &
launcher=$!
until_true test -e run/step-00000002/manifest.json
ranks=$(pid_of 0; pid_of 1)
# shellcheck disable=SC2086
kill -9 $launcher $ranks
wait $launcher 2>/dev/null
until_true all_ended
is 'the folder is not there: training begins, and says so once' "$(cat err)" \
    'lap train: --load run has no checkpoint yet: training begins with step 1'
find run -maxdepth 1 -name 'step-*' | sort | tail -n +12 | xargs rm -rf
from=$(find run -name manifest.json | wc -l)
lap train "${small[@]}" --steps 14 --save run --load ./run/ --json
is 'killed: the same goes on, to the last bit' "$status $(losses)" "0 $(tail -n +$((from + 1)) <<<"$whole")"
has '... from the last checkpoint' "$(ls run)" step-00000014
before=$(md5sum run/step-00000014/*)
lap train "${small[@]}" --steps 14 --save run --load run --json
is 'ended: nothing is left to do' "$status $out$err" \
    '0 lap train: --load run has the checkpoint of step 14, the last of --steps 14: nothing is left to train'
is '... and nothing is written' "$(md5sum run/step-00000014/*)" "$before"
lap train "${small[@]}" --steps 14 --save run --load run --quiet --trace trace.json --report page.html
has '... no pictures either' "$status $err" '2 ' '--trace needs traces'
lap train "${small[@]/--no-trace/--quiet}" --steps 14 --save run --load run --trace trace.json --report page.html
has '... which is said' "$status $err" '0 ' 'nothing is left to train' 'no iteration was traced: trace.json is not written' \
    'no iteration was traced: page.html is not written'
lap train "${small[@]}" --steps 16 --save run --load run --json
is 'more steps than before' "$status $(losses | cut -d' ' -f1 | tr '\n' ' ')" '0 15 16 '
lap train "${small[@]}" --steps 15 --save run --load run
has 'fewer steps than there are' "$status $err" '1 ' '--load run is a checkpoint of step 16; expected --steps to be more than that, not 15'

# A kill in the first save leaves a folder without a manifest: there is no checkpoint yet.
mkdir -p first && cp -r run/step-00000014 first/step-00000003 && rm first/step-00000003/manifest.json
lap train "${small[@]}" --steps 3 --save first --load first --json
is 'a first save that was killed is none' "$status $(losses)" "0 $(head -n 3 <<<"$whole")"
ok '... and is written whole' test -e first/step-00000003/manifest.json

# What was there, and is damaged, is not begun again.
echo '{' >first/step-00000003/manifest.json
lap train "${small[@]}" --steps 5 --save first --load first
has 'a damaged checkpoint' "$status $err" '1 ' "there is no whole checkpoint in 'first'; of the newest:"
is '... stays' "$(cat first/step-00000003/manifest.json)" '{'
mkdir weights && echo 12345678 >weights/model.safetensors
lap train "${small[@]}" --steps 5 --save weights --load weights
has 'weights that are none' "$status $err" '1 ' weights/model.safetensors
mkdir empty
none="lap train: --load: there is no whole checkpoint in 'empty'; expected what --save has written, or files of safetensors"
# Found before any rank starts, and before --save is made.
lap train "${small[@]}" --steps 5 --save other --load empty
is 'another folder without a checkpoint' "$status $out$err" "1 $none"
mkdir there
lap train "${small[@]}" --steps 5 --save there --load empty
is '... though that of --save is there' "$status $out$err" "1 $none"
lap train "${small[@]}" --steps 5 --save other --load nowhere
is 'another folder that is not there' "$status $out$err" "1 lap train: --load: cannot open 'nowhere': No such file or directory"
lap train "${small[@]}" --steps 5 --load empty
is 'an empty folder and no --save' "$status $out$err" "1 $none"
ok '... and nothing is made' test ! -e other
lap train "${small[@]}" --steps 1 --save empty/../new --load "$work/new/" --json
is 'the same folder, in other words, before it is there' "$status $(losses)" "0 $(head -n 1 <<<"$whole")"
lap train "${small[@]}" --steps 5 --save ''
is 'no name of a folder' "$status $err" "2 lap train: --save is ''; expected a folder"
lap train "${small[@]}" --steps 5 --load ''
is '... to load' "$status $err" "2 lap train: --load is ''; expected a folder"
finish
