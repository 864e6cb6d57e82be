# SPDX-License-Identifier: Apache-2.0
# Completion of `lap` for bash. The lap that is completed names its commands, operators and options itself (--help=words), so
# that they are those of its version.
_lap()
{
    local current=${COMP_WORDS[COMP_CWORD]} lap=${COMP_WORDS[0]} command=${COMP_WORDS[1]} words form i
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="$("$lap" --help=words 2>/dev/null) help"
    elif [ "$command" = help ]; then
        words=$("$lap" --help=words 2>/dev/null | grep -v ^-)
    elif [[ $current == -* ]]; then
        # Behind the program of `lap run` the words are the program's own.
        if [ "$command" = run ]; then
            for ((i = 2; i < COMP_CWORD; i++)); do
                [[ ${COMP_WORDS[i]} != -* && ! ${COMP_WORDS[i - 1]} =~ ^(-n|--ranks|--grace|--timeout|=)$ &&
                    ${COMP_WORDS[i]} != = ]] && return
            done
        fi
        # `lap show train` and `lap check train` have the options of `lap train`, too, and those of a pipeline are its own.
        [[ $command =~ ^(show|check)$ && ${COMP_WORDS[2]} =~ ^(train|pipeline)$ ]] && form=${COMP_WORDS[2]}
        # shellcheck disable=SC2086
        words=$("$lap" "$command" ${form:-} --help=words 2>/dev/null)
    elif [ "$COMP_CWORD" = 2 ] || { [ "$COMP_CWORD" = 3 ] && [ "${COMP_WORDS[2]}" = sweep ]; }; then
        words=$("$lap" "$command" --help=words 2>/dev/null | grep -v ^-)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
# What has no completion of ours is the name of a file.
complete -o bashdefault -o default -F _lap lap
