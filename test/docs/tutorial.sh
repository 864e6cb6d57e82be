#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What docs/tutorial.md adds works as the page tells: its patches are applied to a copy of the sources, and the files that they concern
# are compiled as the build compiles them and linked to a second lap, which runs the commands of the page. What the page breaks is found.
. "$(dirname "$0")/../cli/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
page=$LAP_SOURCE_DIR/docs/tutorial.md
tree=$work/tree

if ! [ -f "$LAP_BUILD_DIR/build.ninja" ] || ! command -v ninja >/dev/null; then
    ok 'the build is one of ninja, which knows how files are compiled' false
    finish
fi

# The commands by which the build makes one of its files, without its cache; in the build folder.
command_of() { ninja -C "$LAP_BUILD_DIR" -t commands "$1" | tail -n 1 | sed 's/^[^ ]*ccache //'; }

# objects_of FILE...: the objects of the library and of lap that are made from these sources and headers.
objects_of() {
    local file
    for file in "$@"; do
        case $file in
        *.c) echo "src/CMakeFiles/lap_objects.dir/${file#src/}.o" ;;
        *.h)
            ninja -C "$LAP_BUILD_DIR" -t deps | awk -v header="/$file" '
                /: #deps/ { object = substr($1, 1, length($1) - 1) }
                substr($1, length($1) - length(header) + 1) == header { print object }' | grep -E 'lap_(objects|cli)\.dir/.*\.c\.o$'
            ;;
        esac
    done | sort -u
}

# made OBJECT: compiled from the copy of the sources.
made() {
    local to=$work/new/${1//\//_} command
    command=$(command_of "$1")
    command=${command//"$LAP_SOURCE_DIR/src"/"$tree/src"}
    command=$(sed "s| -o [^ ]*| -o $to|; s| -MF [^ ]*| -MF $work/d|; s| -MT [^ ]*| -MT x|" <<<"$command")
    (cd "$LAP_BUILD_DIR" && eval "$command")
}

# linked: a lap with the new objects in the place of its own and of the library's.
linked() {
    local command object to
    command=$(command_of lap)
    for object in $objects; do
        to=$work/new/${object//\//_}
        case $object in
        *lap_cli.dir*) command=${command/" $object "/" $to "} ;;
        *) command=${command/" -o lap "/" -o lap $to "} ;;
        esac
    done
    (cd "$LAP_BUILD_DIR" && eval "${command/" -o lap "/" -o $work/lap "}")
}

# runs WORD: the commands of the page with a word work, with smaller matrices and fewer iterations.
runs() {
    local command short
    while IFS= read -r command; do
        short=${command%%#*}
        short=${short/2048 4096 2048/64 96 80}
        case $short in
        *' bench '*) short="$short --iters 1 --warmup 0" ;;
        *' train '*) short="$short --seq 32" ;;
        esac
        # shellcheck disable=SC2086
        lap ${short#*build/lap }
        ok "${command#"${command%%[! ]*}"}" test "$status" = 0
    done < <(grep -E "^    build/lap .*$1" "$page")
}

mkdir "$tree" "$work/new"
cp -r "$LAP_SOURCE_DIR/src" "$tree/"
awk '$0 == "```" { inside = 0 } inside { print } $0 == "```diff" { inside = 1 }' "$page" >"$work/patch"
ok 'the patches apply' patch -s -p1 --force -d "$tree" -i "$work/patch"
# shellcheck disable=SC2046
objects=$(objects_of $(sed -n 's/^+++ b\///p' "$work/patch"))
built=1
for object in $objects; do
    made "$object" || { ok "$object is made" false && built=0; }
done
ok "the files that change are compiled: $(wc -w <<<"$objects")" test "$built" = 1
ok 'lap is linked with them' linked || built=0
if [ "$built" = 1 ]; then
    first=$LAP
    export LAP=$work/lap
    cd "$work" || exit 1
    runs '--method halves( |$)'
    ok 'the timeline is there' test -s halves.svg
    lap check ag --ranks 1:5
    ok 'the method is proved in mixtures with the others' test "$status" = 0

    runs '--debug'
    runs '--trace pass'
    ok 'the kernel is in the timeline, of both ranks' test "$(grep -oE '"name":"clamp"' pass.json | wc -l)" -ge 4
    lap show train --layer transformer --tp 2 --seq 32 --predict
    has 'and in lap show, with its time' "$status $out" '0 ' ' clamp ' 'predicted: '
    before=$("$first" check train --layer transformer --tp 2 | grep -oE '[0-9]+ kernels')
    lap check train --layer transformer --tp 2
    is 'a transformer layer has two kernels more' "$(grep -oE '[0-9]+ kernels' <<<"$out")" "$((${before% kernels} + 2)) kernels"

    sed -i '/static void build_halves/,/^}/ { /lap_add_wait/d }' "$tree/src/overlap/ag_gemm.c"
    ok 'without its waits it compiles' made src/CMakeFiles/lap_objects.dir/overlap/ag_gemm.c.o
    ok 'and is linked' linked
    lap check ag --method halves --ranks 2
    is 'and lap check refuses it' "$status" 1
    has 'with both accesses' "$out$err" 'no order between two accesses' 'GEMM of 1 block' 'PUT rows'
fi
finish
