#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the driver's cuMemFree waits for work that the freed memory is used by.

Each case is a process of its own: a kernel reads 256 MiB for 300 ms, the memory is freed meanwhile, and then it is said how
long cuMemFree took and how the kernel ended. `python3 bench/freed_memory.py` runs all; no package is needed. docs/building.md has what was seen.
"""
import ctypes
import os
import subprocess
import sys
import time

MS, BYTES = 300, 256 << 20
PTX = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 p, .param .u64 bytes, .param .u64 ns)
{
 .reg .pred %q; .reg .u64 %a<8>; .reg .u32 %r<8>;
 ld.param.u64 %a0,[p]; ld.param.u64 %a1,[bytes]; ld.param.u64 %a2,[ns];
 mov.u64 %a3,%globaltimer; add.u64 %a3,%a3,%a2;
 mov.u32 %r0,%ctaid.x; mov.u32 %r1,%ntid.x; mov.u32 %r2,%tid.x; mad.lo.u32 %r3,%r0,%r1,%r2;
 mul.wide.u32 %a4,%r3,4096;
L:
 rem.u64 %a5,%a4,%a1; add.u64 %a6,%a0,%a5; ld.volatile.global.u32 %r4,[%a6];
 add.u64 %a4,%a4,1048576; mov.u64 %a7,%globaltimer; setp.lt.u64 %q,%a7,%a3; @%q bra L;
 ret;
}
"""
CASES = {
    "primary": "stream of the primary context, memory freed there",
    "green": "stream of a green context, nobody waits for it",
    "green_wait": "the same, and a stream of the primary context waits for it: as lap_op_enqueue",
    "green_wait_memset": "the same, and a memset on the waiting stream",
    "green_wait_record": "the same, and an event recorded on the waiting stream",
    "green_wait_null": "as green_wait, but the default stream waits",
    "green_graph": "a graph on a stream of a green context, nobody waits for it",
    "green_graph_wait": "as green_wait, as a graph",
    "green_graph_wait_record": "the same, and an event recorded on the waiting stream",
    "green_graph_wait_memset": "the same, and a memset on the waiting stream: the mend",
    "green_graph_same_memset": "the same, the waiting stream is of the green context",
    "green_graph_null_memset": "the same, the default stream waits",
    "green_graph_inner": "as a graph of the primary stream whose nodes were captured from the green one",
    "green_graph_inner_memset": "the same, and a memset as its last node: the mend in a capture",
    "primary_graph": "a graph on a stream of the primary context",
    "green_freed_green": "as green_wait, freed with the green context current",
    "green_wait_sync": "as green_wait, but cuCtxSynchronize in the primary context instead of cuMemFree",
    "green_sync": "the same without a stream that waits",
    "ipc_freed": "another process reads by CUDA IPC, the owner frees",
    "ipc_exit": "another process reads by CUDA IPC, the owner exits",
    "vmm_unmapped": "control: cuMemUnmap, which does not wait; must end with 700",
}
cu = None
V = ctypes.c_void_p
U64 = ctypes.c_uint64


def do(name, *args):
    result = getattr(cu, name)(*args)
    if result:
        raise RuntimeError(f"{name} returns {result}")


def out(kind=V):
    return kind()


class Resource(ctypes.Structure):  # CUdevResource: type, padding, then the SMs' number first
    _fields_ = [("type", ctypes.c_int), ("pad", ctypes.c_ubyte * 92), ("sms", ctypes.c_uint), ("rest", ctypes.c_ubyte * 60)]


def green_of(device):
    whole, part, desc, green, context = (ctypes.create_string_buffer(1024), ctypes.create_string_buffer(1024), out(), out(), out())
    do("cuDeviceGetDevResource", device, whole, 1)
    count = ctypes.c_uint(1)
    do("cuDevSmResourceSplitByCount", part, ctypes.byref(count), whole, None, 0, 32)
    do("cuDevResourceGenerateDesc", ctypes.byref(desc), part, 1)
    do("cuGreenCtxCreate", ctypes.byref(green), desc, device, 1)
    do("cuCtxFromGreenCtx", ctypes.byref(context), green)
    return green, context


