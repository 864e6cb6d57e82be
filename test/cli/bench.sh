#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lap bench` as a user sees it: what it prints, refuses, and leaves. The sizes are
# tiny: nothing here depends on how fast the machine is. The first argument, or LAP, is the path of
# the command.
# shellcheck disable=SC2016,SC2317 # checks are commands, some of them for eval
set -u
lap=${1:-${LAP:?the path of lap}}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB
checks=0 failures=0

# check TEXT COMMAND...: the command must succeed.
check() {
    local text=$1
    shift
    checks=$((checks + 1))
    if "$@"; then
        echo "ok $checks - $text"
    else
        echo "not ok $checks - $text"
        echo "# status: ${status:-}"
        sed 's/^/# out: /' "$folder/out"
        sed 's/^/# err: /' "$folder/err"
        failures=$((failures + 1))
    fi
}

# bench ARGS...: runs lap bench; its status and output are then in $status, $out and $err.
bench() {
    timeout 60 "$lap" bench "$@" >"$folder/out" 2>"$folder/err" </dev/null
    status=$?
    out=$(<"$folder/out")
    err=$(<"$folder/err")
}

has() { [[ $1 == *"$2"* ]]; }
matches() { [[ $1 =~ $2 ]]; }
lines() { [[ $(wc -l <"$folder/$1") -eq $2 ]]; }
status_is() { [[ $status -eq $1 ]]; }
# The row of the table with the star has the least time.
marks_fastest() {
    awk '/ ok$/ {
        split(substr($0, 3), row)
        if (!least || row[2] < least)
            least = row[2]
        if (/^\*/)
            marked = row[2]
    }
    END { exit !least || marked != least }' "$folder/out"
}

# refuse WORD... -- ARGS...: exit status 2, or $refusal, nothing on standard output, on standard error one line
# with all the words.
refuse() {
    local words=()
    while [[ $1 != -- ]]; do
        words+=("$1")
        shift
    done
    shift
    bench "$@"
    check "'lap bench $*' is refused" status_is "${refusal:-2}"
    check "... in one line" lines err 1
    check "... with nothing on standard output" lines out 0
    for word in "${words[@]}"; do
        check "... that says '$word'" has "$err" "$word"
    done
}

# The JSON that is promised, as expressions.
number='-?[0-9.]+(e[-+][0-9]+)?'
label='"[a-z_:=0-9]+"'
name='[a-z0-9_,-]+'
method="\{\"method\":$label,\"total_ms\":$number,\"ect_ms\":$number,"
method+="\"efficiency\":($number|null),\"max_err\":$number,\"ok\":(true|false),\"noise_pct\":($number|null),"
method+="\"predicted_ms\":($number|null),\"picked\":($label|null),\"efficiency_noise\":($number|null),"
method+="\"no_efficiency\":(\"[a-z ]+\"|null),\"noise_ms\":($number|null),\"ect_noise_ms\":($number|null),"
method+="\"error\":$number,\"tolerance\":$number,\"error_over_tolerance\":$number,\"tflops\":$number,"
traced="\"traced\":\{\"calls\":5,\"call\":[1-5],\"total_ms\":$number,\"comm_ms\":$number,\"hidden_ms\":$number,"
traced+="\"exposed_ms\":$number,\"waited_ms\":$number,\"waited_wire_ms\":$number,\"waited_late_ms\":$number,"
traced+="\"waited_core_ms\":$number,\"sent_bytes\":[0-9]+\}"
times="\[$number(,$number)*\]"
swept=$method"\"wire_gbps\":null,\"traced\":null,\"rounds_ms\":$times\}"
method+="\"wire_gbps\":$number,$traced,\"rounds_ms\":$times\}"
about="\"seed\":[0-9]+,\"cores\":[0-9]+,\"local_ranks\":[0-9]+,\"host\":\"[^\"]+\",\"cpu\":\"[^\"]+\",\"gpu\":null,"
about+="\"version\":\"[0-9.]+\",\"commit\":\"[^\"]+\",\"date\":\"20[0-9-]+T[0-9:]+Z\""
figures="\"gemm_ms\":$number,\"serial_ms\":$number,\"methods\":\[$method(,$method)*\],"
figures+="\"best\":$label,\"rounds\":[0-9]+,\"calls\":[0-9]+,\"rest_ms\":[0-9]+,\"gemm_noise_pct\":($number|null),"
figures+="\"gemm_rounds_ms\":$times,\"serial_rounds_ms\":$times,\"gemm_tflops\":$number,\"gemm_flops\":$number,"
figures+="\"trace\":null,\"timeline\":null,\"timeline_method\":null,$about"

