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

static bool same(const lap_step_t *put, const lap_receive_t *receive)
{
    return put && put->dst.offset == receive->offset && put->dst.stride == receive->stride &&
           put->src.rows == receive->rows && put->src.row_bytes == receive->row_bytes;
}

static lap_status_t check_messages(const lap_schedule_t *schedules, int rank)
{
    uint32_t seen[MAX_RANKS] = {0};
    const lap_rounds_t *part = &parts[rank];
    for (uint32_t i = 0; i < part->nrounds; i++)
        for (uint32_t j = 0; j < part->rounds[i].nreceives; j++) {
            const lap_receive_t *receive = &part->rounds[i].receives[j];
            const uint32_t k = seen[receive->peer]++;
            if (!same(find_put(&schedules[receive->peer], rank, k), receive))
                return lap_error(LAP_ERR_CHECK, "receive %u of rank %d from rank %d is not its put",
                                 k, rank, receive->peer);
        }
    for (int peer = 0; peer < schedules->size; peer++)
        if (find_put(&schedules[peer], rank, seen[peer]))
            return lap_error(LAP_ERR_CHECK, "rank %d does not receive put %u of rank %d", rank,
                             seen[peer], peer);
    return LAP_OK;
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

/* ---- waits ---- */

/* How many rounds have been issued when so many puts have been reached. */
static uint32_t issued_at(const lap_rounds_t *part, uint32_t puts)
{
    uint32_t round = 0, sends = 0;
    while (round < part->nrounds && sends + part->rounds[round].nsends <= puts)
        sends += part->rounds[round++].nsends;
    return round;
}

static lap_status_t check_wait(const lap_schedule_t *schedule, uint32_t puts, uint32_t signal,
                               uint32_t count)
{
    const lap_rounds_t *part = &parts[schedule->rank];
    const uint32_t size = (uint32_t)schedule->size;
    uint32_t round;
    if (signal == LAP_NO_SIGNAL || (signal >= size && signal < 2 * size))
        return LAP_OK;
    if (lap_rounds_of(part, signal, count, &round) && round < issued_at(part, puts))
        return LAP_OK;
    return lap_error(LAP_ERR_CHECK, "rank %d waits for signal %u number %u before it can come",
                     schedule->rank, signal, count);
}

static lap_status_t check_waits(const lap_schedule_t *schedule)
{
    uint32_t puts = 0;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t *step = &schedule->steps[i];
        puts += step->kind == LAP_STEP_PUT;
        if (step->kind == LAP_STEP_WAIT)
            LAP_TRY(check_wait(schedule, puts, step->signal, step->count));
        for (uint32_t b = 0; step->kind == LAP_STEP_GEMM && b < step->count; b++) {
            const lap_block_t *block = &schedule->blocks[step->first + b];
            LAP_TRY(check_wait(schedule, puts, block->wait_signal, block->wait_count));
        }
    }
    return issued_at(&parts[schedule->rank], puts) == parts[schedule->rank].nrounds
               ? LAP_OK
               : lap_error(LAP_ERR_CHECK, "a round of rank %d is never issued", schedule->rank);
}

/* ---- meeting ---- */

/* Messages between two ranks in the rounds of one of them up to and with number `last`. */
static uint32_t lane(const lap_schedule_t *schedules, int rank, uint32_t last, int peer, bool sends)
{
    const lap_rounds_t *part = &parts[rank];
    uint32_t count = 0, listed = 0, own = 0;
    for (uint32_t i = 0; i <= last && i < part->nrounds; i++) {
        listed += part->rounds[i].nsends;
        for (uint32_t j = 0; j < part->rounds[i].nreceives; j++)
            own += part->rounds[i].receives[j].peer == peer;
    }
    for (uint32_t i = 0; i < schedules[rank].nsteps && listed > 0; i++) {
        const lap_step_t *step = &schedules[rank].steps[i];
        count += step->kind == LAP_STEP_PUT && step->peer == peer;
        listed -= step->kind == LAP_STEP_PUT;
    }
    return sends ? count : own;
}

/* Whether a rank can end the round that it is in: each of its messages has its other end. */
static bool can_end(const lap_schedule_t *schedules, const uint32_t *at, int rank)
{
    for (int peer = 0; peer < schedules->size; peer++)
        if (peer != rank && (lane(schedules, peer, at[peer], rank, false) <
                                 lane(schedules, rank, at[rank], peer, true) ||
                             lane(schedules, peer, at[peer], rank, true) <
                                 lane(schedules, rank, at[rank], peer, false)))
            return false;
    return true;
}

static lap_status_t check_meeting(const lap_schedule_t *schedules, int size)
{
    uint32_t at[MAX_RANKS] = {0};
    bool moved = true;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < size; rank++)
            while (at[rank] < parts[rank].nrounds && can_end(schedules, at, rank)) {
                at[rank]++;
                moved = true;
            }
    }
    for (int rank = 0; rank < size; rank++)
        if (at[rank] < parts[rank].nrounds)
            return lap_error(LAP_ERR_CHECK, "rank %d is held up in round %u", rank, at[rank]);
    return LAP_OK;
}

/* ---- all of it ---- */

static lap_status_t check_call(const lap_schedule_t *schedules, int size)
{
    const lap_schedule_t *list[MAX_RANKS];
    lap_status_t status = LAP_OK;
    int planned = 0;
    for (int rank = 0; rank < size; rank++)
        list[rank] = &schedules[rank];
    for (; planned < size && status == LAP_OK; planned++)
        status = lap_rounds_plan(list, size, planned, &parts[planned]);
    if (status != LAP_OK)
        planned--;
    for (int rank = 0; rank < size && status == LAP_OK; rank++) {
        status = check_messages(schedules, rank);
        if (status == LAP_OK)
            status = check_lacks(schedules, rank);
        if (status == LAP_OK)
            status = check_waits(&schedules[rank]);
    }
    if (status == LAP_OK)
        status = check_meeting(schedules, size);
    for (int rank = 0; rank < planned; rank++)
        lap_rounds_clear(&parts[rank]);
    return status;
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
    test_count("serial", 0, LAP_AG_GEMM, 1);
    test_count("ring", 0, LAP_AG_GEMM, 3);
    test_count("direct", 0, LAP_AG_GEMM, 3);
    test_count("serial", 0, LAP_GEMM_RS, 1);
    test_count("ring", 0, LAP_GEMM_RS, 3);
    test_count("pipeline", 4, LAP_GEMM_RS, 4);
    return tap_done();
}
