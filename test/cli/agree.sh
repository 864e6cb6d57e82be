#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that were started with different command lines: whatever one rank alone is told otherwise, all say at once which option
# it is, and what each was told. The options come from --help, so that a new one needs a line here.
# LAP_MPIRUN holds mpirun with its options, if there is one.
. "$(dirname "$0")/tap.bash"
unset LAP_RANK LAP_SIZE LAP_DIR LAP_JOB

# apart FIRST SECOND: two ranks of lap run with these arguments; keeps what they say, as lap does.
apart() {
    export LAP FIRST=$1 SECOND=$2
    # shellcheck disable=SC2016
    lap run -n 2 sh -c 'if [ "$LAP_RANK" = 1 ]; then exec "$LAP" $SECOND; else exec "$LAP" $FIRST; fi'
}

# refused OPTION COMMON OTHER: the second rank is told more. Both say at once that it is this option.
refused() {
    local option=$1 begin=$SECONDS
    apart "$2" "$2 $3"
    is "lap $2 against ... $3" "$status" 1
    has "... is refused by both, with the option" "$err" "ranks 0, 1: the ranks disagree: rank 0 says $option = " ", rank 1 says $option = "
    ok '... at once' test $((SECONDS - begin)) -lt 10
}

# options COMMAND: what --help lists, but --help and other names for the same.
options() { "$LAP" "$1" --help | grep -v 'the same as' | grep -oE '^ {2,6}(-., )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | grep -vx -- --help; }

# What each option may be told that is not its default; "-": it takes no value; "own": each rank may have its own; "": what
# cannot be tried here alone (of GPUs, of MPI, of sweeps).
declare -A train=(
    [--layer]=attention [--model]=gpt [--vocab]=99 [--positions]=rope [--tied]=- [--max-positions]=400 [--rope-theta]=5 [--norm-epsilon]=0.001 [--rope-factor]=2 [--rope-low-freq]=2 [--rope-high-freq]=3 [--rope-original]=64 [--tp]=1 [--pp]=2 [--cp]=2 [--cp-comm-type]=a2a [--cp-a2a]= [--virtual-pp]=2 [--schedule]=zb-h1 [--layers-per-stage]=1,3 [--no-overlap-p2p]=- [--num-replicas]=2 [--iters]=2 [--batch]=4 [--batch-size]=4 [--micro-batches]=2 [--seq]=8 [--heads]=8 [--kv-heads]=2
    [--head-dim]=8 [--hidden]=32 [--ffn]=32 [--mlp-expansion-factor]=2 [--layers]=2 [--norm]=rmsnorm [--activation]=swiglu [--attention-dropout]=0.5 [--hidden-dropout]=0.5 [--recompute]=full [--loss-scale]=2 [--initial-loss-scale]=4 [--loss-scale-window]=5 [--min-loss-scale]=2 [--hysteresis]=3 [--shuffle]=- [--data-seed]=5 [--keep]=2 [--no-sequence-parallel]=-
    [--dtype]=bf16 [--fp8]=- [--optimizer]=sgd [--lr]=0.5 [--lr-warmup-iters]=1 [--lr-decay-style]=linear [--lr-decay-iters]=5 [--min-lr]=0.00001
    [--adam-beta1]=0.5 [--adam-beta2]=0.5 [--adam-eps]=0.5 [--micro-batch]=1 [--data]="$work/b.bin" [--no-data-wrap]=- [--config]=own [--config-keys]=own [--init-std]=0.5 [--fp8-amax-history-len]=3 [--save]="$work/save"
    [--save-every]=1 [--load]="$work/load" [--weight-decay]=0.5 [--clip-grad]=0
    [--grad-sync-dtype]=bf16 [--bucket-size]=100 [--bucket-by]=layer [--distributed-optimizer]=- [--no-overlap-grad-sync]=- [--no-overlap-param-sync]=- [--fp8-param-gather]=- [--overlap-param-gather-with-optimizer-step]=- [--seed]=5 [--no-comm-overlap]=- [--tp-comm-overlap-cfg]=own [--auto]=- [--no-cache]=-
    [--disable-tp-comm-overlap-ag]=- [--disable-tp-comm-overlap-rs]=- [--tp-comm-overlap-rs-dgrad]=-
    [--disable-tp-comm-bulk-dgrad]=- [--disable-tp-comm-bulk-wgrad]=- [--compare]=- [--link]=1GB/s [--device]=ref [--transport]=
    [--gpu-share]=own [--timeout]=own [--continue-on-nan]=- [--no-trace]=- [--trace]="$work/t.json" [--trace-format]= [--trace-simulated]= [--report]="$work/r.html" [--assert-hidden]=1 [--peak-tflops]=own [--no-predict]=- [--debug]=own [--quiet]=own [--log-interval]=own [--json]=own
)
declare -A bench=(
    [--ranks]=own [--dtype]=bf16 [--out-dtype]=bf16 [--wire-dtype]=bf16 [--layout]=dgrad [--epilogue]=bias [--iters]=3 [--calls]=2
    [--warmup]=1 [--rest]=1 [--method]=ring [--auto-foreign]= [--baseline]= [--link]=1GB/s [--device]=ref [--transport]=
    [--timeline]="$work/picture.svg" [--timeline-method]=ring [--seed]=5 [--timeout]=own [--json]=own [--quiet]=own [--no-trace]=- [--trace]="$work/t.json" [--trace-format]= [--trace-simulated]= [--assert-efficiency]=0.1 [--gpu-share]=own [--num-sm]=
    [--sm-margin]= [--m]= [--n]= [--k]=
)

for file in a b; do
    "$LAP" data tokenize --bytes "$LAP_SOURCE_DIR/LICENSE" -o "$work/$file.bin" >/dev/null
done
small='--seq 4 --heads 4 --head-dim 4 --iters 1'
for option in $(options train); do
    value=${train[$option]-none}
    # What must be there for the option to make sense, and not to change another one too.
    case $option in
    --auto) common='train --auto=no' ;;
    --num-replicas) common='train --tp 2' value='2 --tp 1' ;;
    --tp) common='train --tp 2' value='1 --num-replicas 2' ;;
    --cp) common='train --model gpt --tp 2' value='2 --tp 1' ;;
    --cp-comm-type) common='train --model gpt --tp 1 --cp 2' ;;
    --pp) common='train --model gpt --layers 4 --tp 2' value='2 --tp 1' ;;
    --virtual-pp | --schedule | --layers-per-stage | --no-overlap-p2p) common='train --model gpt --layers 4 --tp 1 --pp 2 --micro-batches 2' ;;
    --batch | --micro-batch) common='train --batch 2' ;;
    --vocab | --max-positions | --attention-dropout | --hidden-dropout) common='train --model gpt' ;;
    --tied | --rope-theta | --rope-factor | --rope-low-freq | --rope-high-freq | --rope-original) common='train --model llama' ;;
    --data | --no-data-wrap) common="train --model gpt --data $work/a.bin" ;;
    --lr-decay-iters | --min-lr) common='train --lr-decay-style linear' ;;
    --save-every | --keep) common="train --save $work/save" ;;
    --shuffle) common="train --model gpt --data $work/a.bin --shuffle=no" ;;
    --data-seed) common="train --model gpt --data $work/a.bin" ;;
    --initial-loss-scale | --loss-scale-window | --min-loss-scale | --hysteresis) common='train --loss-scale dynamic' ;;
    --no-overlap-param-sync | --overlap-param-gather-with-optimizer-step) common='train --tp 1 --num-replicas 2 --distributed-optimizer' ;;
    --fp8-param-gather) common='train --tp 1 --num-replicas 2 --distributed-optimizer --fp8=current' ;;
    --bucket-by) common='train --tp 1 --num-replicas 2 --bucket-size 100' ;;
    --grad-sync-dtype | --bucket-size | --no-overlap-grad-sync | --distributed-optimizer) common='train --tp 1 --num-replicas 2' ;;
    --heads | --head-dim) common='train --lr 0.1' ;;
    --optimizer) common='train --lr 0.1 --weight-decay 0' ;;
    *) common=train ;;
    esac
    case $value in
    none) ok "there is a value to try for $option of lap train" false ;;
    own | '') ;;
    -) refused $option "$common $small" "$option" ;;
    *)
        # Some are another way to say what comes first.
        named=${option/--num-replicas/--tp}
        named=${named/--batch-size/--batch}
        [ "$named" = --pp ] || [ "$named" = --cp ] && named=--tp
        [ "$named" = --micro-batch ] && named=--micro-batches
        refused "${named/--mlp-expansion-factor/--ffn}" "$common $small" "$option $value"
        ;;
    esac
