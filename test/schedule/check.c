/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checker says: small schedules, written by hand, with one thing wrong in each. The
 * sentence must name the steps, their ranks and calls, and the range.
 */
#include "drop.h"
#include "schedule/link.h"
#include "schedule/range.h"
#include "sequence.h"

enum { SEND = LAP_STREAM_SEND, COMPUTE = LAP_STREAM_COMPUTE };

static sequence_t s;

/* Empty schedules of `ncalls` calls of `size` ranks, with 64 bytes of each memory. */
static void start(uint32_t ncalls, int size)
{
    sequence_clear(&s);
    s.size = size;
    s.ncalls = ncalls;
    for (uint32_t call = 0; call < ncalls; call++)
        for (int rank = 0; rank < size; rank++) {
            lap_problem_t problem = {.rank = rank, .size = size, .m = 4};
            lap_schedule_t *schedule = sequence_at(&s, call, rank);
            lap_schedule_init(schedule, &problem, "test");
            schedule->symmetric_bytes = schedule->scratch_bytes = 64;
        }
}

static lap_range_t at(lap_place_t place, int rank, size_t offset, size_t bytes)
{
    return lap_range_packed(place, rank, offset, 1, bytes);
}

/*
 * Rank 0 puts 16 bytes to rank 1, which copies them to scratch: right when the credit and the data
 * are waited for.
 */
static void put_and_copy(uint32_t call, bool credit, bool data)
{
    lap_schedule_t *from = sequence_at(&s, call, 0), *to = sequence_at(&s, call, 1);
    lap_add_raise(to, SEND, 0, lap_signal_credit(s.size, 1), 0);
    lap_expect(from, lap_signal_credit(s.size, 1));
    if (credit)
        lap_add_wait(from, SEND, 1, lap_signal_credit(s.size, 1), 1);
    lap_add_put(from, SEND, 1, lap_signal_data(0), at(LAP_INPUT, 0, 0, 16),
                at(LAP_SYMMETRIC, 1, 32, 16));
    lap_expect(to, lap_signal_data(0));
    if (data)
        lap_add_wait(to, COMPUTE, 0, lap_signal_data(0), 1);
    lap_add_copy(to, COMPUTE, at(LAP_SYMMETRIC, 1, 32, 16), at(LAP_SCRATCH, 1, 0, 16));
}

static void test_pair(void)
{
    start(2, 2);
    put_and_copy(0, true, true);
    put_and_copy(1, true, true);
    tap_success(sequence_check(&s), "a put with its credit and its wait");

    start(1, 2);
    put_and_copy(0, true, false);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "step 1 PUT", "step 1 COPY", NULL);

    /* The wait is there, but on another stream than the read. */
    start(1, 2);
    put_and_copy(0, true, false);
    lap_add_wait(sequence_at(&s, 0, 1), SEND, 0, lap_signal_data(0), 1);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "call 0 rank 0", "step 1 PUT",
                "call 0 rank 1", "step 1 COPY", "symmetric buffer of rank 1, bytes 32..47", NULL);

    /*
     * A credit that is waited for too late lets the put of one call meet the read of the call
     * before.
     */
    start(2, 2);
    put_and_copy(0, true, true);
    put_and_copy(1, false, true);
    lap_add_wait(sequence_at(&s, 1, 0), SEND, 1, lap_signal_credit(2, 1), 1);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "call 0 rank 1", "COPY",
                "call 1 rank 0", "PUT", "bytes 32..47", NULL);

    /* In a single call there is nothing to meet: the rule itself must speak. */
    start(1, 2);
    put_and_copy(0, false, true);
    lap_add_wait(sequence_at(&s, 0, 0), SEND, 1, lap_signal_credit(2, 1), 1);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "outside its call", "step 0 PUT",
                "call 0 rank 1 begin", "bytes 32..47", NULL);
}

