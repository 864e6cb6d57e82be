/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every builder through the checker: P = 1 to 9, ragged rows, fewer rows or features than ranks, no
 * rows, and mixtures; and a few things that the checker does not look at, because a schedule may be
 * safe without them.
 */
#include "sequence.h"

#include "core/status.h"
#include "schedule/range.h"

#define STEPS_MOST 4096

/* Marks a step and all that must have run before it: what a step needs has a smaller index. */
static void mark_past(const lap_schedule_t *schedule, uint32_t index, bool *past)
{
    memset(past, 0, STEPS_MOST);
    past[index] = true;
    for (uint32_t later = index; later > 0; later--) {
        const lap_step_t *step = &schedule->steps[later];
        if (!past[later])
            continue;
        for (uint32_t i = 0; i < later; i++)
            past[i] = past[i] || schedule->steps[i].stream == step->stream;
        for (uint16_t d = 0; d < step->ndeps; d++)
            past[lap_step_dep(schedule, step, d)] = true;
    }
}

/* Whether GEMMs have no signals, and each wait comes after whatever is sent before it in the list. */
static lap_status_t check_waits(const lap_schedule_t *schedule)
{
    static bool past[STEPS_MOST];
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_kind_t kind = schedule->steps[i].kind;
        if (kind == LAP_STEP_GEMM && (schedule->steps[i].count > 1 || lap_step_waits(schedule, i) ||
                                      lap_step_sends(schedule, i)))
            return lap_error(LAP_ERR_CHECK, "step %u is more than one GEMM", i);
        if (kind != LAP_STEP_WAIT)
            continue;
        mark_past(schedule, i, past);
        for (uint32_t j = 0; j < i; j++)
            if (!past[j] && lap_step_sends(schedule, j))
                return lap_error(LAP_ERR_CHECK, "step %u does not wait for step %u", i, j);
    }
    return LAP_OK;
}

/* Whether a sequence is safe, in line too, and still is when it is lowered for a GPU. */
static lap_status_t check_all(sequence_t *sequence)
{
    LAP_TRY(sequence_check(sequence));
    LAP_TRY(sequence_check_in_line(sequence));
    LAP_TRY(sequence_lower(sequence, "cuda", NULL));
    for (uint32_t s = 0; s < sequence->ncalls * (uint32_t)sequence->size; s++)
        if (sequence->schedules[s].nsteps <= STEPS_MOST)
            LAP_TRY(check_waits(&sequence->schedules[s]));
    LAP_TRY(sequence_check(sequence));
    return sequence_check_in_line(sequence); /* nor has it made a circle */
}

/* Five calls of different rows, for each group size, with many, few and a single feature. */
static void test_variant(const variant_t *variant, unsigned can)
{
    static sequence_t sequence;
    const size_t features[3] = {23, 2, 1};
    char name[64];
    variant_name(variant, name, sizeof(name));
    for (int size = 1; size <= 9; size++) {
        size_t p = (size_t)size, capacity = 5 * p + 3;
        const size_t rows[5] = {capacity, 0, p - 1, 1, 3 * p + 2};
        lap_status_t status = LAP_OK;
        for (int i = 0; i < 3 && status == LAP_OK && fits(variant, size); i++) {
            lap_op_desc_t desc = describe(variant, capacity, features[i], features[2 - i]);
            desc.num_splits = desc.num_splits > desc.n ? desc.n : desc.num_splits;
            lap_op_desc_t descs[5] = {desc, desc, desc, desc, desc};
            status = sequence_build(&sequence, descs, rows, 5, size, can);
            if (status == LAP_OK)
                status = check_all(&sequence);
            sequence_clear(&sequence);
        }
        if (fits(variant, size))
            tap_success(status,
                        "%s, %d ranks%s: five calls of different rows are safe, in line too", name,
                        size, can == CAN_LANES ? " with lanes" : "");
    }
}