done
for option in $(options bench); do
    value=${bench[$option]-none}
    common='bench rs 16 16 16 --iters 1'
    case $option in --timeline-method) common+=" --timeline $work/picture.svg" ;; esac
    case $value in
    none) ok "there is a value to try for $option of lap bench" false ;;
    own | '') ;;
    -) refused $option "$common" "$option" ;;
    *) refused $option "$common" "$option $value" ;;
    esac
done

apart 'bench rs 16 16 16' 'bench rs 32 16 16'
has 'another M' "$err" 'rank 0 says argument 2 = 16, rank 1 says argument 2 = 32'
refused --n 'bench sweep rs --m 16:32 --n 16 --k 16 --iters 1' '--n 32'
apart "train $small --lr 0.1" "train $small --lr 0.2"
has 'both values are told' "$err" 'ranks 0, 1: the ranks disagree: rank 0 says --lr = 0.1, rank 1 says --lr = 0.2'
# shellcheck disable=SC2016
lap run -n 2 sh -c 'exec "$0" train '"$small"' --lr 0.$((LAP_RANK + 1)) 2>"$1/err.$LAP_RANK"' "$LAP" "$work"
is 'ranks with a file each for their errors: status' "$status" 1
for r in 0 1; do
    has "... rank $r has the reason in its own" "$(cat "$work/err.$r")" "rank $r: the ranks disagree: rank 0 says --lr = 0.1, rank 1 says --lr = 0.2"
