# SPDX-License-Identifier: Apache-2.0
"""The structs, enums and functions of lapstrake._abi are those of the headers, as a C compiler sees them."""

import ctypes
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from lapstrake import _abi

INCLUDE = Path(os.environ["LAP_SOURCE_DIR"]) / "include"
HEADERS = {path.name: re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
           for path in sorted((INCLUDE / "lap").glob("*.h")) if path.name != "lap_mpi.h"}
TEXT = "\n".join(HEADERS.values()).replace("\\\n", "\n")


def c_prints(lines):
    """The output, by lines, of a C program whose main consists of these."""
    source = "#include <stddef.h>\n#include <stdio.h>\n#include <lap/lap.h>\n#include <lap/lap_cuda.h>\n"
    source += "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layout.c"
        path.write_text(source)
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", f"-I{INCLUDE}", str(path), "-o", f"{folder}/layout"],
                       check=True)
        return subprocess.run([f"{folder}/layout"], check=True, capture_output=True, text=True).stdout.splitlines()


def header_fields(c_name):
    """The names of the fields of a struct, read from the headers."""
    tag = re.escape(c_name[:-2])
    body = re.search(r"typedef struct " + tag + r" \{(.*?)\} " + re.escape(c_name) + ";", TEXT, re.S).group(1)
    names = []
    for declaration in body.split(";")[:-1]:
        function = re.search(r"\(\*(\w+)\)", declaration)
        if function:
            names.append(function.group(1))
            continue
        names += [re.search(r"(\w+)\s*(\[.*\])?$", part.strip()).group(1) for part in declaration.split(",")]
    return names


class Layout(unittest.TestCase):
    def test_fields(self):
        for struct in _abi.STRUCTS:
            self.assertEqual([field[0] for field in struct._fields_], header_fields(struct.c_name), struct.c_name)

    def test_offsets_and_sizes(self):
        lines, expected = [], []
        for struct in _abi.STRUCTS:
            name = struct.c_name
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, *_ in struct._fields_:
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                             f"sizeof((({name} *)0)->{field}));")
                mirrored = getattr(struct, field)
                expected.append(f"{name}.{field} {mirrored.offset} {mirrored.size}")
        self.assertEqual(c_prints(lines), expected)

    def test_defaults(self):
        lines, expected = [], []
        for struct in _abi.STRUCTS:
            if not struct.init:
                continue
            lines.append(f"{{ static const {struct.c_name} s = {struct.init}; "
                         "for (size_t i = 0; i < sizeof s; i++) "
                         'printf("%02x", ((const unsigned char *)&s)[i]); puts(""); }')
            expected.append(bytes(struct()).hex())
        self.assertEqual(c_prints(lines), expected)

    def test_every_init_macro_is_mirrored(self):
        mirrored = {struct.c_name for struct in _abi.STRUCTS}
        for name in re.findall(r"#define (LAP_\w+_INIT)\b", TEXT):
            c_name = name[:-len("_INIT")].lower() + "_t"
            if c_name in mirrored:
                self.assertIn(name, [struct.init for struct in _abi.STRUCTS])

    def test_enums(self):
        for enum in _abi.ENUMS:
            members = list(enum.__members__.items())
            printed = c_prints([f'printf("%d\\n", (int)LAP_{name});' for name, _ in members])
            self.assertEqual(printed, [str(int(value)) for _, value in members], enum.__name__)

    def test_enums_have_all_members(self):
        for tag, enum in (("lap_dtype", _abi.DType), ("lap_op_kind", _abi.Kind), ("lap_layout", _abi.Layout),
                          ("lap_sharded", _abi.Sharded), ("lap_algorithm", _abi.Algorithm),
                          ("lap_tp_gemm", _abi.TpGemm)):
            body = re.search(r"typedef enum " + tag + r" \{(.*?)\}", TEXT, re.S).group(1)
            self.assertEqual(re.findall(r"\bLAP_(\w+) =", body), list(enum.__members__), tag)
        self.assertEqual(re.findall(r"\bX\((\w+), -?\d+,", TEXT), list(_abi.Status.__members__))
        self.assertEqual(re.findall(r"\bLAP_(EPILOGUE_\w+) =", TEXT), list(_abi.Epilogue.__members__))

    def test_functions(self):
        for name, (restype, argtypes) in _abi.FUNCTIONS.items():
            declared = re.search(r"LAP_API ([\w\s*]+?)\b" + name + r"\((.*?)\);", TEXT, re.S)
            self.assertIsNotNone(declared, f"{name} is in no header")
            parameters = [] if declared.group(2).strip() == "void" else declared.group(2).split(",")
            self.assertEqual(len(parameters), len(argtypes), name)
            for parameter, argtype in zip(parameters, argtypes):
                self.assertEqual("*" in parameter, ctypes.sizeof(argtype) == 8 and argtype is not ctypes.c_size_t,
                                 f"{name}: {parameter}")
            returned = declared.group(1).strip()
            self.assertEqual({"void": None, "size_t": ctypes.c_size_t, "int": ctypes.c_int,
                              "lap_status_t": ctypes.c_int, "const char *": ctypes.c_char_p,
                              "lap_group_t *": ctypes.c_void_p}[returned], restype, name)


if __name__ == "__main__":
    unittest.main()
