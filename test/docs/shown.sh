#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the pages show of a command's output is what it prints: each block ```console begins with `$ build/lap ...`; its other lines are the
# output, where a line `...` stands for any lines.
. "$(dirname "$0")/../cli/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# blocks KIND FILE: the blocks of a kind, each in a file of its own, $work/block.1, ...
blocks() {
    rm -f "$work"/block.*
    awk -v kind="$1" -v work="$work" '
        $0 == "```" { inside = 0 }
        inside { print > (work "/block." n) }
        $0 == "```" kind { inside = 1; n++ }' "$2"
}

# prints BLOCK: its command prints its other lines.
prints() {
    local command
    command=$(sed -n '1s/^\$ build\/lap //p' "$1")
    test -n "$command" || return 1
    # shellcheck disable=SC2086
    (cd "$LAP_SOURCE_DIR" && "$LAP" $command) >"$work/out" 2>"$work/err" </dev/null || return 1
    sed 1d "$1" | awk -v out="$work/out" '
        BEGIN { while ((getline line < out) > 0) lines[++n] = line; at = 1 }
        $0 == "..." { any = 1; next }
        {
            from = at
            while (any && at <= n && lines[at] != $0) at++
            if (at > n || lines[at] != $0) {
                printf "# expected from line %d on: %s\n# printed there: %s\n", from, $0, lines[from]
                bad = 1
                exit
            }
            at++
            any = 0
        }
        END {
            if (!bad && !any && at <= n) {
                printf "# there is more: %s\n", lines[at]
                bad = 1
            }
            exit bad
        }'
}

outputs=0
for page in "$LAP_SOURCE_DIR"/docs/*.md "$LAP_SOURCE_DIR"/*.md; do
    name=${page#"$LAP_SOURCE_DIR"/}
    blocks console "$page"
    for block in "$work"/block.*; do
        [ -e "$block" ] || continue
        outputs=$((outputs + 1))
        ok "$name: $(head -n 1 "$block")" prints "$block"
    done
done
ok "pages show output: $outputs" test "$outputs" -ge 3
finish
