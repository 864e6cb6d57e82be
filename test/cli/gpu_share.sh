#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lap run --gpu-share: what ranks are told, and that its MPS daemon ends with the job, whatever happens. The driver and
# MPS are fakes: a library in $FAKE_CUDA and a script, so that no GPU is needed.
. "$(dirname "$0")/tap.bash"
fake=$(cd "$(dirname "$0")/../fake" && pwd)
unset XDG_RUNTIME_DIR LAP_GPU LAP_GPU_PART CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
export TMPDIR=$work/tmp FAKE_RECORD=$work/record
mkdir "$TMPDIR"

if [ "${LAP_HAVE_CUDA:-1}" = 0 ]; then
    lap run --gpu-share -n 2 true
    is 'a build without CUDA says so' "$status ${err%%:*} ${err#*--gpu-share: }" \
        '1 lap run this build has no CUDA: install the CUDA toolkit and build again'
    lap run --gpu-share=auto -n 2 true
    is 'auto does without' "$status$err" 0
    for command in 'bench ag 8 8 8' train; do
        # shellcheck disable=SC2086
        lap $command --device cuda
        is "lap $command: status 2, and the same" "$status $err" \
            "2 lap ${command%% *}: --device: this build has no CUDA: install the CUDA toolkit and build again"
        # shellcheck disable=SC2086
        LAP_DEVICE=cuda lap $command
        has '... with a device of the environment' "$status $err" '2 ' 'LAP_DEVICE: this build has no CUDA'
    done
    finish
fi

if ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
    echo "ok $((checks += 1)) # SKIP there is a driver here"
else
    lap run --gpu-share -n 2 touch "$work/ran"
    is 'no driver: status 1' "$status" 1
    has 'and a sentence' "$err" 'lap run: --gpu-share: no NVIDIA driver here: libcuda.so.1'
    ok 'nothing was run' test ! -e "$work/ran"
    lap run --gpu-share=auto -n 2 true
    is 'auto does without' "$status$err" 0
    lap run --gpu-share=off -n 2 true
    is 'off too' "$status$err" 0
    for command in 'bench ag 8 8 8 --ranks 2' 'train --tp 2'; do
        # shellcheck disable=SC2086
        lap $command --device cuda
        is "lap $command: status 2, one sentence" "$status:$(wc -l <"$work/err"):$out" '2:1:'
        has '... which says why' "$err" 'device cuda: no NVIDIA driver here: libcuda.so.1'
    done
fi

export LD_LIBRARY_PATH=${FAKE_CUDA:?the folder of the fake libcuda.so.1}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
real_path=$PATH
PATH=$fake:$PATH

state() { sed 's/.*) //;s/ .*//' "/proc/$1/stat" 2>/dev/null; }
ended() { case $(state "$1") in '' | Z) ;; *) return 1 ;; esac; }
recorded() { sed -n "s/^$1 //p" "$FAKE_RECORD"; }
both_ended() { ended "$(recorded daemon)" && ended "$(recorded server)"; }
empty() { test -z "$(ls -A "$TMPDIR")"; }

# clean NAME: there was a daemon, and nothing is left of it.
clean() {
    ok "$1: a daemon ran" test -n "$(recorded daemon)"
    ok "$1: it has ended, and its server" until_true both_ended
    ok "$1: its directory is gone" until_true empty
    rm -f "$FAKE_RECORD"
}

# environment OPTION N: starts N ranks; what each was told of its GPU, in the order of ranks.
environment() {
    lap run "$1" -n "$2" sh -c 'echo "${LAP_GPU-none} ${LAP_GPU_PART-whole} ${CUDA_MPS_PIPE_DIRECTORY+mps}"'
    sort "$work/out" | sed 's/^\[ *\([0-9]*\)\]/\1:/' | paste -sd,
}

is 'one GPU, four parts' "$(environment --gpu-share 4)" \
    '0: 0 0/4 mps,1: 0 1/4 mps,2: 0 2/4 mps,3: 0 3/4 mps'
clean 'four ranks'
is 'as auto' "$(environment --gpu-share=auto 2)" '0: 0 0/2 mps,1: 0 1/2 mps'
clean 'auto'
is 'two GPUs, three ranks: one has a GPU to itself' "$(FAKE_GPUS=2 environment --gpu-share 3)" \
    '0: 0 0/2 mps,1: 1 whole mps,2: 0 1/2 mps'
clean 'three ranks'
is 'a GPU for every rank: no daemon' "$(FAKE_GPUS=4 LAP_GPU_PART=1/2 environment --gpu-share 4)" \
    '0: 0 whole ,1: 1 whole ,2: 2 whole ,3: 3 whole '