static void test_deadlock(void)
{
    start(1, 2);
    for (int rank = 0; rank < 2; rank++) {
        lap_schedule_t *schedule = sequence_at(&s, 0, rank);
        lap_add_wait(schedule, SEND, 1 - rank, lap_signal_data(1 - rank), 1);
        lap_add_raise(schedule, SEND, 1 - rank, lap_signal_data(rank), 0);
        lap_expect(schedule, lap_signal_data(1 - rank));
    }
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "deadlock", "call 0 rank 0", "step 0 WAIT",
                "signal data[1]", "gets 0", "call 0 rank 1", "step 1 RAISE", "never runs", NULL);
    /* On streams of their own they do not hold each other up, unless these share a queue. */
    for (int rank = 0; rank < 2; rank++)
        sequence_at(&s, 0, rank)->steps[1].stream = COMPUTE;
    tap_success(sequence_check(&s), "a wait listed before the raise that lets the peer go on");
    tap_failure(sequence_check_in_line(&s), LAP_ERR_CHECK, "deadlock", "step 0 WAIT", NULL);

    start(1, 2);
    lap_add_wait(sequence_at(&s, 0, 0), SEND, 1, lap_signal_data(1), 1);
    lap_expect(sequence_at(&s, 0, 0), lap_signal_data(1));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "deadlock", "call 0 rank 0", "step 0 WAIT",
                "nothing would raise it", NULL);

    start(1, 2);
    lap_add_wait(sequence_at(&s, 0, 0), SEND, 1, lap_signal_data(1), 2);
    lap_expect(sequence_at(&s, 0, 0), lap_signal_data(1));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "step 0 WAIT", "count of a wait is 2",
                "at most the 1 raises that lap_expect announces", NULL);
}

static void test_signals(void)
{
    start(1, 2);
    lap_add_raise(sequence_at(&s, 0, 0), SEND, 1, lap_signal_data(0), 0);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "miscounted", "call 0 rank 0", "step 0 RAISE",
                "expects 0 raises", NULL);

    lap_expect(sequence_at(&s, 0, 1), lap_signal_data(0));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "stray signal", "rank 1 expects signal 0",
                "1 times in call 0", "call 0 rank 0", "step 0 RAISE", NULL);

    start(1, 3);
    for (int rank = 0; rank < 2; rank++) {
        lap_add_raise(sequence_at(&s, 0, rank), SEND, 2, 0, 0);
        lap_expect(sequence_at(&s, 0, 2), 0);
    }
    lap_add_wait(sequence_at(&s, 0, 2), SEND, 0, 0, 2);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "ambiguous", "call 0 rank 0", "call 0 rank 1",
                "signal 0 of rank 2", NULL);

    /* A raise of the second call that the receiver counts in the first. */
    start(2, 2);
    lap_add_raise(sequence_at(&s, 1, 0), SEND, 1, 0, 0);
    lap_expect(sequence_at(&s, 0, 1), 0);
    lap_add_wait(sequence_at(&s, 0, 1), SEND, 0, 0, 1);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "miscounted", "call 1 rank 0", NULL);
}

/* A GEMM of [2, 4] rows whose blocks are raised or waited for; each row of a and d has 8 bytes. */
static lap_tile_t *add_tile(lap_schedule_t *schedule, size_t row)
{
    return lap_gemm_rows(schedule, lap_range_packed(LAP_INPUT, schedule->rank, row * 8, 1, 8),
                         lap_range_packed(LAP_SCRATCH, schedule->rank, row * 8, 1, 8));
}

static void add_gemm(lap_schedule_t *schedule, bool any_order)
{
    lap_add_gemm(schedule, COMPUTE, lap_range_packed(LAP_WEIGHT, schedule->rank, 0, 2, 8),
                 any_order);
}

/*
 * Block 0 tells rank 1, which answers; block 1 or the send stream waits for the answer and then
 * reads row 0.
 */
