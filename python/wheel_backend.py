# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of lapstrake, by PEP 517: liblap and lap by CMake, the package around them, and a zip file.

It needs nothing but Python, so that a wheel can be made without a network. LAPSTRAKE_LIBRARY names a liblap to take
instead of building one, and the command lap with it if that stands in the same folder; LAPSTRAKE_CMAKE_ARGS are
arguments of cmake, such as -DLAP_CUDA=OFF.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "lapstrake"


def _version() -> str:
    header = (ROOT / "include" / "lap" / "version.h").read_text()
    return ".".join(re.findall(r"#define LAP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))


def _metadata() -> str:
    versions = "".join(f"Classifier: Programming Language :: Python :: 3.{minor}\n" for minor in range(9, 14))
    return (f"Metadata-Version: 2.1\nName: lapstrake\nVersion: {_version()}\n"
            "Summary: Communication hidden behind computation in transformer training\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\nClassifier: Operating System :: POSIX :: Linux\n"
            f"{versions}Provides-Extra: torch\n"
            'Requires-Dist: torch>=2.8; extra == "torch"\n'
            "Description-Content-Type: text/markdown\n\n" + (ROOT / "README.md").read_text())


def _tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"py3-none-{platform}"


def _run(command: List[str]) -> None:
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except FileNotFoundError:
        raise SystemExit(f"lapstrake: there is no {command[0]}, which builds liblap; install it, or set "
                         "LAPSTRAKE_LIBRARY to a liblap.so that is there") from None
    except subprocess.CalledProcessError as failure:
        raise SystemExit(f"lapstrake: '{shlex.join(command)}' failed with status {failure.returncode}") from None


def _built(folder: str) -> Dict[str, bytes]:
    """The library and the command, by their names in the package."""
    given = os.environ.get("LAPSTRAKE_LIBRARY")
    if given:
        if not Path(given).is_file():
            raise SystemExit(f"lapstrake: LAPSTRAKE_LIBRARY is '{given}', expected a file liblap.so")
        files = {"lapstrake/liblap.so": Path(given).read_bytes()}
        command = Path(given).with_name("lap")
        if command.is_file():
            files["lapstrake/lap"] = command.read_bytes()
        return files
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLAP_BUILD_TESTS=OFF", "-DLAP_BUILD_EXAMPLES=OFF"]
    options += shlex.split(os.environ.get("LAPSTRAKE_CMAKE_ARGS", ""))
    _run(["cmake", "-S", str(ROOT), "-B", folder, *options])
    # Without a number make starts a compiler for every file at once.
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    _run(["cmake", "--build", folder, "--target", "lap_shared", "lap_cli", "--parallel", jobs])
    return {f"lapstrake/{name}": (Path(folder) / name).read_bytes() for name in ("liblap.so", "lap")}


def _write(path: Path, files: Dict[str, bytes]) -> None:
    info = f"lapstrake-{_version()}.dist-info"
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: lapstrake\nRoot-Is-Purelib: false\n"
                              f"Tag: {_tag()}\n").encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nlap = lapstrake.__main__:main\n"
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
            wheel.writestr(_entry(name), content)
        record.append(f"{info}/RECORD,,\n")
        wheel.writestr(_entry(f"{info}/RECORD"), "".join(record))


def _entry(name: str) -> zipfile.ZipInfo:
    # Always the same date, so that equal files make equal wheels.
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if name in ("lapstrake/liblap.so", "lapstrake/lap") else 0o100644) << 16
    return entry


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """Writes only the metadata: what pip wants to know before it waits for the build."""
    folder = Path(metadata_directory) / f"lapstrake-{_version()}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(_metadata())
    return folder.name


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None,
                metadata_directory: Optional[str] = None) -> str:
    """Writes the wheel into a folder, and returns its name."""
    name = f"lapstrake-{_version()}-{_tag()}.whl"
    files = {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes()
             for path in sorted(PACKAGE.rglob("*")) if path.suffix == ".py" or path.name == "py.typed"}
    # Where the command looks for them: beside itself.
    files.update((f"lapstrake/machines/{path.name}", path.read_bytes())
                 for path in sorted((ROOT / "machines").glob("*.yaml")))
    with tempfile.TemporaryDirectory() as folder:
        files.update(_built(folder))
    _write(Path(wheel_directory) / name, files)
    return name


def build_editable(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None,
                   metadata_directory: Optional[str] = None) -> str:
    """The same for `pip install -e .`: only the path of this folder. liblap is found by LAPSTRAKE_LIBRARY."""
    name = f"lapstrake-{_version()}-{_tag()}.whl"
    _write(Path(wheel_directory) / name, {"lapstrake.pth": f"{PACKAGE.parent}\n".encode()})
    return name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """There are no source distributions: the repository is the source."""
    raise SystemExit("lapstrake: build a wheel (make wheel, or pip wheel .) from a clone of the repository")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(Path(sys.argv[1]) / build_wheel(sys.argv[1]))
