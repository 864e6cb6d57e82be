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

rm -rf "$folder"
python3 -m venv "$folder" || fail "python3 cannot make an environment in $folder: install python3-venv"
what=PyTorch hint=", or LAP_TEST_PYTHON must name a python that has torch" options=""
[ -n "${2:-}" ] && what="Holistic Trace Analysis" hint="" options=--no-deps
log=$folder/pip.log
echo "python_env: installing $(grep -v '^#' "$requirements" | tr '\n' ' ')into $folder"

# Byte code is made, and stored by the tests, when it is used.
install()
{
    "$folder/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$@" -r "$requirements" >"$log" 2>&1
}

# PyPI has small builds without CUDA for ARM only. Where PyTorch's own index cannot be reached, PyPI's serves as well: 3.5 GB.
installed=
if [ -z "${2:-}" ] && [ "$(uname -m)" = x86_64 ]; then
    install --retries 0 --index-url https://download.pytorch.org/whl/cpu && installed=1
fi
# shellcheck disable=SC2086
[ -n "$installed" ] || install --retries 2 $options ||
    fail "$what for the tests cannot be installed ($(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")); the machine must reach PyPI$hint"
cp "$requirements" "$folder/complete"