def start(case):
    """The kernel, running; returns the streams and the memory."""
    device, primary, module, kernel, memory = ctypes.c_int(), out(), out(), out(), out(U64)
    do("cuInit", 0)
    do("cuDeviceGet", ctypes.byref(device), 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(primary), device)
    do("cuCtxPushCurrent_v2", primary)
    return device, primary, module, kernel, memory


def launch(kernel, memory, stream, ms=MS):
    args = [U64(memory), U64(BYTES), U64(ms * 1000000)]
    params = (V * 3)(*[ctypes.cast(ctypes.pointer(arg), V) for arg in args])
    do("cuLaunchKernel", kernel, 16, 1, 1, 128, 1, 1, 0, stream, params, None)


def load():
    module, kernel = out(), out()
    do("cuModuleLoadData", ctypes.byref(module), PTX)
    do("cuModuleGetFunction", ctypes.byref(kernel), module, b"touch")
    return kernel


def reader(handle_hex):
    """The other process of the cases ipc_*: maps, reads for 600 ms, says how it ended."""
    start("reader")
    kernel, stream, memory = load(), out(), out(U64)

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_ubyte * 64)]
    handle = Handle.from_buffer_copy(bytes.fromhex(handle_hex))
    opener = cu.cuIpcOpenMemHandle_v2
    opener.argtypes = [V, Handle, ctypes.c_uint]
    do("cuIpcOpenMemHandle_v2", ctypes.addressof(memory), handle, 1)
    do("cuStreamCreate", ctypes.byref(stream), 1)
    launch(kernel, memory.value, stream, 1)
    do("cuStreamSynchronize", stream)
    launch(kernel, memory.value, stream, 2 * MS)
    print("reading", flush=True)
    result = cu.cuStreamSynchronize(stream)
    print(f"ended with {result}", file=sys.stderr, flush=True)


def run_ipc(case, memory):
    handle = ctypes.create_string_buffer(64)
    do("cuIpcGetMemHandle", handle, U64(memory))
    other = subprocess.Popen([sys.executable, __file__, "reader", handle.raw.hex()], stdout=subprocess.PIPE, text=True)
    said = other.stdout.readline().strip()
    begin = time.perf_counter()
    if case == "ipc_freed":
        do("cuMemFree_v2", U64(memory))
        print(f"free took {1e3 * (time.perf_counter() - begin):.1f} ms; the reader, {said}, ...", flush=True)
        other.wait()
    else:
        print(f"the owner exits; the reader, {said}, ...", flush=True)
        os._exit(0)  # its words come by stderr, which run() reads until all have closed it


