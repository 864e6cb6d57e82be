# SPDX-License-Identifier: Apache-2.0
"""The wheel: pip installs it without a network, and what it installs has its library inside."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
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
