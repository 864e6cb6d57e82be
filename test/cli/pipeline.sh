#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap show pipeline and lap check pipeline: tables that are built, written, read again and refused.
. "$(dirname "$0")/tap.bash"

lap show pipeline --pp 2 --micro-batches 3
is '1f1b: status 0, and nothing printed' "$status$err" 0
has '1f1b: the rows of both ranks' "$out" 'rank 0: 0F0 0F1 0B0 0F2 0B1 0B2' 'rank 1: 1F0 1B0 1F1 1B1 1F2 1B2' \
    'a step takes 12, 9 of it work: 25.0 % are bubble'

for schedule in 1f1b interleaved zb-h1 zb-v 1f1b-eager; do
    lap show pipeline --pp 4 --micro-batches 8 --schedule $schedule --csv "$work/$schedule.csv" --svg "$work/$schedule.svg" --json
    cp "$work/out" "$work/$schedule.json"
    ok "$schedule: no action before the result that it needs; a bar for each" python3 - "$work/$schedule.json" "$work/$schedule.svg" <<'PY'
import json, re, sys, xml.dom.minidom
show = json.load(open(sys.argv[1]))
begin = {a["action"]: a["begin"] for rank in show["ranks"] for a in rank["actions"]}
parts = {k: re.fullmatch(r"(\d+)([FBIW])(\d+)", k).groups() for k in begin}
assert len({(s, w, m) for s, w, m in parts.values()}) == len(begin) > 0
length = {"F": 1, "I": 1, "W": 1, "B": 2}
for name, (stage, work, micro) in parts.items():
    need = int(stage) + (-1 if work == "F" else 1)
    if work != "W" and 0 <= need < show["stages"]:
        needed = f"{need}{work}{micro}"
        assert begin[needed] + length[work] <= begin[name], (needed, name)
bars = xml.dom.minidom.parse(sys.argv[2]).getElementsByTagName("g")
assert len(bars) == len(begin), (len(bars), len(begin))
PY
    lap show pipeline --schedule "$work/$schedule.csv" --json
    ok "$schedule: the file says the same" python3 - "$work/$schedule.json" "$work/out" <<'PY'
import json, sys
a, b = (json.load(open(name)) for name in sys.argv[1:])
assert a["ranks"] == b["ranks"] and a["span"] == b["span"] > 0
PY
done

lap show pipeline --pp 3 --micro-batches 1 --costs 2,3,4,0.5 --json
ok 'costs and messages count' python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["span"] == 29' "$work/out"

printf '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n' >"$work/dead.csv"
lap check pipeline --schedule "$work/dead.csv"
is 'a deadlock: status 1' "$status$out" 1
has 'a deadlock: who waits for whom' "$err" 'deadlock: rank 0, action 1, 0B0 waits for 1B0, which rank 1'
sed 's/,7I3//' "$work/zb-v.csv" >"$work/missing.csv"
lap check pipeline --schedule "$work/missing.csv"
has 'a missing action: rank and action' "$status $err" '1 ' 'rank 0, action' '7W3: its gradient of the input does not come before it'
lap check pipeline --schedule "$work/zb-v.csv"
has 'a table that is right' "$status $out" '0 ' '4 ranks, 8 stages, 8 micro-batches' 'proved'
printf '0F0,\033[2J\377F\n' >"$work/bytes.csv"
lap check pipeline --schedule "$work/bytes.csv"
has 'bytes that are no text are spelled out' "$status $err" "line 1: the action is '\\x1b[2J\\xffF', expected one such as 0F3"
lap show pipeline --schedule "$work/no.csv"
has 'no file' "$status $err" "cannot open '$work/no.csv'"
lap show pipeline --pp 65536
is 'more passes than a machine has memory for' "$status $err" \
    '2 lap show pipeline: --pp 65536 with 65536 micro-batches and --virtual-pp 1 has 4294967296 passes, expected at most 16777216'
ln -s /dev/zero "$work/zero.csv"
lap show pipeline --schedule "$work/zero.csv"
has 'a file without an end' "$status $err" '2 ' 'not a regular file'
printf '\357\273\2770F0,0B0\n' >"$work/mark.csv"
lap check pipeline --schedule "$work/mark.csv"
has 'a byte-order mark' "$status $out" '0 ' '1 rank, 1 stage, 1 micro-batch'
lap help show pipeline
has 'lap help names parts of commands, too' "$status $out" '0 Usage: lap show pipeline'
for sizes in '--pp 4' '--virtual-pp 2' '--micro-batches 8' '--pp 4 --virtual-pp 2 --micro-batches 8'; do
    # shellcheck disable=SC2086
    lap check pipeline --schedule "$work/zb-v.csv" $sizes
    has "a file, and $sizes, which it has" "$status$err $out" '0 ' 'proved'
done
for sizes in '--pp 3,4' '--virtual-pp 1,2' '--micro-batches 7,8'; do
    # shellcheck disable=SC2086
    lap show pipeline --schedule "$work/zb-v.csv" ${sizes%,*}
    is "a file, and ${sizes%,*}, which it has not" "$status$out ${err%%$'\n'*}" \
        "2 lap show pipeline: ${sizes% *} is $(cut -d' ' -f2 <<<"${sizes%,*}"), expected ${sizes#*,}, as the table in $work/zb-v.csv has, or none"
done
lap show pipeline --schedule zbv
has 'no such schedule' "$status $err" '2 ' "no pipeline schedule 'zbv'" 'did you mean zb-v?'
lap show pipeline --schedule interleaved --pp 4 --micro-batches 6
has 'interleaved needs multiples' "$status $err" '2 ' '6 micro-batches, expected a multiple of its 4 ranks'
lap show pipeline --costs 1,x,1
has 'a cost that is none' "$status $err" '2 ' "--costs is '1,x,1', expected numbers"
lap show pipeline --costs ,,
has 'no costs' "$status $err" '2 ' "--costs is ',,', expected numbers"
lap show pipeline --costs 1,1,1,1,1
has 'too many costs' "$status $err" '2 ' "--costs is '1,1,1,1,1', expected three numbers"
lap show pipeline --costs 1,1
has 'too few costs' "$status $err" '2 ' "--costs is '1,1', expected three numbers"
lap show pipeline --svg "$work/none/x.svg"
has 'a picture that cannot be written' "$status $err" '1 ' 'none/x.svg'
cd "$work" || exit 1
lap show pipeline --csv one.csv --svg ./one.csv
is 'the table and the picture in one file' "$status $err" \
    '2 lap show pipeline: --csv and --svg are both ./one.csv; expected two files'
ok '... which is not written' test ! -e one.csv
cp zb-v.csv given.csv
for option in csv svg; do
    lap check pipeline --schedule given.csv --$option "$work/given.csv"
    has "--$option over the table that is read" "$status $err" '2 ' "--schedule and --$option are both $work/given.csv; expected two files"
    ok '... which is as it was' cmp zb-v.csv given.csv
done
lap show pipeline --schedule 1f1b --svg 1f1b
is 'a schedule is no file' "$status $err" '0 '
lap show pipeline --csv ''
has 'an empty path' "$status $err" '2 ' 'the path is empty: expected the file to write'

finish
