# SPDX-License-Identifier: Apache-2.0
"""The package without PyTorch: worlds, groups and operators in real processes; failures are exceptions."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import typing
import unittest
from pathlib import Path

import lapstrake as lap
from ranks import Files, forked

LAP = os.environ["LAP"]
FAKES = os.environ.get("FAKE_CUDA", "")


def matrix(values, rows, cols):
    """Floats, and the view of them as a matrix."""
    memory = (ctypes.c_float * (rows * cols))(*values)
    return memory, lap.tensor(ctypes.addressof(memory), lap.DType.FLOAT32, rows, cols)


def run(ranks, body, **environment):
    """Runs Python text under `lap run` with so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank.py"
        path.write_text("import os, sys, time, ctypes\nimport lapstrake as lap\n"
                        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom base import matrix\n" + body)
        return subprocess.run([LAP, "run", "-n", str(ranks), sys.executable, str(path)], capture_output=True,
                              text=True, timeout=60, env={**os.environ, **environment})


class Base(unittest.TestCase):
    def test_a_callback_that_is_interrupted(self):
        def interrupt(mine):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            lap.World.connect(0, 2, interrupt, lambda: None)

    def test_types_within_with(self):
        """A checker of types knows what `with World() as world` gives."""
        for kind in (lap.World, lap.Op):
            hints = typing.get_type_hints(kind.__enter__)
            self.assertIs(hints["self"], hints["return"])

    def test_a_world_of_one(self):
        with lap.World() as world:
            self.assertEqual((world.rank, world.size, world.group.size), (0, 1, 1))
            op = lap.Op(world.group, lap.Kind.AG_GEMM, 2, 3, 4, method="ring")
            self.assertEqual(op.method, "ring")
            a, a_view = matrix(range(8), 2, 4)
            b, b_view = matrix([1, 2, 3, 4] * 3, 3, 4)
            d, d_view = matrix([0] * 6, 2, 3)
            op.run(lap.OpArgs(m=2, a=a_view, b=b_view, d=d_view))
            self.assertEqual(list(d), [20, 20, 20, 60, 60, 60])
        self.assertTrue(world.closed and op.closed)

    def test_ranks_of_lap_run(self):
        done = run(3, """
with lap.World() as world:
    group = world.group
    assert group.allgather(bytes([world.rank] * 2)) == [b"\\0\\0", b"\\1\\1", b"\\2\\2"]
    part = group.split(0 if world.rank < 2 else -1)
    assert (part is None) == (world.rank == 2)
    if part:
        assert (part.rank, part.size) == (world.rank, 2)
        part.barrier()
        part.close()
    op = lap.Op(group, lap.Kind.GEMM_RS, 6, 2, 3)
    a, a_view = matrix([world.rank + 1] * 6, 6, 1)
    b, b_view = matrix([1, 10], 2, 1)
    d, d_view = matrix([0] * 4, 2, 2)
    op.begin(lap.OpArgs(m=6, a=a_view, b=b_view, d=d_view))
    op.end()
    assert list(d) == [6, 60, 6, 60], list(d)
    print("right")
""")
        self.assertEqual((done.returncode, done.stdout.count("right")), (0, 3), done.stderr)

    def test_sentences(self):
        with lap.World() as world:
            for error, text, arguments in (
                (lap.InvalidArgument, "method 'rnig'", dict(method="rnig")),
                (lap.InvalidArgument, "num_splits", dict(method="ring", num_splits=3)),
                (lap.Unsupported, "type", dict(dtype=77)),
            ):
                with self.assertRaises(error) as caught:
                    lap.Op(world.group, lap.Kind.AG_GEMM, 2, 2, 2, **arguments)
                self.assertIn(text, str(caught.exception))
                self.assertIsInstance(caught.exception, lap.Error)
            with self.assertRaisesRegex(TypeError, "lap_op_desc_t has no field 'mm'"):
                lap.Op(world.group, lap.Kind.AG_GEMM, 2, 2, 2, mm=1)
            for m in (-1, 2 ** 70):  # of which ctypes would take a part
                with self.assertRaisesRegex(lap.InvalidArgument, f"m is {m}, expected a number from 0 to"):
                    lap.Op(world.group, lap.Kind.AG_GEMM, m, 2, 2)
            with self.assertRaisesRegex(TypeError, "expected a Group, such as that of a world: world.group"):
                lap.Op(world, lap.Kind.AG_GEMM, 2, 2, 2)
            with self.assertRaisesRegex(TypeError, "mine is 'abc', expected bytes"):
                world.group.allgather("abc")
            self.assertEqual(world.group.allgather(bytearray(b"abc")), [b"abc"])
            part = world.group.split(0)
            part.close()
            with self.assertRaisesRegex(lap.InvalidArgument, "this Group has been closed"):
                part.barrier()
            with self.assertRaisesRegex(TypeError, "what allgather returned is 'x', expected bytes"):
                try:
                    lap.World.connect(0, 2, lambda mine: "x", lambda: None)
                except lap.Error as failure:
                    raise failure.__cause__
            op = lap.Op(world.group, lap.Kind.AG_GEMM, 2, 2, 2)
            with self.assertRaisesRegex(lap.InvalidArgument, "a"):
                op.run(lap.OpArgs(m=2))
        with self.assertRaisesRegex(lap.InvalidArgument, "this Op has been closed"):
            op.run(lap.OpArgs(m=2))
        with self.assertRaisesRegex(lap.InvalidArgument, "this World has been closed"):
            world.group.barrier()

    def test_what_ranks_do_not_agree_on(self):
        done = run(2, """
with lap.World() as world:
    try:
        lap.Op(world.group, lap.Kind.AG_GEMM, 2, 2, 2 + world.rank)
    except lap.Mismatch as failure:
        print("told:", failure)
""")
        self.assertEqual((done.returncode, done.stdout.count("told:")), (0, 2), done.stderr)
        self.assertIn("k", done.stdout)

    def test_callbacks(self):
        with lap.World.connect(0, 1, lambda mine: mine, lambda: None, timeout_s=5) as world:
            self.assertEqual((world.rank, world.size), (0, 1))

        def fails(mine):
            raise KeyError("no network")

        with self.assertRaises(lap.SystemFailure) as caught:
            lap.World.connect(0, 2, fails, lambda: None)
        self.assertIsInstance(caught.exception.__cause__, KeyError)
        with self.assertRaises(lap.SystemFailure) as caught:
            lap.World.connect(0, 2, lambda mine: mine, lambda: None)
        self.assertIn("expected", str(caught.exception.__cause__))

    def test_order_of_destruction(self):
        world = lap.World()
        op = lap.Op(world.group, lap.Kind.GEMM, 2, 2, 2)
        del world
        gc.collect()
        self.assertFalse(op.closed)
        a, a_view = matrix([1, 2, 3, 4], 2, 2)
        d, d_view = matrix([0] * 4, 2, 2)
        op.run(lap.OpArgs(m=2, a=a_view, b=a_view, d=d_view))  # its world is still there
        self.assertEqual(list(d), [5, 11, 11, 25])

    def test_what_is_left_at_the_end(self):
        # Nothing is closed: cycles, modules that are torn down, a process that was forked.
        done = run(2, """
world = lap.World()
op = lap.Op(world.group, lap.Kind.AG_GEMM, 4, 4, 4)
world.cycle = [world, op]
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the fork
child = os.fork()
if child == 0:
    del world, op
    import gc; gc.collect()
    sys.exit(0)
os.waitpid(child, 0)
world.group.barrier()
print("left")
""")
        self.assertEqual((done.returncode, done.stdout.count("left"), done.stderr), (0, 2, ""))

    def test_a_killed_rank(self):
        def body(rank, ranks, folder):
            files = Files(folder, rank, ranks)
            world = lap.World.connect(rank, ranks, files.allgather, files.barrier, timeout_s=20)
            op = lap.Op(world.group, lap.Kind.GEMM_RS, 6, 2, 3)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            a, a_view = matrix([1] * 6, 6, 1)
            b, b_view = matrix([1, 10], 2, 1)
            d, d_view = matrix([0] * 4, 2, 2)
            begun = time.monotonic()
            try:
                op.run(lap.OpArgs(m=6, a=a_view, b=b_view, d=d_view))
            except lap.PeerLost as failure:
                return time.monotonic() - begun, str(failure)
            return None

        with tempfile.TemporaryDirectory() as folder:
            results = forked(3, body, folder, killed=[1])
        for rank in (0, 2):
            seconds, sentence = results[rank]
            self.assertIn("rank 1", sentence)
            self.assertLess(seconds, 10)  # far from the timeout

    @unittest.skipUnless(FAKES, "this build has no CUDA")
    def test_calls_in_a_stream(self):
        # Over a driver without a GPU, with pinned memory.
        done = run(2, """
world = lap.World(device="cuda")
assert world.gpu() == 0
driver = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    address, found = ctypes.c_void_p(), ctypes.c_int()
    driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 12050, ctypes.c_uint64(0), ctypes.byref(found))
    result = ctypes.CFUNCTYPE(ctypes.c_int, *map(type, arguments))(address.value)(*arguments)
    assert result == 0, (name, result)
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
call("cuDevicePrimaryCtxRetain", ctypes.pointer(context), ctypes.c_int(0))
call("cuCtxPushCurrent", context)
call("cuStreamCreateWithPriority", ctypes.pointer(stream), ctypes.c_uint(1), ctypes.c_int(0))
def matrix_there(values, rows, cols):
    there = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.pointer(there), ctypes.c_size_t(4 * rows * cols), ctypes.c_uint(0))
    memory = (ctypes.c_float * (rows * cols)).from_address(there.value)
    memory[:] = values
    return memory, lap.tensor(there.value, lap.DType.FLOAT32, rows, cols)
op = lap.Op(world.group, lap.Kind.GEMM_RS, 4, 2, 2, method="ring")
a, a_view = matrix_there([world.rank + 1] * 4, 4, 1)
b, b_view = matrix_there([1, 10], 2, 1)
d, d_view = matrix_there([0] * 4, 2, 2)
for _ in range(3):
    op.enqueue(lap.OpArgs(m=4, a=a_view, b=b_view, d=d_view), stream.value)
world.synchronize(stream.value)
assert list(d) == [3, 30, 3, 30], list(d)
assert op.captured is False
call("cuStreamBeginCapture", stream, ctypes.c_int(2))
op.enqueue(lap.OpArgs(m=4, a=a_view, b=b_view, d=d_view), stream.value)
call("cuStreamEndCapture", stream, ctypes.pointer(ctypes.c_void_p()))
assert op.captured is True
print("right")
""", LD_LIBRARY_PATH=FAKES, LAP_GPU_TUNE="0")
        self.assertEqual((done.returncode, done.stdout.count("right")), (0, 2), done.stdout + done.stderr)

    @unittest.skipUnless(FAKES, "this build has no CUDA")
    def test_auto_foreign(self):
        # Over a driver, NCCL and cuBLASMp without a GPU.
        done = run(2, """
with lap.World(device="cuda", transport="nccl") as world:
    for foreign in (0, 1):
        op = lap.Op(world.group, lap.Kind.AG_GEMM, 48, 32, 16, method="auto", auto_foreign=foreign)
        considered = dict(op.predictions())
        assert ("cublasmp" in considered) == bool(foreign) and "ring" in considered, considered
    print("right")
""", LD_LIBRARY_PATH=FAKES, FAKE_GPUS="2", LAP_GPU_TUNE="0")
        self.assertEqual((done.returncode, done.stdout.count("right")), (0, 2), done.stdout + done.stderr)

    def test_version(self):
        self.assertEqual(lap.__version__, lap.version())
        self.assertFalse(hasattr(lap, "__versions__"))

    def test_no_library(self):
        for name, text in (("/nowhere/liblap.so", "there is no liblap"), ("libm.so.6", "no liblap, or one of another")):
            done = subprocess.run([sys.executable, "-c", "import lapstrake; lapstrake.version()"], capture_output=True,
                                  text=True, env={**os.environ, "LAPSTRAKE_LIBRARY": name})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