static void test_blocks(bool any_order)
{
    start(1, 2);
    lap_schedule_t *zero = sequence_at(&s, 0, 0), *one = sequence_at(&s, 0, 1);
    add_gemm(zero, any_order);
    add_tile(zero, 0)->raise = (lap_signal_t){.peer = 1, .word = 0};
    add_tile(zero, 1);
    lap_expect(one, 0);
    lap_add_wait(one, SEND, 0, 0, 1);
    lap_add_raise(one, SEND, 0, 1, 0);
    lap_expect(zero, 1);
    lap_add_wait(zero, SEND, 1, 1, 1);
    lap_range_t row = lap_range_packed(LAP_SCRATCH, 0, 0, 1, 8);
    uint32_t copy = lap_add_copy(zero, SEND, row, lap_range_packed(LAP_SCRATCH, 0, 32, 1, 8));
    tap_success(sequence_check(&s), "%s: a block's signal orders what the block wrote",
                any_order ? "any order" : "in order");
    step_range(zero, copy, LAP_ROLE_A)->offset = 8;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "step 0 GEMM", "block 1",
                "step 2 COPY", "scratch of rank 0, bytes 8..15", NULL);
}

static void test_any_order(void)
{
    start(1, 1);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    add_gemm(schedule, false);
    add_tile(schedule, 0);
    add_tile(schedule, 0);
    tap_success(sequence_check(&s), "blocks in order may write the same row of scratch");
    schedule->steps[0].any_order = true;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "block 0", "block 1", "bytes 0..7",
                NULL);

    start(1, 1);
    schedule = sequence_at(&s, 0, 0);
    add_gemm(schedule, true);
    add_tile(schedule, 0);
    add_tile(schedule, 1);
    uint32_t copy = lap_add_copy(schedule, SEND, lap_range_packed(LAP_SCRATCH, 0, 0, 2, 8),
                                 lap_range_packed(LAP_SCRATCH, 0, 32, 2, 8));
    lap_add_dep(schedule, copy, 0);
    tap_success(sequence_check(&s), "the end of a GEMM comes after its blocks");
    schedule->steps[copy].ndeps = 0;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "GEMM", "COPY", NULL);
}

/* A GEMM reads both of its operands. */
static void test_operands(void)
{
    const lap_range_t b = lap_range_packed(LAP_SCRATCH, 0, 32, 2, 8);
    start(1, 1);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    lap_add_copy(schedule, COMPUTE, lap_range_packed(LAP_INPUT, 0, 0, 2, 8), b);
    lap_add_gemm(schedule, COMPUTE, b, false);
    add_tile(schedule, 0);
    tap_success(sequence_check(&s), "a GEMM after the copy that makes its b");
    schedule->steps[0].stream = SEND;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "step 0 COPY", "step 1 GEMM",
                "reads scratch of rank 0, bytes 32..47", NULL);
}

static void test_reads(void)
{
    start(2, 1);
    lap_add_copy(sequence_at(&s, 0, 0), COMPUTE, at(LAP_INPUT, 0, 0, 16),
                 at(LAP_SCRATCH, 0, 0, 16));
    lap_schedule_t *schedule = sequence_at(&s, 1, 0);
    lap_add_copy(schedule, COMPUTE, at(LAP_INPUT, 0, 0, 8), at(LAP_SCRATCH, 0, 0, 8));
    lap_add_copy(schedule, COMPUTE, at(LAP_INPUT, 0, 0, 8), at(LAP_SCRATCH, 0, 4, 8));
    uint32_t copy =
        lap_add_copy(schedule, COMPUTE, at(LAP_SCRATCH, 0, 0, 12), at(LAP_SCRATCH, 0, 32, 12));
    tap_success(sequence_check(&s), "two writes that overlap cover a read together");
    lap_range_t *src = step_range(schedule, copy, LAP_ROLE_A),
                *dst = step_range(schedule, copy, LAP_ROLE_D);
    src->row_bytes = src->stride = dst->row_bytes = dst->stride = 16;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "a read of unwritten memory", "call 1 rank 0",
                "step 2 COPY", "bytes 0..15", "12 of 16", NULL);
    dst->offset = 8;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "a step conflicts with itself", "bytes 8..15",
                NULL);
}

