# SPDX-License-Identifier: Apache-2.0
# Completion of `lap` for bash. Commands, operators and options are taken from the help texts of the lap that is completed,
# so that they are those of its version.

# _lap_words LAP [COMMAND [options]]: the commands, the first arguments of a command, or its options; one a line.
_lap_words()
{
    local help
    if [ $# = 1 ]; then
        "$1" --help 2>/dev/null | awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'
        return
    fi
    help=$("$1" "$2" --help 2>/dev/null)
    if [ $# = 3 ]; then
        grep -oE '^ {1,6}(-[a-zA-Z], )?--[a-z0-9-]+' <<<"$help" | grep -oE -- '--.*' | sort -u
    else
        # "Usage: lap bench ag|rs M N K": lower-case words behind the command.
        awk -v command="$2" '/^$/ { exit }
            { for (i = 2; i < NF; i++) if ($(i - 1) == "lap" && $i == command) print $(i + 1) }' <<<"$help" |
            tr '|' '\n' | grep -E '^[a-z][a-z-]*$'
    fi
}

_lap()
{
    local current=${COMP_WORDS[COMP_CWORD]} lap=${COMP_WORDS[0]} command=${COMP_WORDS[1]} words i
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="$(_lap_words "$lap") help --help --version"
    elif [ "$command" = help ]; then
        words=$(_lap_words "$lap")
    elif [[ $current == -* ]]; then
        # Behind the program of `lap run` the words are the program's own.
        if [ "$command" = run ]; then
            for ((i = 2; i < COMP_CWORD; i++)); do
                [[ ${COMP_WORDS[i]} != -* && ! ${COMP_WORDS[i - 1]} =~ ^(-n|--ranks|--grace|--timeout|=)$ &&
                    ${COMP_WORDS[i]} != = ]] && return
            done
        fi
        words=$(_lap_words "$lap" "$command" options)
    elif [ "$COMP_CWORD" = 2 ] || { [ "$COMP_CWORD" = 3 ] && [ "${COMP_WORDS[2]}" = sweep ]; }; then
        words=$(_lap_words "$lap" "$command")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
# What has no completion of ours is the name of a file.
complete -o bashdefault -o default -F _lap lap
