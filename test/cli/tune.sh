#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap tune`: lap train reads the file that it writes; the file has the fastest rules of those timed at the end; a search that was
# interrupted goes on where it was; what was found is in the cache, where lap train finds it.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
cache=$XDG_CACHE_HOME/lap # none of these folders is there yet
layer='--tp 2 --heads 2 --head-dim 8 --seq 16 --no-predict'
mlp="--layer layernorm_mlp $layer"

# shellcheck disable=SC2086
{
    lap tune -o "$work/rules.yaml" ${layer% *} --rounds 3 --json
    is 'a search ends well, and says nothing on standard error' "$status$err" 0
    verdict=$(python3 - "$work/out" 2>&1 <<'END'
import json, sys
end = json.load(open(sys.argv[1]))
times = {way: end[way + "_ms"] for way in ("tuned", "defaults", "auto", "serial")}
assert times[end["written"]] <= min(times.values()) * 1.0102, (end["written"], times)
units = ["qkv_fprop", "proj_fprop", "fc1_fprop", "fc2_fprop", "fc2_dgrad", "fc1_dgrad, fc1_wgrad", "proj_dgrad",
         "qkv_dgrad, qkv_wgrad"]
assert list(end["gemms"]) == units, list(end["gemms"])
assert all(unit["ratio"] < 1 for unit in end["gemms"].values() if unit["changed"]), end["gemms"]
assert all((unit["ratio"] is None) == (end["written"] != "tuned") for unit in end["gemms"].values()), end
END
)
    is 'the file has the fastest rules of the end, and what was changed was faster' "$verdict" ''
    lap tune -o "$work/again.yaml" ${layer% *} --rounds 3
    is 'the table has what was timed with the rules of the file, and with no others' "$status $(grep -c 'the layer with it' <<<"$out")" \
        "0 $(grep -c ' has the tuned rules$' <<<"$out")"
    is 'it has all GEMMs that communicate' "$(grep -c '_fprop:$\|_dgrad:$' "$work/rules.yaml")" 8
    ok '... and nothing is left of what was found so far' test ! -e "$work/rules.yaml.part"
    lap train $layer --iters 1 --quiet --tp-comm-overlap-cfg "$work/rules.yaml"
    is 'lap train reads it, and finds nothing in it that has no effect' "$status$err" 0

    # 25 rounds: who was slower in 7 has lost. Of methods that are equally fast that is so after some 14; luck may keep them in for
    # longer.
    search_early() { lap tune -o "$work/early.yaml" $mlp --rounds 25 --no-cache --json; }
    is_short() {
        python3 - "$work/out" <<'END'
import json, sys
end = json.load(open(sys.argv[1]))
assert end["timed"] + end["same"] == 21 and end["left_out"] == 0, end
assert end["timed"] > 10 and 7 * 2 * end["timed"] < end["passes"] < 0.9 * 25 * 2 * end["timed"], end
END
    }
    ok_in_three 'a method that cannot win any more is not timed to the end' search_early is_short

    # A search that begins with auto and has found nothing better for any GEMM: only its end is left. Over this link auto takes
    # methods that rules can name. Where the end finds other rules faster, nothing is seen: then once more.
    "$LAP" tune -o "$work/settled.yaml" ${layer% *} --auto --link 5MB/s --rounds 200 --no-cache >"$work/out" 2>&1 &
    pid=$!
    until_true test -s "$work/settled.yaml.part"
    kill -TERM $pid
    wait $pid
    sed -i '/^choice [0-7]/d; /^begun/d; s/^rounds 200$/rounds 3/' "$work/settled.yaml.part"
    for unit in 0 1 2 3 4 5 6 7; do echo "choice $unit -1 1 1 1 " >>"$work/settled.yaml.part"; done
    cp "$work/settled.yaml.part" "$work/decided"
    for attempt in 1 2 3 4 5 6 7 8; do
        cp "$work/decided" "$work/settled.yaml.part"
        lap tune -o "$work/settled.yaml" ${layer% *} --auto --link 5MB/s --rounds 3 --no-cache
        grep -q 'has the tuned rules' <<<"$out" && break
    done
    is 'a search of which only the end is left' "$status $(grep -o '^[0-9]* timed' <<<"$out")" '0 0 timed'
    ok 'what auto has chosen is written, and not auto, which may choose otherwise' \
        test "$(grep -c 'method: auto' "$work/settled.yaml")" -le 3

    lap tune -o "$work/mlp.yaml" $mlp --rounds 3 --quiet
    is 'an MLP is tuned' "$status$err" 0
    is 'the cache has both, and nobody else can enter it' "$(ls "$cache" | wc -l) $(stat -c %a "$cache")" '2 700'
    is '... and its file names no GEMM of attention' "$(grep -c '^qkv\|^proj' "$work/mlp.yaml")" 0

    "$LAP" tune -o "$work/long.yaml" $mlp --rounds 200 >"$work/out" 2>&1 &
    pid=$!
    until_true test -s "$work/long.yaml.part"
    kill -TERM $pid # bash ignores SIGINT in the background
    wait $pid
    is 'a search that is interrupted says so' $? 143
    found=$(grep -c '^choice' "$work/long.yaml.part")
    ok '... and keeps what it has found' test $found -ge 1
    ok '... and the file is not there yet' test ! -e "$work/long.yaml"
    "$LAP" tune -o "$work/longer.yaml" $mlp --rounds 1000 --no-cache >"$work/out" 2>&1 &
    pid=$!
    sleep 0.5
    kill -TERM $pid
    wait $pid
    is '... also within the rounds of a comparison, without being killed' "$? $(grep -c killed "$work/out")" '143 0'
    sed -i 's/rounds 200$/rounds 3/' "$work/long.yaml.part"
    sed 's/^seq: 16/seq: 17/' "$work/long.yaml.part" >"$work/other.yaml.part"
    # As if it had been interrupted within the first GEMM, fc1_fprop, after three of its five methods.
    sed '/^choice [0-7]/d; /^begun/d' "$work/long.yaml.part" >"$work/within.yaml.part"
    cp "$work/within.yaml.part" "$work/begun"
    echo 'begun 3 2 1 0.5 0.5 0.5 serial' >>"$work/within.yaml.part"
    lap tune -o "$work/long.yaml" $mlp --rounds 3 --no-cache
    is 'the same command goes on, and says so' "$status $err" "0 lap tune: goes on after $found decision$([ "$found" = 1 ] || echo s): $work/long.yaml.part"
    ok '... until the file is there' test -s "$work/long.yaml" -a ! -e "$work/long.yaml.part"
    lap tune -o "$work/within.yaml" $mlp --rounds 3 --no-cache
    is '... also within a GEMM' "$status $err" "0 lap tune: goes on after 1 decision: $work/within.yaml.part"
    is '... whose methods are not tried again' \
        "$(sed -n 's/^\([0-9]*\) timed in .* \([0-9]*\) where auto .*/\1 \2/p' <<<"$out" | awk '{ print $1 + $2 }')" 19 # and 21 of all
    lap tune -o "$work/other.yaml" $mlp --rounds 3 --no-cache
    anew="lap tune: $work/other.yaml.part is of a search with other options, or damaged: the search begins anew, and replaces it"
    is 'what was found for another layer is not taken, and the user is told' "$status $err" "0 $anew"
    lap tune -o "$work/mlp.yaml" $mlp --rounds 3 --quiet
    is 'a search whose end the cache has' "$status$err" 0
    cp "$work/begun" "$work/mlp.yaml.part"
    lap tune -o "$work/mlp.yaml" $mlp --rounds 3 --quiet
    is '... removes what it has found so far itself without a word' "$status$err $(ls "$work"/mlp.yaml*)" "0 $work/mlp.yaml"
    sed 's/^seq: 16/seq: 17/' "$work/begun" >"$work/mlp.yaml.part"
    lap tune -o "$work/mlp.yaml" $mlp --rounds 3 --quiet
    is '... but says that it removes what another one has' "$status $err $(ls "$work"/mlp.yaml*)" "0 lap tune: $work/mlp.yaml.part is of \
a search with other options, or damaged: the cache has the end of this search, and it is removed $work/mlp.yaml"
    # Methods that fc1_fprop does not have: one that won, one that is the next, and one that the search began with.
    for line in 'begun 3 2 11 0.5 0.5 0.5 serial' 'begun 12 2 1 0.5 0.5 0.5 serial' 'choice 2 11 0.5 0.5 0.5 serial' 'choice 8 1 0 0 0 '; do
        { cat "$work/begun" && echo "$line"; } >"$work/other.yaml.part"
        lap tune -o "$work/other.yaml" $mlp --rounds 3 --no-cache
        is "... nor what is damaged: $line" "$status $err" "0 $anew"
    done
}

