# SPDX-License-Identifier: Apache-2.0
"""The wheel: pip installs it without a network, with its library inside. The environment of the tests."""

import ast
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from email import message_from_string
from pathlib import Path

ROOT = Path(os.environ["LAP_SOURCE_DIR"])


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

    def test_syntax_of_the_oldest_python(self):
        for path in [*(ROOT / "python").rglob("*.py"), *(ROOT / "examples" / "python").glob("*.py")]:
            ast.parse(path.read_text(), str(path), feature_version=(3, 9))

    def test_an_environment_without_the_index_of_pytorch(self):
        with tempfile.TemporaryDirectory() as folder:
            # A machine of Intel, and a pip that finds things on PyPI alone.
            for name, text in (("uname", "echo x86_64"), ("python3", 'mkdir -p "$3/bin"; cp "$0-inside" "$3/bin/python"'),
                               ("python3-inside", 'case "$*" in *--index-url*) exit 1 ;; esac')):
                Path(folder, name).write_text(f"#!/bin/sh\n{text}\n")
                Path(folder, name).chmod(0o755)
            status, text = run("sh", ROOT / "scripts" / "python_env.sh", f"{folder}/env", LAP_TEST_PYTHON="",
                               PATH=f"{folder}:{os.environ['PATH']}")
            self.assertEqual(status, 0, text)
            self.assertTrue(Path(folder, "env", "complete").exists())

    def test_an_environment_without_a_network(self):
        with tempfile.TemporaryDirectory() as folder:
            # A python3 that makes environments whose pip finds nothing, at once.
            stub = Path(folder, "python3")
            stub.write_text('#!/bin/sh\nmkdir -p "$3/bin"\n'
                            'printf "#!/bin/sh\\necho ERROR: no such host >&2\\nexit 1\\n" >"$3/bin/python"\n'
                            'chmod +x "$3/bin/python"\n')
            stub.chmod(0o755)
            status, text = run("sh", ROOT / "scripts" / "python_env.sh", f"{folder}/env", LAP_TEST_PYTHON="",
                               PATH=f"{folder}:{os.environ['PATH']}")
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