static void test_results(void)
{
    /* The result is [2, 16] bytes, written in columns. */
    start(1, 1);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    schedule->output = lap_range_packed(LAP_OUTPUT, 0, 0, 2, 16);
    lap_range_t left = {LAP_OUTPUT, 0, 0, 2, 8, 16}, right = {LAP_OUTPUT, 0, 8, 2, 8, 16};
    lap_range_t input = lap_range_packed(LAP_INPUT, 0, 0, 2, 8);
    lap_add_copy(schedule, COMPUTE, input, left);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "incomplete result", "call 0 rank 0", "16 of 32",
                "output of rank 0, bytes 0..31", NULL);
    lap_add_copy(schedule, COMPUTE, input, right);
    tap_success(sequence_check(&s), "two columns make a result");
    step_range(schedule, 1, LAP_ROLE_D)->offset = 4;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "written twice", "step 0 COPY", "step 1 COPY",
                "output of rank 0, bytes 4..23", NULL);
    step_range(schedule, 1, LAP_ROLE_D)->offset = 12;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "step 1 COPY", "inside 32 bytes", NULL);
    *step_range(schedule, 1, LAP_ROLE_D) = at(LAP_INPUT, 0, 0, 16);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "the caller's", NULL);
}

/* A GEMM of one FP8 row whose scale is in scratch, and the scales that a call returns. */
static void test_scales(void)
{
    start(1, 1);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    schedule->types.a = schedule->types.b = schedule->types.wire = LAP_FLOAT8_E4M3;
    lap_add_copy(schedule, COMPUTE, at(LAP_SCALE, 0, 0, 4), at(LAP_SCRATCH, 0, 32, 4));
    lap_add_gemm(schedule, COMPUTE, at(LAP_WEIGHT, 0, 0, 8), false);
    lap_gemm_rows(schedule, at(LAP_INPUT, 0, 0, 8), at(LAP_SCRATCH, 0, 0, 1));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "the number of scales of a block is 0",
                "step 1 GEMM", NULL);
    lap_gemm_scale(schedule, at(LAP_SCRATCH, 0, 32, 4));
    const uint32_t scale = schedule->nuses - 1;
    tap_success(sequence_check(&s), "a block with its scale");
    schedule->uses[scale].range.offset = 36;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "a read of unwritten memory", "step 1 GEMM",
                "bytes 36..39", NULL);
    schedule->uses[scale].range.offset = 30;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "begins within an element is 2", NULL);
    schedule->uses[scale].range.offset = 32;
    schedule->scales = at(LAP_SCALES, 0, 0, 8);
    lap_add_copy(schedule, COMPUTE, at(LAP_SCALE, 0, 0, 4), at(LAP_SCALES, 0, 0, 4));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "incomplete result", "4 of 8 bytes of scales",
                NULL);
    schedule->scales = at(LAP_SCALES, 0, 0, 4);
    tap_success(sequence_check(&s), "the scale of the only shard");
    lap_add_reduce(schedule, COMPUTE, at(LAP_SCRATCH, 0, 48, 4), LAP_FLOAT32);
    lap_reduce_source(schedule, at(LAP_SCRATCH, 0, 0, 1), LAP_FLOAT8_E4M3);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "whether there are scales is 0, expected 1",
                "step 3 REDUCE", NULL);
    lap_reduce_scale(schedule, at(LAP_SCRATCH, 0, 32, 4));
    tap_success(sequence_check(&s), "a sum with its scale");
}

/* The gradient of the bias: once, from all of d, when that is there. */
static void test_sums(void)
{
    start(1, 1);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    schedule->output = lap_range_packed(LAP_OUTPUT, 0, 0, 2, 16);
    lap_add_copy(schedule, SEND, lap_range_packed(LAP_INPUT, 0, 0, 2, 16), schedule->output);
    schedule->epilogue = LAP_EPILOGUE_BIAS_GRAD;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "call 0 rank 0", "bias_grad 0 times, expected 1",
                NULL);
    uint32_t sums = lap_add_sums(schedule, COMPUTE, schedule->output);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "step 0 COPY", "step 1 SUMS", NULL);
    lap_add_dep(schedule, sums, 0);
    tap_success(sequence_check(&s), "sums of what has been written");
    step_range(schedule, sums, LAP_ROLE_A)->rows = 1;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "step 1 SUMS", "number of rows is 1, expected 2",
                NULL);
    *step_range(schedule, sums, LAP_ROLE_A) = lap_range_packed(LAP_INPUT, 0, 0, 2, 16);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "step 1 SUMS", "the place that is summed", NULL);
    *step_range(schedule, sums, LAP_ROLE_A) = schedule->output;
    schedule->epilogue = 0;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "bias_grad 1 times, expected 0", NULL);
}

