#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Completions of bash and zsh: the functions that the shells would call, with the words of a command line.
. "$(dirname "$0")/tap.bash"
folder=$LAP_SOURCE_DIR/completions

# in_bash WORD...: the replies for the last of these words, on a line.
in_bash() {
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lap; echo "${COMPREPLY[*]}"' \
        "$folder/lap.bash" "$LAP" "$@"
}

# in_zsh WORD...: the same, by the function of zsh; "files" where it leaves the word to names of files.
in_zsh() {
    zsh -f -c 'compadd() { shift; print -r -- "$@" }; _files() { print files }
        file=$1; shift; words=("$@"); CURRENT=$#words; eval "$(grep -v "^_lap \"" $file)"; _lap' \
        zsh "$folder/_lap" "$LAP" "$@"
}

# The options of a command, from its help.
command -v zsh >/dev/null || { echo "There is no zsh, whose completion is tested too." && exit 77; }
options=$("$LAP" train --help | grep -oE '^ +--[a-z0-9-]+' | tr -d ' ' | tr '\n' ' ')

has 'bash: commands' "$(in_bash '')" run bench train check show info help --version
is 'bash: the one command that fits' "$(in_bash tr)" train
is 'bash: commands behind help' "$(in_bash help be)" bench
has 'bash: operators' "$(in_bash bench '')" ag rs ar bulk-ag sweep latency demo
is 'bash: sizes have no completion' "$(in_bash bench ag '')" ''
is 'bash: sweep is followed by an operator' "$(in_bash bench sweep bulk-r)" bulk-rs
# shellcheck disable=SC2086
has 'bash: every option of train' "$(in_bash train --)" $options
is 'bash: each option once' "$(in_bash train --h | tr ' ' '\n' | sort | uniq -d)" ''
is 'bash: the one option that fits' "$(in_bash train --num-rep)" --num-replicas
is 'bash: options of lap run' "$(in_bash run -n 2 --gr)" --grace
is 'bash: a program of lap run has options of its own' "$(in_bash run -n 2 program --gr)" ''
has 'bash: lap show train has the options of both' "$(in_bash show train --)" --tp --all-steps --svg
is 'bash: options of lap check train' "$(in_bash check train --targ)" --target
for command in show check; do
    pipeline=$("$LAP" $command pipeline --help | grep -oE '^ +(-[a-z], )?--[a-z0-9-]+' | grep -oE -- '--.*' | sort | tr '\n' ' ')
    for shell in bash zsh; do
        is "$shell: lap $command pipeline has its own options, and no other" \
            "$("in_$shell" $command pipeline -- | tr ' ' '\n' | grep -v '^-.$' | sort | tr '\n' ' ')" "$pipeline"
    done
done
has 'zsh: lap show train has the options of both' "$(in_zsh show train --)" --tp --all-steps --svg
has 'zsh: commands' "$(in_zsh '')" run bench train check show info help --version
has 'zsh: operators' "$(in_zsh bench '')" ag rs ar bulk-ag sweep latency demo
# shellcheck disable=SC2086
has 'zsh: every option of train' "$(in_zsh train --)" $options
is 'zsh: other words are files' "$(in_zsh bench ag 64 '')" files
finish
