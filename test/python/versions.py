# SPDX-License-Identifier: Apache-2.0
"""Python 3.9 to 3.13: the package uses what all of them have, and each that the machine has runs what needs no PyTorch.

The tests with PyTorch run on the oldest of them that the machine has (scripts/python_env.sh).
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ["LAP_SOURCE_DIR"])
HERE = Path(__file__).parent
FILES = [*(ROOT / "python").rglob("*.py"), *(ROOT / "examples" / "python").glob("*.py")]

# Names of the standard library that Python 3.9 does not have, and arguments of its functions.
NEWER = set("""BaseExceptionGroup Concatenate EnumType ExceptionGroup LiteralString Never NoneType NotRequired
    ParamSpec ReprEnum Required Self StrEnum TaskGroup TypeAlias TypeGuard TypeVarTuple UTC UnionType Unpack aclosing
    aiter anext assert_never assert_type batched bit_count dataclass_transform file_digest get_annotations override
    pairwise reveal_type tomllib""".split())
NEWER_ARGUMENTS = {"zip": {"strict"}, "dataclass": {"kw_only", "slots", "match_args"}, "field": {"kw_only"}}


def newer(tree):
    """What a file uses at run time that Python 3.9 does not have: lines and names."""
    found, annotations = [], []
    lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name in NEWER]
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found += [(node.lineno, name)] if name in NEWER and isinstance(node.ctx, ast.Load) else []
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            found += [(node.lineno, f"{name}({keyword.arg}=)") for keyword in node.keywords
                      if keyword.arg in NEWER_ARGUMENTS.get(name, ())]
        if not lazy:
            parts = getattr(node, "annotation", None), getattr(node, "returns", None)
            annotations += [part for part in parts if part]
    for annotation in annotations:
        found += [(node.lineno, "| in an annotation") for node in ast.walk(annotation)
                  if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    return found


def others():
    """The promised Pythons that the machine has beside the one that runs, by their minor versions.

    Also where pyenv keeps them: those on PATH may be pyenv's, and stand for nothing.
    """
    found = {}
    for minor in set(range(9, 14)) - {sys.version_info[1]}:
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for python in (shutil.which(f"python3.{minor}"), *map(str, kept)):
            if python and subprocess.run([python, "-c", "import ctypes"], capture_output=True).returncode == 0:
                found[minor] = python
                break
    return found


class Versions(unittest.TestCase):
    def test_what_the_oldest_has(self):
        for path in FILES:
            tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
            self.assertEqual(newer(tree), [], path)

    def test_the_check_itself(self):
        for text, expected in (("from typing import Self", "Self"), ("import tomllib", "tomllib"),
                               ("import itertools as i\ni.pairwise('ab')", "pairwise"),
                               ("zip('a', 'b', strict=True)", "zip(strict=)"),
                               ("import dataclasses as d\nd.dataclass(slots=True)", "dataclass(slots=)"),
                               ("def f(x: int | None): pass", "| in an annotation"),
                               ("def f() -> 'int' | None: pass", "| in an annotation"),
                               ("x: int | None = None", "| in an annotation")):
            self.assertEqual([name for _, name in newer(ast.parse(text))], [expected], text)
        for text in ("from __future__ import annotations\ndef f(x: int | None): pass", "f(strict=True)", "a = b | c"):
            self.assertEqual(newer(ast.parse(text)), [], text)

    def test_others(self):
        page = (ROOT / "docs" / "python.md").read_text()
        example = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)[-1]
        compiles = f"for path in {[str(path) for path in FILES]}: compile(open(path).read(), path, 'exec')\n"
        found = others()
        names = ", ".join(f"3.{minor}" for minor in sorted(found))
        print(f"beside {sys.version.split()[0]} there is {names or 'no other Python'}")
        for minor, python in found.items():
            # The whole of base on the oldest and the newest only: it takes as long as all the rest.
            scripts = ["layout.py", "notebook.py"] + (["base.py"] if minor in (min(found), max(found)) else [])
            for script in ("-", *(str(HERE / name) for name in scripts)):
                with self.subTest(python=python, script=script):
                    done = subprocess.run([python, "-W", "error", script], capture_output=True, text=True,
                                          input=compiles + example)
                    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