static void test_form(void)
{
    start(1, 2);
    lap_schedule_t *schedule = sequence_at(&s, 0, 0);
    uint32_t copy =
        lap_add_copy(schedule, COMPUTE, at(LAP_INPUT, 0, 0, 8), at(LAP_SCRATCH, 0, 60, 8));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "scratch of rank 0, bytes 60..67",
                "inside 64 bytes", NULL);
    step_range(schedule, copy, LAP_ROLE_D)->offset = 0;
    schedule->deps = &copy; /* on itself */
    schedule->ndeps = schedule->steps[copy].ndeps = 1;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "a dependency is 0", "step 0 COPY", NULL);
    schedule->ndeps = 0;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "the end of the dependencies is 1", NULL);
    schedule->deps = NULL;
    schedule->steps[copy].ndeps = 0;
    schedule->steps[copy].stream = LAP_STREAMS;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "the stream is 20", NULL);
    schedule->steps[copy].stream = 0;
    step_range(schedule, copy, LAP_ROLE_A)->row_bytes = 4;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "the bytes of a row is 4, expected 8", NULL);
    step_range(schedule, copy, LAP_ROLE_A)->row_bytes = 8;
    lap_add_put(schedule, SEND, 2, 0, at(LAP_INPUT, 0, 0, 8), at(LAP_SYMMETRIC, 2, 0, 8));
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "is 2, expected less than 2", NULL);
}

/*
 * Rank 0 puts to rank 2 and then tells rank 1, which tells rank 2: that the put has been sent, not
 * that it has come. A signal of rank 0's own, raised after the put, says so.
 */
static void test_detour(bool direct)
{
    start(1, 3);
    lap_schedule_t *from = sequence_at(&s, 0, 0), *between = sequence_at(&s, 0, 1);
    lap_schedule_t *to = sequence_at(&s, 0, 2);
    lap_add_raise(to, SEND, 0, lap_signal_credit(3, 2), 0);
    lap_expect(from, lap_signal_credit(3, 2));
    lap_add_wait(from, SEND, 2, lap_signal_credit(3, 2), 1);
    lap_add_put(from, SEND, 2, lap_signal_data(0), at(LAP_INPUT, 0, 0, 16),
                at(LAP_SYMMETRIC, 2, 32, 16));
    lap_expect(to, lap_signal_data(0));
    lap_add_raise(from, SEND, direct ? 2 : 1, lap_signal_open(3, 0), 0);
    lap_expect(direct ? to : between, lap_signal_open(3, 0));
    if (!direct) {
        lap_add_wait(between, SEND, 0, lap_signal_open(3, 0), 1);
        lap_add_raise(between, SEND, 2, lap_signal_open(3, 1), 0);
        lap_expect(to, lap_signal_open(3, 1));
    }
    lap_add_wait(to, COMPUTE, direct ? 0 : 1, lap_signal_open(3, direct ? 0 : 1), 1);
    lap_add_copy(to, COMPUTE, at(LAP_SYMMETRIC, 2, 32, 16), at(LAP_SCRATCH, 2, 0, 16));
    lap_add_wait(to, COMPUTE, 0, lap_signal_data(0), 1);
    if (direct)
        tap_success(sequence_check(&s), "a later signal of the same rank brings a put");
    else
        tap_failure(sequence_check(&s), LAP_ERR_CHECK, "no order", "call 0 rank 0", "step 1 PUT",
                    "call 0 rank 2", "COPY", "bytes 32..47", NULL);
}