/* The same with the sizes of real layers, for which some rows are set apart. */
static void test_layers(const variant_t *variant)
{
    static sequence_t sequence;
    const size_t rows[3] = {4096, 4095, 1000};
    char name[64];
    variant_name(variant, name, sizeof(name));
    for (int size = 2; size <= 8; size++) {
        if (!fits(variant, size))
            continue;
        lap_op_desc_t desc = describe(variant, 4096, 32768, 32768);
        desc.block_rows = 0; /* as it is by default */
        const lap_op_desc_t descs[3] = {desc, desc, desc};
        lap_status_t status = sequence_build(&sequence, descs, rows, 3, size, CAN_LANES);
        if (status == LAP_OK)
            status = check_all(&sequence);
        tap_success(status, "%s, %d ranks: calls of the size of layers are safe", name, size);
        sequence_clear(&sequence);
    }
}

static void test_mixtures(void)
{
    static sequence_t sequence;
    size_t bad = 0, count = 0;
    for (uint64_t i = 0; i < 600; i++) {
        int size = 1 + (int)(tap_random(i, 0) % 6);
        lap_op_desc_t descs[5];
        size_t rows[5];
        for (uint64_t call = 0; call < 5; call++) {
            const variant_t *variant = &variants[tap_random(i, 10 + call) % NVARIANTS];
            while (!fits(variant, size))
                variant--;
            descs[call] =
                describe(variant, 1 + tap_random(i, 20 + call) % 20,
                         2 + tap_random(i, 30 + call) % 9, 1 + tap_random(i, 40 + call) % 9);
            rows[call] = tap_random(i, 50 + call) % (descs[call].m + 1);
        }
        bool safe = sequence_build(&sequence, descs, rows, 5, size,
                                   i % 2 ? CAN_LANES : CAN_PLAIN) == LAP_OK &&
                    sequence_check(&sequence) == LAP_OK &&
                    sequence_check_in_line(&sequence) == LAP_OK;
        if (!safe && bad++ == 0)
            tap_note("mixture %d of %d ranks: %s", (int)i, size, lap_last_error());
        sequence_clear(&sequence);
        count++;
    }
    tap_ok(bad == 0, "%zu random mixtures of five calls on one buffer are safe (%zu are not)",
           count, bad);
}

/* Builds rank 1 of 4 (or the only one) with 8192 rows, so that defaults are seen. */
static void build_one(const char *method, lap_op_kind_t kind, int size, lap_schedule_t *schedule)
{
    lap_problem_t problem;
    const lap_builder_t *builder;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = kind;
    desc.method = method;
    desc.m = 8192;
    desc.n = 64;
    desc.k = 32;
    tap_success(lap_problem_init(&problem, &builder, &desc, size, CAN_PLAIN), "%s for %d", method,
                size);
    problem.rank = size > 1;
    tap_success(lap_build(builder, &problem, schedule), "its schedule");
}

