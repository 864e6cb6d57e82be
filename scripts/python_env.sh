#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python_env.sh FOLDER: makes the Python environment of the tests there, with what test/python/requirements.txt lists; does nothing
# when it is there. python_env.sh FOLDER holistic: that of Holistic Trace Analysis, with requirements_holistic.txt.
# LAP_TEST_PYTHON, if set, is a python with PyTorch to use instead, such as the one with CUDA of a machine with GPUs.
set -u
folder=$1
root=$(cd "$(dirname "$0")/.." && pwd)
requirements=$root/test/python/requirements${2:+_$2}.txt

fail()
{
    echo "python_env: $1" >&2
    exit 1
}

if [ -n "${LAP_TEST_PYTHON:-}" ] && [ -z "${2:-}" ]; then
    "$LAP_TEST_PYTHON" -c 'import torch' 2>/dev/null || fail "LAP_TEST_PYTHON is '$LAP_TEST_PYTHON', expected a python that has torch"
    # No link: a python of an environment finds its packages by the folder it is started from.
    mkdir -p "$folder/bin" && rm -f "$folder/bin/python" &&
        printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$LAP_TEST_PYTHON")" >"$folder/bin/python" && chmod +x "$folder/bin/python"
    exit
fi
cmp -s "$requirements" "$folder/complete" && exit 0

# The package promises Python 3.9: where there is one, also one that pyenv keeps, its tests with PyTorch run on that.
python=python3
if [ -z "${2:-}" ]; then
    for oldest in python3.9 "${HOME:-}"/.pyenv/versions/3.9.*/bin/python3; do
        if "$oldest" -c 'import ctypes, ssl, venv' 2>/dev/null; then
            python=$oldest
            break
        fi
    done
fi

begin()
{
    rm -rf "$folder"
    "$python" -m venv "$folder" || fail "$python cannot make an environment in $folder: install python3-venv"
}

# Byte code is made when it is used.
install()
{
    "$folder/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$@" >>"$log" 2>&1
}

# Whether what every test imports is there. Its byte code is stored before several tests begin at the same time.
imports()
{
    "$folder/bin/python" -W ignore -c 'import torch._dynamo, torch.distributed.run' >>"$log" 2>&1
}

# PyPI's PyTorch for x86-64 has CUDA, and asks for 2.6 GB of NVIDIA's libraries. Without a GPU nothing in them is called, but the
# loader wants them. For each, a library with the names that PyTorch refers to stands in. The CUDA runtime is NVIDIA's own: PyTorch
# asks it whether there is a GPU.
without_cuda()
{
    install --retries 2 --no-deps -r "$requirements" || return
    set -- "$folder"/lib/python3*/site-packages
    grep -v '^torch' "$requirements" >"$folder/others.txt"
    sed -n '/extra ==/d; /^Requires-Dist: triton/d; /^Requires-Dist: nvidia-cuda-runtime/!{/^Requires-Dist: nvidia/d;}
            s/^Requires-Dist: //p' "$1"/torch-*.dist-info/METADATA >>"$folder/others.txt"
    install --retries 2 -r "$folder/others.txt" || return
    cd "$1/torch/lib" || return
    nm -D --undefined-only libtorch_cpu.so libtorch_cuda.so libtorch_python.so >"$folder/undefined.txt" || return
    for library in $(readelf -d libtorch_cpu.so libtorch_cuda.so libtorch_python.so |
        sed -n '/libcudart/d; s/.*NEEDED.*\[\(lib\(cu\|nccl\|nv\).*\)\]/\1/p' | sort -u); do
        prefix=${library#lib}
        sed -n "s/^ *U \(p\{0,1\}${prefix%%.so*}[A-Z_][A-Za-z0-9_]*\).*/void \1(void) { __builtin_trap(); }/Ip" "$folder/undefined.txt" |
            sort -u >"$folder/stub.c"
        echo "$library { *; };" >"$folder/stub.map"
        "${CC:-cc}" -shared -fPIC -w -Wl,-soname,"$library" -Wl,--version-script="$folder/stub.map" -o "$library" "$folder/stub.c" || return
    done
    imports
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
what=PyTorch hint=", or LAP_TEST_PYTHON must name a python that has torch" options=""
[ -n "${2:-}" ] && what="Holistic Trace Analysis" hint="" options=--no-deps
begin
echo "python_env: installing $(grep -v '^#' "$requirements" | tr '\n' ' ')into $folder, with $("$folder/bin/python" --version)"

# PyPI has builds without CUDA for ARM only.
installed=
if [ -z "${2:-}" ] && [ "$(uname -m)" = x86_64 ]; then
    if (without_cuda) >>"$log" 2>&1; then
        installed=1
    else
        echo "python_env: NVIDIA's libraries are installed, too: $(tail -n 1 "$log")"
        begin
    fi
fi
# shellcheck disable=SC2086
[ -n "$installed" ] || { install --retries 2 $options -r "$requirements" && { [ -n "${2:-}" ] || imports; }; } ||
    fail "$what for the tests cannot be installed ($(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")); the machine must reach PyPI$hint"
cp "$requirements" "$folder/complete"
