# SPDX-License-Identifier: Apache-2.0
"""`lap bench` and `lap show` for notebooks: their results as tables and pictures."""

from __future__ import annotations

import html
import json
import os
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from lapstrake import _command
from lapstrake.errors import InvalidArgument

_COLUMNS: List[Tuple[str, str]] = [  # title, field of a method
    ("total, ms", "total_ms"), ("noise, %", "noise_pct"), ("ECT, ms", "ect_ms"), ("efficiency", "efficiency"),
    ("TFLOP/s", "tflops"), ("GB/s", "wire_gbps"),
]


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.4g}"


class Bench:
    """The result of bench(): the object that `lap bench --json` prints, a table of it, and the picture of a call."""

    def __init__(self, data: Dict[str, Any], timeline: Optional[str]) -> None:
        self.data = data
        self.timeline = timeline

    @property
    def methods(self) -> Dict[str, Dict[str, Any]]:
        """The figures of each method by its name."""
        return {row["method"]: row for row in self.data["methods"]}

    @property
    def best(self) -> str:
        """The name of the fastest method."""
        return str(self.data["best"])

    def rows(self) -> List[List[str]]:
        """The table as text: a line of titles, the GEMM alone, serial, and the methods."""
        data = self.data
        rows = [{"method": "GEMM alone", "total_ms": data["gemm_ms"], "noise_pct": data["gemm_noise_pct"],
                 "tflops": data["gemm_tflops"]}]
        if "serial" not in self.methods:
            rows.append({"method": "serial", "total_ms": data["serial_ms"]})
        rows += data["methods"]
        verdicts = {None: "-", True: "yes", False: "no"}
        table = [["method", *(title for title, _ in _COLUMNS), "right"]]
        for row in rows:
            table.append([row["method"], *(_number(row.get(field)) for _, field in _COLUMNS), verdicts[row.get("ok")]])
        return table

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                                   for i, (cell, width) in enumerate(zip(row, widths))) for row in rows)

    __repr__ = __str__

    def _title(self) -> str:
        data = self.data
        link = f", emulated link {data['link']}" if data["link"] else ""
        return (f"{data['op']} {data['m']} {data['n']} {data['k']}, {data['dtype']}, {data['ranks']} ranks, "
                f"{data['device']}, {data['transport']}{link}")

    def _repr_html_(self) -> str:
        titles, *rows = self.rows()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in titles)
        text = f"<table><caption>{html.escape(self._title())}</caption><thead><tr>{cells}</tr></thead><tbody>"
        for row in rows:
            begin, end = ("<b>", "</b>") if row[0] == self.best else ("", "")
            text += "<tr>" + "".join(f"<td>{begin}{html.escape(cell)}{end}</td>" for cell in row) + "</tr>"
        text += "</tbody></table>"
        return text + (f"<div>{_element(self.timeline)}</div>" if self.timeline else "")


class Picture:
    """The result of show(): the text that `lap show` prints, and the picture of it, if there is one."""

    def __init__(self, text: str, svg: Optional[str]) -> None:
        self.text = text
        self.svg = svg

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_svg_(self) -> Optional[str]:
        return None if self.svg is None else _element(self.svg)


def _element(svg: str) -> str:
    """The picture without the line that only a file of its own may begin with."""
    return svg[svg.index("<svg"):]


def _drawn(arguments: List[str], option: str, options: Dict[str, Any]) -> Tuple[str, Optional[str]]:
    """What lap prints, and the picture that it draws with this option; None if there was nothing to draw."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "picture.svg")
        text = _command.run(*arguments, f"{option}={path}", *_command.words(options))
        if not os.path.exists(path):
            return text, None
        with open(path, encoding="utf-8") as file:
            return text, file.read()


def _refuse(options: Dict[str, Any], *names: str) -> None:
    for name in names:
        if name in options:
            raise InvalidArgument(f"{name} is {options[name]!r}, expected no such argument: this call sets it itself")


def bench(op: str, m: int, n: int, k: int, *, timeline: bool = True, **options: Any) -> Bench:
    """Times an operator, as `lap bench op m n k`; options are those of the command, as in ranks=4, dtype="bf16".

    Every rank is started by this call. Raises InvalidArgument for wrong options, and Error if a result was wrong or a
    rank failed.
    """
    _refuse(options, "json", "timeline", "help")
    arguments = ["bench", str(op), str(m), str(n), str(k), "--json", "--quiet"]
    if not timeline or options.get("no_trace"):
        return Bench(json.loads(_command.run(*arguments, *_command.words(options))), None)
    text, svg = _drawn(arguments, "--timeline", options)
    return Bench(json.loads(text), svg)


def show(what: str, *sizes: int, **options: Any) -> Picture:
    """Shows a schedule or a pass, as `lap show what sizes`: show("ag", 8, 8, 8, ranks=2), show("train", tp=2).

    With each=True or predict=..., which print text, there is no picture. Raises InvalidArgument for wrong options.
    """
    _refuse(options, "json", "svg", "help")
    arguments = ["show", str(what), *(str(size) for size in sizes)]
    text = _command.run(*arguments, *_command.words(options))
    if options.get("each") or options.get("predict"):
        return Picture(text, None)
    return Picture(text, _drawn(arguments, "--svg", options)[1])
