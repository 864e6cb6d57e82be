#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The frame of the command: finding subcommands, their help, and command lines that make no sense.
. "$(dirname "$0")/tap.bash"

lap --version
is 'the version' "$status $out" "0 lap ${LAP_VERSION:-0.1.0}"
lap --help
is 'help is asked for: status 0' "$status$err" 0
has 'and names every command' "$out" 'Usage: lap' '  run ' '  bench ' '  check ' '  info '
help=$out
lap help
is 'lap help is the same' "$out" "$help"
lap
is 'no command at all: status 2' "$status$out" 2
is 'and the help on standard error' "$err" "$help"
for command in run info bench check; do
    lap "$command" --help
    is "lap $command --help: status 0" "$status$err" 0
    has "which tells how to use it" "$out" "Usage: lap $command " 'Options:' '--help'
    help=$out
    lap help "$command"
    is "lap help $command is the same" "$status$out" "0$help"
    lap --help "$command"
    is "lap --help $command is the same" "$status$out" "0$help"
done
lap run -h
is 'lap run -h too' "$status${out%% -n*}" '0Usage: lap run'

# wrong NAME WORDS... -- ARGUMENTS...: status 2, and one line on standard error with the words.
wrong() {
    local name=$1 words=()
    shift
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    shift
    lap "$@"
    is "$name: status 2 and one line" "$status:$(wc -l <"$work/err"):$out" '2:1:'
    has "$name: the sentence" "$err" "${words[@]}"
}
wrong 'unknown command' "'bnech'" "'bench'" -- bnech ag 1 2 3
wrong 'unknown command, cut short' "'inf'" "'info'" -- inf
wrong 'unknown command, like no other' "'frobnicate'" 'lap --help' -- frobnicate
wrong 'unknown option of lap' "'--versoin'" "'--version'" -- --versoin
LAP_LOG=loud wrong 'what to log is not known' "LAP_LOG is 'loud', expected quiet" -- info
wrong 'help on two commands' "'extra'" "'run'" -- help run extra
wrong 'the version of something' "'run'" "'--version'" -- --version run
wrong 'a mode apart from its option' "'auto' would be the program" "'--gpu-share=auto'" -- run -n 2 --gpu-share auto true
wrong 'help on what is not there' "'rum'" "'run'" -- help rum
wrong 'unknown option' "'--rank'" "'--ranks'" -- run --rank 4 true
wrong 'unknown option with a value' "'--garce'" "'--grace'" -- run -n 2 --garce=3 true
wrong 'unknown letter' "'-q'" 'lap run --help' -- run -q 2 true
wrong 'a value is missing' "option '-n' needs a value: -n N" -- run -n
wrong 'a value too many' '--no-prefix' "'yes'" -- run -n 2 --no-prefix=yes true
wrong 'a list twice' "'--method' is given twice, as 'ring' and as 'pull'; expected it once, with commas: --method ring,pull" -- \
    bench ag 8 8 8 --method ring --method pull
wrong '... of names' "'--method' is given twice, as 'ring' and as 'direct'" -- check ag --ranks 2 --method ring --method direct
wrong '... of numbers' "'--layers-per-stage' is given twice, as '1' and as '2'" -- \
    train --layers-per-stage 1 --layers-per-stage 2
wrong '... the same one, too' "'--epilogue' is given twice" -- show ag 8 8 8 --epilogue bias --epilogue=bias
wrong 'no ranks' '-n is missing, expected the number of ranks' '-n N' -- run true
wrong 'no program' 'PROGRAM' -- run -n 2
wrong 'an argument too many' "'extra'" 'lap info' -- info extra
for value in 0 -1 1025 four 4x '' ' 4' 99999999999999999999 0x4 2.5; do
    wrong "--ranks '$value'" '--ranks' "'$value'" '1 to 1024' -- run --ranks "$value" true
done
for value in -1 long '' 1e999 nan 0x3; do
    wrong "--grace '$value'" '--grace' "'$value'" 'seconds' -- run -n 1 --grace "$value" true
    wrong "--timeout '$value'" '--timeout' "'$value'" 'seconds' -- run -n 1 "--timeout=$value" true
done
long=$(printf '%0200d' 5)
wrong 'a --timeout that is too long a text' '--timeout' 'of 200 characters' 'at most 40' -- run -n 1 --timeout "$long" true
wrong '--timeout 1e9, as its bounds have no exponent' "--timeout is '1e9'" '0.001 to 1000000000' -- run -n 1 --timeout 1e9 true
wrong '--timeout 0' '--timeout is 0' 'seconds, 0.001 to 1000000000' -- run -n 1 --timeout 0 true

for form in '-n 2' '-n2' '--ranks 2' '--ranks=2' '-n 7 -n 2' '-n 2 --'; do
    # shellcheck disable=SC2086
    lap run $form sh -c 'exit $((LAP_SIZE + 1))'
    is "lap run $form starts 2 ranks" "$status" 3
done
lap run -n 1 echo -n 3 --help --frob -- x
is 'options end at the program' "$status$out" '0[0] 3 --help --frob -- x'
lap run -n 1 -- -n
is 'and at --' "$status $err" "127 lap run: cannot run '-n': No such file or directory"

if [ -w /dev/full ]; then
    "$LAP" --help >/dev/full 2>"$work/err"
    is 'a full disk is a failure' "$?" 1
    has 'with a sentence' "$(cat "$work/err")" 'cannot write standard output' 'No space left'
fi
finish
