#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what this machine lacks for a build, and only that, with apt-get; does nothing when all is there.
# `setup.sh test` also looks for what only the tests need, `setup.sh fuzz` for what the fuzzers need, `setup.sh lint` for linters. LAP_SKIP_SETUP=1 trusts the machine as it is.
set -u
[ "${LAP_SKIP_SETUP:-}" = 1 ] && exit 0

has()
{
    command -v "$1" >/dev/null 2>&1
}

# The compiler may be there without the C library's headers.
compiles()
{
    printf '#include <%s>\n' "$1" | cc -E - >/dev/null 2>&1
}

cmake_is_new()
{
    cmake --version 2>/dev/null | awk '{
        split($3, v, ".")
        exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25))
    }'
}

has_openblas()
{
    pkg-config --exists openblas 2>/dev/null && return 0
    [ -n "${OpenBLAS_ROOT:-}" ] && [ -d "$OpenBLAS_ROOT" ] && return 0
    compiles cblas.h && [ "$(cc -print-file-name=libopenblas.so)" != libopenblas.so ]
}

has_yaml()
{
    pkg-config --exists yaml-0.1 2>/dev/null || compiles yaml.h
}

# Any MPI will do: its compiler wrapper with its headers, and its launcher.
has_mpi()
{
    has mpirun && printf '#include <mpi.h>\n' | mpicc -E -x c - >/dev/null 2>&1
}

# Debian's python3 may be without what makes environments with pip.
has_venv()
{
    python3 -c 'import ensurepip, venv' 2>/dev/null
}

# Something that shows pages without a screen.
has_browser()
{
    has chromium-headless-shell || has chromium || has google-chrome
}

# clang with its libFuzzer.
has_fuzzer()
{
    has clang && echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
}

# Sets `missing` to the Debian packages to install, and `words` to what to call them.
look()
{
    missing= words=
    need bash "bash" has bash
    need "gcc libc6-dev" "a C compiler" eval 'has cc && compiles stdio.h'
    need cmake "CMake 3.25 or newer" eval 'has cmake && cmake_is_new'
    need ninja-build "Ninja" has ninja
    need pkg-config "pkg-config" has pkg-config
    need libopenblas-dev "OpenBLAS with cblas.h" has_openblas
    need libyaml-dev "libyaml" has_yaml
    [ "$1" = test ] && need patch "patch" has patch
    [ "$1" = test ] && need g++ "a C++ compiler" has c++
    # Only root can make hosts of namespaces.
    [ "$1" = test ] && [ "$(id -u)" = 0 ] && need iproute2 "ip and tc" has tc
    [ "$1" = lint ] && need clang-format "clang-format" has clang-format
    [ "$1" = lint ] && need clang-tidy "clang-tidy" has clang-tidy
    [ "$1" = lint ] && need cppcheck "cppcheck" has cppcheck
    [ "$1" = lint ] && need pyflakes3 "pyflakes" has pyflakes3
    [ "$1" = fuzz ] && need "clang libclang-rt-dev" "clang with libFuzzer" has_fuzzer
    [ "$1" = test ] && need python3 "Python 3" has python3
    [ "$1" = test ] && need python3-venv "Python's venv" has_venv
    [ "$1" = test ] && need zsh "zsh" has zsh
    [ "$1" = test ] && need chromium-headless-shell "Chromium" has_browser
    [ "$1" = test ] && need mandoc "mandoc" has mandoc
    [ "$1" = test ] && need "libopenmpi-dev openmpi-bin" "MPI" has_mpi
    [ -z "$missing" ]
}

# need PACKAGES WORDS COMMAND...
need()
{
    need_packages=$1 need_words=$2
    shift 2
    "$@" && return 0
    missing="${missing:+$missing }$need_packages"
    words="${words:+$words, }$need_words"
}

give_up()
{
    echo "setup: this machine lacks $words, and $1; install with 'apt-get install $missing' as root and try again." >&2
    exit 1
}

# Only root may install; sudo may ask for a password only where somebody can type it.
apt()
{
    set -- env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@"
    if [ "$(id -u)" = 0 ]; then
        "$@" >"$log" 2>&1
    elif [ -t 0 ]; then
        sudo "$@" >"$log" 2>&1
    else
        sudo -n "$@" >"$log" 2>&1
    fi
}

first_error()
{
    { grep '^E:' "$log"; grep '^sudo:' "$log" | tail -n 1; } | head -n 1
}

look "${1:-build}" && exit 0
has apt-get || give_up "there is no apt-get here"
[ "$(id -u)" = 0 ] || has sudo || give_up "this is not root and there is no sudo"
reason=
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
echo "setup: installing $missing with apt-get (this may take some minutes)"
# The package lists are fetched only when those at hand do not do. A list that cannot be had may not be the one needed.
install="install -y --no-install-recommends $missing"
# shellcheck disable=SC2086
if ! apt $install; then
    apt update --error-on=any || reason=$(first_error)
    apt $install || give_up "apt-get failed (${reason:-$(first_error)})"
fi
look "${1:-build}" || give_up "still so after apt-get install"
