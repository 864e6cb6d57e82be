#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.py: what it asks for, and what it makes of the answers. lap and PyTorch are fakes; no GPU is needed.
. "$(dirname "$0")/tap.bash"
bench=${LAP_SOURCE_DIR:-$(dirname "$0")/../..}/bench/gpu.py
if ! command -v python3 >/dev/null; then
    echo '1..0 # SKIP there is no python3'
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1

# gpu ARGUMENTS...: runs it as lap() does in tap.bash.
gpu() {
    python3 "$bench" --json "$work/rows" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    out=$(cat "$work/out")
    err=$(cat "$work/err")
}

gpu --lap "$work/none"
is 'without lap: a sentence' "$status $err" "1 bench-gpu: there is no $work/none: build it with make"

# A lap that answers as the real one would, and notes what it was asked.
cat >"$work/lap" <<'END'
#!/bin/bash
echo "$*" >>"$FAKE_NOTES"
method() { echo "{\"method\":\"$1\",\"total_ms\":$2,\"ok\":${4:-true},\"picked\":$3}"; }
case $1 in
info)
    if [ "$FAKE_GPUS" = 0 ]; then
        echo '{"gpu":{"gpus":0,"why_none":"it is a fake"}}'
    else
        echo "{\"gpu\":{\"gpus\":1,\"gpu_0\":\"Fake GPU\",\"driver\":\"1.2\"$FAKE_NCCL}}"
    fi
    ;;
bench)
    test "$2 $FAKE_WRONG" = 'rs crash' && { echo 'lap bench: it broke' >&2; exit 3; }
    name=$([ "$2" = ag ] && echo ag_gemm || echo gemm_rs)
    if [[ "$*" == *'--transport nccl'* ]]; then
        test -n "$NCCL_MULTI_RANK_GPU_ENABLE" || exit 9
        case "$*" in # serial is always measured
        *cublasmp*) methods=$(method serial 9.9 null),$(method cublasmp 3.3 null),$(method cublasmp:algorithm=no_overlap 1.98 null) ;;
        *) methods=$(method serial 9.9 null),$(method ring 3.0 null) ;;
        esac
        printf '{"op":"%s","m":%d,"n":%d,"k":%d,"ranks":%d,"gemm_ms":2.0,"methods":[%s]}\n' "$name" "$3" "$4" "$5" "$9" "$methods"
        exit
    fi
    test "$FAKE_WRONG" = result && verdict=false
    printf '{"op":"%s","m":%d,"n":%d,"k":%d,"ranks":%d,"gemm_ms":2.0,"methods":[%s,%s,%s]}\n' "$name" "$3" "$4" "$5" "$9" \
        "$(method serial 3.0 null)" "$(method ring 2.5 null $verdict)" "$(method auto 2.2 '"ring"')"
    ;;
run)
    test -n "$MASTER_PORT" || exit 9
    for shape in "${@:8}"; do
        IFS=, read -r m n k <<<"$shape"
        figures="\"ranks\":$5,\"gemm_ms\":2.1,\"total_ms\":4.4,\"ratio\":2.0952"
        echo "{\"op\":\"ag_gemm\",\"m\":$m,\"n\":$n,\"k\":$k,$figures}"
        echo "{\"op\":\"gemm_rs\",\"m\":$m,\"n\":$k,\"k\":$n,${figures/4.4/1.1}}"
    done
    ;;
esac
END
chmod +x "$work/lap"
export FAKE_NOTES=$work/notes FAKE_GPUS=1 FAKE_WRONG= FAKE_NCCL=

FAKE_GPUS=0 gpu --lap "$work/lap"
is 'without a GPU: a sentence' "$status $err" '1 bench-gpu: there is no GPU to measure: it is a fake'
if ! python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    gpu --lap "$work/lap"
    is 'without PyTorch: a sentence' "$status $err" \
        '1 bench-gpu: PyTorch is not installed for this python3; --no-peer measures Lapstrake alone, --no-torch with cuBLASMp'
fi
mkdir "$work/python"
touch "$work/python/torch.py"
export PYTHONPATH=$work/python

: >"$FAKE_NOTES"
gpu --lap "$work/lap" --ranks 2,4 --shape 64,128,32 --shape 8,16,4 --peer peer.py
is 'status 0' "$status" 0
is 'PyTorch once for each number of ranks, then ours, and RS transposed' \
    "$(sed '1d; s/ -n \([24]\) .*python3[^ ]* / \1 /; s/ --device.*--ranks \([24]\).*/ P=\1/' "$FAKE_NOTES" | paste -sd,)" \
    "run --gpu-share --no-prefix 2 peer.py 64,128,32 8,16,4,\
bench ag 64 128 32 P=2,bench rs 64 32 128 P=2,bench ag 8 16 4 P=2,bench rs 8 4 16 P=2,\
run --gpu-share --no-prefix 4 peer.py 64,128,32 8,16,4,\
bench ag 64 128 32 P=4,bench rs 64 32 128 P=4,bench ag 8 16 4 P=4,bench rs 8 4 16 P=4"
has 'asks for bfloat16 on cuda, all methods and auto' "$(cat "$FAKE_NOTES")" \
    '--device cuda --ranks 2 --dtype bfloat16 --method all,auto --iters 10 --json'
