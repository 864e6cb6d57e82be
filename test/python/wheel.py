# SPDX-License-Identifier: Apache-2.0
"""The wheel: pip installs it without a network, with its library inside. The environment of the tests."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from email import message_from_string
from pathlib import Path

ROOT = Path(os.environ["LAP_SOURCE_DIR"])
MAKES_ENVIRONMENT = 'mkdir -p "$3/bin"; cp "$0-inside" "$3/bin/python"'


def run(*command, **environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd="/",
                          env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


class Wheel(unittest.TestCase):
    def test_pip_install(self):
        with tempfile.TemporaryDirectory() as folder:
            status, text = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile",
                               "--target", folder, ROOT)
            self.assertEqual(status, 0, text)
            status, text = run(sys.executable, "-c", "import lapstrake; print(lapstrake.__file__, lapstrake.version())",
                               PYTHONPATH=folder, LAPSTRAKE_LIBRARY="")
            self.assertEqual(status, 0, text)
            self.assertIn(folder, text)
            self.assertTrue((Path(folder) / "lapstrake" / "liblap.so").exists())
            status, text = run(Path(folder) / "bin" / "lap", "--version", PYTHONPATH=folder, LAPSTRAKE_COMMAND="")
            self.assertEqual((status, text[:4]), (0, "lap "))
            self.assertTrue((Path(folder) / "lapstrake" / "py.typed").exists())
            status, text = run(Path(folder) / "bin" / "lap", "plan", "--model", "gpt2-124m", "--gpus", "1", "--top", "1",
                               PYTHONPATH=folder, LAPSTRAKE_COMMAND="")
            self.assertEqual((status, "H100 SXM" in text), (0, True), text)  # whose description is inside

    def test_equal_wheels(self):
        with tempfile.TemporaryDirectory() as folder:
            wheels = []
            for place in ("a", "b"):
                status, text = run(sys.executable, ROOT / "python" / "wheel_backend.py", f"{folder}/{place}")
                self.assertEqual(status, 0, text)
                wheels.append(Path(text.strip()).read_bytes())
            self.assertEqual(wheels[0], wheels[1])
            self.assertIsNone(zipfile.ZipFile(text.strip()).testzip())

    def test_metadata(self):
        with tempfile.TemporaryDirectory() as folder:
            # Without a compiler: pip asks for it before it builds.
            status, text = run(sys.executable, "-c", "import sys, wheel_backend; "
                               "print(wheel_backend.prepare_metadata_for_build_wheel(sys.argv[1]))", folder,
                               LAPSTRAKE_LIBRARY="", PATH="/nowhere", PYTHONPATH=str(ROOT / "python"))
            self.assertEqual(status, 0, text)
            metadata = message_from_string((Path(folder) / text.strip() / "METADATA").read_text())
            self.assertEqual(metadata["Requires-Python"], ">=3.9")
            for minor in range(9, 14):
                self.assertIn(f"Programming Language :: Python :: 3.{minor}", metadata.get_all("Classifier"))
            self.assertIn("Lapstrake", metadata.get_payload())

    def environment(self, folder, **programs):
        """Runs python_env.sh on a machine of Intel with these programs, without Python 3.9 unless that is one of them.

        `inside` is the python of the environment. Its status, what it prints, and the arguments of the python inside.
        """
        programs = {"uname": "echo x86_64", "python3.9": "exit 1", "python3": MAKES_ENVIRONMENT, **programs}
        programs["python3-inside"] = f'echo "$*" >>{folder}/asked\n' + programs.pop("inside")
        for name, text in programs.items():
            Path(folder, name).write_text(f"#!/bin/sh\n{text}\n")
            Path(folder, name).chmod(0o755)
        status, text = run("sh", ROOT / "scripts" / "python_env.sh", f"{folder}/env", LAP_TEST_PYTHON="", HOME=folder,
                           PATH=f"{folder}:{os.environ['PATH']}")
        return status, text, Path(folder, "asked").read_text()

    def test_an_environment_with_cuda(self):
        with tempfile.TemporaryDirectory() as folder:
            # What PyPI has is not the PyTorch that is known: nothing can stand in for CUDA.
            status, text, asked = self.environment(folder, inside="exit 0")
            self.assertEqual(status, 0, text)
            self.assertTrue(Path(folder, "env", "complete").exists())
            self.assertNotIn("--no-deps", asked.splitlines()[-1])

    def test_an_environment_without_cuda(self):
        with tempfile.TemporaryDirectory() as folder:
            # PyTorch refers to a function of cuBLAS by address, which the loader looks for, with its version.
            for name in ("python", "cpu", "cuda"):
                Path(folder, f"libtorch_{name}.c").write_text(
                    "int cublasCreate_v2(void), cuFileRead(void);\n"
                    "int (*const used[])(void) = {cublasCreate_v2, cuFileRead};\n")
            for name, function in (("cublas", "cublasCreate_v2"), ("cufile", "cuFileRead")):
                Path(folder, f"{name}.c").write_text(f"int {function}(void) {{ return 0; }}\n")
            Path(folder, "cublas.map").write_text("libcublas.so.12 { *; };\n")
            cc = os.environ.get("CC", "cc")
            status, text, asked = self.environment(folder, inside=f"""
