#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C of README.md and docs/usage.md compiles without a warning. README's is a whole program, and is run on the two ranks that its
# sizes are for; that of usage.md is parts of a program, with names that a caller would have.
. "$(dirname "$0")/../cli/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1
flags=(-std=c11 -Wall -Wextra -Wpedantic -Werror -I"$LAP_SOURCE_DIR/include")

# code FILE: the blocks of C in a page, each in a file of its own, 1.c, 2.c, ...
code() {
    rm -f ./*.c
    awk '/^```c$/ { n++; next } /^```/ { inside = 0 } { if (n > seen) { seen = n; inside = 1 } if (inside) print > (n ".c") }' "$1"
}

code "$LAP_SOURCE_DIR/README.md"
ok 'README.md has one program' test "$(ls ./*.c)" = ./1.c
ok 'it compiles' "$CC" "${flags[@]}" 1.c -o program -L"$LAP_BUILD_DIR" -llap -Wl,-rpath,"$LAP_BUILD_DIR"
lap run -n 2 ./program
is 'it runs on two ranks' "$status" 0
lap run -n 3 ./program
ok 'with another number of ranks than its sizes are for it fails and says why' test "$status" = 1 -a -n "$err"

code "$LAP_SOURCE_DIR/docs/usage.md"
ok 'docs/usage.md has code' test -s 1.c -a -s 2.c
for part in 1.c 2.c; do
    {
        printf '#include <stdio.h>\n#include <lap/lap.h>\n#include <lap/lap_cuda.h>\n'
        echo 'void part(lap_world_t *, lap_op_t *, lap_op_args_t, int, struct CUstream_st *, float *, float *, float *, size_t, size_t);'
        if [ $part = 1.c ]; then
            echo 'void part(lap_world_t *w, lap_op_t *o, lap_op_args_t x, int gpu, struct CUstream_st *stream, float *a, float *b,'
            echo 'float *d, size_t m_r, size_t n_r)'
            printf '{\n(void)w, (void)o, (void)x, (void)gpu, (void)stream;\n'
        else
            echo 'void part(lap_world_t *world, lap_op_t *op, lap_op_args_t args, int gpu, struct CUstream_st *stream, float *a, float *b,'
            echo 'float *d, size_t m_r, size_t n_r)'
            printf '{\n(void)a, (void)b, (void)d, (void)m_r, (void)n_r;\n'
        fi
        grep -v '^#include' $part
        echo '}'
    } >"part_$part"
    ok "block ${part%.c} of docs/usage.md compiles" "$CC" "${flags[@]}" -c "part_$part" -o part.o
done
finish