/* The same with a word that both raise: which comes first is not known; nor whether by the end. */
static void test_detour_raise(void)
{
    start(1, 3);
    lap_schedule_t *from = sequence_at(&s, 0, 0), *between = sequence_at(&s, 0, 1);
    lap_schedule_t *to = sequence_at(&s, 0, 2);
    lap_add_raise(from, SEND, 2, 0, 0);
    lap_add_raise(from, SEND, 1, 1, 0);
    lap_expect(between, 1);
    lap_add_wait(between, SEND, 0, 1, 1);
    uint32_t second = lap_add_raise(between, SEND, 2, 0, 0);
    lap_expect(to, 0);
    lap_expect(to, 0);
    lap_add_wait(to, SEND, 0, 0, 2);
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "ambiguous", "call 0 rank 0", "call 0 rank 1",
                "signal 0 of rank 2", NULL);
    between->steps[second].signal.word = 1;
    to->raised[0] = to->raised[1] = 1;
    to->steps[0].signal.word = to->steps[0].signal.count = 1;
    tap_failure(sequence_check(&s), LAP_ERR_CHECK, "stray signal", "rank 2 expects signal 0",
                "call 0 rank 0", NULL);
}

/* ---- programs ---- */

static lap_linked_t program;

/* A kernel that reads or writes 16 bytes of a region, `offset` bytes into it; one after the other. */
static void use(uint32_t region, size_t offset, bool write, uint32_t iteration)
{
    const lap_problem_t problem = {.size = 1};
    const lap_link_place_t place = {region, LAP_FLOAT32, offset, 16, 16};
    lap_fragment_t *fragment =
        lap_link_kernel(&program, &problem, "test", COMPUTE, write ? "writer" : "reader");
    fragment->iteration = iteration;
    lap_link_operand(&program, 0, write, &place, 1);
}

static lap_status_t check_program(void)
{
    const lap_linked_t *programs[] = {&program};
    lap_status_t status = lap_link(&program);
    if (status == LAP_OK)
        status = lap_linked_check(programs, 1, false);
    lap_linked_clear(&program);
    return status;
}

