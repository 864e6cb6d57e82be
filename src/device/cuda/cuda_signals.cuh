/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals between ranks: words in the memory of GPUs, raised and waited for by kernels of one warp,
 * or by the last block of a kernel that did something before. Only for kernels.cu.
 */
#ifndef LAP_DEVICE_CUDA_CUDA_SIGNALS_CUH
#define LAP_DEVICE_CUDA_CUDA_SIGNALS_CUH

#include "device/cuda/cuda_kernels.h"

namespace
{

__device__ uint32_t load_acquire(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ uint32_t load_relaxed(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ uint64_t load_relaxed(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ void store_relaxed(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ void store_relaxed(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ void store_release(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ uint64_t now()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Where somebody asks for it. */
__device__ void write_time(uint64_t *place)
{
    if (place)
        store_relaxed(place, now());
}

/* The host reads the slot when it has seen the state, which releases the rest, and looks again. */
__device__ void report(lap_cuda_slot_t *slot, const lap_cuda_wait_t &wait, uint32_t come,
                       uint32_t state)
{
    store_relaxed(&slot->state, LAP_CUDA_RUNS);
    __threadfence_system();
    slot->buffer = wait.buffer;
    slot->reason = wait.reason;
    slot->peer = wait.peer;
    slot->signal = wait.signal;
    slot->count = wait.count;
    slot->come = come;
    slot->number++;
    store_release(&slot->state, state);
}

/* Different for every call, and for one that is replayed every time. */
__device__ uint64_t full_tag(uint64_t tag, const uint32_t *calls)
{
    return tag ^ load_relaxed(calls) * 0xd1b54a32d192ed03u;
}

/* Sends a transfer over the link, after all before it; returns when it comes. */
__device__ uint64_t carry(const lap_cuda_transit_t &transit)
{
    const uint64_t issued = transit.issued ? *transit.issued : now();
    uint64_t due = issued;
    if (transit.link_free) {
        auto *link_free = reinterpret_cast<unsigned long long *>(transit.link_free);
        uint64_t seen = load_relaxed(transit.link_free), expected;
        do {
            expected = seen;
            due = (issued > expected ? issued : expected) + transit.carry_ns;
            seen = atomicCAS(link_free, expected, due);
        } while (seen != expected);
    }
    /* Data is there at once, but not before it has been copied. */
    due += transit.latency_ns;
    const uint64_t copied = now();
    return due > copied ? due : copied;
}

/* Writes when the next raise of a word, which only this thread makes, is due. */
__device__ void set_due(lap_cuda_word_t *word, uint64_t due)
{
    store_relaxed(&word->due[(load_relaxed(&word->value) + 1) % LAP_CUDA_DUES], due);
}

/*
 * Whether raise `nth` of a word that shows `value` is due. Of one so long ago that its time is
 * forgotten, the oldest that is known has to do, which is later.
 */
__device__ bool is_due(const lap_cuda_word_t *word, uint32_t nth, uint32_t value)
{
    const uint32_t known = value - nth < LAP_CUDA_DUES ? nth : value - (LAP_CUDA_DUES - 1);
    return load_relaxed(&word->due[known % LAP_CUDA_DUES]) <= now();
}

/*
 * Partner: lap_wait on the same word. What this rank's stream wrote before, copies included, is
 * there when the word shows the addition, which releases it. After a wait that timed out, that may
 * be anything: no peer gets a signal.
 */
__device__ void raise_word(lap_cuda_word_t *word, uint64_t tag, uint32_t lost)
{
    if (lost != 0)
        return;
    store_relaxed(&word->tag, tag);
    asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(&word->value) : "memory");
}

/*
 * Ends all waits of this rank where the host does not. Its streams then run out. The host finds in the
 * control block what the first wait that timed out was for.
 */
template <typename waits_t>
__device__ void time_out(const waits_t &waits, const lap_cuda_wait_t &wait, uint32_t come,
                         uint32_t state)
{
    if (atomicExch(waits.lost, 1) != 0)
        return;
    report(&waits.control->late, wait, come, state);
    store_release(&waits.control->abort, LAP_CUDA_TIMED_OUT);
}

/* What follows a wait that has ended in vain must not be raised: it may be anything. */
template <typename waits_t> __device__ void lose(const waits_t &waits)
{
    atomicExch(waits.lost, 1);
}

/*
 * For kernels of one warp that last: with 32 registers to a thread it finds room on a
 * multiprocessor together with a block of a GEMM, which takes nearly all of them. Else it would keep the
 * GEMM away from there. That many registers are what 32 blocks of 64 threads leave each other.
 */
#define SMALL __launch_bounds__(64, 32)

constexpr int looks = 64; /* at the words, between two looks at the host's memory */

/*
 * One warp, a lane for each wait, with times as if one came after the other: ends when all signals
 * have come, or the host says so, or after the limit, when there is perhaps no host that looks. What
 * came with a signal of another call must not be used: then only the host can end it, or the limit.
 * `base` is how far the lane's word was before the call, and `tag` what it shows with the signal.
 */
template <typename waits_t>
__device__ void await_all(const waits_t &waits, uint32_t base, uint64_t tag)
{
    const unsigned lane = threadIdx.x;
    const lap_cuda_wait_t &mine = waits.at[lane < waits.n ? lane : 0];
    uint32_t come = 0;
    int in_slot = -1;                                 /* the lane whose wait is in the slot, */
    uint64_t since = 0;                               /* and since when */
    bool missing = lane < waits.n, waiting = missing; /* it has not come, or is not due */
    bool mismatch = false;
    uint64_t *time =
        missing ? waits.times.after[lane] : nullptr; /* to be written, when all up to here have */
    const bool timed = __any_sync(~0u, time != nullptr);
    if (lane == 0)
        write_time(waits.times.before);
    for (int round = 0;; round++) {
        if (waiting) {
            /* The tag is there before the value: most often a look at it beforehand will do. */
            mismatch = load_relaxed(&mine.word->tag) != tag;
            /* Acquires what the peer's raise_word released. */
            const uint32_t value = load_acquire(&mine.word->value);
            come = value - base;
            missing = static_cast<int32_t>(come - mine.count) < 0;
            waiting = missing || (mine.paced && !is_due(mine.word, base + mine.count, value));
        }
        const unsigned left = __ballot_sync(~0u, waiting), lack = __ballot_sync(~0u, missing);
        if (timed) {
            const uint64_t at = __shfl_sync(~0u, now(), 0);
            if (time && (left & ((2u << lane) - 1)) == 0) {
                store_relaxed(time, at);
                time = nullptr;
            }
        }
        if (left == 0)
            break;
        /* A peer may be missed only for what has not come. */
        const int first = __ffs(static_cast<int>(lack ? lack : left)) - 1;
        bool ends = false;
        /*
         * The host's memory is far: to write there, or to read, takes longer than most waits. It hears
         * only of those that last, and only those listen.
         */
        const bool lasts = round >= looks;
        if (lasts && static_cast<int>(lane) == first) {
            if (in_slot != first) {
                report(waits.slot, mine, come, LAP_CUDA_STALLED);
                since = now();
            } else if (round % looks == 0) {
                store_relaxed(&waits.slot->come, come);
            }
            ends = round % looks == 0 && load_relaxed(&waits.control->abort) != LAP_CUDA_GO;
            if (!ends && round % looks == 0 && now() - since > waits.limit_ns) {
                time_out(waits, mine, come, LAP_CUDA_STALLED);
                ends = true;
            }
        }
        if (lasts)
            in_slot = first;
        if (__any_sync(~0u, ends)) {
            lose(waits);
            return; /* the slot stays: the host reads it */
        }
        __nanosleep(round < looks ? 20 : 100);
    }
    mismatch =
        mismatch && lane < waits.n && waits.checks_tag && load_relaxed(&mine.word->tag) != tag;
    const unsigned wrong = __ballot_sync(~0u, mismatch);
    if (wrong == 0) {
        if (lane == 0 && in_slot >= 0)
            store_release(&waits.slot->state, LAP_CUDA_RUNS);
        return;
    }
    if (static_cast<int>(lane) == __ffs(static_cast<int>(wrong)) - 1) {
        report(waits.slot, mine, come, LAP_CUDA_MISMATCH);
        for (since = now(); load_relaxed(&waits.control->abort) == LAP_CUDA_GO;) {
            if (now() - since > waits.limit_ns)
                time_out(waits, mine, come, LAP_CUDA_MISMATCH);
            __nanosleep(10000);
        }
        lose(waits);
    }
}

/*
 * The same by a warp of each other block, while one block runs await_all: ends when the signals of
 * this call have come, or when that block's wait has failed.
 */
__device__ void await_too(const lap_cuda_signals_t &signals, uint32_t base, uint64_t tag)
{
    const lap_cuda_wait_t &mine = signals.at[threadIdx.x < signals.n ? threadIdx.x : 0];
    bool waiting = threadIdx.x < signals.n;
    for (int round = 1; __any_sync(~0u, waiting); round++) {
        if (waiting) {
            const bool other = signals.checks_tag && load_relaxed(&mine.word->tag) != tag;
            const uint32_t come = load_acquire(&mine.word->value) - base;
            waiting = other || static_cast<int32_t>(come - mine.count) < 0;
        }
        if (round % looks == 0 && __any_sync(~0u, load_relaxed(signals.lost) != 0))
            return;
        __nanosleep(20);
    }
}

/* What a lane has to know before it raises and waits: to ask memory for it takes time. */
struct known {
    uint32_t lost, base;
    uint64_t raise_tag, wait_tag;
};

__device__ known look_up(const lap_cuda_signals_t &signals)
{
    const unsigned lane = threadIdx.x;
    known k = {load_relaxed(signals.lost), 0, 0, 0};
    if (lane < signals.nraises)
        k.raise_tag = full_tag(signals.raises[lane].tag, signals.raises[lane].calls);
    if (lane < signals.n) {
        k.base = load_relaxed(signals.at[lane].consumed);
        k.wait_tag = full_tag(signals.at[lane].tag, signals.at[lane].calls);
    }
    return k;
}

/*
 * One warp: raises and then waits. What all threads of the launch have written is there for the
 * peers when they see a raise; partner: await_all on the same words.
 */
__device__ void run_signals(const lap_cuda_signals_t &signals, const known &k)
{
    const unsigned lane = threadIdx.x;
    const bool raising = lane < signals.nraises;
    uint64_t *time = raising ? signals.raise_times.after[lane] : nullptr;
    if (lane == 0)
        write_time(signals.raise_times.before);
    if (raising)
        raise_word(signals.raises[lane].word, k.raise_tag, k.lost);
    if (__any_sync(~0u, time != nullptr)) {
        __threadfence_system(); /* the words show it now */
        const uint64_t at = __shfl_sync(~0u, now(), 0);
        if (time)
            store_relaxed(time, at);
    }
    if (signals.n > 0)
        await_all(signals, k.base, k.wait_tag);
    __syncwarp();
    if (lane == 0 && signals.ncounted > 0)
        ++*signals.calls;
    for (unsigned i = lane; i < signals.ncounted; i += 32)
        signals.consumed[i] += signals.raised[i];
}

/* Also for kernels that begin with other work: its words are for kernels that come later. */
__device__ void clear_words(const lap_cuda_signals_t &signals)
{
    if (blockIdx.x == 0 && threadIdx.x < signals.nclears)
        *signals.clears[threadIdx.x] = 0;
}

__device__ bool has_any(const lap_cuda_signals_t &signals)
{
    return signals.n + signals.nraises > 0;
}

/*
 * Before the work of all threads of a launch, whose blocks all have room at a time: the first of them
 * to begin raises, and tells the host what is waited for; all of them wait for the peers.
 */
__device__ void signal_before(const lap_cuda_signals_t &signals)
{
    if (!has_any(signals))
        return;
    if (threadIdx.x < 32) {
        const known k = look_up(signals);
        const unsigned before = threadIdx.x == 0 ? atomicAdd(signals.arrived, 1) : 0;
        if (__shfl_sync(~0u, before, 0) == 0)
            run_signals(signals, k);
        else
            await_too(signals, k.base, k.wait_tag);
    }
    __syncthreads();
}

/*
 * After the work of all threads of a launch: its last block does the signals. Adding to `arrived`
 * releases what the block has written, and acquires what those before it have; the barriers pass
 * that on inside the block, and the raises, to all peers. No block waits here for another.
 */
__device__ void signal_after(const lap_cuda_signals_t &signals, bool begun)
{
    __shared__ bool last;
    known k = {};
    if (threadIdx.x < 32)
        k = look_up(signals);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(signals.arrived)
                     : "memory");
        last = before == (begun ? 2 : 1) * gridDim.x - 1; /* each was counted when it began, too */
        if (last)
            store_relaxed(signals.arrived, 0u); /* for the next launch of the stream */
    }
    __syncthreads();
    if (last && threadIdx.x < 32)
        run_signals(signals, k);
}

} // namespace

extern "C" __global__ void SMALL lap_wait(const lap_cuda_waits_t waits)
{
    const lap_cuda_wait_t &mine = waits.at[threadIdx.x < waits.n ? threadIdx.x : 0];
    await_all(waits, load_relaxed(mine.consumed), full_tag(mine.tag, mine.calls));
}

extern "C" __global__ void SMALL lap_signal(const lap_cuda_signals_t signals)
{
    clear_words(signals);
    run_signals(signals, look_up(signals));
}

/* Transfers go over a link in the order in which they were issued. */
extern "C" __global__ void SMALL lap_raise(const lap_cuda_raises_t raises)
{
    const lap_cuda_raise_t &mine = raises.at[threadIdx.x < raises.n ? threadIdx.x : 0];
    const bool raising = threadIdx.x < raises.n;
    uint64_t *time = raising ? raises.times.after[threadIdx.x] : nullptr;
    uint64_t *arrival = raising && raises.paced ? mine.transit.arrival : nullptr;
    uint64_t due = 0;
    if (threadIdx.x == 0)
        write_time(raises.times.before);
    for (uint32_t i = 0; raises.paced && i < raises.n; i++) {
        if (threadIdx.x == i)
            due = carry(mine.transit);
        __syncwarp();
    }
    if (raising) {
        const uint32_t lost = load_relaxed(raises.lost);
        if (raises.paced && lost == 0)
            set_due(mine.word, due);
        raise_word(mine.word, full_tag(mine.tag, mine.calls), lost);
    }
    if (!__any_sync(~0u, time || arrival))
        return;
    __threadfence_system(); /* the words show it now */
    const uint64_t at = __shfl_sync(~0u, now(), 0);
    if (time)
        store_relaxed(time, at);
    if (arrival)
        store_relaxed(arrival, due > at ? due : at);
}

#endif
