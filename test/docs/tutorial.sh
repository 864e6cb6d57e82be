#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What docs/tutorial.md adds works as the page tells: its patches are applied to a copy of the sources, by its own commands, and the files
# that they concern are compiled as the build compiles them and linked to a second lap, which runs the commands of the page. What the page
# breaks is found.
. "$(dirname "$0")/../cli/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
page=$LAP_SOURCE_DIR/docs/tutorial.md
tree=$work/tree

if ! [ -f "$LAP_BUILD_DIR/build.ninja" ] || ! command -v ninja >/dev/null; then
    ok 'the build is one of ninja, which knows how files are compiled' false
    finish
fi

nvcc=$(sed -n "s/^CUDAToolkit_NVCC_EXECUTABLE:FILEPATH=//p" "$LAP_BUILD_DIR/CMakeCache.txt")
grep -q 'LAP_HAVE_CUDA 1' "$LAP_BUILD_DIR/generated/lap_config.h" || nvcc=

# The commands by which the build makes one of its files, without its cache; in the build folder.
command_of() { ninja -C "$LAP_BUILD_DIR" -t commands "$1" | tail -n 1 | sed 's/^[^ ]*ccache //'; }

# objects_of FILE...: the objects of the library and of lap that are made from these sources and headers.
objects_of() {
    local file
    for file in "$@"; do
        case $file in
        src/kernel/cuda/*.c) [ -z "$nvcc" ] || echo "src/CMakeFiles/lap_objects.dir/${file#src/}.o" ;; # built with CUDA only
        *.c) echo "src/CMakeFiles/lap_objects.dir/${file#src/}.o" ;;
        *.h | *.def)
            ninja -C "$LAP_BUILD_DIR" -t deps | awk -v header="/$file" '
                /: #deps/ { object = substr($1, 1, length($1) - 1) }
                substr($1, length($1) - length(header) + 1) == header { print object }' | grep -E 'lap_(objects|commands|cli)\.dir/.*\.c\.o$'
            ;;
        esac
    done | sort -u
}

# made OBJECT: compiled from the copy of the sources, without optimizing: there are many.
made() {
    local to=$work/new/${1//\//_} command
    command=$(command_of "$1")
    command=${command//"$LAP_SOURCE_DIR/src"/"$tree/src"}
    command=$(sed "s| -o [^ ]*| -o $to|; s| -MD -MT [^ ]* -MF [^ ]*||; s| -g -O3 | -O0 -U_FORTIFY_SOURCE |" <<<"$command")
    (cd "$LAP_BUILD_DIR" && eval "$command")
}

# linked: a lap with the new objects in the place of its own and of the library's.
linked() {
    local command object to
    command=$(command_of lap)
    for object in $objects; do
        to=$work/new/${object//\//_}
        case $object in
        *lap_cli.dir* | *lap_commands.dir*) command=${command/" $object "/" $to "} ;;
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

# shown NUMBER: what the page shows of an output, in the block ```text of that number, on one line.
shown() {
    awk -v number="$1" '/^```/ { on = $0 == "```text"; n += on; next } on && n == number' "$page" | paste -s -d ' '
}

# refused NAME FILE COMMAND NUMBER: what the page breaks was compiled and linked again, and lap check says what the block shows.
refused() {
    ok "$1: $2 compiles" made "src/CMakeFiles/lap_objects.dir/$2.o"
    ok "$1: lap is linked" linked
    # shellcheck disable=SC2086
    lap check $3
    is 'and lap check refuses it' "$status" 1
    ok 'the page shows its sentence' test -n "$(shown "$4")"
    has 'which is the one that is printed' "$out$err" "$(shown "$4")"
}

mkdir -p "$tree/docs" "$work/new"
cp -r "$LAP_SOURCE_DIR/src" "$tree/"
cp "$page" "$tree/docs/"
git -C "$tree" init -q 2>/dev/null # a tree of its own, as the reader's
while IFS= read -r command; do
    ok "${command##*| }" bash -c "cd '$tree' && set -o pipefail && $command"
done < <(sed -n '/^    awk .*git apply/s/^ *//p' "$page")
awk '/^```/ { on = $0 == "```diff"; next } on' "$page" >"$work/patch"
applied() { ! git -C "$tree" apply --check "$work/patch" 2>/dev/null && git -C "$tree" apply --check -R "$work/patch"; }
ok 'both commands together apply all patches' applied
# shellcheck disable=SC2046
objects=$(objects_of $(sed -n 's/^+++ b\///p' "$work/patch"))
for object in $objects; do # three at a time
    made "$object" || echo "$object" >>"$work/failed" &
    while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
done
wait
built=$([ -e "$work/failed" ] && echo 0 || echo 1)
if [ -n "$nvcc" ]; then # one architecture, and no assembler: a few seconds
    ok 'the kernel for GPUs is compiled' "$nvcc" -std c++17 -arch=sm_80 -ptx -I"$tree/src" -I"$LAP_SOURCE_DIR/include" \
        -o "$work/kernels.ptx" "$tree/src/kernel/cuda/layers.cu"
    is 'with both of its entries' "$(grep -c 'entry lap_clamp' "$work/kernels.ptx")" 2
fi
ok "the files that change are compiled: $(wc -w <<<"$objects")" test "$built" = 1 || sed 's/^/# not made: /' "$work/failed"
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
    is 'a transformer layer has four kernels more' "$(grep -oE '[0-9]+ kernels' <<<"$out")" "$((${before% kernels} + 4)) kernels"
    lap check train --layer transformer --tp 2 --target cuda
    is 'which is proved for a GPU' "$status" 0

    sed -i '/static void build_halves/,/^}/ { /lap_add_wait/d }' "$tree/src/overlap/ag_gemm.c"
    refused 'halves without its waits' overlap/ag_gemm.c 'ag --method halves --ranks 2' 1
    cp "$tree/src/nn/block.c" "$work/block.c"
    sed -i '/entry->writes\[0\] = dclamp;/d' "$tree/src/nn/block.c"
    refused 'a clamp that declares no result' nn/block.c 'train --layer transformer --tp 2' 2
    sed 's/list->blocks\[b\]\.passed/list->blocks[b].y/' "$work/block.c" >"$tree/src/nn/block.c"
    refused 'a clamp that reads y in backward' nn/block.c 'train --layer transformer --tp 2' 3
fi
finish
