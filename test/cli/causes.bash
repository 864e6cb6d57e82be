# SPDX-License-Identifier: Apache-2.0
# For scripts that read what ranks waited for out of JSON; sourced after tap.bash.
command -v python3 >/dev/null || {
    echo '1..0 # SKIP there is no python3 to read JSON'
    exit 77
}

# is_so CODE: the code, in which `it` is the latest output as JSON, and `steps` the objects of steps before it, raises nothing.
is_so() {
    python3 -c "
import json, re, socket, sys
*steps, it = map(json.loads, open(sys.argv[1]))
def causes(part): # which add up to what ranks waited, but for the digits that are printed
    parts = {c: part['waited_' + c + '_ms'] for c in ('wire', 'late', 'core')}
    assert abs(sum(parts.values()) - part['waited_ms']) <= 1e-5 * part['waited_ms'] + 1e-6, part
    assert min(parts.values()) >= 0, part
    return parts
$1" "$work/out"
}

# holds NAME CODE: the same, as a check.
holds() {
    ok "$1" is_so "$2" || sed 's/^/# out: /; s/\(.\{2000\}\).*/\1/' "$work/out" "$work/err"
}

# mostly NAME CODE CODE COMMAND...: the command ends well, and for its output the first code holds; and the second, about where most of
# the time went: where other programs keep ranks from their cores, that is not where it goes by itself.
mostly() {
    local name=$1 always=$2 most=$3
    shift 3
    local command=("$@")
    ok_in_three '... and most of what is waited has one cause' run_command is_so "$always$most"
}
run_command() {
    last=${command[*]}
    "${command[@]}" >"$work/out" 2>"$work/err" </dev/null
    is "$name: status 0" $? 0
    holds '... the causes add up' "$always"
}

# The first two of the cores that there are: 1,3
two_cores() {
    python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep=",")'
}