# report OP M N K RANKS DEVICE TRANSPORT LINK [DTYPE]: the last run ended well, with one line of that form,
# all results right.
report() {
    local request="\"op\":\"$1\",\"m\":$2,\"n\":$3,\"k\":$4,\"dtype\":\"${9:-float32}\","
    request+="\"out_dtype\":\"$name\",\"wire_dtype\":\"$name\",\"layout\":\"$name\",\"epilogue\":\"$name\","
    request+="\"ranks\":$5,\"device\":\"$6\",\"transport\":\"$7\",\"link\":$8"
    check "$1 on $5 ranks ($6, $7) ends well" status_is 0
    check "... with one line" lines out 1
    check "... of the promised form" matches "$out" "^\{$request,$figures\}$"
    check "... and every result is right" eval '! has "$out" "\"ok\":false"'
}

bench --help
check "--help ends well" status_is 0
for word in "ag|rs|ar|bulk-ag|bulk-rs|external-ag|external-rs M N K" --dtype --out-dtype --wire-dtype --layout \
    --epilogue --ranks --rest --link --timeline --json latency demo sweep auto; do
    check "--help tells about $word" has "$out" "$word"
done

refuse banana serial ring direct fused -- ag 8 8 8 --method banana
refuse banana serial ring pipeline fused -- rs 8 8 8 --method ring,banana
refuse -5 M -- ag -5 8 8
refuse K 0 -- rs 8 8 0
refuse --ranks 0 -- ag 8 8 8 --ranks 0
refuse float99 float32 float16 bfloat16 float8_e4m3 float8_e5m2 -- ag 8 8 8 --dtype float99
refuse "--out-dtype" float99 -- ag 8 8 8 --out-dtype float99
refuse "--wire-dtype" float99 -- rs 8 8 8 --wire-dtype float99
refuse wire_dtype bfloat16 float32 -- ag 8 8 8 --wire-dtype bf16
refuse out_dtype float8_e4m3 -- ar 8 8 8 --out-dtype e4m3
refuse "--epilogue" relu bias gelu -- ag 8 8 8 --epilogue bias,relu
refuse "--epilogue" "not both" -- ag 8 8 8 --epilogue gelu,dgelu
refuse 'aggregate is a knob of no method of rs' -- rs 8 8 8 --method ring:aggregate
refuse '--method ring:num_sm=2: num_sm is for GPUs; expected --device cuda' -- rs 8 8 8 --method ring:num_sm=2
refuse 'num_sm is a knob of serial, ring, pipeline, pull, fused, oneshot' -- rs 8 8 8 --method auto:num_sm=2
refuse "num_sm of --method ring:num_sm=0 is '0'; expected a whole number from 1 to 1024" -- rs 8 8 8 --method ring:num_sm=0
refuse 'num_splits is a knob of pipeline, pull' -- rs 8 8 8 --method ring:num_splits=2
refuse 'gives num_splits twice' -- rs 8 8 8 --method pipeline:num_splits=4:num_splits=8
refuse '--epilogue is bias,gelu' 'none or bias-grad' -- bulk-rs 8 8 8 --epilogue gelu,bias
refuse '--epilogue is bias,gelu' 'none or bias-grad' -- external-rs 8 8 8 --epilogue gelu,bias
refuse "--layout" wgrad dgrad -- ag 8 8 8 --layout wgrad
refuse "--layout" bulk-ag -- bulk-ag 8 8 8 --layout dgrad
refuse "--epilogue" -- latency --epilogue bias
refuse "--rest" -- latency --rest 5
refuse "--rest" -1 60000 -- ag 8 8 8 --rest -1
refuse "latency has no option --calls" -- latency --calls 3
LAP_RANK=0 LAP_SIZE=1 refuse "--ranks is 3, but 1 rank was started" -- ag 8 8 8 --ranks 3
refuse pipeline serial direct -- bulk-rs 8 8 8 --method pipeline
refusal=1 refuse /proc/x.svg -- ag 8 8 8 --timeline /proc/x.svg
refusal=1 refuse "not a regular file" -- ag 8 8 8 --timeline /dev/null
refuse "standard output goes there" -- ag 8 8 8 --timeline /dev/stdout
refuse pipeline num_splits ring -- rs 8 8 8 --method ring:num_splits=4
refuse num_splits -- rs 8 8 8 --method pipeline:num_splits=0
refuse "ring twice" -- ag 8 8 8 --method ring,ring
refuse 3GHz -- ag 8 8 8 --link 3GHz
refuse "--link 1GB/s is for ranks that communicate" -- ag 8 8 8 --ranks 1 --link 1GB/s
refuse "--link ratio:0.4 is for ranks that communicate" -- demo --ranks 1 --link ratio:0.4
refuse "--num-sm 4 is for GPUs" -- ag 8 8 8 --num-sm 4
refuse gpu9 -- ag 8 8 8 --device gpu9
refuse "there is no device 'cpuu'; there are: cpu, ref" "; did you mean 'cpu'?" -- ag 8 8 8 --device cpuu
refuse "there is no transport 'sm'" "; did you mean 'shm'?" -- ag 8 8 8 --transport sm
refuse "--device" "''" -- ag 8 8 8 --device ''
refuse "--transport" "''" -- ag 8 8 8 --transport ''
refuse pigeon -- ag 8 8 8 --transport pigeon
LAP_DEVICE=gpu9 refuse LAP_DEVICE gpu9 -- ag 8 8 8
LAP_TRANSPORT=pigeon refuse LAP_TRANSPORT pigeon -- ag 8 8 8
LAP_RANK=0 LAP_SIZE=1 LAP_TRANSPORT=self refuse 'LAP_TRANSPORT=self runs its ranks as threads' -- ag 8 8 8
if ! "$lap" info | grep -q '  MPI .*not found'; then
    LAP_TRANSPORT=mpi refuse 'LAP_TRANSPORT=mpi needs ranks that mpirun started: mpirun -n 4 lap bench ...' -- ag 8 8 8
    refuse '--transport mpi needs ranks that mpirun started: mpirun -n 4 lap bench ... --transport mpi' -- \
        ag 8 8 8 --transport mpi