done
ok '... and the launcher does not repeat it' test "${err/disagree/}" = "$err"
apart "train $small" 'bench rs 16 16 16'
has 'another command' "$err" 'rank 0 says the command = lap train, rank 1 says the command = lap bench'
apart "train $small --seed 7" "train $small --seed 12345678901234567890"
has 'large numbers' "$err" 'rank 0 says --seed = 7, rank 1 says --seed = 12345678901234567890'

# What means the same may be written in another way, or left out; and what is of one rank alone may differ.
apart "train $small --lr 0.10 --bucket-size 256K --num-replicas 2 --tp 1 --json --timeout 30" \
    "train $small --lr 1e-1 --num-replicas 2 --fp8=none --device cpu --heads=4 --timeout 40 --debug"
is 'the same in other words' "$status$err" 0
apart "train $small --tp 2 --json" "train --seq-length 4 --num-heads 4 --hidden 16 -i 1 --tp-size 2 --batch-size 2 --ffn 64"
is '... and by other names' "$status$err" 0
apart "bench rs 1K 16 16 --iters 1 --timeline $work/one.svg" "bench rs 1024 16 16 --iters 1 --timeline $work/two.svg --json"
is '... and of lap bench' "$status$err" 0

# Ranks that nobody's launcher started.
mkdir -m 700 "$work/dir"
LAP_RANK=1 LAP_SIZE=2 LAP_DIR=$work/dir "$LAP" train $small --clip-grad 2 >/dev/null 2>"$work/other" &
other=$!
LAP_RANK=0 LAP_SIZE=2 LAP_DIR=$work/dir lap train $small
is 'by hand: rank 0 fails' "$status" 1
has '... and says why' "$err" 'rank 0 says --clip-grad = 1, rank 1 says --clip-grad = 2'
wait $other
is '... and so does rank 1' "$? $(cat "$work/other")" \
    '1 lap train: rank 1: the ranks disagree: rank 0 says --clip-grad = 1, rank 1 says --clip-grad = 2'
# One of them refuses its command line: the others do not wait for it until their timeout, and are told why.
# declines RANK VARIABLE: that rank of three does.
declines() {
    local who=$1 variable=$2 rank begin=$SECONDS pids=()
    for rank in 0 1 2; do
        # shellcheck disable=SC2046
        env "$variable" LAP_RANK=$rank LAP_SIZE=3 "$LAP" bench ag 8 8 8 --timeout 60 $([ $rank = "$who" ] && echo --iters x) \
            >/dev/null 2>"$work/rank$rank" </dev/null &
        pids[rank]=$!
    done
    for rank in 0 1 2; do
        wait ${pids[rank]}
        status=$?
        if [ $rank = "$who" ]; then
            is "rank $who refuses its command line, $variable" \
                "$status $(cat "$work/rank$rank")" "2 lap bench: --iters is 'x'; expected a whole number from 1 to 1000000"
        else
            is "... rank $rank is told why" "$status $(cat "$work/rank$rank")" "1 lap bench: rank $rank: invalid argument: rank $who: \
its command line is refused: --iters is 'x'; expected a whole number from 1 to 1000000"
        fi
    done
    ok '... soon' test $((SECONDS - begin)) -lt 20
}
for who in 0 1 2; do
    declines $who "LAP_DIR=$work/place"
    declines $who "LAP_MASTER=127.0.0.1:$((20000 + RANDOM % 10000))"
done
ok 'nothing is left of their place' test ! -e "$work/place"

if [ -n "$LAP_MPIRUN" ]; then
    for transport in shm mpi; do
        # shellcheck disable=SC2086
        $LAP_MPIRUN -n 1 "$LAP" train $small --tp 2 --transport $transport : \
            -n 1 "$LAP" train $small --tp 2 --transport $transport --iters 2 >/dev/null 2>"$work/err" </dev/null
        ok "under mpirun, over $transport" test $? != 0
        has '... says why' "$(cat "$work/err")" 'rank 0 says --iters = 1, rank 1 says --iters = 2'
    done
fi
finish