# What the cache has. The rules of the file are given to the cache by hand where they are all serial, as they may be here:
# what differs from the defaults of each method shows that it was read.
shown() { "$LAP" show train $layer --json "$@" 2>&1 | sed 's/"date":[^}]*//'; }
# entry FILE [SED]: writes an entry of the cache anew, edited, with its checksum.
entry() {
    python3 - "$@" <<'END'
import re, sys
path, edits = sys.argv[1], sys.argv[2:]
text = open(path).read().split("checksum ")[0]
for edit in edits:
    a, b = edit.split("=>")
    assert re.search(a, text, re.M), a
    text = re.sub(a, b, text, flags=re.M)
digest = 0xcbf29ce484222325
for byte in text.encode():
    digest = (digest ^ byte) * 0x100000001b3 % 2**64
open(path, "w").write("%schecksum %016x\n" % (text, digest))
END
}
# shellcheck disable=SC2086
{
    first=$(grep -l '^kind: transformer' "$cache"/*)
    lap tune -o "$work/again.yaml" ${layer% *} --rounds 3 --json
    has 'the same search is not made again' "$status $out" '0 ' '"cached":true'
    ok '... and writes the same file' cmp "$work/rules.yaml" "$work/again.yaml"
    # Rules of all kinds, as another machine may find them.
    entry "$first" '^end .=>end 0' '^choice .*\n=>' '^rounds=>choice 0 3 0.9 0.9 0.9 serial\nrounds' \
        '^rule 0 .*=>rule 0 1 0 1 1 0 2 1 0 1 1 -5 0 0' '^rule 3 .*=>rule 3 2 1 16 2 1 2 0 0 1 0 -5 0 0' \
        '^rule 7 .*=>rule 7 2 1 16 2 1 2 0 0 1 0 -5 0 0' '^rule 1 .*=>rule 1 0 0 1 1 0 2 0 0 1 1 -5 0 0' \
        '^rule 2 .*=>rule 2 0 1 16 2 1 4 0 0 1 0 -5 0 0' \
        '^rule 9 .*=>rule 9 2 1 8 2 1 4 0 1 1 0 -5 0 0' '^rule 10 .*=>rule 10 5 0 1 1 0 2 0 0 1 1 -5 0 0'
    for u in 1 2 3 4 5 6 7 8; do entry "$first" "^rounds=>choice $u -1 1 1 1 \nrounds"; done
    lap tune -o "$work/mixed.yaml" ${layer% *} --rounds 3
    has 'it is printed where the results are from' "$status $out" '0 ' 'From the cache: measured on 20' 'mixed.yaml has the tuned rules'
    has '... which says what NeMo makes of serial' "$(<"$work/mixed.yaml")" 'NeMo and Megatron do not know the methods serial and auto'
    is 'the file gives the same passes as the rules that were found' "$(shown --tp-comm-overlap-cfg "$work/mixed.yaml")" "$(shown --auto)"
    ok '... which are not those of auto without the cache' test "$(shown --auto)" != "$(shown --auto --no-cache)"
    ok '... nor those of other layers' test "$(shown --auto --heads 4)" = "$(shown --auto --no-cache --heads 4)"
    # The century that rules are of, and the methods.
    methods() {
        sed 's/^\[0\] //' | python3 -c 'import json, sys
end = json.load(sys.stdin)
print(end["tuned"] and end["tuned"][:2], *[gemm["method"] for gemm in end["gemms"]])'
    }
    lap train $layer --iters 1 --json
    is 'lap train uses them' "$(methods <<<"$out" | cut -d' ' -f1-5)" '20 ring serial serial pipeline'
    lap train $layer --iters 1 --auto --json --num-replicas 2 --global-batch 4 --seed 5 --layers 2
    is '... also in more layers, with replicas' "$status$err $(methods <<<"$out" | cut -d' ' -f1-5)" '0 20 ring serial serial pipeline'
    lap train $layer --iters 1 --auto --json --disable-tp-comm-overlap-rs
    is '... with the switches that are given' "$(methods <<<"$out" | cut -d' ' -f1-5)" '20 ring serial serial serial'
    lap train $layer --iters 1 --auto --json --no-cache
    is '... and not with --no-cache' "$status $(methods <<<"$out" | cut -d' ' -f1)" '0 None'
    lap run -n 2 env XDG_CACHE_HOME="$work/nothing" "$LAP" train $layer --iters 1 --auto --json
    is 'rank 0 looks' "$status $(methods <<<"$out" | cut -d' ' -f1)" '0 None'
    lap run -n 2 sh -c '[ "$LAP_RANK" = 0 ] || export XDG_CACHE_HOME=/nowhere; exec "$@"' sh "$LAP" train $layer --iters 1 --auto --json
    is '... for all ranks' "$status $(methods <<<"$out" | cut -d' ' -f1-5)" '0 20 ring serial serial pipeline'

    # Damage.
    cp "$first" "$work/whole"
    for damage in 's/^rule 3 2/rule 3 1/' '$d' 's/^seq: 16/seq: 17/' 's/.*//'; do
        sed -i "$damage" "$first"
        lap train $layer --iters 1 --auto --json
        has "damaged by $damage: named, and ignored" "$status $(methods <<<"$out" | cut -d' ' -f1) $err" '0 None' \
            "lap train: $first is damaged and was ignored: its checksum is missing or wrong; lap tune writes it anew"
        cp "$work/whole" "$first"
    done
    entry "$first" '^rule 3 2=>rule 3 4'
    lap train $layer --iters 1 --auto --json
    has 'rules that make no sense, with a checksum' "$status $err" '0 ' 'is damaged and was ignored: it is not what its name says'
    : >"$first"
    lap train $layer --iters 1 --auto --json
    has 'an empty file' "$status $err" '0 ' 'is damaged and was ignored: it has 0 bytes, expected 1 to 65535'
    rm "$first" && mkdir "$first"
    lap tune -o "$work/unstored.yaml" ${layer% *} --rounds 3 --quiet
    is 'a file of the cache that cannot be read or written is named as the user knows it' "$status $err" \
        "0 lap tune: $first is damaged and was ignored: it is no regular file, or cannot be read; lap tune writes it anew
lap tune: the cache does not have the result: cannot write what was found $first: it is not a regular file"
    rmdir "$first" && : >"$first"
    chmod 755 "$cache"
    lap train $layer --iters 1 --auto --json
    has 'a cache that others can enter' "$status $err" '0 ' "the cache is not used: the directory '$cache' has mode 755, expected 700"
    chmod 700 "$cache"
    touch "$cache/mine"
    lap tune --clear-cache
    is 'the cache is emptied' "$status $out$err" "0 2 results removed from $cache"
    is '... of what is ours' "$(ls "$cache")" mine
    XDG_CACHE_HOME=relative HOME=$work/elsewhere lap tune --clear-cache
    is 'a relative XDG_CACHE_HOME counts for nothing' "$status $out" "0 0 results removed from $work/elsewhere/.cache/lap"
    lap train $layer --no-cache --auto=no
    is '--no-cache without --auto' "$status ${err%%$'\n'*}" '2 lap train: --no-cache is for what --auto uses; expected --auto with it'
}

# refused SENTENCE ARGUMENT...
refused() {
    local sentence=$1
    shift
    lap tune "$@"
    is "refused: $*" "$status ${err%%$'\n'*}" "2 lap tune: $sentence"
}

# Heads that ranks cannot share: others of the same width are tuned.
lap tune -o "$work/heads.yaml" --layer attention --tp 2 --hidden 60 --heads 5 --seq 4 --rounds 3 --no-predict --no-cache --json
note='2 ranks cannot share 5 heads: the GEMMs are tuned with 4 heads of 15 features, which have the same sizes; lap train needs --tp 5 or --heads 4, too'
is 'heads that do not divide are said once' "$status $err" "0 lap tune: $note"
has '... with --json' "$out" '"heads":4,"heads_given":5' "\"note\":\"$note\""
has '... and in the file' "$(<"$work/heads.yaml")" ', hidden 60, ' ', 4 heads, 4 of keys,' "# $note."
lap train --layer attention --tp 2 --hidden 60 --heads 4 --seq 4 --iters 1 --quiet --tp-comm-overlap-cfg "$work/heads.yaml"
is '... which lap train reads with such heads' "$status$err" 0
# Keys of 3 heads of 4 are 12 wide: 10 heads of 6 have 2 of that width in all; 12 heads of 5, which are nearer to 15, have none.
lap tune -o "$work/heads.yaml" --layer attention --tp 2 --hidden 60 --heads 15 --kv-heads 3 --seq 4 --rounds 3 --no-predict --no-cache --quiet
is '... those of keys keep their width, too' "$status$err $(grep -o '[0-9]* heads, [0-9]* of keys, seq' "$work/heads.yaml")" '0 10 heads, 2 of keys, seq'
refused '--heads is 5, expected a multiple of the 2 tensor-parallel ranks (--tp 5 would do)' -o "$work/x" --tp 2 --heads 5 --head-dim 7
only='expected 2 or more tensor-parallel ranks, and no others: they are what is tuned'
refused '--output is missing, expected the file to write' --tp 2
refused "--tp is 1 of 1 ranks, $only" -o "$work/x" --tp 1
refused "--tp is 2 of 4 ranks, $only" -o "$work/x" --tp 2 --num-replicas 2
refused '--save is for a training; expected lap train with it' -o "$work/x" --tp 2 --save "$work/saved"
refused '--trace is for a training; expected lap train with it' -o "$work/x" --tp 2 --trace "$work/x.json"
lap tune -o "$work/x" --tp 2 --rounds 2
has 'two rounds are too few' "$status $err" '2 ' "--rounds is '2'" '3 to 1000'
lap tune -o "$work/none/x.yaml" --tp 2
has 'a folder that is not there' "$err" "cannot write the rules $work/none/x.yaml: No such file or directory"
# shellcheck disable=SC2086
lap tune -o '' $layer
is 'an empty path, before anything is measured' "$status $err" '2 lap tune: the path is empty: expected the file to write'
finish