static void test_shapes(void)
{
    lap_schedule_t s;
    for (int kind = LAP_AG_GEMM; kind <= (int)LAP_GEMM; kind++)
        for (size_t i = 0; lap_op_methods((lap_op_kind_t)kind, i, NULL); i++) {
            build_one(lap_op_methods((lap_op_kind_t)kind, i, NULL), (lap_op_kind_t)kind, 1, &s);
            tap_ok(s.nsteps == 1 && s.steps[0].kind == LAP_STEP_GEMM && s.symmetric_bytes == 0 &&
                       s.scratch_bytes == 0,
                   "alone, it is a GEMM and needs no other memory");
            lap_schedule_clear(&s);
        }

    build_one("serial", LAP_AG_GEMM, 4, &s);
    tap_ok(count_steps(&s, LAP_STEP_GEMM, -1) == 1 && count_steps(&s, LAP_STEP_PUT, 0) == 3,
           "serial: three puts and one GEMM on one stream");
    lap_schedule_clear(&s);
    build_one("ring", LAP_AG_GEMM, 4, &s);
    tap_ok(count_steps(&s, LAP_STEP_GEMM, 0) == 4 && count_steps(&s, LAP_STEP_PUT, 1) == 3 &&
               count_steps(&s, LAP_STEP_COPY, -1) == 0,
           "ring: four GEMMs with three puts, no copy");
    lap_schedule_clear(&s);
    build_one("fused", LAP_AG_GEMM, 4, &s);
    tap_ok(count_steps(&s, LAP_STEP_PUT, -1) == 0 && s.symmetric_bytes == 2048 * 32 * 4 &&
               count_steps(&s, LAP_STEP_GEMM, -1) == 1,
           "fused: one GEMM, no put, and only its own shard in symmetric memory");
    tap_ok(s.nblocks == 1 + 3 * 4, "fused: shards of 2048 rows come in four blocks");
    lap_schedule_clear(&s);
    build_one("fused", LAP_GEMM_RS, 4, &s);
    tap_ok(count_steps(&s, LAP_STEP_PUT, -1) == 0 && s.nblocks == 16 && !s.steps[3].any_order &&
               s.blocks[0].d.rank == 2 && s.blocks[15].d.place == LAP_SCRATCH,
           "fused: blocks go to the next rank first, the own ones stay and come last");
    lap_schedule_clear(&s);
}

/*
 * Whether `count` ranges are those of ranks 0, 1, 2, ...; `rank` is whose schedule it is. They are
 * slots of this rank's, or read in place on the rank that they are of.
 */
static bool in_rank_order(const lap_range_t *ranges, uint32_t count, int rank)
{
    bool in_place = true;
    for (uint32_t j = 0; j < count; j++)
        in_place = in_place && ranges[j].rank == (int)j;
    if (in_place)
        return true;
    for (uint32_t j = 0; j < count; j++) {
        const bool own = ranges[j].place != LAP_SYMMETRIC;
        if (own != ((int)j == rank))
            return false;
        if (!own && j > 0 && ranges[j - 1].place == LAP_SYMMETRIC &&
            ranges[j].offset <= ranges[j - 1].offset)
            return false;
    }
    return true;
}

/*
 * The sum must be in rank order whatever the method: each source's slot, the own part in its place;
 * and so must the scales.
 */
static void test_sum_order(void)
{
    static sequence_t sequence;
    const size_t rows[1] = {11};
    char name[64];
    for (size_t v = 0; v < NVARIANTS; v++) {
        if (variants[v].kind != LAP_GEMM_RS && variants[v].kind != LAP_BULK_RS &&
            variants[v].kind != LAP_EXTERNAL_RS)
            continue;
        lap_op_desc_t desc = describe(&variants[v], 11, 6, 7);
        bool right = sequence_build(&sequence, &desc, rows, 1, 5, CAN_PLAIN) == LAP_OK;
        for (int rank = 0; right && rank < 5; rank++) {
            const lap_schedule_t *s = sequence_at(&sequence, 0, rank);
            for (uint32_t i = 0; i < s->nsteps; i++) {
                const lap_step_t *step = &s->steps[i];
                if (step->kind == LAP_STEP_REDUCE)
                    right = right && step->count == 5 &&
                            in_rank_order(&s->ranges[step->first], 5, rank) &&
                            (!step->scaled || in_rank_order(&s->ranges[step->first + 5], 5, rank));
            }
        }
        variant_name(&variants[v], name, sizeof(name));
        tap_ok(right, "%s sums in rank order", name);
        sequence_clear(&sequence);
    }
}

/* The wait that step `i` depends on directly; LAP_NO_STEP: none. */
static uint32_t wait_before(const lap_schedule_t *s, uint32_t i)
{
    uint32_t found = LAP_NO_STEP;
    for (uint32_t d = 0; d < s->steps[i].ndeps; d++)
        if (s->steps[lap_step_dep(s, &s->steps[i], d)].kind == LAP_STEP_WAIT)
            found = lap_step_dep(s, &s->steps[i], d);
    return found;
}

