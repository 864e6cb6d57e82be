/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of every builder that puts: what a rank receives is what its peers put, in their
 * order; a round is there before any wait for it, and can say what it lacks; and rounds come to an
 * end where a send ends only when it has been received and each rank does nothing but round after
 * round. Methods that do more than put are refused.
 */
#include "sequence.h"

#include "core/status.h"
#include "schedule/rounds.h"

static lap_rounds_t parts[MAX_RANKS];

/* ---- messages ---- */

/* The `k`th put of a schedule to `peer`, from 0; NULL: there are not so many. */
static const lap_step_t *find_put(const lap_schedule_t *schedule, int peer, uint32_t k)
{
    for (uint32_t i = 0; i < schedule->nsteps; i++)
        if (schedule->steps[i].kind == LAP_STEP_PUT && schedule->steps[i].peer == peer && k-- == 0)
            return &schedule->steps[i];
    return NULL;
}

/* ---- what is said when a round does not come ---- */

enum { MOST = 256 }; /* signals, and what a round can lack */

/* Whether a round says so; each of its lacks counts once. */
static bool has_lack(const lap_round_t *round, bool *taken, int peer, uint32_t signal,
                     uint32_t count)
{
    for (uint32_t i = 0; i < round->nlacks && i < MOST; i++) {
        const lap_lack_t *lack = &round->lacks[i];
        if (taken[i] || lack->peer != peer || lack->signal != signal || lack->count != count)
            continue;
        taken[i] = true;
        return true;
    }
    return false;
}

/*
 * Of every receive the signal that it brings and which of its raises that is, from 1; where it brings
 * none, the next of its sender that tells of data. Of every send the credit of who receives it.
 */
static lap_status_t check_lacks(const lap_schedule_t *schedules, int rank)
{
    uint32_t seen[MAX_RANKS] = {0}, sent = 0, raised[MOST] = {0};
    const int size = schedules->size;
    const lap_rounds_t *part = &parts[rank];
    for (uint32_t i = 0; i < part->nrounds; i++) {
        const lap_round_t *round = &part->rounds[i];
        bool taken[MOST] = {false};
        bool right = round->nlacks == round->nsends + round->nreceives;
        for (uint32_t j = 0; j < round->nreceives; j++) {
            const int peer = round->receives[j].peer;
            const lap_step_t *put = find_put(&schedules[peer], rank, seen[peer]++);
            const bool tells = put->signal != LAP_NO_SIGNAL;
            const uint32_t signal = tells ? put->signal : lap_signal_data(peer);
            if (signal >= MOST)
                return lap_error(LAP_ERR_CHECK, "signal %u, expected less than %d", signal, MOST);
            right = right && has_lack(round, taken, peer, signal, raised[signal] + 1);
            raised[signal] += tells;
        }
        for (uint32_t j = 0, at = 0; at < schedules[rank].nsteps; at++) {
            const lap_step_t *put = &schedules[rank].steps[at];
            if (put->kind != LAP_STEP_PUT || j++ < sent || j > sent + round->nsends)
                continue;
            right =
                right && has_lack(round, taken, put->peer, lap_signal_credit(size, put->peer), 1);
        }
        sent += round->nsends;
        if (!right)
            return lap_error(LAP_ERR_CHECK, "round %u of rank %d does not say what it lacks", i,
                             rank);
    }
    return LAP_OK;
}

/* ---- all of it ---- */

static lap_status_t check_call(const lap_schedule_t *schedules, int size)
{
    const lap_schedule_t *list[MAX_RANKS];
    for (int rank = 0; rank < size; rank++)
        list[rank] = &schedules[rank];
    lap_status_t status = lap_rounds_plan_all(list, size, parts);
    if (status != LAP_OK)
        return status;
    status = lap_check_rounds(list, size, parts);
    for (int rank = 0; rank < size && status == LAP_OK; rank++)
        status = check_lacks(schedules, rank);
    for (int rank = 0; rank < size; rank++)
        lap_rounds_clear(&parts[rank]);
    return status;
}

/* ---- what the checker finds ---- */

typedef enum fault { NO_FAULT, OTHER_ROWS, NOT_RECEIVED, ROUNDS_SWAPPED, LATE_SEND } fault_t;

/* Changes the rounds of rank 1; a ring of 4 has three, with a send and a receive each. */
static void change(lap_rounds_t *part, fault_t fault)
{
    lap_round_t *rounds = part->rounds;
    if (fault == OTHER_ROWS)
        part->receives[1].offset += 4;
    if (fault == NOT_RECEIVED)
        rounds[2].nreceives = 0;
    if (fault == ROUNDS_SWAPPED) {
        rounds[0].nsends = 0; /* it receives first, and so do all the others */
        rounds[1].nsends = 2;
    }
    if (fault == LATE_SEND) {
        rounds[0].nsends = 2; /* what it sends on comes with that very round */
        rounds[1].nsends = 0;
    }
}