/* Regions that share memory: x, y over it, a part of x; and what is read later than it may be. */
static void test_regions(void)
{
    enum { X, Y, PART, REGIONS };
    static const char *const names[REGIONS] = {"x", "y", "part of x"};
    static const struct {
        bool filled, good;
        lap_link_scope_t scope;
        struct {
            uint32_t region;
            size_t offset;
            bool write;
        } uses[4];
        const char *words[2];
    } cases[] = {
        {false,
         true,
         LAP_SCOPE_PROGRAM,
         {{X, 0, true}, {Y, 16, true}, {X, 0, false}, {X, 0, false}},
         {NULL}},
        {false,
         false,
         LAP_SCOPE_PROGRAM,
         {{X, 0, true}, {Y, 8, true}, {X, 0, false}, {X, 0, false}},
         {"a read of what was written for another region", "x of rank 0, bytes 8..15"}},
        {false,
         true,
         LAP_SCOPE_PROGRAM,
         {{Y, 8, true}, {X, 0, true}, {X, 16, true}, {X, 8, false}},
         {NULL}},
        {false,
         false,
         LAP_SCOPE_PROGRAM,
         {{X, 0, true}, {Y, 8, true}, {X, 16, true}, {X, 8, false}},
         {"a read of what was written for another region", "call 1 rank 0"}},
        {true,
         true,
         LAP_SCOPE_PROGRAM,
         {{Y, 16, true}, {X, 0, false}, {X, 16, true}, {X, 16, false}},
         {NULL}},
        {true,
         false,
         LAP_SCOPE_PROGRAM,
         {{Y, 16, true}, {X, 0, false}, {X, 0, true}, {X, 8, false}},
         {"a read of what was written for another region", "x of rank 0, bytes 16..23"}},
        {false,
         true,
         LAP_SCOPE_PROGRAM,
         {{X, 0, true}, {PART, 0, true}, {X, 0, false}, {PART, 0, false}},
         {NULL}},
        {false,
         false,
         LAP_SCOPE_ITERATION,
         {{X, 0, true}, {X, 0, false}, {X, 0, false}, {X, 0, false}},
         {"a read of unwritten memory", "call 2 rank 0"}},
        {false,
         true,
         LAP_SCOPE_ITERATION,
         {{X, 0, true}, {X, 0, false}, {X, 0, true}, {X, 0, false}},
         {NULL}},
        {false,
         false,
         LAP_SCOPE_CALL,
         {{X, 0, true}, {X, 0, false}, {X, 0, true}, {X, 0, false}},
         {"a read of unwritten memory", "call 1 rank 0"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t r = 0; r < REGIONS; r++) {
            (void)lap_link_add_region(&program, names[r], 0, 0, 64, cases[i].filled && r == X);
            program.regions[r].scope = cases[i].scope;
        }
        program.regions[PART].root = X;
        for (uint32_t u = 0; u < 4; u++)
            use(cases[i].uses[u].region, cases[i].uses[u].offset, cases[i].uses[u].write, u / 2);
        if (cases[i].good)
            tap_success(check_program(), "regions that share memory, case %zu", i);
        else
            tap_failure(check_program(), LAP_ERR_CHECK, cases[i].words[0], cases[i].words[1], NULL);
    }
}

/*
 * Rank 0 raises a signal that rank 1 answers. Where its wait for the answer may come first, on another stream, each stream
 * needs a queue: that the signal comes before the answer helps nobody. `fragments`: raise and wait are one, or two;
 * `links`: these are linked.
 */
static lap_status_t check_answer(int fragments, bool ordered, bool links, lap_stream_set_t set,
                                 bool shares_queues)
{
    lap_linked_t ranks[2] = {{.rank = 0, .shares_queues = shares_queues},
                             {.rank = 1, .shares_queues = shares_queues}};
    const lap_linked_t *programs[] = {&ranks[0], &ranks[1]};
    for (int i = 0; i < 2 * fragments; i++) {
        const int rank = i % 2;
        const lap_problem_t problem = {.rank = rank, .size = 2};
        lap_fragment_t *fragment = lap_link_fragment(&ranks[rank]);
        lap_schedule_t *schedule = &fragment->schedule;
        const bool first = i < 2, last = i >= 2 * (fragments - 1);
        uint32_t sent = LAP_NO_STEP;
        lap_schedule_init(schedule, &problem, "test");
        if (!first)
            schedule->set = set;
        if (rank == 1 && first) {
            (void)lap_add_wait(schedule, SEND, 0, lap_signal_data(0), 1);
            lap_expect(schedule, lap_signal_data(0));
        }
        if (rank == 1 && last)
            (void)lap_add_raise(schedule, SEND, 0, lap_signal_data(1), 0);
        if (rank == 0 && first)
            sent = lap_add_raise(schedule, SEND, 1, lap_signal_data(0), 0);
        if (rank == 0 && last) {
            const uint32_t wait = lap_add_wait(schedule, COMPUTE, 1, lap_signal_data(1), 1);
            lap_expect(schedule, lap_signal_data(1));
            if (ordered)
                lap_add_dep(schedule, wait, sent);
        }
    }
    lap_status_t status = links ? lap_link(&ranks[0]) : LAP_OK;
    if (status == LAP_OK)
        status = lap_linked_check(programs, 2, shares_queues);
    for (int rank = 0; rank < 2; rank++)
        lap_linked_clear(&ranks[rank]);
    return status;
}

static void test_queues(void)
{
    const char *const held = "a wait that may hold up a shared queue";
    tap_success(check_answer(1, false, false, LAP_FOREGROUND, false),
                "a wait that may come too early");
    tap_failure(check_answer(1, false, false, LAP_FOREGROUND, true), LAP_ERR_CHECK, held,
                "step 1 WAIT", "step 0 RAISE", NULL);
    tap_success(check_answer(1, true, false, LAP_FOREGROUND, true),
                "one that depends on the raise");
    tap_failure(check_answer(2, false, false, LAP_FOREGROUND, true), LAP_ERR_CHECK, held,
                "call 1 rank 0 ", "step 0 WAIT", "call 0 rank 0 ", "step 0 RAISE", NULL);
    tap_success(check_answer(2, false, false, LAP_BACKGROUND, true),
                "one in a graph that is launched later");
    tap_success(check_answer(2, false, true, LAP_FOREGROUND, true), "one that linking has ordered");
}

int main(void)
{
    test_pair();
    test_detour(true);
    test_detour(false);
    test_detour_raise();
    test_deadlock();
    test_signals();
    test_blocks(false);
    test_blocks(true);
    test_any_order();
    test_operands();
    test_reads();
    test_results();
    test_scales();
    test_sums();
    test_form();
    sequence_clear(&s);
    test_regions();
    test_queues();
    return tap_done();
}
