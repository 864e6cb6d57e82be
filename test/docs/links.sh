#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every link of the pages to a file of the tree leads to one, and to a heading that it has if it names one; files that they name are there.
# The index of docs/ has every page.
. "$(dirname "$0")/../cli/tap.bash"

# headings FILE: as the anchors that they get: lower case, spaces as hyphens, no other punctuation.
headings() {
    sed -n '/^```/,/^```/d; s/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# leads FILE LINK
leads() {
    local target=${2%%#*} anchor=
    case $2 in *'#'*) anchor=${2#*#} ;; esac
    target=$(dirname "$1")/$target
    [ "${2:0:1}" = '#' ] && target=$1
    test -e "$target" && { test -z "$anchor" || headings "$target" | grep -qx -- "$anchor"; }
}

cd "$LAP_SOURCE_DIR" || exit 1
links=0
for page in *.md docs/*.md scripts/mutants/*.md; do
    while IFS= read -r link; do
        case $link in http*) continue ;; esac
        links=$((links + 1))
        ok "$page: $link" leads "$page" "$link"
    done < <(sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//' | sort -u)
done
ok "there are links: $links" test "$links" -ge 20
# Files that pages name in passing: `src/...`, `cli/...` and so on.
named=0
while IFS= read -r path; do
    named=$((named + 1))
    ok "there is $path" test -e "$path"
done < <(cat ./*.md docs/*.md | grep -oE '`(src|cli|test|bench|scripts|include|examples)/[A-Za-z0-9_./]+`' | tr -d '`' | grep -v 'NAME' | sort -u)
ok "pages name files: $named" test "$named" -ge 20
for page in docs/*.md; do
    [ "$page" = docs/README.md ] && continue
    ok "docs/README.md names $page" grep -qF "](${page#docs/})" docs/README.md
done
finish
