#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/mutants.sh, which make mutants calls: every mutant of this tree still applies; and, over a project of one
# function, that it tells those that are caught from those that are not.
. "$(dirname "$0")/tap.bash"
script=$LAP_SOURCE_DIR/scripts/mutants.sh

# mutants ARGUMENT...: leaves its status, standard output and standard error in $status, $out and $err.
mutants() {
    last="mutants.sh $*"
    bash "$script" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

mutants --check
is 'every mutant is well formed and applies' "$status $err" '0 '
mutants --list
is 'there is one to a file' "$(wc -l <<<"$out")" "$(find "$LAP_SOURCE_DIR/scripts/mutants" -name '*.diff' | wc -l)"
while IFS='|' read -r arguments words; do
    # shellcheck disable=SC2086
    mutants $arguments
    is "'$arguments' is refused" "$status" 2
    has "and '$words' told" "$err" "$words"
done <<'END'
--limit 0|--limit is '0'
--jobs two|--jobs is 'two'
--limit|--limit needs a value
--fish|no option '--fish'
no-such-mutant|no mutant
END

# A project with one function and two tests, of which the second fails always.
tree=$work/project
mkdir -p "$tree/src" "$tree/scripts/mutants"
cat >"$tree/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES C)
enable_testing()
add_executable(small src/small.c)
add_test(NAME core/small COMMAND small)
add_test(NAME core/fails COMMAND sh -c "exit 1")
END
cat >"$tree/src/small.c" <<'END'
static int twice(int x)
{
    return x + x;
}

int main(void)
{
    return twice(3) != 6;
}
END

# mutant NAME NEW_LINE TEST [OLD_LINE]: replaces the line that computes.
mutant() {
    printf '%s\n' "# test: $3" '# why: a test' '# build: plain' '--- a/src/small.c' '+++ b/src/small.c' \
        '@@ -2,3 +2,3 @@' ' {' "${4:--    return x + x;}" "+$2" ' }' >"$tree/scripts/mutants/$1.diff"
}
small='^core/small$'
mutant noticed '    return x + 1;' "$small"
mutant unnoticed '    return 2 * x; /* or 6 */' "$small"
mutants --source "$tree" noticed
is 'one that is caught: status' "$status" 0
has '... and what is said' "$out" 'caught         noticed' 'core/small' '1 mutants, in ' '     1  caught'
ok '... the tree itself is left alone' grep -q 'return x + x;' "$tree/src/small.c"
ok '... and so is the copy, afterwards' cmp -s "$tree/src/small.c" "$tree/build-mutants/tree/src/small.c"

mutant refused '    return x +;' "$small"
mutant gone '    return x - x;' "$small" '-    return x * x;'
mutant testless '    return x - x;' '^core/other$'
mutant untrusted '    return x - x;' '^core/fails$'
mutants --source "$tree"
is 'others: status' "$status" 1
for line in 'alive          unnoticed' 'does not build refused' 'does not apply gone' 'no verdict     testless' 'core/fails fails without a mutant, too: untrusted' \
    '     1  not trusted'; do
    has "... $line" "$out" "$line"
done
mutants --source "$tree" --check
is 'a mutant that does not apply: status of --check' "$status" 1
has '... and it is named' "$err" 'gone.diff: it does not apply'
rm "$tree"/scripts/mutants/*
mutant headless '    return x - x;' "$small"
sed -i '/why/d' "$tree/scripts/mutants/headless.diff"
mutants --source "$tree" --check
has 'a mutant without its reason' "$status $err" '1 ' 'does not say why'
finish
