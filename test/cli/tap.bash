# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share: results in TAP, and waiting for something to become true.
# Sourced by a script that is started as `script.sh [path of lap]`; without it, $LAP is taken.
LAP=${1:-$LAP}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What lap tune finds in a test is not for whoever runs it, and a test finds nothing of theirs.
export XDG_CACHE_HOME=$work/home/cache
checks=0
failures=0

# ok NAME COMMAND...: the command should succeed.
ok() {
    local name=$1
    shift
    checks=$((checks + 1))
    if "$@"; then
        echo "ok $checks - $name"
        return
    fi
    failures=$((failures + 1))
    echo "not ok $checks - $name"
    if [ "$1" != false ] && [ "${told:-}" != 1 ]; then
        printf '# this failed: %s\n' "$*" | head -c 2000
    fi
    last_said
    return 1
}

# ok_in_three NAME LOOK COMMAND...: of measured times, which luck on a busy machine may spoil. LOOK measures, and the command should
# succeed: at the first look, or at the second or the third. A defect spoils all of them, so that no bound is made wider for luck.
ok_in_three() {
    local name=$1 look=$2 attempt
    shift 2
    for attempt in 1 2 3; do
        "$look"
        if [ $attempt = 3 ] || "$@" >"$work/unlucky" 2>&1; then break; fi
        echo "# look $attempt of 3: $(tail -n 1 "$work/unlucky" | cut -c 1-300)"
    done
    ok "$name" "$@"
}

# What the latest command said whose output is kept, for who reads of a failure: its status alone says nothing. Of a
# test within the test, the checks that failed.
last_said() {
    local stream
    for stream in out err; do
        if [ -s "$work/$stream" ]; then
            echo "# ${last:-the latest command} printed on standard ${stream/err/error}:" | sed 's/standard out:/standard output:/'
            { grep -m 5 -A 3 'not ok ' "$work/$stream" || tail -n 20 "$work/$stream"; } | cut -c 1-300 | sed 's/^/#   /'
        fi
    done
}

# is NAME GOT EXPECTED: two texts should be equal.
is() {
    told=1 ok "$1" test "$2" = "$3" || printf '%s\n' "got:      $2" "expected: $3" | sed 's/^/# /'
}

# near NUMBERS OTHERS PART: each number and its partner, a line each, differ by less than that part of them.
near() {
    awk -v a="$1" -v b="$2" -v part="$3" 'BEGIN {
        n = split(a, x, "\n")
        m = split(b, y, "\n")
        for (i = 1; i <= n; i++) {
            d = x[i] - y[i]
            bad = bad || !(d < part * x[i] && -d < part * x[i])
        }
        exit bad || n != m || n == 0
    }'
}

# has NAME TEXT WORD...: a text should contain all of the words.
has() {
    local name=$1 text=$2 word
    shift 2
    for word in "$@"; do
        case $text in
        *"$word"*) ;;
        *)
            ok "$name" false
            printf '%s\n' "missing: $word" "in: $text" | sed 's/^/# /'
            return
            ;;
        esac
    done
    ok "$name" true
}

# until_true COMMAND...: repeats a command until it succeeds; gives up after 180 s, which is against a hang, not for a busy machine.
until_true() {
    local end=$((SECONDS + 180))
    until "$@"; do
        if [ $SECONDS -ge $end ]; then
            echo "# not true in 180 s: $*" >&2
            return 1
        fi
        sleep 0.02
    done
}

# Runs lap and keeps its exit status, standard output and standard error in $status, $out and $err. Where a script
# sets $limit, it ends after so many seconds.
lap() {
    last="lap $*"
    ${limit:+timeout "$limit"} "$LAP" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

# refuse WORDS ARGUMENT...: lap train refuses the arguments in one line, which has the words.
refuse() {
    local words=$1
    shift
    lap train "$@"
    is "'lap train $*' is refused in one line" "$status$out $(wc -l <"$work/err")" '2 1'
    has '... that says why' "$err" "$words"
}

# pid_of RANK: of the children of a lap in the background, $launcher. Any of its threads may have started them: with a small stack, another
# than the first.
pid_of() {
    local pid
    for pid in $(cat "/proc/$launcher/task"/*/children); do
        if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "LAP_RANK=$1"; then
            echo "$pid"
        fi
    done
}

# at_work RANKS: so many ranks of $launcher are in their world: they have mapped memory of each other.
at_work() {
    local rank pid
    for ((rank = 0; rank < $1; rank++)); do
        pid=$(pid_of $rank 2>/dev/null)
        test -n "$pid" && grep -q memfd:lap "/proc/$pid/maps" 2>/dev/null || return
    done
}

ended() { ! kill -0 "$launcher" 2>/dev/null; }

# The end of $launcher, whose standard error goes to $work/err: $status and $err.
collect() {
    until_true ended || { echo "# the launcher has not ended in 180 s, and is killed" && kill -9 "$launcher"; }
    wait "$launcher" 2>/dev/null
    status=$?
    err=$(cat "$work/err")
}

# kills_one RANKS ARGUMENT...: rank 1 of a lap of so many ranks is killed in the midst of its work.
kills_one() {
    local ranks=$1 victim
    shift
    "$LAP" "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    ok "$ranks ranks are at work" until_true at_work "$ranks"
    sleep 1
    victim=$(pid_of 1)
    kill -9 "$victim"
    collect
    is 'a rank is killed: status' "$status" 137
    has '... and the others name it' "$err" "rank 1 (pid $victim) has died"
}

# beside FUNCTION [ARGUMENT...]: runs it while the script goes on, for what mostly sleeps. It has a folder $work of its own. Its checks
# come where the script calls `together`, which waits for all of these.
besides=()
beside() {
    local folder
    folder=$(mktemp -d "$work/beside.XXXXXX")
    (
        work=$folder checks=0
        "$@"
        echo "# its end: $*"
    ) >"$folder/tap" 2>&1 &
    besides+=("$! $folder/tap $*")
}

together() {
    local pid tap what line last_line
    while read -r pid tap what; do
        wait "$pid"
        while IFS= read -r line; do
            last_line=$line
            case $line in
            'ok '*) checks=$((checks + 1)) && echo "ok $checks - ${line#ok * - }" ;;
            'not ok '*) checks=$((checks + 1)) failures=$((failures + 1)) && echo "not ok $checks - ${line#not ok * - }" ;;
            *) echo "$line" ;;
            esac
        done <"$tap"
        ok "$what came to its end" test "$last_line" = "# its end: $what"
    done < <(printf '%s\n' "${besides[@]}")
    besides=()
}

finish() {
    echo "1..$checks"
    exit $((failures > 0 || checks == 0))
}