ok 'indeed' test ! -e "$FAKE_RECORD"
is 'LAP_GPU puts all on one' "$(LAP_GPU=1 FAKE_GPUS=2 environment --gpu-share 2)" \
    '0: 1 0/2 mps,1: 1 1/2 mps'
clean 'LAP_GPU'
is 'off leaves all alone' "$(LAP_GPU=5 environment --gpu-share=off 1)" '0: 5 whole '
ok 'and starts nothing' test ! -e "$FAKE_RECORD"

CUDA_VISIBLE_DEVICES=0 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 CUDA_MPS_PIPE_DIRECTORY=/nowhere \
    lap run --gpu-share -n 2 sh -c 'echo "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-unset} $CUDA_VISIBLE_DEVICES" \
        "$(stat -c %a "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_PIPE_DIRECTORY/.." | paste -sd" ")"'
is 'no thread percentage, the same GPUs, private directories' \
    "$(sed 's/^\[.\] //' "$work/out" | sort -u)" 'unset 0 700 700'
is 'the daemon sees all GPUs' "$(recorded visible), $(recorded log)" 'all, 700'
clean 'environment'

# What cannot be had.
FAKE_GPUS=0 lap run --gpu-share -n 2 true
is 'no GPU' "$status $err" \
    '1 lap run: --gpu-share: the NVIDIA driver is here, but cuInit fails: no CUDA-capable device is detected'
lap run --gpu-share -n 17 true
is 'more ranks than parts' "$status $err" \
    '1 lap run: --gpu-share: 17 ranks are too many for GPU 0 (Fake GPU): its 132 SMs make at most 16 parts of 8'
LAP_GPU=7 lap run --gpu-share -n 2 true
is 'a GPU that is not there' "$status $err" \
    "1 lap run: --gpu-share: LAP_GPU is '7', expected the number of a GPU, 0 to 0"
lap run --gpu-share=sometimes -n 2 true
is 'a mode that is none' "$status $err" "2 lap run: --gpu-share is 'sometimes'; expected off, auto or on"
FAKE_MPS=refuse lap run --gpu-share -n 2 true
is 'a daemon that does not start' "$status ${err#*: --gpu-share: }" \
    '1 2 ranks cannot share 1 GPU: the MPS daemon cannot be started; nvidia-cuda-mps-control printed: An instance of this daemon is already running'
ok 'leaves nothing' empty
FAKE_MPS=mute lap run --gpu-share -n 2 true
has 'a daemon that does not answer' "$status $err" '1 lap run' 'was started, but does not answer' \
    'Cannot find MPS control daemon process'
clean 'mute'

mkdir "$work/bin"
for program in sh true cat; do
    ln -s "$(type -P "$program")" "$work/bin/"
done
PATH=$work/bin lap run --gpu-share -n 2 true
is 'no control program' "$status ${err#*: --gpu-share: }" \
    '1 2 ranks cannot share 1 GPU: nvidia-cuda-mps-control, which comes with the NVIDIA driver, is not in PATH'
PATH=$work/bin lap run --gpu-share=auto -n 2 true
is 'auto: runs without' "$status ${err##*PATH}" '0 ; ranks on the same GPU will take turns, which is slow'

# However a job ends.
lap run --gpu-share -n 2 --grace 0 sh -c 'test $LAP_RANK = 1 && exit 5; sleep 60'
is 'a rank fails: its status' "$status" 5
clean 'a rank fails'
env --ignore-signal=CHLD "$LAP" run --gpu-share -n 2 sh -c 'exit 4' >"$work/out" 2>"$work/err" </dev/null
is 'SIGCHLD is ignored: the status is known all the same' "$?" 4
clean 'SIGCHLD is ignored'
lap run --gpu-share -n 2 "$work/missing"
is 'a program that is not there: status 127' "$status" 127
clean 'no program'

# start: two ranks that run until they are ended.
start() {
    : >"$work/out"
    env --default-signal=INT,QUIT,HUP "$LAP" run --gpu-share -n 2 --grace 0.2 sh -c 'echo up; exec sleep 60' \
        >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    until_true two_up
}
two_up() { test "$(grep -c up "$work/out")" = 2; }
for pair in INT:130 TERM:143 KILL:137; do
    start
    kill -s "${pair%:*}" "$launcher"
    wait "$launcher" 2>"$work/wait"
    is "SIG${pair%:*}: status" "$?" "${pair#*:}"
    clean "SIG${pair%:*}"
done

# The guardian is the daemon's parent, in a session of its own.
start
guardian=$(sed 's/.*) . \([0-9]*\).*/\1/' "/proc/$(recorded daemon)/stat")
ok 'somebody guards the daemon' test "$(cat "/proc/$guardian/comm")" = lap-mps-guard
ok 'who ignores SIGTERM' kill -s TERM "$guardian"
ok 'and shares no session with the launcher' \
    test "$(awk '{print $6}' "/proc/$guardian/stat")" = "$guardian"
