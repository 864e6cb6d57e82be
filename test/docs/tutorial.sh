#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The method that docs/tutorial.md adds works as the page tells: its patch is applied to a copy of the sources, the changed files are
# compiled as the build compiles them and linked to a second lap; that shows, proves and runs the method. What the page breaks is found.
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

# made FILE.c: compiles the copy of a source.
made() {
    local object=$work/$(basename "$1" .c).o command
    command=$(command_of "src/CMakeFiles/lap_objects.dir/${1#src/}.o")
    command=${command//"$LAP_SOURCE_DIR/src"/"$tree/src"}
    command=$(sed "s| -o [^ ]*| -o $object|; s| -MF [^ ]*| -MF $work/d|; s| -MT [^ ]*| -MT x|" <<<"$command")
    (cd "$LAP_BUILD_DIR" && eval "$command")
}

# linked: a lap with these objects in the place of the library's own.
linked() {
    local command
    command=$(command_of lap | sed "s| -o lap | -o $work/lap $work/*.o |")
    (cd "$LAP_BUILD_DIR" && eval "$command")
}

mkdir "$tree"
cp -r "$LAP_SOURCE_DIR/src" "$tree/"
awk '$0 == "```" { inside = 0 } inside { print } $0 == "```diff" { inside = 1 }' "$page" >"$work/patch"
ok 'the patch applies' patch -s -p1 --force -d "$tree" -i "$work/patch"
changed=$(sed -n 's/^+++ b\///p' "$work/patch")
built=1
for file in $changed; do
    ok "$file compiles" made "$file" || built=0
done
ok 'lap is linked with it' linked || built=0
if [ "$built" = 1 ]; then
    LAP=$work/lap
    cd "$work" || exit 1
    while IFS= read -r command; do
        # shellcheck disable=SC2001
        short=$(sed 's/2048 4096 2048/64 96 80/' <<<"$command")
        case $short in *' bench '*) short="$short --iters 1 --warmup 0" ;; esac
        # shellcheck disable=SC2086
        lap ${short#*build/lap }
        ok "$command" test "$status" = 0
    done < <(grep -E '^    build/lap .*halves' "$page" | grep -v -- '--ranks 2$')
    ok 'the timeline is there' test -s halves.svg
    lap check ag --ranks 1:5
    ok 'also in mixtures with the other methods' test "$status" = 0

    sed -i '/static void build_halves/,/^}/ { /lap_add_wait/d }' "$tree/src/overlap/ag_gemm.c"
    ok 'without its waits it compiles' made src/overlap/ag_gemm.c
    ok 'and is linked' linked
    lap check ag --method halves --ranks 2
    is 'and lap check refuses it' "$status" 1
    has 'with both accesses' "$out$err" 'no order between two accesses' 'GEMM of 1 block' 'PUT rows'
fi
finish
