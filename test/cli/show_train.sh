#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap show train: the program of a pass as text, JSON and a picture, on any target; what it says agrees with lap check train.
. "$(dirname "$0")/tap.bash"
small=(--tp 2 --heads 4 --seq 16)

lap show train "${small[@]}"
is 'status 0, and nothing printed' "$status$err" 0
has 'a line for each fragment: part, layer, name, operator and method, regions, what it comes after' "$out" \
    'rank 0: 52 fragments (15 operators, 37 kernels)' 'forward       0  qkv_fprop               AG+GEMM ring' \
    'block0.norm_out, layer0.qkv.weight, layer0.qkv.bias -> block0.pre   [after 0]' \
    'backward      0  attention               attention_backward' 'layer0.fc2.weight.grad, layer0.fc2.bias.grad' \
    'block0.dx_part -> layer0.qkv.weight.grad, block0.dnorm'
is 'and no steps' "$(grep -c ' PUT ' "$work/out")" 0
has 'memory, and how long each activation lives' "$out" 'scratch of operators' 'symmetric buffer' \
    'block1.dy_full' '0 .. 26, for backward, which may be repeated'

lap show train "${small[@]}" --all-steps
has 'all steps, with regions for places, and why links are there' "$status $out" '0 ' \
    'PUT     block0.norm_out rows 0..15 -> symmetric buffer of rank 1 rows 0..15; raises data[0] of rank 1' \
    '[after fragment 0 step 0, which writes block0.norm_out]' 'which uses the symmetric buffer, or waits for a rank that does'
lap show train "${small[@]}" --layer layernorm_mlp --recompute selective --all-steps
has 'a link because memory is taken again names both regions' "$out" ', where '

# The same options: none of its own has the name of one of lap train.
for command in 'show train' 'check train'; do
    # shellcheck disable=SC2086
    lap $command --help
    is "lap $command: every option has one meaning" "$(grep -oE '^(      |  -[a-z], )--[a-z0-9-]+' "$work/out" | sort | uniq -d)" ''
done
lap show train "${small[@]}" --iters 3
iters=$out
lap show train "${small[@]}" --steps 3
is '--steps is the number of iterations, as of lap train' "$status $out" "0 $iters"

for target in cpu cuda nccl; do
    for options in '' '--recompute full --layers 2' '--fp8 --activation swiglu' '--no-sequence-parallel' '--no-comm-overlap'; do
        # shellcheck disable=SC2086
        lap show train "${small[@]}" $options --target $target --rank 1 --json
        cp "$work/out" "$work/show.json"
        # shellcheck disable=SC2086
        lap check train "${small[@]}" $options --target $target --json
        ok "$target $options: JSON that agrees with itself and with lap check train" python3 - "$work/show.json" "$work/out" <<'PY'
import json, sys
show, check = (json.load(open(path)) for path in sys.argv[1:])
fragments, lives = show["fragments"], show["lifetimes"]
assert [f["fragment"] for f in fragments] == list(range(check["launches"]))
assert sum(f["kernel"] is not None for f in fragments) == check["kernels"]
assert check["ok"] and show["repeated_launches"] == check["repeated_launches"] and show["rank"] == 1 and show["target"] == check["target"]
for f in fragments:
    steps = f["steps"]
    assert f["kernel"] is None or [s["kind"] for s in steps] == ["KERNEL"], f
    for link in f["links"]:
        before = fragments[link["after_fragment"]]["steps"][link["after_step"]]
        assert link["after_fragment"] < f["fragment"] and before["stream"] != steps[link["step"]]["stream"], link
        shared = link["why"].startswith("which reads scratch of an operator")  # and another operator takes it
        assert not shared or fragments[link["after_fragment"]]["kernel"] is f["kernel"] is None, link
        name = link["why"].split()[2].rstrip(",") if "symmetric" not in link["why"] and not shared else None
        if name:  # a region that the fragment before does use as it says
            source = fragments[link["after_fragment"]]
            assert name in (source["writes"] if " writes " in link["why"] else source["reads"] + source["writes"]), link