def run_vmm():
    size, memory, handle = BYTES, out(U64), out(U64)
    prop = (ctypes.c_ubyte * 64)()
    ctypes.cast(prop, ctypes.POINTER(ctypes.c_int))[0] = 1  # pinned
    ctypes.cast(prop, ctypes.POINTER(ctypes.c_int))[2] = 1  # of a device, 0
    do("cuMemAddressReserve", ctypes.byref(memory), ctypes.c_size_t(size), ctypes.c_size_t(0), U64(0), U64(0))
    do("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), prop, U64(0))
    do("cuMemMap", memory, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, U64(0))
    access = (ctypes.c_int * 3)(1, 0, 3)
    do("cuMemSetAccess", memory, ctypes.c_size_t(size), access, ctypes.c_size_t(1))
    return memory.value


def run(case):
    device, primary, *_ = start(case)
    kernel = load()
    memory = out(U64)
    if case == "vmm_unmapped":
        memory.value = run_vmm()
    else:
        do("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    if case.startswith("ipc"):
        return run_ipc(case, memory.value)
    stream, caller, event, later = out(), out(), out(), out()
    word = out(U64)  # allocated before anything runs: cuMemAlloc may wait, too
    do("cuMemAlloc_v2", ctypes.byref(word), ctypes.c_size_t(4))
    green = None
    if case.startswith("green"):
        green_ctx, green = green_of(device)
        do("cuGreenCtxStreamCreate", ctypes.byref(stream), green_ctx, 1, 0)
        do("cuCtxPushCurrent_v2", green)
        kernel = load()
    else:
        do("cuStreamCreate", ctypes.byref(stream), 1)
    launch(kernel, memory.value, stream, 1)
    do("cuStreamSynchronize", stream)
    if "inner" in case:
        return run_inner(case, primary, kernel, stream, memory)
    if "graph" in case:
        graph, exe = out(), out()
        do("cuStreamBeginCapture_v2", stream, 2)
        launch(kernel, memory.value, stream)
        do("cuStreamEndCapture", stream, ctypes.byref(graph))
        do("cuGraphInstantiateWithFlags", ctypes.byref(exe), graph, U64(0))
        do("cuGraphLaunch", exe, stream)
    else:
        launch(kernel, memory.value, stream)
    do("cuEventCreate", ctypes.byref(event), 2)
    do("cuEventRecord", event, stream)
    if green:
        do("cuCtxPopCurrent_v2", ctypes.byref(out()))
    if "same" in case:
        do("cuGreenCtxStreamCreate", ctypes.byref(caller), green_ctx, 1, 0)
        do("cuStreamWaitEvent", caller, event, 0)
    elif "wait" in case or "freed_green" in case or "null" in case:
        if "null" not in case:
            do("cuStreamCreate", ctypes.byref(caller), 1)
        do("cuStreamWaitEvent", caller, event, 0)
    if "memset" in case:
        do("cuMemsetD32Async", word, 0, ctypes.c_size_t(1), caller)
    if "record" in case:
        do("cuEventCreate", ctypes.byref(later), 2)
        do("cuEventRecord", later, caller)
    if case == "green_freed_green":
        do("cuCtxPushCurrent_v2", green)
    end(case, memory, stream)


def run_inner(case, primary, kernel, stream, memory):
    """A caller's graph: captured from a stream of the primary context, with a kernel of the green one."""
    caller, fork, join, graph, exe, word = out(), out(), out(), out(), out(), out(U64)
    do("cuEventCreate", ctypes.byref(join), 2)
    do("cuCtxPushCurrent_v2", primary)
    do("cuStreamCreate", ctypes.byref(caller), 1)
    do("cuEventCreate", ctypes.byref(fork), 2)
    do("cuMemAlloc_v2", ctypes.byref(word), ctypes.c_size_t(4))
    do("cuStreamBeginCapture_v2", caller, 2)
    do("cuEventRecord", fork, caller)
    do("cuStreamWaitEvent", stream, fork, 0)
    do("cuCtxPopCurrent_v2", ctypes.byref(out()))
    launch(kernel, memory.value, stream)
    do("cuEventRecord", join, stream)
    do("cuCtxPushCurrent_v2", primary)
    do("cuStreamWaitEvent", caller, join, 0)
    if "memset" in case:
        do("cuMemsetD32Async", word, 0, ctypes.c_size_t(1), caller)
    do("cuStreamEndCapture", caller, ctypes.byref(graph))
    do("cuGraphInstantiateWithFlags", ctypes.byref(exe), graph, U64(0))
    do("cuGraphLaunch", exe, caller)
    end(case, memory, caller)


def end(case, memory, stream):
    begin = time.perf_counter()
    freed = (cu.cuMemUnmap(memory, ctypes.c_size_t(BYTES)) if case == "vmm_unmapped" else
             cu.cuCtxSynchronize() if case.endswith("sync") else cu.cuMemFree_v2(memory))
    took = 1e3 * (time.perf_counter() - begin)
    result = cu.cuStreamSynchronize(stream)
    verdict = "it waits" if took > MS / 2 else "IT DOES NOT WAIT"
    print(f"free took {took:6.1f} ms, returns {freed}; the kernel ended with {result}; {verdict}")


def main():
    global cu
    if len(sys.argv) == 1:
        for case, what in CASES.items():
            done = subprocess.run([sys.executable, __file__, case], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=60, check=False)
            print(f"{case:24} {' | '.join(done.stdout.split(chr(10))[-4:]).strip(' |')}    ({what})", flush=True)
        return
    cu = ctypes.CDLL("libcuda.so.1")
    reader(sys.argv[2]) if sys.argv[1] == "reader" else run(sys.argv[1])


main()
