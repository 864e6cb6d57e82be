#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Pages of the manual, as `lap COMMAND --help=man` prints them and the build installs them: mandoc finds no fault in them, they
# have all that the help has, and their examples work as they are written.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cd "$work" || exit 1
mkdir bin
ln -s "$LAP" bin/lap
export PATH=$work/bin:$PATH

# plain FILE: the text of a page, without its macros and with the characters that its escapes stand for.
plain() { grep -v '^\.' "$1" | sed 's/\\f[BIR]//g; s/\\-/-/g; s/\\(aq/'\''/g; s/\\(ga/`/g; s/\\(ha/^/g; s/\\(ti/~/g; s/\\&//g; s/\\e/\\/g'; }

# options_of TEXT: the options that lines of a help, or tags of a page, begin with.
options_of() { grep -oE '^( {2,6})?(-[a-zA-Z], )?--[a-z0-9-]+' <<<"$1" | tr -d ' ' | sort; }

lap --help=words
commands=$(grep -v ^- <<<"$out")
has 'commands' "$commands" run bench train check info
for command in '' $commands; do
    page=lap${command:+-$command}.1
    # shellcheck disable=SC2086
    lap $command --help=man
    is "$page: status 0" "$status$err" 0
    cp out "$page"
    is '... mandoc finds nothing to say of it' "$(mandoc -T lint "$page" 2>&1)" ''
    has '... it has all sections' "$out" '.SH NAME' '.SH SYNOPSIS' '.SH DESCRIPTION' '.SH OPTIONS' '.SH "EXIT STATUS"' \
        '.SH ENVIRONMENT' '.SH EXAMPLES' '.SH SEE ALSO'
    text=$(plain "$page")
    # shellcheck disable=SC2086
    help=$("$LAP" $command --help)
    is '... and every option of --help' "$(options_of "$(sed -n '/^\.TP/ { n; p }' "$page" | plain -)")" "$(options_of "$help")"
    # shellcheck disable=SC2086
    is '... which are the words of completions' "$("$LAP" $command --help=words | grep -o -- '^--.*' | sort)" \
        "$(options_of "$help" | sed 's/.*,--/--/' | sort)"
    # Words, not lines, which are broken elsewhere: the help's explanations are all there.
    lacking=$(comm -13 <(tr -s ' \n' '\n\n' <<<"$text" | sort -u) \
        <(sed '1,/^Options:/d; /^Exit status:/d' <<<"$help" | sed -E 's/^ {2,}//' | tr -s ' \n' '\n\n' | sort -u) | grep -vE '^[a-z-]+:$')
    is '... and every word of its explanations' "$lacking" ''
    if [ -d "$LAP_BUILD_DIR/man" ]; then
        ok '... the build made the same page' cmp -s "$page" "$LAP_BUILD_DIR/man/man1/$page"
    fi
    # An example is what stands between .nf and .fi.
    examples=0
    while IFS= read -r example; do
        examples=$((examples + 1))
        bash -o pipefail -c "${example//@/$'\n'}" >said 2>&1 </dev/null
        ok "... $example" test $? = 0 || sed 's/^/# /' said
    done < <(awk '/^\.nf/ { on = 1; line = ""; next } /^\.fi/ { on = 0; print line } on { line = line (line ? "@" : "") $0 }' "$page" |
        sed 's/\\-/-/g; s/\\(aq/'\''/g; s/\\e/\\/g')
    ok "... all examples were run: $examples" test "$examples" -ge 2
done
ok 'a page is there for every command' test "$(ls lap*.1 | wc -l)" = "$(wc -w <<<"lap $commands")"

# Variables of the environment that the documents tell of.
for variable in $(awk '/^\| variable/ { on = 1; next } !/^\|/ { on = 0 } on { split($0, cell, "|"); print cell[2] }' \
    "$LAP_SOURCE_DIR"/README.md "$LAP_SOURCE_DIR"/docs/*.md | grep -oE '[A-Z][A-Z_]+'); do
    ok "lap.1 tells of $variable" grep -q "^.fB.*$variable" lap.1
done
lap bench --help=html
is 'another format: status 2' "$status$out" 2
has '... and a sentence' "$err" "lap bench: --help is 'html'; expected text, man or words"
lap --help=man extra
is 'a word behind it: status 2' "$status $err" "2 lap: unexpected argument 'extra' after '--help=man'"
finish