static void test_fault(fault_t fault, bool all, const char *word)
{
    static sequence_t sequence;
    const variant_t variant = {LAP_AG_GEMM, "ring", 0, 0, 0, 0, LAP_FLOAT32, 0, LAP_FORWARD};
    const lap_op_desc_t desc = describe(&variant, 40, 24, 16);
    const lap_schedule_t *list[4];
    tap_success(sequence_build(&sequence, &desc, &desc.m, 1, 4, LAP_NCCL_CAN), "a ring of four");
    tap_success(sequence_lower(&sequence, "nccl", NULL), "lowered for NCCL");
    for (int rank = 0; rank < 4; rank++)
        list[rank] = &sequence.schedules[rank];
    tap_success(lap_rounds_plan_all(list, 4, parts), "its rounds");
    for (int rank = all ? 0 : 1; rank < (all ? 4 : 2); rank++)
        change(&parts[rank], fault);
    if (fault == NO_FAULT)
        tap_success(lap_check_rounds(list, 4, parts), "they are safe as they are");
    else
        tap_failure(lap_check_rounds(list, 4, parts), LAP_ERR_CHECK, word, NULL);
    for (int rank = 0; rank < 4; rank++)
        lap_rounds_clear(&parts[rank]);
    sequence_clear(&sequence);
}

/* Whether a method reads or writes the memory of peers. */
static bool addresses(const lap_op_desc_t *desc, int size)
{
    const lap_builder_t *builder;
    lap_problem_t problem;
    return lap_problem_init(&problem, &builder, desc, size, LAP_CAN_PUT) == LAP_ERR_UNSUPPORTED;
}

static void test_variant(const variant_t *variant)
{
    static sequence_t sequence;
    char name[64];
    variant_name(variant, name, sizeof(name));
    for (int size = 2; size <= 8; size++) {
        const size_t p = (size_t)size, capacity = 5 * p + 3;
        const size_t rows[5] = {capacity, 0, p - 1, 1, 3 * p + 2};
        lap_op_desc_t desc = describe(variant, capacity, 23, 7);
        lap_op_desc_t descs[5] = {desc, desc, desc, desc, desc};
        if (!fits(variant, size))
            continue;
        const bool refused = addresses(&desc, size);
        lap_status_t status = sequence_build(&sequence, descs, rows, 5, size, CAN_PLAIN);
        if (status == LAP_OK)
            status = sequence_lower(&sequence, "nccl", NULL);
        for (uint32_t c = 0; c < 5 && status == LAP_OK && !refused; c++)
            status = check_call(&sequence.schedules[c * (uint32_t)size], size);
        if (status == LAP_OK && refused)
            status = check_call(sequence.schedules, size) == LAP_ERR_UNSUPPORTED ? LAP_OK
                                                                                 : LAP_ERR_CHECK;
        tap_success(status, refused ? "%s, %d ranks: refused" : "%s, %d ranks: met", name, size);
        sequence_clear(&sequence);
    }
}

/* A shard's own round for each peer where it is used as it comes, one for all where it is not. */
static void test_count(const char *method, size_t num_splits, lap_op_kind_t kind, uint32_t expected)
{
    static sequence_t sequence;
    const variant_t variant = {kind, method, 0, 0, num_splits, 0, LAP_FLOAT32, 0, LAP_FORWARD};
    const lap_op_desc_t desc = describe(&variant, 40, 24, 16);
    const lap_schedule_t *list[4];
    lap_rounds_t part = {.nrounds = 0};
    tap_success(sequence_build(&sequence, &desc, &desc.m, 1, 4, CAN_PLAIN), "%s for 4 ranks",
                method);
    for (int rank = 0; rank < 4; rank++)
        list[rank] = &sequence.schedules[rank];
    tap_success(lap_rounds_plan(list, 4, 1, &part), "its rounds");
    tap_ok(part.nrounds == expected, "%s has %u rounds, expected %u", method, part.nrounds,
           expected);
    lap_rounds_clear(&part);
    sequence_clear(&sequence);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        test_variant(&variants[i]);
    test_fault(NO_FAULT, false, "");
    test_fault(OTHER_ROWS, false, "unmatched message");
    test_fault(NOT_RECEIVED, false, "unmatched message");
    test_fault(ROUNDS_SWAPPED, true, "deadlock");
    test_fault(LATE_SEND, false, "rounds out of order");
    test_count("serial", 0, LAP_AG_GEMM, 1);
    test_count("ring", 0, LAP_AG_GEMM, 3);
    test_count("direct", 0, LAP_AG_GEMM, 3);
    test_count("serial", 0, LAP_GEMM_RS, 1);
    test_count("ring", 0, LAP_GEMM_RS, 3);
    test_count("pipeline", 4, LAP_GEMM_RS, 4);
    return tap_done();
}