fi
LAP_RANK=2 LAP_SIZE=2 LAP_JOB=x refuse LAP_RANK "'2'" 'from 0 to 1' -- ag 8 8 8
refuse 'a whole number' -- ag 8 8 8 --seed 2K
for option in --timeline --trace; do
    refusal=1 refuse "$option: cannot write the ${option#--} $folder/none/x.svg: No such" -- ag 8 8 8 $option "$folder/none/x.svg"
done
refuse --timeline-method fused -- ag 8 8 8 --method ring --timeline "$folder/x.svg" \
    --timeline-method fused
refuse "GiB" -- ag 1000000000 1000000000 1000000000
refuse "three sizes" -- ag 8 8
refuse everything -- everything 8 8 8
refuse "--method" -- latency --method ring
refuse "auto twice" -- ag 8 8 8 --method auto,auto
refuse block_rows fused auto -- rs 8 8 8 --method auto:block_rows=4
refuse "--m" sweep -- sweep ag --n 8 --k 8
refuse "--k" sweep -- sweep rs --n 8 --m 1:8
refuse "FROM:TO" 64:8 -- sweep ag --m 64:8 --n 8 --k 8
refuse banana -- sweep banana --m 1:8 --n 8 --k 8
refuse "such as ag" -- sweep --m 1:8 --n 8 --k 8
refuse "--timeline" sweep -- sweep ag --m 1:8 --n 8 --k 8 --timeline "$folder/x.svg"
refuse "no option --m" -- ag 8 8 8 --m 1:8

