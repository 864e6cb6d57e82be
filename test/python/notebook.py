# SPDX-License-Identifier: Apache-2.0
"""bench() and show(): the figures and pictures of the command, and its sentences as exceptions."""

import os
import subprocess
import sys
import unittest
import xml.dom.minidom

import lapstrake as lap


class Notebook(unittest.TestCase):
    def test_bench(self):
        result = lap.bench("ag", 32, 32, 32, ranks=2, method="ring,direct", iters=3, seed=7)
        self.assertEqual(list(result.methods), ["ring", "direct"])
        self.assertIn(result.best, result.methods)
        self.assertEqual((result.data["m"], result.data["ranks"], result.data["seed"]), (32, 2, 7))
        titles, *rows = result.rows()
        self.assertEqual([row[0] for row in rows], ["GEMM alone", "serial", "ring", "direct"])
        total = float(rows[2][titles.index("total, ms")])
        self.assertAlmostEqual(total, result.methods["ring"]["total_ms"], delta=1e-3 * total)
        self.assertEqual([row[-1] for row in rows], ["-", "-", "yes", "yes"])
        self.assertIn("direct", str(result))
        table = result._repr_html_()
        document = xml.dom.minidom.parseString(f"<div>{table}</div>")
        self.assertEqual(len(document.getElementsByTagName("tr")), 5)
        self.assertEqual(len(document.getElementsByTagName("svg")), 1)
        self.assertIn(f"<td><b>{result.best}</b></td>", table)

    def test_bench_without_a_picture(self):
        result = lap.bench("rs", 16, 16, 16, ranks=2, method="serial", iters=1, timeline=False)
        self.assertIsNone(result.timeline)
        self.assertNotIn("<svg", result._repr_html_())

    def test_bench_of_a_rank(self):
        """A notebook with a process group of its own, and a rank of torchrun, mpirun or lap run, starts ranks, too."""
        code = ("import lapstrake; print(lapstrake.bench('rs', 16, 16, 16, ranks=2, method=['serial', 'ring'], iters=1, "
                "timeout=20).data['ranks'])")
        for size in ("1", "3"):
            for rank_of, size_of in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                     ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
                                     ("LAP_RANK", "LAP_SIZE")):
                environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
                                   **{rank_of: "0", size_of: size})
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
                self.assertEqual((done.stdout, done.stderr), ("2\n", ""), rank_of)
        done = subprocess.run([os.environ["LAP"], "run", "-n", "2", sys.executable, "-c", code], capture_output=True,
                              text=True)
        self.assertEqual((sorted(done.stdout.splitlines()), done.stderr), (["[0] 2", "[1] 2"], ""))

    def test_show(self):
        picture = lap.show("ag", 8, 8, 8, ranks=2, method="ring")
        self.assertIn("rank 1: ", str(picture))
        self.assertEqual(xml.dom.minidom.parseString(picture._repr_svg_()).documentElement.tagName, "svg")
        self.assertIn("transformer, 1 layer", str(lap.show("train", tp=2, hidden=32, heads=2, seq=8)))

    def test_show_without_a_picture(self):
        for options in ({"each": True}, {"target": "cuda", "predict": "h100-sxm"}):
            picture = lap.show("ag", 8, 8, 8, ranks=2, method="ring", **options)
            self.assertIn("rank 1: ", str(picture))
            self.assertIsNone(picture._repr_svg_())

    def test_sentences(self):
        for call, sentence in (
                (lambda: lap.bench("ag", 8, 8, 8, rank_s=2), "unknown option '--rank-s'"),
                (lambda: lap.bench("xx", 8, 8, 8), "'xx'"),
                (lambda: lap.bench("ag", 8, 8, 8, help=True), "help is True, expected no such argument"),
                (lambda: lap.show("ag", 8, 8, 8, help=True), "help is True, expected no such argument"),
                (lambda: lap.bench("ag", 8, 8, 8, method=True, seed=7, ranks=2), "'--method' needs a value"),
                (lambda: lap.bench(None, 8, 8, 8), "'None'"),
                (lambda: lap.bench("ag", 8, 8, 8, json=True), "json is True, expected no such argument"),
                (lambda: lap.show("ag", 8, 8, 8, method="none"), "none")):
            with self.assertRaises(lap.InvalidArgument) as raised:
                call()
            self.assertIn(sentence, str(raised.exception))

    def test_the_command(self):
        def module(**environment):
            done = subprocess.run([sys.executable, "-m", "lapstrake", "--version"], capture_output=True, text=True,
                                  env={**os.environ, **environment})
            return done.returncode, done.stdout, done.stderr

        status, text, _ = module()
        said = subprocess.run([os.environ["LAP"], "--version"], capture_output=True, text=True).stdout
        self.assertEqual((status, text), (0, said))
        status, _, text = module(LAPSTRAKE_COMMAND="/nowhere/lap")
        self.assertEqual(status, 1)
        self.assertEqual(text, "lapstrake: lap cannot be run: /nowhere/lap (No such file or directory)\n")
        status, _, text = module(LAPSTRAKE_COMMAND="", PATH="/nowhere")
        self.assertEqual(status, 1)
        self.assertEqual(text, "lapstrake: there is no command lap; set LAPSTRAKE_COMMAND to its path\n")


if __name__ == "__main__":
    unittest.main()
