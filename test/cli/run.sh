#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap run with ranks that end by themselves: environment, output, exit status, and nothing left.
. "$(dirname "$0")/tap.bash"
unset XDG_RUNTIME_DIR OPENBLAS_NUM_THREADS OMP_NUM_THREADS LAP_TIMEOUT_S
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

lap run -n 3 sh -c 'echo "rank $LAP_RANK of $LAP_SIZE"'
is 'ranks that end well: status 0' "$status" 0
is 'every rank has its number' "$(LC_ALL=C sort "$work/out")" \
    "$(printf '[%d] rank %d of 3\n' 0 0 1 1 2 2)"
is 'and nothing is printed' "$err" ''

lap run -n 2 sh -c 'echo "$LAP_JOB $LAP_DIR"; test "$(stat -c %a "$LAP_DIR")" = 700'
is 'its directory is there, and private' "$status" 0
is 'one job, one place that nobody can guess' \
    "$(sed -E "s|^\[.\] ||; s|^[0-9a-f]{16} $TMPDIR/lap-[0-9a-f]{16}$|NAME|" "$work/out")" \
    "$(printf 'NAME\nNAME')"
is 'the same for all ranks' "$(sed 's/^\[.\] //' "$work/out" | sort -u | wc -l)" 1
lap run -n 2 sh -c 'echo $LAP_JOB'
first=$out
lap run -n 2 sh -c 'echo $LAP_JOB'
ok 'the next job has another name' test "$first" != "$out"

lap run -n 11 sh -c 'test $LAP_RANK = 3 && echo three; test $LAP_RANK = 10 && echo ten; true'
is 'prefixes are as wide as the largest rank' "$(LC_ALL=C sort "$work/out")" \
    "$(printf '[ 3] three\n[10] ten')"
lap run -n 1 sh -c 'printf "a\n\nb"; printf err >&2'
is 'empty lines stay, the last line is completed' "$out" "$(printf '[0] a\n[0] \n[0] b')"
is 'standard error has its own lines' "$err" '[0] err'
is 'and ends with a newline' "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" '\n'
lap run --no-prefix -n 1 printf 'a\nb'
is 'without prefix the output is untouched' "$out" "$(printf 'a\nb')"
is 'to the byte' "$(stat -c %s "$work/out")" 3

lap run -n 1 sh -c 'head -c 200000 /dev/zero | tr "\0" x'
is 'a very long line arrives whole, in parts' "$(tr -cd x <"$work/out" | wc -c)" 200000
ok 'of which each has the prefix' test "$(grep -vc '^\[0\] x' "$work/out")" = 0

# 16 ranks print 300 lines each, to both streams, into one pipe: each line must come whole, twice.
"$LAP" run -n 16 awk 'BEGIN {
    rank = ENVIRON["LAP_RANK"]
    filler = sprintf("%200s", "")
    gsub(/ /, "x", filler)
    for (i = 0; i < 300; i++) {
        print rank, i, filler
        print rank, i, filler > "/dev/stderr"
    }
}' 2>&1 </dev/null | awk '{
    sub(/^\[ */, "")
    sub(/\]/, "")
    if (NF != 4 || $1 != $2 || length($4) != 200)
        bad++
    seen[$2, $3]++
}
END {
    for (line in seen)
        if (seen[line] != 2)
            bad++
    print NR, bad + 0
}' >"$work/lines"
is 'lines of many ranks stay whole' "$(cat "$work/lines")" '9600 0'
lap run -n 8 seq 2000
for r in 0 3 7; do
    is "lines of rank $r stay in order" "$(sed -n "s/^\[$r\] //p" "$work/out" | cksum)" \
        "$(seq 2000 | cksum)"
done

"$LAP" run -n 3 cat <<<'for rank 0' >"$work/out"
is 'standard input goes to rank 0 alone' "$(cat "$work/out")" '[0] for rank 0'

