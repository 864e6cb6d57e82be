#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make install` by root tells the loader about the new library, so that the program of README.md starts. One into DESTDIR does not,
# nor one by another user. Programs of the same names stand for those that make runs.
. "$(dirname "$0")/../cli/tap.bash"

mkdir "$work/bin"
for name in cmake ldconfig; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\n' "$name" "$work" >"$work/bin/$name"
done
printf '#!/bin/sh\necho "$FAKE_USER"\n' >"$work/bin/id"
chmod +x "$work"/bin/*

# installs USER DESTDIR: the last program that make install ran.
installs() {
    : >"$work/calls"
    env -u MAKEFLAGS -u MAKELEVEL FAKE_USER="$1" PATH="$work/bin:$PATH" LAP_SKIP_SETUP=1 \
        make -C "$LAP_SOURCE_DIR" install BUILD="$work/build" PREFIX=/usr/local DESTDIR="$2" >"$work/output" 2>&1 || return
    tail -n 1 "$work/calls" | cut -d ' ' -f 1-2
}

ok 'root: ldconfig comes last' test "$(installs 0 '')" = 'ldconfig '
ok 'into DESTDIR: no ldconfig' test "$(installs 0 "$work/stage")" = 'cmake --install'
ok 'another user: none either' test "$(installs 1000 '')" = 'cmake --install'
finish