is 'eight rows' "$(grep -cE '^(ag_gemm|gemm_rs) ' "$work/out")" 8
ok 'a row: GEMM, auto, methods, PyTorch, its time over ours' grep -qE \
    '^ag_gemm +64 +128 +32 +2 +2.000 +1.10 ring +1.50 +1.25 +- +- +- +- +2.10 +2.00$' "$work/out"
ok 'where PyTorch is faster there is a mark' grep -qE '^gemm_rs .* 0.50 !$' "$work/out"
has 'and a count' "$out" 'in 4 of 8 rows (!)'
has 'geometric means' "$out" 'ag_gemm  auto 1.100  PyTorch 2.095  PyTorch/auto 2.000' \
    'all      auto 1.100  PyTorch 2.095  PyTorch/auto 1.000'
ok 'the rows as JSON, one object per line' python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert len(rows) == 8 and rows[0]["op"] == "ag_gemm" and rows[0]["ranks"] == 2 and rows[1]["ranks"] == 4
assert rows[0]["picked"] == "ring" and abs(rows[0]["methods"]["ring"] - 1.25) < 1e-9
assert abs(rows[0]["torch_over_auto"] - 2) < 1e-9 and rows[0]["torch_gemm_ms"] == 2.1
' "$work/rows"

: >"$FAKE_NOTES"
gpu --lap "$work/lap" --ranks 2 --shape 8,16,4 --peer peer.py --from-torch
has 'called from PyTorch, too' "$(cat "$FAKE_NOTES")" 'bench/torch_ops.py 8,16,4'
ok '... which is a column' grep -qE '^ag_gemm .* 2.10 +2.00 +1.00$' "$work/out"
has '... that is explained' "$out" '/from PyTorch: its time over that of ours called from PyTorch.'

nccl=',"nccl":"yes: 2.32.3"' cublasmp=',"cublasmp":"yes: 0.10.0"'
: >"$FAKE_NOTES"
FAKE_NCCL=$nccl$cublasmp gpu --lap "$work/lap" --ranks 2 --shape 8,16,4 --no-torch
is 'where there are NCCL and cuBLASMp, our methods that copy run over it, then cuBLASMp' \
    "$status $(sed '1d; s/ --device.*--method / /; s/ --iters 10 --json//' "$FAKE_NOTES" | paste -sd';')" \
    "0 bench ag 8 16 4 all,auto;bench ag 8 16 4 ring,direct --transport nccl --no-trace;\
bench ag 8 16 4 cublasmp,cublasmp:algorithm=split_p2p,cublasmp:algorithm=no_overlap --transport nccl --no-trace;\
bench rs 8 4 16 all,auto;bench rs 8 4 16 ring,pipeline --transport nccl --no-trace;\
bench rs 8 4 16 cublasmp,cublasmp:algorithm=no_overlap --transport nccl --no-trace"
ok '... the best of its algorithms over auto, and the slowest of ours over cuda_ipc; faster than auto, it is marked' \
    grep -qE '^ag_gemm .* +- +- +0.90 +1.20 !$' "$work/out"
has '... and both are counted' "$out" 'auto is slower than cuBLASMp, by more than 2%, in 2 of 2 rows (!).' 'at most 1.20, above 1.15 in 2 of 2 rows'
ok '... rows have which algorithm that was' grep -q '"cublasmp_ms": 1.98, "cublasmp": "cublasmp:algorithm=no_overlap"' "$work/rows"
: >"$FAKE_NOTES"
FAKE_NCCL=$nccl$cublasmp gpu --lap "$work/lap" --ranks 2 --shape 8,16,4 --no-peer
is 'no peer: NCCL without cuBLASMp' "$status $(grep -c 'transport nccl' "$FAKE_NOTES") $(grep -c cublasmp "$FAKE_NOTES")" '0 2 0'
FAKE_NCCL=$nccl$cublasmp gpu --lap "$work/lap" --ranks 2 --shape 8,16,4 --no-torch --no-nccl
is 'no NCCL: neither' "$status $(grep -c 'NCCL\|cuBLASMp' "$work/out")" '0 0'

gpu --lap "$work/lap" --ranks 8 --shape 8,16,4 --no-peer --op rs --rounds 3
is 'alone, one operator, three rounds: one row' "$status $(grep -cE '^(ag_gemm|gemm_rs) ' "$work/out")" '0 1'
is '... and no count of rows in which PyTorch is faster' "$(grep -c 'slower than PyTorch' "$work/out")" 0
FAKE_WRONG=result gpu --lap "$work/lap" --ranks 2 --shape 8,16,4
has 'a wrong result is a failure' "$status $err" '1 ' 'FAILED: ag_gemm ring on 2 ranks gives wrong results'
FAKE_WRONG=crash gpu --lap "$work/lap" --ranks 2 --shape 8,16,4
has 'so is one that broke, and the others are shown' "$status $err $out" '1 ' \
    'bench rs 8 4 16 on 2 ranks: exit status 3: lap bench: it broke' 'ag_gemm'
gpu --lap "$work/lap" --shape 8x16
is 'a shape that is none' "$status ${err##*error: }" \
    "2 argument --shape: '8x16' is no shape such as 4096,49152,12288"
finish