lap run -n 2 sh -c 'echo $OPENBLAS_NUM_THREADS $OMP_NUM_THREADS'
share=$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))
is 'ranks share the cores' "$(sort -u <<<"${out//\[1\]/[0]}")" "[0] $share $share"
OMP_NUM_THREADS=7 OPENBLAS_NUM_THREADS=9 \
    lap run -n 1 sh -c 'echo $OPENBLAS_NUM_THREADS $OMP_NUM_THREADS'
is 'unless the user has said otherwise' "$out" '[0] 9 7'
LAP_RANK=9 LAP_SIZE=9 LAP_DIR=/nowhere \
    lap run -n 1 sh -c 'env | grep -c -e ^LAP_RANK= -e ^LAP_SIZE= -e ^LAP_DIR='
is 'each variable is there once' "$out" '[0] 3'
LAP_TIMEOUT_S=5 lap run -n 1 --timeout 2.5 sh -c 'echo $LAP_TIMEOUT_S'
is '--timeout sets LAP_TIMEOUT_S' "$out" '[0] 2.5'
LAP_TIMEOUT_S=5 lap run -n 1 sh -c 'echo $LAP_TIMEOUT_S'
is 'which is else left alone' "$out" '[0] 5'

exec 7</dev/null
lap run -n 2 sh -c 'for i in 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    test -e /proc/$$/fd/$i && echo "fd $i"; done; true'
is 'ranks inherit no descriptor but the first three' "$out" ''
exec 7<&-

lap run -n 128 sh -c 'echo here'
is '128 ranks: status 0' "$status" 0
is '128 ranks: all of them' "$(sort -u "$work/out" | wc -l)" 128

# How a rank ends.
lap run -n 3 --grace 10 sh -c 'exit $((LAP_RANK == 1 ? 3 : 0))'
is 'a status is passed on' "$status" 3
ok 'and reported' grep -qE '^lap run: rank 1 \(pid [0-9]+\) exited with status 3$' "$work/err"
is 'once' "$(wc -l <"$work/err")" 1
lap run -n 2 sh -c 'test $LAP_RANK = 0 && kill -9 $$; true'
is 'a death by signal is 128 + its number' "$status" 137
ok 'and reported' \
    grep -qE '^lap run: rank 0 \(pid [0-9]+\) was killed by signal 9 \(Killed\)$' "$work/err"
# shellcheck disable=SC2016
victim_and_witness='if [ $LAP_RANK = 0 ]; then
    echo $$ >"$0.new" && mv "$0.new" "$0" && sleep 20
else
    until [ -e "$0" ]; do sleep 0.01; done
    kill -9 "$(cat "$0")"
    exit 1
fi'
lap run -n 2 sh -c "$victim_and_witness" "$work/victim"
is 'a death by signal is the cause, and a status beside it the consequence' "$status" 137
# The other way round: the status is there before the death. On a busy machine that may be long before.
# shellcheck disable=SC2016
after_it='if [ $LAP_RANK = 1 ]; then
    echo $$ >"$0.new" && mv "$0.new" "$0"
    exit 1
fi
until [ -e "$0" ]; do sleep 0.01; done
until grep -q "^State:.Z" "/proc/$(cat "$0")/status"; do sleep 0.001; done
kill -9 $$'
for try in 1 2 3; do
    lap run -n 2 sh -c "$after_it" "$work/ended$try"
    if [ "$status" = 137 ]; then break; fi
done
is '... also where the status comes a moment before it' "$status" 137
lap run -n 1 sh -c 'echo last words >&2; exit 9'
is 'last words come before the sentence' "${err%%pid*}" \
    "$(printf '[0] last words\nlap run: rank 0 (')"

lap run -n 4 "$work/missing" --arg
is 'a missing program: status 127' "$status" 127
is 'and a sentence' "$err" "lap run: cannot run '$work/missing': No such file or directory"
lap run -n 4 lap-no-such-program
is 'also when looked up in PATH' "$status $err" \
    "127 lap run: cannot run 'lap-no-such-program': No such file or directory"
lap run -n 4 "$work"
is 'what is no program: status 126' "$status $err" \
    "126 lap run: cannot run '$work': Permission denied"

# Where the directory goes, and that it goes away.
lap run -n 1 sh -c 'LAP_SIZE=2 LAP_TIMEOUT_S=60 "$0" bench ag 8 8 8 &
    until test -S "$LAP_DIR/s"; do sleep 0.01; done; kill -9 $$ $!' "$LAP"
is 'a rank is killed while it waits for another' "$status" 137
is 'nothing is left in the directory for jobs' "$(ls -A "$TMPDIR")" ''
lap run -n 1 sh -c 'rmdir "$LAP_DIR"'
is 'a directory that a rank has removed is not missed' "$status$err" 0
mkdir "$work/xdg"
XDG_RUNTIME_DIR=$work/xdg lap run -n 1 sh -c 'dirname "$LAP_DIR"'
is 'XDG_RUNTIME_DIR is preferred' "$out" "[0] $work/xdg"
long=$work/$(printf '%0100d' 0)
mkdir "$long"
XDG_RUNTIME_DIR=$long TMPDIR=$work/missing lap run -n 1 sh -c 'dirname "$LAP_DIR"'
is 'a path too long for a socket, and one that is not there, give /tmp' "$out" '[0] /tmp'

# Nobody reads the output.
"$LAP" run -n 3 yes 2>"$work/err" </dev/null | head -n 1 >"$work/out"
is 'closed pipe: status 1' "${PIPESTATUS[0]}" 1
ok 'and a sentence' grep -q '^lap run: cannot write standard output: Broken pipe$' "$work/err"
"$LAP" run -n 2 echo hello >&- 2>"$work/err" </dev/null
is 'closed standard output: status 1' "$?" 1
has 'and a sentence' "$(cat "$work/err")" 'cannot write standard output'
"$LAP" run -n 2 true >&- 2>&- <&-
is 'no descriptors at all: fine while nobody uses them' "$?" 0

# What is wrong with the arguments of all ranks is told once. A rank whose standard error is elsewhere says it there.
once() {
    local words=$1
    shift
    lap run -n 3 "$LAP" "$@"
    is "once, by the launcher: $words" "$status $(grep -v '^lap run: rank . (pid [0-9]*) exited with status 2$' <<<"$err")" "2 $words"
}
once "lap bench: ranks 0-2: unknown option '--bogus'; 'lap bench --help' lists the options" bench ag 8 8 8 --bogus
once "lap train: ranks 0-2: --steps is 'x'; expected a whole number from 1 to 1000000" train --steps x
once "lap: ranks 0-2: unknown command 'bogus'; 'lap --help' lists the commands" bogus
# shellcheck disable=SC2016
lap run -n 2 sh -c 'exec "$1" bench bogus 2>"$2.$LAP_RANK"' - "$LAP" "$work/usage"
is 'each rank writes into its own file' "$status $(cat "$work"/usage.* | grep -c "^lap bench: .*bogus")" '2 2'

# The launcher knows that a rank has ended well before it met the others, who would wait for it in vain.
for gone in 0 1; do
    start=$SECONDS
    # shellcheck disable=SC2016
    lap run -n 3 sh -c 'test $LAP_RANK = "$1" || exec "$2" bench ag 8 8 8 --iters 1' - $gone "$LAP"
    is "rank $gone ends with status 0 before the others meet it: status 1" "$status" 1
    has '... which they say' "$err" "peer lost: rank $gone has ended, with status 0, and has not come to the other ranks"
    ok '... at once' test $((SECONDS - start)) -lt 20
done
is 'and nothing is left' "$(ls -A "$TMPDIR")" ''
finish
