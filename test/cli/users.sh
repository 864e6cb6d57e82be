#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What another user of this machine can do to a job: nothing. The other user is a number, and needs no account.
. "$(dirname "$0")/tap.bash"
if [ "$(id -u)" != 0 ]; then
    echo 'It needs root, to become another user.'
    exit 77
fi
unset XDG_RUNTIME_DIR LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
export TMPDIR=$work/tmp
other='setpriv --reuid 65534 --regid 65534 --clear-groups --'
export other
chmod 755 "$work"
mkdir -m 1777 "$TMPDIR"
mkdir "$work/precious"

# precious: makes the files of a directory that only its owner may write.
precious() { touch "$work/precious/a" "$work/precious/b" "$work/precious/s"; }
are_precious() { test "$(ls "$work/precious" | xargs)" = 'a b s'; }
export work

# ---- the place where ranks meet ----

# Ranks meet there; then, or instead, the other user wants the name.
precious
lap run -n 2 sh -c '"$0" bench ag 8 8 8 --iters 1 >/dev/null || exit 9
    test "$LAP_RANK" = 1 || $other ln -sT "$work/precious" "$LAP_DIR" 2>"$work/said"
    test -d "$LAP_DIR" -a ! -L "$LAP_DIR"' "$LAP"
is 'while a job lives nobody else has the name of its directory' "$status$err" 0
has 'which is there' "$(cat "$work/said")" 'File exists'
ok 'nothing of its owner is deleted' are_precious
lap run -n 1 sh -c 'rmdir "$LAP_DIR" && $other ln -sT "$work/precious" "$LAP_DIR"'
is 'a name that a rank has freed can be taken' "$status$err" 0
ok 'but nothing behind it is deleted' are_precious
is 'and the link stays, since it is not ours' "$(readlink "$TMPDIR"/lap-*)" "$work/precious"
rm -f "$TMPDIR"/lap-*
lap run -n 1 sh -c 'rmdir "$LAP_DIR" && $other mkdir "$LAP_DIR"'
is 'nor is a directory of the other user removed' "$(stat -c %u "$TMPDIR"/lap-*)" 65534
rm -rf "$TMPDIR"/lap-*
lap run -n 1 sh -c 'touch "$LAP_DIR/mine"'
is 'what a rank has put there itself stays' "$(cd "$TMPDIR" && echo lap-*/*)" "$(cd "$TMPDIR" && echo lap-*/mine)"
rm -rf "$TMPDIR"/lap-*

# A name that is derived from what a launcher tells can be derived by others, who may take it first. That is said, and how
# to help it.
alone() { env "$@" LAP_TIMEOUT_S=1 "$LAP" bench ag 8 8 8 --iters 1 2>&1; }
for launcher in 'LAP_JOB=known LAP_RANK=0 LAP_SIZE=2' 'RANK=0 WORLD_SIZE=2 MASTER_ADDR=here MASTER_PORT=29500'; do
    # shellcheck disable=SC2086
    name=$(alone $launcher | sed -n "s/.*come to '\([^']*\)'.*/\1/p")
    is "a rank waits alone, and leaves nothing: $launcher" "${name%/*}$(ls -A "$TMPDIR")" "$TMPDIR"
    $other ln -sT "$work/precious" "$name"
    # shellcheck disable=SC2086
    has '... a link that has taken its name is refused' "$(alone $launcher)" "'$name' is a symbolic link"
    is '... and left alone' "$(stat -c %u "$name")" 65534
    rm -f "$name"
    $other mkdir "$name"
    # shellcheck disable=SC2086
    has '... and a directory, with a word on where names are safe' "$(alone $launcher)" \
        "'$name' belongs to user 65534, expected 0" TMPDIR
    is '... which stays, too' "$(stat -c %u "$name")" 65534
    rmdir "$name"
done
ok 'and nothing behind a link is deleted' are_precious

# A base where others may rename what is ours is not taken.
chmod 777 "$TMPDIR"
lap run -n 1 sh -c 'dirname "$LAP_DIR"'
is 'a base that all may write, without the sticky bit, is not taken' "$out" '[0] /tmp'
chmod 1777 "$TMPDIR"
chown 65534 "$TMPDIR"
lap run -n 1 sh -c 'dirname "$LAP_DIR"'
is 'nor one of another user' "$out" '[0] /tmp'
chown 0 "$TMPDIR"
is 'nothing is left' "$(ls -A "$TMPDIR")" ''

finish