first = {}
for f in fragments:
    for name in f["reads"] + f["writes"]:
        first.setdefault(name, f["fragment"])
for life in lives:
    assert life["first"] <= life["last"] < len(fragments) and first[life["region"]] <= life["first"], life
    assert life["offset"] + life["bytes"] <= show["memory"]["activation_bytes"]
    for other in lives:  # those that live at the same time lie apart
        assert life is other or life["last"] < other["first"] or other["last"] < life["first"] or \
            life["offset"] + life["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= life["offset"], (life, other)
alive = [sum(l["bytes"] for l in lives if l["first"] <= f <= l["last"]) for f in range(len(fragments))]
memory = show["memory"]
assert memory["most_live_bytes"] == max(alive) == alive[memory["most_live_at"]] <= memory["activation_bytes"]
PY
    done
done

# Layers of 7.1M parameters each, whose norms are apart: their gradients come after `sums`, when backward ends.
buckets_of() { # GRID...: how many there are, and how many follow the sums of norms
    lap show train --layer transformer --layers 12 --hidden 768 --head-dim 64 --seq 16 "$@"
    awk '/ sums /{after = 1} / bucket [0-9]+ +external RS/{n++; late += after} END{print n + 0, late + 0}' "$work/out"
}
is 'replicas fill their buckets of 40M: two of matrices, one of norms' "$(buckets_of --tp 1 --dp 2 --bucket-size 40M)" '3 1'
is '... of 4M' "$(buckets_of --tp 1 --dp 2 --bucket-size 4M)" '19 1'
is '... and so do ranks that share weights' "$(buckets_of --tp 2 --dp 2 --bucket-size 20M)" '3 1'
is 'by layer: one of matrices and one of norms for each' "$(buckets_of --tp 1 --dp 2 --bucket-by layer)" '24 12'
is '... at most, where a size is given, too' "$(buckets_of --tp 1 --dp 2 --bucket-by layer --bucket-size 4M)" '36 12'

lap show train "${small[@]}" --num-replicas 2 --bucket-size 8K --grad-sync-dtype bf16 --rank 3 --json
ok 'with replicas: buckets of gradients, in a buffer and a group of their own' python3 - "$work/out" <<'PY'
import json, sys
show = json.load(open(sys.argv[1]))
buckets = [f for f in show["fragments"] if f["name"].startswith("bucket ")]
assert {f["name"] for f in buckets} >= {"bucket 0", "bucket 1"} and show["rank"] == 3
for f in show["fragments"]:
    assert f["buffer"] == (f in buckets) and f["group"] == ({"first": 1, "stride": 2, "size": 2} if f in buckets else
                                                            {"first": 2, "stride": 1, "size": 2}), f
    assert f["reads"] and f["writes"], f
kinds = [f["kernel"] or f["op"] for f in buckets[:4]]
assert kinds == ["cast", "external-rs", "external-ag", "cast"], kinds
PY
lap show train "${small[@]}" --num-replicas 2 --rank 4
has 'a rank that no replica has' "$status $err" '2 ' "expected a whole number from 0 to 3"

lap show train "${small[@]}" --target cuda --each
has 'each pass' "$status $out" '0 ' 'operators as built' 'after pass lanes' 'after pass graph'
lap show train "${small[@]}" --target cuda --after build --all-steps
is 'as built no signals are consumed' "$(grep -c CONSUME "$work/out")" 0
lap show train "${small[@]}" --target cuda --all-steps
ok 'lowered they are' grep -q CONSUME "$work/out"
has 'and passes are captured' "$out" 'a pass that is repeated: 1 launch of graphs'
has 'the step of the optimizer is shown' "$out" 'layer0.qkv.weight.grad -> squares' 'squares_r -> squares_ranks' 'gradients, rates, masters, first_moments, second_moments -> masters, first_moments, second_moments'

lap show train "${small[@]}" --layers 2 --svg "$work/pass.svg"
is 'a picture: status 0, and nothing printed' "$status$out$err" 0
ok 'a picture: XML with boxes, links and lifetimes' python3 - "$work/pass.svg" <<'PY'
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
titles = {kind: [e.find(svg + "title").text for e in root.iter() if e.get("class") == kind] for kind in ("box", "link", "life")}
assert any("fragment 1, send: 1 PUT, 1 RAISE, 1 WAIT" == t for t in titles["box"]), titles["box"][:9]
assert any("after fragment 0 step 0, which writes block0.norm_out" in t for t in titles["link"]), titles["link"][:9]
assert any(t.startswith("block3.norm_out: ") for t in titles["life"]), titles["life"]
width = float(root.get("width"))
assert all(float(r.get("x", 0)) + float(r.get("width")) <= width for r in root.iter(svg + "rect"))
PY

command=$(grep -o 'show train [^`]*--svg docs/pass.svg' "$LAP_SOURCE_DIR/docs/design.md")
# shellcheck disable=SC2086
lap ${command/docs\/pass.svg/$work\/doc.svg}
ok 'the picture of the documents is what the command draws' cmp "$work/doc.svg" "$LAP_SOURCE_DIR/docs/pass.svg"

# A pipeline: its program goes on with the step of the optimizer, as that which lap check train proves.
for options in '--tp 2' '--num-replicas 2' '--num-replicas 2 --no-overlap-grad-sync' '--num-replicas 2 --distributed-optimizer' \
    '--num-replicas 2 --distributed-optimizer --no-overlap-param-sync' '--cp 2 --no-comm-overlap'; do
    pipeline="--model gpt --layers 2 --pp 2 --heads 4 --seq 16 --hidden 32 --micro-batches 2 --bucket-size 8K $options"
    [[ $options == *--tp* ]] && pipeline=${pipeline/--bucket-size 8K /}
    [[ $options == *--tp* ]] || pipeline="$pipeline --tp 1"
    : >"$work/shows.json"
    for rank in 0 1 2 3; do
        # shellcheck disable=SC2086
        lap show train $pipeline --rank $rank --json
        cat "$work/out" >>"$work/shows.json"
    done
    # shellcheck disable=SC2086
    lap check train $pipeline --json
    ok "pipeline $options: the step is shown, and all agrees with lap check train" python3 - "$work/shows.json" "$work/out" "$options" <<'PY'
import json, sys
shows = [json.loads(line) for line in open(sys.argv[1])]
check, options = json.load(open(sys.argv[2])), sys.argv[3]
assert len({s["rank"] for s in shows}) == 4
assert max(len(s["fragments"]) for s in shows) == check["launches"]
assert max(sum(f["kernel"] is not None for f in s["fragments"]) for s in shows) == check["kernels"]
for s in shows:
    kernels = [(f["part"], f["kernel"]) for f in s["fragments"]]
    assert ("step", "sum_squares") in kernels and ("step", "clip") in kernels and ("step", "update") in kernels, kernels
    late = [f["name"] for f in s["fragments"][[f["kernel"] for f in s["fragments"]].index("clip"):]]
    assert any(name.startswith("weights ") for name in late) == ("--no-overlap-param-sync" in options), late
    assert s["memory"]["optimizer_bytes"] == check["optimizer_bytes"] > 0
    assert s["memory"]["bucket_bytes"] == check["bucket_bytes"]
PY
done
# shellcheck disable=SC2086
lap show train $pipeline --svg "$work/pipeline.svg"
is 'a picture of it: status 0, and nothing said' "$status$out$err" 0
ok '... has the step of the optimizer' grep -q '>update</tspan>' "$work/pipeline.svg"
# shellcheck disable=SC2086
lap show train $pipeline
has '... and so has the text' "$status $out" '0 ' 'squares_r -> squares_ranks' ' rates, masters, first_moments, second_moments -> ' 'state of the optimizer'

# Prediction: ranks are started, and the times of the fragments agree with the order of the program.
for more in '' '--transport self' '--auto' '--rank 1'; do
    # shellcheck disable=SC2086
    lap show train "${small[@]}" --predict --json $more
    is "a prediction $more: status 0, one line" "$status$err $(wc -l <"$work/out")" '0 1'
    ok '... fragments run in the order of streams and links' python3 - "$work/out" <<'PY'
import json, sys
show = json.load(open(sys.argv[1]))
fragments = show["fragments"]
kernels = [f for f in fragments if f["kernel"]]
assert len(fragments) == 27 and all(0 <= f["begin_ms"] <= f["end_ms"] <= show["predicted_ms"] for f in fragments)
for before, after in zip(kernels, kernels[1:]):  # all on the compute stream
    assert before["end_ms"] <= after["begin_ms"] + 1e-6, (before["name"], after["name"])
for f in kernels:
    for link in f["links"]:
        assert fragments[link["after_fragment"]]["begin_ms"] <= f["begin_ms"]
PY
done
lap show train "${small[@]}" --predict
has 'as text' "$status $out" '0 ' 'begin ms' 'as they run here' 'predicted: ' ' to begin and end the call'
# shellcheck disable=SC2086
predict_grid() { lap show train --heads 4 --seq 16 --hidden 32 $grid --predict --transport self --json; }
# Predicted is the end of the rank that is the last with all but what runs in the background for replicas, and a call, which no
# fragment has. So this rank ends no later than that without the call.
ends_with_step() {
    python3 - "$work/out" "$grid" <<'PY'
import json, sys
show, grid = json.load(open(sys.argv[1])), sys.argv[2]
fragments = show["fragments"]
background = ("bucket", "tied") if "replicas" in grid or "--cp" in grid else ()
assert show["predicted_ms"] > 0 and all(0 <= f["begin_ms"] <= f["end_ms"] for f in fragments), show["predicted_ms"]
end = show["predicted_ms"] - show["call_ms"] + 2e-5 * show["predicted_ms"]  # six digits are printed
late = [f for f in fragments if f["end_ms"] > end and not f["name"].startswith(background)]
assert show["call_ms"] > 0 and not late, (late[0]["name"], late[0]["end_ms"], end)
PY
}
# Another rank may end later, as much later as its kernels were measured to take.
ends_late() {
    python3 - "$work/out" <<'PY'
import json, sys
show = json.load(open(sys.argv[1]))
last = max(f["end_ms"] for f in show["fragments"])
assert last >= 0.5 * (show["predicted_ms"] - show["call_ms"]), (last, show["predicted_ms"], show["call_ms"])
PY
}
for grid in '--tp 2 --num-replicas 2 --bucket-size 8K --rank 3' '--model gpt --layers 2 --tp 1 --cp 2 --rank 1' \
    '--model gpt --layers 2 --tp 1 --pp 2 --micro-batches 2 --rank 1' '--model gpt --layers 2 --tp 1 --pp 2 --num-replicas 2 --micro-batches 2 --rank 2'; do
    ok_in_three "a prediction of $grid: the rank is at work to the end" predict_grid ends_late
    is '... status 0, one line' "$status$err $(wc -l <"$work/out")" '0 1'
    ok '... the step ends no earlier than this rank' ends_with_step
    ok '... of all fragments of that rank, with buckets and messages' python3 - "$work/out" "$grid" <<'PY'
import json, sys
show, grid = json.load(open(sys.argv[1])), sys.argv[2]
fragments = show["fragments"]
for before, after in zip(*(lambda k: (k, k[1:]))([f for f in fragments if f["kernel"] and "bucket" not in f["name"]])):
    assert before["end_ms"] <= after["begin_ms"] + 1e-6, (before["name"], after["name"])
buckets = [f for f in fragments if "bucket" in f["name"]]
assert bool(buckets) == ("replicas" in grid or "--cp" in grid), len(buckets)
assert any(f["op"] and f["method"] == "p2p" for f in fragments) == ("--pp" in grid)
PY
done
for wrong in '--target cuda' '--each' '--svg x'; do
    # shellcheck disable=SC2086
    lap show train "${small[@]}" --predict $wrong
    has "no prediction with $wrong" "$status $err" '2 ' '--predict is for'
done

# On GPUs of a description nothing is started or measured.
for grid in '--tp 2 --heads 4 --seq 16' '--model gpt --tp 1 --cp 2 --pp 2 --dp 2 --micro-batches 4 --schedule zb-h1 --distributed-optimizer --rank 3'; do
    # shellcheck disable=SC2086
    lap show train $grid --target cuda --predict=h100-sxm --json
    is "$grid: simulated GPUs" "$status$err" 0
    cp "$work/out" "$work/h100.json"
    # shellcheck disable=SC2086
    lap show train $grid --target nccl --predict=h100-sxm --json
    ok '... until the last fragment has ended' python3 - "$work/h100.json" "$work/out" <<'PY'
import json, sys
for path in sys.argv[1:]:
    show = json.load(open(path))
    assert 0.01 < show["predicted_ms"] < 100 and show["fragments"], show["predicted_ms"]
    assert all(0 <= f["begin_ms"] < f["end_ms"] <= show["predicted_ms"] for f in show["fragments"])
    assert all(f["steps"] for f in show["fragments"])
PY
    # shellcheck disable=SC2086
    lap show train $grid --target cuda --predict=h100-sxm --json
    is '... the same twice' "$(sed 's/"host".*//' "$work/out")" "$(sed 's/"host".*//' "$work/h100.json")"
done
for wrong in '=h100-sxm;is for GPUs: expected --target cuda or nccl' '=h10 --target cuda;did you mean h100-sxm?' \
    '=h100-sxm --target cuda --each;expected no --after or --each' '=a100-sxm --target cuda --fp8;A100 SXM 80GB multiplies no float8_e4m3'; do
    # shellcheck disable=SC2086
    lap show train "${small[@]}" --predict${wrong%%;*}
    has "--predict${wrong%%;*} is refused" "$status $err" '2 ' "${wrong#*;}"
done

# The squares of gradients that are complete first come first, those of norms and of the first layer last.
lap show train --layers 2 --tp 1
is 'squares in the order in which backward completes gradients' \
    "$(sed -nE 's/.* (layer[01])\.(fc2|qkv)\.weight +sum_squares .*/\1.\2/p' <<<"$out" | paste -sd,)" \
    'layer1.fc2,layer1.qkv,layer0.fc2,layer0.qkv'

# Help, and the options of lap train with messages of this command.
lap show train --help
has 'help: options of lap train, and its own' "$status $out" '0 ' --tp --recompute --steps --after 'Usage: lap show train'
lap show train --help=man
has 'a page of the manual' "$status $out" '0 ' 'LAP-SHOW-TRAIN' '\-\-steps' '\-\-mlp\-expansion\-factor'
lap show train --tp 0
has 'an option of lap train that is wrong' "$status $err" '2 lap show train: ' "--tp is '0'"
lap check train --heads 3 --tp 2
has '... also for lap check train' "$status $err" '2 lap check train: '
lap show train "${small[@]}" --rank 2
has 'a rank that there is not' "$status $err" '2 ' "--rank is '2'; expected a whole number from 0 to 1"
lap show train "${small[@]}" --target gpu
has 'a target that there is not' "$status $err" '2 ' "--target is 'gpu'"
lap show train "${small[@]}" --each --json
has 'forms that exclude each other' "$status $err" '2 ' '--each prints text'
lap show train "${small[@]}" --svg /nowhere/x.svg
has 'a picture that cannot be written' "$status $err" '1 ' /nowhere/x.svg
# Keys of a context have streams of their own, but for a GPU, whose streams may share queues.
for target in cpu cuda; do
    lap show train --model gpt --layers 2 --hidden 48 --vocab 96 --seq 16 --heads 12 --head-dim 4 --tp 2 --cp 2 --target $target --json
    seconds=$(grep -oE '"stream":"(send2|receive2)"' "$work/out" | sort -u | wc -l)
    is "--target $target: so many streams are those of keys" "$status:$seconds" "0:$([ $target = cpu ] && echo 2 || echo 0)"
done
finish