LAP_DEVICE=ref LAP_TRANSPORT=self bench ag 16 12 8 --ranks 2 --iters 1 --json
report ag_gemm 16 12 8 2 ref self null
for op in ag rs; do
    kind=$([[ $op == ag ]] && echo ag_gemm || echo gemm_rs)
    methods=$([[ $op == ag ]] && echo serial ring direct fused || echo serial ring pipeline fused)
    bench $op 37 29 23 --ranks 3 --iters 2 --warmup 1 --json
    report "$kind" 37 29 23 3 cpu shm null
    for method in $methods; do
        check "... with the method $method" has "$out" "\"method\":\"$method\""
    done
    bench $op 16 12 8 --ranks 4 --iters 1 --transport self --device ref --json
    report "$kind" 16 12 8 4 ref self null
    bench $op 5 4 3 --ranks 1 --iters 1 --json
    report "$kind" 5 4 3 1 cpu shm null
    # Fewer rows, columns and depth than ranks.
    bench $op 2 2 2 --ranks 3 --iters 1 --json
    report "$kind" 2 2 2 3 cpu shm null
done

for dtype in float16 bfloat16; do
    bench ag 37 29 23 --ranks 3 --iters 1 --dtype $dtype --json
    report ag_gemm 37 29 23 3 cpu shm null $dtype
    bench rs 16 12 800 --ranks 2 --iters 1 --dtype $dtype --device ref --json
    report gemm_rs 16 12 800 2 ref shm null $dtype
    bench ar 19 30 700 --ranks 3 --iters 1 --dtype $dtype --transport self --json
    report gemm_ar 19 30 700 3 cpu self null $dtype
done
bench ag 8 8 8 --ranks 1 --iters 1 --dtype half --json
report ag_gemm 8 8 8 1 cpu shm null float16

# A collective beside a GEMM.
for op in bulk-ag bulk-rs external-ag external-rs; do
    kind=${op/-/_}
    bench $op 37 27 23 --ranks 3 --iters 2 --warmup 1 --json
    report "$kind" 37 27 23 3 cpu shm null
    for method in serial direct; do
        check "... with the method $method" has "$out" "\"method\":\"$method\""
    done
    bench $op 2 4 3 --ranks 4 --iters 1 --transport self --device ref --dtype bf16 --json
    report "$kind" 2 4 3 4 ref self null bfloat16
    bench $op 5 4 3 --ranks 1 --iters 1 --json
    report "$kind" 5 4 3 1 cpu shm null
    bench $op 40 24 32 --ranks 2 --iters 2 --link ratio:0.5 --method all,auto \
        --timeline "$folder/t.svg"
    check "$op: a table with a pick" eval 'status_is 0 && has "$out" "auto picked "'
    check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'
    svg=$(cat "$folder/t.svg")
    check "... and a picture with the GEMM" matches "$svg" 'rank 1, step [0-9]+ GEMM(, rows [0-9.]+)?: '
    check "... and with what moves beside it" matches "$svg" 'rank 1, step [0-9]+ (PUT|RAISE) to rank 0'
    rm "$folder/t.svg"
    bench sweep $op --m 4:8 --n 12 --k 9 --ranks 3 --iters 1 --transport self --json
    check "$op: a sweep" eval 'status_is 0 && has "$out" "\"of\":\"$kind\"" && has "$out" "\"m\":8,"'
done