kill -s KILL "$guardian"
kill -s TERM "$launcher"
wait "$launcher" 2>"$work/wait"
clean 'the guardian was killed'

start
kill -s KILL "$(recorded daemon)"
kill -s TERM "$launcher"
wait "$launcher" 2>"$work/wait"
clean 'the daemon was killed'

FAKE_MPS=deaf lap run --gpu-share -n 2 true
is 'a daemon that does not quit' "$status $err" '0 lap run: the MPS daemon did not end when it was asked to'
clean 'deaf'

# The launcher of lap bench is the same.
lap bench ag 8 8 8 --device cuda --ranks 2 --iters 1 --gpu-share --json
is 'lap bench: status' "$status" 0
clean 'lap bench'
FAKE_GPUS=2 lap bench ag 8 8 8 --device cuda --ranks 2 --iters 1 --gpu-share --json
is 'a GPU for every rank: status' "$status" 0
ok 'and no daemon' test ! -e "$FAKE_RECORD"
for command in 'bench ag 8 8 8' 'train --tp 2'; do
    for mode in on auto; do
        # shellcheck disable=SC2086
        lap $command --gpu-share=$mode
        is "lap $command --gpu-share=$mode without GPUs" "$status $err" \
            "2 lap ${command%% *}: --gpu-share=$mode is for GPUs; expected --device cuda, or off"
    done
    # shellcheck disable=SC2086
    lap run -n 2 "$LAP" $command --device cuda --gpu-share
    has "lap $command --gpu-share where ranks are" "$status $err" \
        "2 " "lap ${command%% *}: ranks 0, 1: --gpu-share=on is for ranks that lap ${command%% *} starts" 'an option of lap run'
    ok 'and it starts nothing' test ! -e "$FAKE_RECORD"
done
lap bench ag 8 8 8 --ranks 2 --iters 1 --gpu-share=off --json
is 'off says nothing that is wrong' "$status$err" 0
for mode in auto off; do
    lap run -n 2 "$LAP" bench ag 8 8 8 --device cuda --iters 1 --gpu-share=$mode --json
    is "ranks of others, $mode" "$status$err" 0
done
lap run --gpu-share -n 2 "$LAP" bench ag 8 8 8 --device cuda --iters 1 --gpu-share --json
is 'ranks of others that have their parts' "$status$err" 0
clean 'parts from lap run'
lap bench ag 8 8 8 --ranks 2 --iters 1 --json
is 'on the cpu it wants no GPU' "$status" 0
ok 'and starts nothing' test ! -e "$FAKE_RECORD"

# Gradients must not hold up the layers: ranks have as many hardware queues as there are, or as the user says.
queues() {
    local rank
    "$LAP" train --device cuda --hidden 8 --heads 2 --seq 4 --batch 2 --iters 1000000 --no-predict --quiet "$@" >"$work/out" 2>"$work/err" &
    launcher=$!
    started() { rank=$(pid_of 1) && test -n "$rank"; }
    until_true started
    tr '\0' '\n' <"/proc/$rank/environ" | grep CUDA_DEVICE_MAX_CONNECTIONS= | cut -d= -f2
    kill "$launcher"
    wait "$launcher"
}
unset CUDA_DEVICE_MAX_CONNECTIONS
is 'two replicas on a GPU: 32 queues each' "$(queues --tp 1 --num-replicas 2)" 32
is '... four ranks: 16' "$(queues --tp 2 --num-replicas 2)" 16
is '... unless the user says another number' "$(CUDA_DEVICE_MAX_CONNECTIONS=1 queues --tp 1 --num-replicas 2)" 1
is 'tensor parallel ranks alone have those of the driver' "$(queues --tp 2)" ''
clean 'trainings'

# What lap info says of all this.
FAKE_GPUS=2 lap info
has 'lap info: GPUs' "$out" '  GPUs         2' 'CUDA 13.0' \
    '  GPU 1        Fake GPU, 132 SMs, compute capability 9.0, 1.5 GiB' '  IPC          yes' \
    '  VMM          no: GPU 0 does not offer it' \
    "  MPS          yes, for several ranks on one GPU: $fake/nvidia-cuda-mps-control"
FAKE_GPUS=0 lap info
has 'lap info: why there is none' "$out" '  GPUs         0' \
    '  why none     the NVIDIA driver is here, but cuInit fails: no CUDA-capable device is detected'
for able in 'IPC      ' 'VMM      '; do
    has "... and so no ${able%% *}" "$out" "  $able    no: the NVIDIA driver is here, but cuInit fails: no CUDA-capable"
done
PATH=$real_path lap info
ok 'the page is complete also then' test "$status" = 0
finish
