#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the loader and an attacker find in every program and library that was built or installed: no folder of libraries but
# absolute ones, and the hardening that the build asks for.
. "$(dirname "$0")/../cli/tap.bash"
unset DESTDIR

# elf_files FOLDER: the programs and shared libraries in it, but those with which CMake tried the compiler, and those of PyTorch that the
# tests of the Python package install.
elf_files()
{
    find "$1" \( -name CMakeFiles -o -name 'python-env*' \) -prune -o -type f -size +3 -print0 | while IFS= read -r -d '' file; do
        # Objects and archives are no ELF files of type EXEC or DYN.
        readelf -h "$file" 2>/dev/null | grep -qE 'Type: +(EXEC|DYN)' && printf '%s\n' "$file"
    done
}

# each CHECK LIST: prints the files of a list that a check does not like.
each()
{
    local file bad=0
    while IFS= read -r file; do
        "$1" "$file" || bad=$((bad + 1))
    done <"$2"
    test $bad = 0
}

# An empty entry is the current directory; $ORIGIN is the place of the file itself.
has_absolute_paths()
{
    readelf -dW "$1" | sed -nE 's/.*\((RUNPATH|RPATH)\).*\[(.*)\]$/\2/p' | while IFS= read -r paths; do
        case ":$paths:" in
        *::* | *:[!/\$:]* | *:\$[!O]*) echo "# $1 looks for libraries in '$paths'" && exit 1 ;;
        esac
    done
}

is_position_independent()
{
    readelf -h "$1" | grep -qE 'Type: +DYN' || ! echo "# $1 is not position-independent"
}

has_full_relro()
{
    { readelf -lW "$1" | grep -q GNU_RELRO && readelf -dW "$1" | grep -qE 'BIND_NOW|Flags:.* NOW'; } ||
        ! echo "# $1 has no full RELRO"
}

has_no_executable_stack()
{
    readelf -lW "$1" | awk '$1 == "GNU_STACK" && $7 == "RW" { found = 1 } END { exit !found }' ||
        ! echo "# $1 has an executable stack"
}

is_protected()
{
    readelf -sW --dyn-syms "$1" >"$work/symbols"
    { grep -q __stack_chk_fail "$work/symbols" && grep -qE '__[a-z]+_chk(@| |$)' "$work/symbols"; } ||
        ! echo "# $1 was built without a stack protector or without FORTIFY_SOURCE"
}

# Open MPI of its own makers says its rpath in two words. What is made of it must be one.
rpath_of_mpi()
{
    mkdir -p "$work/mpi/bin"
    printf '%s\n' '#!/bin/sh' 'case $1 in' \
        '-show) echo gcc -I/opt/mpi/include -L/opt/mpi/lib -Wl,-rpath -Wl,/opt/mpi/lib -Wl,--enable-new-dtags -lmpi ;;' \
        '*) echo "#define MPI_VERSION 3" ;;' 'esac' >"$work/mpi/bin/mpicc"
    chmod +x "$work/mpi/bin/mpicc"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(mpi LANGUAGES NONE)' \
        "include($LAP_SOURCE_DIR/cmake/lapMPI.cmake)" 'message(STATUS "link: ${LAP_MPI_LINK}")' >"$work/mpi/CMakeLists.txt"
    cmake -S "$work/mpi" -B "$work/mpi/build" -DLAP_MPICC="$work/mpi/bin/mpicc" | sed -n 's/^-- link: //p'
}

cmake --install "$LAP_BUILD_DIR" --prefix "$work/prefix" >"$work/output" 2>&1 || cat "$work/output"
elf_files "$LAP_BUILD_DIR" >"$work/built"
elf_files "$work/prefix" >"$work/installed"
is 'the command and the library are installed' "$(sed 's|.*/||; s|\.[0-9.]*$||' "$work/installed" | sort | xargs)" \
    'lap liblap.so'
ok 'and they, the examples and the tests are built' test "$(wc -l <"$work/built")" -gt 10
cat "$work/built" "$work/installed" >"$work/all"
ok 'libraries are looked for in absolute folders only' each has_absolute_paths "$work/all"
is 'also those of an MPI that names its own in two words' "$(rpath_of_mpi)" \
    '-L/opt/mpi/lib;-Wl,-rpath,/opt/mpi/lib;-Wl,--enable-new-dtags;-lmpi'
if [ "$LAP_HARDENING" != 1 ]; then
    echo '# not looked at, since LAP_HARDENING is off: position, RELRO, stacks'
    finish
fi
# A build folder within this one, as for a sanitizer, has its own options.
find "$LAP_BUILD_DIR" -mindepth 2 -name CMakeCache.txt -printf '%h/\n' >"$work/others"
grep -vFf "$work/others" "$work/all" >"$work/own"
mv "$work/own" "$work/all"
ok 'programs are position-independent' each is_position_independent "$work/all"
ok 'what the loader fills in is read-only before main' each has_full_relro "$work/all"
ok 'stacks are not executable' each has_no_executable_stack "$work/all"
case $LAP_BUILD_TYPE in
Release | RelWithDebInfo | MinSizeRel)
    grep -E '/(lap|liblap\.so[0-9.]*)$' "$work/all" >"$work/ours"
    ok 'the command and the library have a stack protector and FORTIFY_SOURCE' each is_protected "$work/ours"
    ;;
esac
finish