# FP8: every rank has its own scales; results and what travels may have other types.
for dtype in float8_e4m3 float8_e5m2; do
    for op in ag rs ar bulk-ag bulk-rs external-ag external-rs; do
        bench $op 19 12 300 --ranks 3 --iters 1 --dtype ${dtype#float8_} --transport self --json
        check "$op in $dtype: all results are right" eval \
            'status_is 0 && has "$out" "\"dtype\":\"$dtype\",\"out_dtype\":\"bfloat16\""'
    done
done
bench rs 16 12 300 --ranks 3 --iters 1 --dtype fp16 --out-dtype fp32 --wire-dtype e5m2 --json
report gemm_rs 16 12 300 3 cpu shm null float16
check "... with the types asked for" has "$out" '"out_dtype":"float32","wire_dtype":"float8_e5m2"'
bench ar 16 12 300 --ranks 2 --iters 1 --wire-dtype bf16 --json
report gemm_ar 16 12 300 2 cpu shm null
bench ag 16 12 30 --ranks 2 --iters 1 --dtype e4m3 --out-dtype e5m2 --json
report ag_gemm 16 12 30 2 cpu shm null float8_e4m3
bench rs 16 12 300 --ranks 2 --iters 1 --dtype e4m3 --wire-dtype e4m3 --epilogue bias,gelu --layout dgrad
check "the table tells all types" eval 'status_is 0 &&
    has "$out" "float8_e4m3 to bfloat16, wire float8_e4m3, dgrad, bias,gelu"'
check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'

for op in ag rs ar; do
    for epilogue in bias bias,gelu,bias-grad dgelu,bias-grad; do
        bench $op 19 13 17 --ranks 3 --iters 1 --epilogue $epilogue --layout dgrad --transport self --json
        check "$op with $epilogue: all results are right" eval \
            'status_is 0 && has "$out" "\"layout\":\"dgrad\",\"epilogue\":\"$epilogue\""'
    done
done
bench bulk-ag 19 12 17 --ranks 3 --iters 1 --epilogue dgelu,bias-grad --json
report bulk_ag 19 12 17 3 cpu shm null
bench bulk-rs 19 12 17 --ranks 3 --iters 1 --epilogue bias-grad --json
report bulk_rs 19 12 17 3 cpu shm null

# Features that the ranks cannot share evenly: 2, 13, and 400, which are 136, 136 and 128 on 3 ranks.
for features in 2 13 400; do
    for op in ag rs ar bulk-ag bulk-rs external-ag external-rs; do
        sizes="19 $features 17"
        [[ $op == rs || $op == ar ]] && sizes="19 17 $features"
        bench $op $sizes --ranks 3 --iters 1 --method all --json
        check "$op $sizes on 3 ranks: all results are right" eval \
            'status_is 0 && ! has "$out" "\"ok\":false"'
    done
done
bench rs 19 1031 40 --ranks 3 --iters 1 --method pipeline:num_splits=3 --json
check "n in 3 parts that are not even: the result is right" eval 'status_is 0 && has "$out" "\"ok\":true"'

# One round has no noise; long knobs do not make long lines.
bench rs 40 24 32 --ranks 2 --iters 1 \
    --method auto,pipeline:num_splits=00000000000000000000000000000000000000003
check "one round: no noise is shown" eval 'status_is 0 && ! has "$out" "±" && has "$out" " - "'
check "... a long knob is there" has "$out" "pipeline:num_splits=00000000000000000000000000000000000000003"
check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'
bench rs 40 24 32 --ranks 2 --iters 1 --json
check "... and in JSON the noise is null" has "$out" '"noise_pct":null'

# A table without E says why, and only such a table.
for ranks in 1 2; do
    bench ag 64 64 64 --ranks $ranks --iters 3
    grep -Eq '^. (ring|direct|fused|oneshot) .*[0-9] +- +[0-9.]+' "$folder/out" && lacks=0 || lacks=1
    has "$out" "E is left out" && told=0 || told=1
    check "$ranks ranks: a table without E says why" [ $lacks -eq $told ]
done

# What a picture would replace stays until there is one.
echo precious >"$folder/old.svg"
refuse "GiB" -- ag 1000000000 1000000000 1000000000 --timeline "$folder/old.svg"
check "... and a file is as it was" [ "$(cat "$folder/old.svg")" = precious ]
rm "$folder/old.svg"
refuse "GiB" -- ag 1000000000 1000000000 1000000000 --timeline "$folder/new.svg"
check "... and no file is left" [ ! -e "$folder/new.svg" ]

bench ag 64 64 64 --ranks 2 --iters 2 --link ratio:0.5,3us --json
report ag_gemm 64 64 64 2 cpu shm "\{\"gbps\":$number,\"latency_us\":3,\"emulated\":true\}"
bench rs 64 64 64 --ranks 2 --iters 2 --link 2GB/s --json
report gemm_rs 64 64 64 2 cpu shm '\{"gbps":2,"latency_us":0,"emulated":true\}'

bench rs 40 24 32 --ranks 4 --iters 1 --method pipeline:num_splits=3,fused:block_rows=5 --json
report gemm_rs 40 24 32 4 cpu shm null
check "knobs stay in the names" has "$out" '"method":"pipeline:num_splits=3"'
check "serial is measured, but not listed" eval \
    'has "$out" serial_ms && ! has "$out" "\"method\":\"serial\""'
# With such a link a ring is slower, for its shards take three hops: by 300 ms, whatever else the machine does.
bench ag 64 64 64 --ranks 4 --iters 3 --warmup 0 --no-trace --method ring --link 1GB/s,150ms
check "serial has the star if it is the fastest, also where it was not named" eval \
    'marks_fastest && matches "$out" "[*] serial "'
bench ag 64 64 64 --ranks 4 --iters 1 --method ring --link 1GB/s,5ms --json
check "... but in JSON the best is one that was named" has "$out" '"best":"ring"'
bench ag 40 24 32 --ranks 4 --iters 1 --method ring:aggregate --json
report ag_gemm 40 24 32 4 cpu shm null

# auto says what it expected of itself and of the others, and what it picked.
bench ar 40 24 32 --ranks 3 --iters 1 --method all,auto --json
report gemm_ar 40 24 32 3 cpu shm null
check "auto is measured beside the others" matches "$out" '"method":"fused".*"method":"auto"'
check "... all are predicted" eval '! has "$out" "\"predicted_ms\":null"'
check "... and only auto picks" [ "$(grep -o '"picked":"' <<<"$out" | wc -l)" -eq 1 ]
bench rs 40 24 32 --ranks 2 --iters 1 --link ratio:0.4 --method auto
check "the table has a pick" eval 'status_is 0 && has "$out" "auto picked "'
check "... and what was predicted" has "$out" " forecast   off"
check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'

bench sweep ag --m 8:70 --n 24 --k 16 --ranks 2 --iters 1 --json
point="\{\"m\":[0-9]+,\"link\":null,\"gemm_ms\":$number,\"serial_ms\":$number,\"best\":$label,"
point+="\"best_ms\":$number,\"best_noise_ms\":null,\"efficiency\":($number|null),"
point+="\"overlap_pays\":(true|false),\"auto_ms\":$number,\"auto_noise_ms\":null,"
point+="\"predicted_ms\":$number,\"picked\":$label,\"gemm_noise_ms\":null,\"serial_noise_ms\":null,"
point+="\"gemm_flops\":$number,\"gemm_tflops\":$number,\"gemm_rounds_ms\":$times,\"methods\":\[$swept(,$swept)*\]\}"
check "a sweep ends well" status_is 0
check "... with one object of the promised form" matches "$out" \
    "^\{\"op\":\"sweep\",\"of\":\"ag_gemm\",\"n\":24,.*\"points\":\[$point(,$point)*\],$about\}$"
check "... and a point for 8, 16, 32 and 64 rows" [ "$(grep -o '"m":' <<<"$out" | wc -l)" -eq 4 ]
bench sweep rs --m 4:8 --n 12 --k 9 --ranks 3 --iters 1 --link 1GB/s --transport self
check "a sweep prints a table" eval 'status_is 0 && has "$out" " picked"'
check "... with a line for each number of rows" [ "$(grep -c '^[* ] *[48] ' "$folder/out")" -eq 2 ]
check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'

errors() { grep -o '"max_err":[^,]*' <<<"$out"; }
bench rs 3 2 999 --ranks 2 --iters 1 --seed 7 --json
first=$(errors)
bench rs 3 2 999 --ranks 2 --iters 1 --seed 7 --json
check "the same seed gives the same numbers" [ "$first" = "$(errors)" ]
bench rs 3 2 999 --ranks 2 --iters 1 --seed 8 --json
check "another seed gives others" [ "$first" != "$(errors)" ]

: >"$folder/linked.svg"
ln -s linked.svg "$folder/t.svg"
bench ag 64 48 32 --ranks 2 --iters 3 --link ratio:0.4 --timeline "$folder/t.svg" \
    --timeline-method direct
check "the table is printed" status_is 0
check "... and says that the link is emulated" has "$out" "emulated link"
check "... and has the GEMM alone" has "$out" "GEMM alone"
check "... and marks one method" [ "$(grep -c '^\* [a-z]* ' "$folder/out")" -eq 1 ]
check "... the fastest" marks_fastest
check "... in at most 100 columns" eval '! LC_ALL=C.UTF-8 grep -q ".\{101\}" "$folder/out"'
check "... with nothing on standard error, which is no terminal" lines err 0
check "... and the path of the timeline" has "$out" "$folder/t.svg"
check "a link to a timeline stays one" test -L "$folder/t.svg"
svg=$(cat "$folder/linked.svg")
check "the timeline is a whole SVG" matches "$svg" "^<\?xml.*</svg>.?$"
for word in "AG+GEMM direct" "64 48 32" "2 ranks" "emulated link" "rank 1 compute" "rank 1 send" \
    GEMM waited; do
    check "the timeline has '$word'" has "$svg" "$word"
done
# The threads of one process have no file to share memory in, so that only the picture is too large.
(
    ulimit -f 0
    trap '' XFSZ
    exec timeout 60 "$lap" bench rs 64 48 32 --ranks 2 --iters 1 --transport self \
        --timeline "$folder/full.svg" 2>&1
) | cat >"$folder/out"
status=${PIPESTATUS[0]}
out=$(<"$folder/out")
check "a timeline that cannot be written is a failure" status_is 1
check "... that is reported" has "$out" "cannot write the timeline $folder/full.svg"
check "... after which the table comes all the same" has "$out" "GEMM alone"
check "... without the path of the timeline" eval '! has "$out" "timeline: "'
check "nothing else is left next to it" [ "$(ls "$folder")" = "$(printf 'err\nlinked.svg\nout\nt.svg')" ]

timeout 60 "$lap" run -n 2 "$lap" bench ag 16 16 16 --iters 1 --json \
    >"$folder/out" 2>"$folder/err" </dev/null
status=$?
out=$(<"$folder/out")
check "as ranks of lap run it takes part" status_is 0
check "... and rank 0 speaks for all" eval 'lines out 1 && has "$out" "\"ranks\":2"'
timeout 60 "$lap" run -n 2 "$lap" bench ag 16 16 16 --ranks 3 \
    >"$folder/out" 2>"$folder/err" </dev/null
status=$?
err=$(<"$folder/err")
check "... and refuses another number of ranks" eval 'status_is 2 && has "$err" "--ranks is 3"'

bench latency --iters 20 --json
check "latency ends well" status_is 0
check "... with one JSON object" matches "$out" \
    "^\{\"op\":\"latency\",\"ranks\":2,.*\"round_trip_us\":$number,.*,\"step_us\":$number,${about#*local_ranks*,}\}$"
bench latency --iters 20 --ranks 3
check "latency between two of three ranks" eval 'status_is 0 && has "$out" "executor"'

echo "1..$checks"
[[ $failures -eq 0 ]] || echo "# $failures of $checks failed"
exit $((failures > 0))
