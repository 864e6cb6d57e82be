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
cp "$LAP" "$work/lap" # where the other user can read it
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
    test "$LAP_RANK" = 1 || $other ln -sT "$work/precious" "$LAP_DIR" 2>"$work/output"
    test -d "$LAP_DIR" -a ! -L "$LAP_DIR"' "$LAP"
is 'while a job lives nobody else has the name of its directory' "$status$err" 0
has 'which is there' "$(cat "$work/output")" 'File exists'
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
# In a user namespace without root, such as an unprivileged container's, root's files seem to be of user 65534.
contained='setpriv --reuid 65533 --regid 65533 --clear-groups -- unshare --user --map-user=65533 --'
if [ "$($contained stat -c %u "$TMPDIR")" = 65534 ]; then
    # shellcheck disable=SC2016
    is 'but one that may be of a root who is not in our user namespace is' \
        "$($contained "$work/lap" run -n 1 sh -c 'dirname "$LAP_DIR"')" "[0] $TMPDIR"
else
    echo '# not looked at, since there are no user namespaces for users: a base of a root who is not in ours'
fi
# What a rank of another user tells, our launcher takes no notice of: the rank prints it.
# shellcheck disable=SC2086
lap run -n 2 $other "$work/lap" bench ag 8 8 8 --iters 1 --timeout 1
has 'ranks of another user than their launcher say why they fail' "$status $err" '1 ' "] lap bench: rank 0: " "] lap bench: rank 1: "
is 'nothing is left' "$(ls -A "$TMPDIR")" ''

# ---- files that we write ----

draw() { lap bench ag 8 8 8 --ranks 2 --iters 1 --timeline "$1"; }
echo precious >"$work/precious/a"
$other ln -s "$work/precious/a" "$TMPDIR/theirs.svg"
draw "$TMPDIR/theirs.svg"
is "somebody else's link is not followed" "$status $(cat "$work/precious/a")" '1 precious'
has '... which is reported' "$err" "'$TMPDIR/theirs.svg' is a symbolic link of user 65534"
ln -s theirs.svg "$TMPDIR/ours.svg"
draw "$TMPDIR/ours.svg"
is '... nor one that a link of ours leads to' "$status $(cat "$work/precious/a")" '1 precious'
rm "$TMPDIR"/*.svg
$other sh -c 'echo theirs >"$0" && chmod 666 "$0"' "$TMPDIR/theirs.svg"
setpriv --reuid 65533 --regid 65533 --clear-groups -- "$work/lap" bench ag 8 8 8 --ranks 2 --iters 1 \
    --timeline "$TMPDIR/theirs.svg" >"$work/out" 2>"$work/err"
is "somebody else's file that cannot be replaced is refused before anything is measured" \
    "$?$(cat "$work/out" "$TMPDIR/theirs.svg")" 1theirs
has '... which is reported' "$(cat "$work/err")" "$TMPDIR/theirs.svg: Operation not permitted"
rm "$TMPDIR"/*.svg
for mode in 600 640 604; do
    echo old >"$work/mine.svg"
    chmod $mode "$work/mine.svg"
    chown 65533:65532 "$work/mine.svg"
    draw "$work/mine.svg"
    is "a file that is replaced keeps its mode $mode, its owner and its group" \
        "$status $(stat -c '%a %u:%g' "$work/mine.svg") $(grep -c '</svg>' "$work/mine.svg")" "0 $mode 65533:65532 1"
done
rm "$work/mine.svg"
(umask 027 && draw "$work/new.svg")
is 'a new one has the mode that the umask leaves' "$(stat -c %a "$work/new.svg")" 640
is 'and nothing is left next to them' "$(ls -A "$TMPDIR")" ''

# ---- programs that are setuid, which lap must not be ----

cat >"$work/evil.c" <<'END'
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void)
{
    close(open(getenv("EVIL"), O_WRONLY | O_CREAT, 0666));
}
END
"${CC:-cc}" -shared -fPIC -o "$work/evil.so" "$work/evil.c"
export EVIL=$TMPDIR/evil
cp "$work/lap" "$work/setuid"
chown 65533 "$work/setuid"
# runs_evil FILE ARGUMENTS...: whether that lap, started by the other user, has run the other user's code.
runs_evil() {
    local file=$1
    shift
    $other env LAP_OPENBLAS="$work/evil.so" LAP_MPI="$work/evil.so" LAP_NCCL="$work/evil.so" LAP_CUBLASMP="$work/evil.so" LAP_CUBLASLT="$work/evil.so" NVTX_INJECTION64_PATH="$work/evil.so" \
        "$file" "$@" >"$work/out" 2>&1
    rm "$EVIL" 2>/dev/null
}
for arguments in 'info' 'bench ag 8 8 8 --ranks 2 --iters 1 --transport self'; do
    chmod 755 "$work/setuid"
    # shellcheck disable=SC2086
    if ! runs_evil "$work/setuid" $arguments; then
        echo "# not looked at, since this build loads no libraries by variables: ${arguments%% *}"
        continue
    fi
    chmod 4755 "$work/setuid"
    # shellcheck disable=SC2086
    ok "a setuid program loads no library that a variable names: ${arguments%% *}" \
        eval '! runs_evil "$work/setuid" $arguments'
done

finish