site={folder}/env/lib/python3.9/site-packages
case "$*" in
*--no-deps*)
    mkdir -p "$site/torch/lib" "$site/torch-1.dist-info" {folder}/real && cd {folder} || exit
    printf 'Requires-Dist: %s\\n' sympy 'nvidia-cuda-runtime-cu12==1' nvidia-cudnn-cu12 triton \\
        'yaml; extra == "yaml"' >"$site/torch-1.dist-info/METADATA"
    {cc} -shared -fPIC -Wl,-soname,libcublas.so.12 -Wl,--version-script=cublas.map cublas.c -o real/libcublas.so || exit
    {cc} -shared -fPIC -Wl,-soname,libcufile.so.0 cufile.c -o real/libcufile.so || exit
    for name in python cpu cuda; do
        {cc} -shared -fPIC "libtorch_$name.c" -o "$site/torch/lib/libtorch_$name.so" -Wl,--no-as-needed -Lreal \\
            -lcublas -lcufile -Wl,--disable-new-dtags -Wl,-rpath,'$ORIGIN' || exit
    done ;;
*others.txt*) cp "$site/../../../others.txt" {folder} ;;
*torch*) exec {sys.executable} -c "import ctypes; ctypes.CDLL('$site/torch/lib/libtorch_cuda.so')" ;;
esac""")
            self.assertEqual(status, 0, text)
            others = Path(folder, "others.txt").read_text().splitlines()
            self.assertEqual(others[-2:], ["sympy", "nvidia-cuda-runtime-cu12==1"])
            self.assertFalse([line for line in others if line.startswith("torch")])
            self.assertIn("torch", asked.splitlines()[-1])  # it was loaded, and nothing was installed after that
            self.assertTrue(Path(folder, "env", "complete").exists())

    def test_an_environment_of_the_oldest_python(self):
        with tempfile.TemporaryDirectory() as folder:
            oldest = 'case $1 in -c) exit ;; esac\necho "$0" >"$(dirname "$0")/which"\n' + MAKES_ENVIRONMENT
            Path(folder, "python3.9-inside").symlink_to("python3-inside")
            status, text, _ = self.environment(folder, inside="exit 0", **{"python3.9": oldest})
            self.assertEqual(status, 0, text)
            self.assertEqual(Path(folder, "which").read_text(), f"{folder}/python3.9\n")

    def test_an_environment_without_a_network(self):
        with tempfile.TemporaryDirectory() as folder:
            status, text, _ = self.environment(folder, inside="echo ERROR: no such host >&2\nexit 1")
            self.assertEqual(status, 1, text)
            self.assertIn("PyTorch for the tests cannot be installed (ERROR: no such host)", text)
            self.assertIn("must reach PyPI", text)
            self.assertFalse(Path(folder, "env", "complete").exists())
            status, text = run("sh", ROOT / "scripts" / "python_env.sh", f"{folder}/env",
                               LAP_TEST_PYTHON="/nowhere/python")
            self.assertEqual(status, 1, text)
            self.assertIn("LAP_TEST_PYTHON is '/nowhere/python', expected a python that has torch", text)

    def test_sentences(self):
        with tempfile.TemporaryDirectory() as folder:
            status, text = run(sys.executable, ROOT / "python" / "wheel_backend.py", folder,
                               LAPSTRAKE_LIBRARY="/nowhere/liblap.so")
            self.assertNotEqual(status, 0)
            self.assertIn("LAPSTRAKE_LIBRARY is '/nowhere/liblap.so'", text)
            status, text = run(sys.executable, ROOT / "python" / "wheel_backend.py", folder, LAPSTRAKE_LIBRARY="",
                               PATH="/nowhere")
            self.assertNotEqual(status, 0)
            self.assertIn("there is no cmake", text)


if __name__ == "__main__":
    unittest.main()