/*
 * In lanes GEMMs of owners keep their order because the first one waits for less than the second;
 * and the sum does not wait for what has come long ago: its wait is on the stream of the last GEMM.
 */
static void test_order_of_owners(void)
{
    static sequence_t sequence;
    const size_t rows[1] = {8192};
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_GEMM_RS;
    desc.method = "fused";
    desc.m = rows[0];
    desc.n = desc.k = 64;
    tap_success(sequence_build(&sequence, &desc, rows, 1, 4, CAN_LANES), "GEMM+RS in lanes");
    const lap_schedule_t *s = sequence_at(&sequence, 0, 0);
    uint32_t waits[4] = {0}, gemms[4] = {0}, sum = 0;
    for (uint32_t i = 0; i < s->nsteps; i++) {
        const lap_range_t *d = &s->blocks[s->steps[i].first].d;
        if (s->steps[i].kind == LAP_STEP_GEMM && d->place == LAP_SYMMETRIC) {
            gemms[d->rank] = i;
            waits[d->rank] = wait_before(s, i);
        }
        sum = s->steps[i].kind == LAP_STEP_REDUCE ? i : sum;
    }
    tap_ok(gemms[1] > 0 && gemms[1] < gemms[2] && gemms[2] < gemms[3] &&
               s->steps[gemms[1]].stream != s->steps[gemms[2]].stream,
           "the GEMMs of the owners take turns in two lanes");
    tap_ok(s->steps[waits[1]].peer == 1 && waits[1] < waits[2] && waits[2] == waits[3],
           "the first waits for its owner's credit alone, the others for all");
    const uint32_t wait = wait_before(s, sum);
    tap_ok(wait != LAP_NO_STEP && s->steps[wait].stream != s->steps[sum].stream,
           "the sum's wait is on another stream than the sum");
    sequence_clear(&sequence);
}

/* What a call needs must fit into what lap_op_buffer_size says, for any rows and any rank. */
static void test_buffer_size(void)
{
    static sequence_t sequence;
    size_t wrong = 0;
    for (size_t v = 0; v < NVARIANTS; v++)
        for (int size = 1; size <= 6; size++)
            for (size_t m = 0; m <= 13 && fits(&variants[v], size); m++) {
                lap_op_desc_t desc = describe(&variants[v], 13, 5, 4);
                size_t bytes = 0, nsignals = 0;
                wrong += lap_op_buffer_size(&desc, size, &bytes, &nsignals) != LAP_OK;
                wrong += sequence_build(&sequence, &desc, &m, 1, size,
                                        m % 2 ? CAN_LANES : CAN_PLAIN) != LAP_OK;
                for (int rank = 0; rank < size; rank++)
                    wrong += tap_wrong(sequence_at(&sequence, 0, rank)->symmetric_bytes != bytes ||
                                           sequence_at(&sequence, 0, rank)->nsignals != nsignals,
                                       "%s/%s, rank %d of %d, m %zu: %zu bytes and %u signals, "
                                       "expected %zu and %zu",
                                       lap_op_kind_name(desc.kind), desc.method, rank, size, m,
                                       sequence_at(&sequence, 0, rank)->symmetric_bytes,
                                       (unsigned)sequence_at(&sequence, 0, rank)->nsignals, bytes,
                                       nsignals);
                sequence_clear(&sequence);
            }
    tap_ok(wrong == 0, "lap_op_buffer_size is what every call on every rank needs");
}

int main(void)
{
    size_t nlanes = 0;
    for (size_t v = 0; v < NVARIANTS; v++) {
        test_variant(&variants[v], CAN_PLAIN);
        test_layers(&variants[v]);
        if (!has_lanes(&variants[v], 4))
            continue;
        test_variant(&variants[v], CAN_LANES);
        nlanes++;
    }
    tap_ok(nlanes >= 5, "rings, direct and pipelines compute in lanes (%zu variants)", nlanes);
    test_mixtures();
    test_shapes();
    test_sum_order();
    test_order_of_owners();
    test_buffer_size();
    return tap_done();
}
