#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lap data: files of tokens from text, what such files hold, and files that are none.
. "$(dirname "$0")/tap.bash"
cd "$work" || exit 1

printf 'abracadabra' >one.txt
printf '\000\377' >two.txt
lap data tokenize --bytes one.txt two.txt -o corpus.bin
is 'two texts: status 0' "$status$err" 0
is '... and what was written' "$out" 'corpus.bin: 13 tokens of a vocabulary of 256'
ok '... as llm.c has it' python3 - <<'PY'
import struct
data = open("corpus.bin", "rb").read()
assert struct.unpack("<256i", data[:1024]) == (20240520, 1, 13) + (0,) * 253
assert struct.unpack("<13H", data[1024:]) == tuple(b"abracadabra\x00\xff")
PY

lap data info corpus.bin
is 'info: status 0' "$status$err" 0
has '... kind, number and largest' "$out" 'corpus.bin: magic 20240520, version 1, uint16, 13 tokens, the largest 255'
# a 5, b 2, r 2, c 1, d 1, and two more once
want=$(python3 -c 'import math; print("%.6f" % -sum(n / 13 * math.log(n / 13) for n in (5, 2, 2, 1, 1, 1, 1)))')
has '... the entropy of the frequencies' "$out" "13 tokens, 7 distinct, unigram entropy $want nats"

# llm.c's other kind, and both together.
python3 - <<'PY'
import struct
open("llama.bin", "wb").write(struct.pack("<256i", 20240801, 7, 4, *[0] * 253) + struct.pack("<4I", 128255, 1, 1, 97))
open("huge.bin", "wb").write(struct.pack("<256i", 20240801, 7, 2, *[0] * 253) + struct.pack("<2I", 4294967295, 1))
open("empty.bin", "wb").write(struct.pack("<256i", 20240801, 7, 0, *[0] * 253))
PY
lap data info corpus.bin llama.bin --json
ok 'JSON of two files' python3 - "$work/out" <<'PY'
import json, math, sys
it = json.load(open(sys.argv[1]))
assert [f["tokens"] for f in it["files"]] == [13, 4] and it["tokens"] == 17 and it["distinct"] == 9, it
assert it["files"][1] == {"file": "llama.bin", "magic": 20240801, "version": 7, "bytes_per_token": 4, "tokens": 4, "largest": 128255}
assert abs(it["entropy"] + sum(n / 17 * math.log(n / 17) for n in (6, 2, 2, 2, 1, 1, 1, 1, 1))) < 1e-8, it
PY
lap data info huge.bin
has 'a token that no vocabulary has' "$status $out" '0 ' 'the largest 4294967295' '1 are not below 4194304: no entropy'
lap data info empty.bin --json
is 'a file without tokens' "$status $out" \
    '0 {"files":[{"file":"empty.bin","magic":20240801,"version":7,"bytes_per_token":4,"tokens":0,"largest":null}],"tokens":0,"distinct":null,"entropy":null}'
lap data info corpus.bin missing.bin --json
is 'JSON is printed when all files are read: one that is missing leaves none' "$status$out" '1'
has '... and is named' "$err" "cannot open 'missing.bin'"
cp corpus.bin $'\xe9t\xe9.bin'
lap data info $'\xe9t\xe9.bin' --json
ok 'JSON is UTF-8, also where a name is not' python3 - "$work/out" <<'PY'
import json, sys
assert json.load(open(sys.argv[1], encoding="utf-8"))["files"][0]["file"] == "\ufffdt\ufffd.bin"
PY
lap data tokenize --bytes -o '' two.txt
is 'an empty path' "$status $err" '2 lap data: the path is empty: expected the file to write'

# What is there stays.
lap data tokenize --bytes two.txt -o corpus.bin
has 'a file that is there is not overwritten' "$status $err" '2 ' "'corpus.bin' is there already; --force overwrites it"
lap data tokenize --bytes two.txt -o corpus.bin --force
is '... but by force' "$status $out" '0 corpus.bin: 2 tokens of a vocabulary of 256'
cp two.txt same.txt
lap data tokenize --bytes ./same.txt -o same.txt --force
has 'the text is not overwritten' "$status $err" '2 ' "'./same.txt' is the text and the output"
ok '... and is as it was' cmp -s two.txt same.txt
(ulimit -f 1 && "$LAP" data tokenize --bytes "$LAP" -o limited.bin) >"$work/out" 2>"$work/err"
is 'a file that may not grow: status 1' "$?" 1
has '... and a sentence' "$(cat "$work/err")" 'cannot write the tokens limited.bin' 'File too large'
is '... and nothing is left' "$(echo limited*)" 'limited*'
lap data tokenize --bytes two.txt none.txt -o corpus.bin --force
has 'a text that is not there' "$status $err" '1 ' "cannot open 'none.txt': No such file"
is '... the file stays as it was, and nothing lies next to it' "$(stat -c %s corpus.bin)$(ls ./*.tmp 2>/dev/null)" 1028
lap data tokenize --bytes /dev/null -o x.bin
is 'an empty text makes no tokens' "$status $err" "2 lap data: '/dev/null' has no bytes, expected a text: a token is made of each byte"
: >none.txt
lap data tokenize --bytes none.txt /dev/null -o x.bin
has '... nor do several' "$status $err" '2 ' "'none.txt' and the files after it have no bytes"
ok '... and nothing is left' test ! -e x.bin
lap data tokenize --bytes none.txt one.txt -o some.bin
is '... but one beside a text is none the worse' "$status $out" '0 some.bin: 11 tokens of a vocabulary of 256'
rm none.txt
lap data tokenize --bytes . -o x.bin
has 'a folder is no text' "$status $err" '1 ' "cannot read '.': Is a directory"
ok '... and makes no file' test ! -e x.bin
lap data tokenize --bytes one.txt -o /nowhere/x.bin
has 'a folder that is not there' "$status $err" '1 ' 'cannot write the tokens /nowhere/x.bin'
printf 'piped' | "$LAP" data tokenize --bytes /dev/stdin -o piped.bin >/dev/null
ok 'standard input by its name' test "$(stat -c %s piped.bin)" = 1034

# Bad files. More of them are in test/data.
head -c 1027 corpus.bin >cut.bin
lap data info corpus.bin cut.bin
has 'a file that was cut is named' "$status $err" '2 ' "'cut.bin' has 1027 bytes, expected 1028 for the 2 tokens" 'it was cut'
lap data info one.txt
has 'text is no file of tokens' "$status $err" '2 ' "'one.txt' is not a file of tokens" '11 bytes'
mkfifo pipe
lap data info pipe
has 'a FIFO is refused, not waited for' "$status $err" '2 ' "'pipe' is not a regular file"

# Bad lines.
lap data tokenise --bytes one.txt -o y.bin
has 'a word that it does not know' "$status $err" '2 ' "what to do is 'tokenise'; expected tokenize or info"
lap data tokenize one.txt -o y.bin
has 'no way of making tokens' "$status $err" '2 ' 'tokenize needs --bytes'
lap data tokenize --bytes one.txt
has 'no file to write' "$status $err" '2 ' 'tokenize needs -o FILE'
lap data info --force corpus.bin
has 'an option of the other' "$status $err" '2 ' '--force is for tokenize'
lap data tokenize --json --bytes one.txt -o y.bin
has 'and the other way' "$status $err" '2 ' '--json is for info'
lap data info
has 'no files' "$status $err" '2 ' 'info needs files; usage: lap data info FILE...'
lap data foo
is 'no such thing' "$status $err" "2 lap data: what to do is 'foo'; expected tokenize or info"
finish
