/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checker does not look at, because a schedule may be safe without it: what each
 * builder makes of a call, the order of sums, and the memory that a call needs. That what they
 * make is safe is for lap check (cli/check.sh).
 */
#include "sequence.h"

#include "core/status.h"
#include "schedule/range.h"

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
    tap_ok(s.ntiles == 1 + 3 * 4, "fused: shards of 2048 rows come in four blocks");
    lap_schedule_clear(&s);
    build_one("fused", LAP_GEMM_RS, 4, &s);
    tap_ok(count_steps(&s, LAP_STEP_PUT, -1) == 0 && s.ntiles == 16 && !s.steps[3].any_order &&
               lap_tile_range(&s, &s.tiles[0], LAP_ROLE_D)->rank == 2 &&
               lap_tile_range(&s, &s.tiles[15], LAP_ROLE_D)->place == LAP_SCRATCH,
           "fused: blocks go to the next rank first, the own ones stay and come last");
    lap_schedule_clear(&s);
}

/*
 * Whether `count` uses are those of ranks 0, 1, 2, ...; `rank` is whose schedule it is. They are
 * slots of this rank's, or read in place on the rank that they are of.
 */
static bool in_rank_order(const lap_use_t *uses, uint32_t count, int rank)
{
    bool in_place = true;
    for (uint32_t j = 0; j < count; j++)
        in_place = in_place && uses[j].range.rank == (int)j;
    if (in_place)
        return true;
    for (uint32_t j = 0; j < count; j++) {
        const bool own = uses[j].range.place != LAP_SYMMETRIC;
        if (own != ((int)j == rank))
            return false;
        if (!own && j > 0 && uses[j - 1].range.place == LAP_SYMMETRIC &&
            uses[j].range.offset <= uses[j - 1].range.offset)
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
                uint32_t count, nscales;
                const lap_use_t *parts = lap_step_uses(s, step, LAP_ROLE_A, &count);
                const lap_use_t *scales = lap_step_uses(s, step, LAP_ROLE_SCALE, &nscales);
                if (step->kind == LAP_STEP_REDUCE)
                    right = right && count == 5 && in_rank_order(parts, 5, rank) &&
                            (nscales == 0 || (nscales == 5 && in_rank_order(scales, 5, rank)));
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
        const lap_step_t *step = &s->steps[i];
        sum = step->kind == LAP_STEP_REDUCE ? i : sum;
        if (step->ntiles == 0)
            continue;
        const lap_range_t *d = lap_tile_range(s, &s->tiles[step->first_tile], LAP_ROLE_D);
        if (d->place == LAP_SYMMETRIC) {
            gemms[d->rank] = i;
            waits[d->rank] = wait_before(s, i);
        }
    }
    tap_ok(gemms[1] > 0 && gemms[1] < gemms[2] && gemms[2] < gemms[3] &&
               s->steps[gemms[1]].stream != s->steps[gemms[2]].stream,
           "the GEMMs of the owners take turns in two lanes");
    tap_ok(s->steps[waits[1]].signal.peer == 1 && waits[1] < waits[2] && waits[2] == waits[3],
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
    for (size_t v = 0; v < NVARIANTS; v++)
        nlanes += has_lanes(&variants[v], 4);
    tap_ok(nlanes >= 5, "rings, direct and pipelines compute in lanes (%zu variants)", nlanes);
    test_shapes();
    test_sum_order();
    test_order_of_owners();
    test_buffer_size();
    return tap_done();
}
