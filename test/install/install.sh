#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into a temporary prefix, moves it elsewhere, and builds and runs a program against it in the four ways there
# are: with pkg-config and with find_package, shared and static.
. "$(dirname "$0")/../cli/tap.bash"
here=$LAP_SOURCE_DIR/test/install
prefix=$work/moved
unset DESTDIR PKG_CONFIG_LIBDIR

# quietly COMMAND...: shows what a command printed only when it failed.
quietly()
{
    "$@" >"$work/output" 2>&1 || ! sed 's/^/# /' "$work/output"
}

install_and_move()
{
    cmake --install "$LAP_BUILD_DIR" --prefix "$work/prefix" && mv "$work/prefix" "$prefix"
}

# Nothing that was installed may name the source, the build or the first prefix.
is_relocatable()
{
    ! grep -rlE --include='*.cmake' --include='*.pc' --include='*.h' \
        -e "$LAP_SOURCE_DIR|$LAP_BUILD_DIR|$work/prefix" "$prefix"
}

stages()
{
    DESTDIR=$work/stage cmake --install "$LAP_BUILD_DIR" --prefix /opt/lap &&
        test -x "$work/stage/opt/lap/bin/lap" && test -f "$work/stage/opt/lap/include/lap/lap.h"
}

run_shared()
{
    LD_LIBRARY_PATH=$libdir ldd "$1" | grep -F "$libdir/liblap.so.0" && LD_LIBRARY_PATH=$libdir "$1"
}

run_static()
{
    ! ldd "$1" | grep -F liblap && "$1"
}

pkg_config_shared()
{
    # shellcheck disable=SC2046
    "$CC" -std=c11 "$here/consumer.c" -o "$work/pc_shared" $(pkg-config --cflags --libs lap) &&
        run_shared "$work/pc_shared"
}

# The linker prefers the shared library of a name, so the static one is named by its file.
pkg_config_static()
{
    # shellcheck disable=SC2046
    "$CC" -std=c11 "$here/consumer.c" -o "$work/pc_static" \
        $(pkg-config --static --cflags --libs lap | sed 's/-llap\>/-l:liblap.a/') &&
        run_static "$work/pc_static"
}

# The program of README.md by the command that it has there, with a prefix that is not a usual one.
as_in_readme()
(
    cc() { "$CC" "$@"; }
    cd "$work" && unset LD_LIBRARY_PATH && export PATH="$prefix/bin:$PATH" || exit 1
    awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$LAP_SOURCE_DIR/README.md" >program.c
    eval "$(grep '^    cc -std=c11 program.c ' "$LAP_SOURCE_DIR/README.md")" && test -x program
)

brings_documents()
{
    local share=$prefix/share file
    for file in doc/lap/README.md doc/lap/SECURITY.md doc/lap/docs/design.md doc/lap/docs/timeline.svg doc/lap/docs/api/op.md doc/lap/examples/01_hello.c \
        doc/lap/examples/overlap/h100_175b_tp4.yaml bash-completion/completions/lap zsh/site-functions/_lap \
        man/man1/lap.1 man/man1/lap-bench.1 man/man1/lap-train.1; do
        test -s "$share/$file" || ! echo "there is no $file in $share"
    done
}

cmake_build()
{
    cmake -G Ninja -S "$here" -B "$work/cmake" -DCMAKE_C_COMPILER="$CC" -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build "$work/cmake"
}

ok "cmake --install into a prefix, which is then moved" quietly install_and_move
libdir=$(dirname "$(find "$prefix" -name liblap.a)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
ok "no file names where it was built" quietly is_relocatable
ok "DESTDIR stages the tree" quietly stages
ok "bin/lap runs" quietly "$prefix/bin/lap" --help
ok "pkg-config knows the version of the header" quietly pkg-config --exists "lap = $LAP_VERSION"
ok "pkg-config, shared" quietly pkg_config_shared
ok "pkg-config, static" quietly pkg_config_static
ok "pkg-config as README.md has it, with no LD_LIBRARY_PATH" quietly as_in_readme
ok "documents, examples, completions and pages of the manual are there" brings_documents
ok "find_package configures and builds" quietly cmake_build
ok "find_package, lap::lap" quietly run_shared "$work/cmake/consumer_shared"
ok "find_package, lap::lap_static" quietly run_static "$work/cmake/consumer_static"
finish
