/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of pipelines are proved, for every schedule, on every target, with messages during computing or in
 * line with it. Then each wait, credit and signal of a message is taken out, and each link by which a message
 * waits for what it sends, or an action for what came, each kernel, also one that works in place, and lifetimes of
 * regions are cut short: the proof must object each time. And so it must where a fragment is taken out of all ranks, or a
 * bucket leaves too early. Gradients go to replicas
 * in the step, each bucket once, when the last backward that adds to it has run. The weights of a shared optimizer come
 * from them, each bucket once, before an action reads it, and most while the rank computes.
 */
#include <lap/model.h>

#include <string.h>

#include "../nn/layout.h"
#include "../nn/order.h"
#include "parallel/stage_prove.h"
#include "schedule/lower.h"
#include "tap.h"

static const struct {
    int tp, pp;
    const char *schedule;
    size_t micro, virtual_stages;
} cases[] = {
    {1, 2, "1f1b", 3, 0},  {2, 2, "1f1b", 2, 0},  {1, 3, "1f1b", 4, 0}, {1, 2, "interleaved", 2, 2},
    {1, 3, "zb-h1", 3, 0}, {2, 2, "zb-h1", 2, 0}, {1, 2, "zb-v", 3, 0}, {1, 4, "zb-v", 4, 0},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static lap_nn_desc_t describe(size_t layers, int tied)
{
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    (void)lap_model_preset("gpt", &desc);
    desc.layers = layers;
    desc.seq = 4;
    desc.batch = 1;
    desc.hidden = 16;
    desc.heads = desc.kv_heads = 2;
    desc.head_dim = 8;
    desc.ffn = 16;
    desc.vocab = 12;
    desc.max_positions = 4;
    desc.tied = tied;
    return desc;
}

static lap_stage_proving_t proving_of(size_t i, const lap_nn_desc_t *desc,
                                      lap_pp_options_t *options, const lap_target_t *target)
{
    *options = (lap_pp_options_t)LAP_PP_OPTIONS_INIT;
    options->schedule = cases[i].schedule;
    options->micro_batches = cases[i].micro;
    options->virtual_stages = cases[i].virtual_stages;
    return (lap_stage_proving_t){.desc = desc,
                                 .tp = cases[i].tp,
                                 .pp = cases[i].pp,
                                 .options = options,
                                 .how.target = target};
}

static void prove_all(void)
{
    const lap_target_t *target;
    for (size_t t = 0; (target = lap_target_at(t)); t++)
        for (size_t i = 0; i < CASES; i++)
            for (int way = 0; way < 3; way++) {
                lap_nn_desc_t desc = describe((size_t)cases[i].pp * 2, (int)i % 2);
                desc.fp8 = way == 2 ? LAP_FP8_DELAYED : LAP_FP8_NONE; /* the first step, too */
                lap_pp_options_t options;
                lap_nn_proof_t proof;
                const lap_stage_proving_t proving = proving_of(i, &desc, &options, target);
                options.overlap = way > 0;
                tap_success(lap_stage_prove(&proving, &proof), "%s, tp %d, pp %d%s on %s is proved",
                            cases[i].schedule, cases[i].tp, cases[i].pp,
                            way == 2   ? ", delayed FP8 scales"
                            : way == 1 ? ""
                                       : ", messages in line",
                            target->name);
            }
}

typedef struct tally {
    size_t mutants, survivors;
} tally_t;

static const lap_target_t *proved_for; /* what mutants are held against */

/* As lap_nn_programs_prove does, but of the calls only the one that was changed. */
static bool objects(const lap_stage_programs_t *programs, int rank, uint32_t f)
{
    const lap_fragment_t *fragment = &programs->all.programs[rank].fragments[f];
    const int size = fragment->schedule.size;
    const lap_schedule_t *call[16];
    for (int r = 0; r < size; r++)
        call[r] = &programs->all.programs[lap_fragment_rank(fragment, r)].fragments[f].schedule;
    return (fragment->schedule.steps[0].kind != LAP_STEP_KERNEL &&
            lap_lowered_check(call, 1, size, proved_for) == LAP_ERR_CHECK) ||
           lap_linked_check(programs->all.list, programs->all.size, false) == LAP_ERR_CHECK;
}

static void count(const lap_stage_programs_t *programs, int rank, uint32_t f, const char *what,
                  tally_t *tally)
{
    tally->mutants++;
    if (!objects(programs, rank, f) && tally->survivors++ < 4)
        tap_note("survived: %s, fragment %u of rank %d", what, (unsigned)f, rank);
}

static bool is_message(const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_SEND || item->kind == LAP_STAGE_RECEIVE;
}

/* Each step of a message, and the signal of a put. */
static void mutate_steps(lap_stage_programs_t *programs, int rank, uint32_t f, tally_t *tally)
{
    lap_schedule_t *schedule = &programs->all.programs[rank].fragments[f].schedule;
    for (uint32_t i = 0; i < schedule->nsteps; i++) {
        const lap_step_t step = schedule->steps[i];
        if (drop_signal(&schedule->steps[i]))
            count(programs, rank, f, "a put without its signal", tally);
        schedule->steps[i] = step;
        make_idle(&schedule->steps[i]);
        count(programs, rank, f, "a step of a message", tally);
        schedule->steps[i] = step;
    }
}

/* A link that says when something may be read: to what is sent, or to what came. */
static void mutate_links(lap_stage_programs_t *programs, int rank, uint32_t f, tally_t *tally)
{
    const lap_stage_item_t *items = programs->programs[rank].items;
    lap_fragment_t *fragment = &programs->all.programs[rank].fragments[f];
    for (uint32_t i = 0; i < fragment->nlinks; i++) {
        const lap_link_dep_t link = fragment->links[i];
        const bool sent = items[f].kind == LAP_STAGE_SEND && !is_message(&items[link.fragment]);
        const bool came =
            items[f].kind == LAP_STAGE_ENTRY && items[link.fragment].kind == LAP_STAGE_RECEIVE;
        if (!sent && !came)
            continue;
        fragment->links[i] = fragment->links[--fragment->nlinks];
        count(programs, rank, f, "a link", tally);
        fragment->links[fragment->nlinks++] = fragment->links[i];
        fragment->links[i] = link;
    }
}

/* A kernel that does nothing: who reads what it makes would read what was there before. */
static void mutate_kernel(lap_stage_programs_t *programs, int rank, uint32_t f, tally_t *tally)
{
    lap_fragment_t *fragment = &programs->all.programs[rank].fragments[f];
    const uint32_t nsteps = fragment->schedule.nsteps;
    if (nsteps != 1 || fragment->schedule.steps[0].kind != LAP_STEP_KERNEL ||
        !order_writes(&programs->all.programs[rank], fragment))
        return;
    const uint32_t nuses = fragment->schedule.steps[0].nuses;
    fragment->schedule.steps[0].nuses = 0;
    count(programs, rank, f, fragment->schedule.method, tally);
    fragment->schedule.steps[0].nuses = nuses;
}

static void mutate(size_t i)
{
    const lap_nn_desc_t desc = describe((size_t)cases[i].pp * (cases[i].virtual_stages ? 2 : 1) *
                                            (strcmp(cases[i].schedule, "zb-v") == 0 ? 2 : 1),
                                        0);
    tally_t steps = {0, 0}, links = {0, 0}, kernels = {0, 0};
    lap_pp_options_t options;
    lap_stage_programs_t programs;
    proved_for = lap_target_at(0);
    const lap_stage_proving_t proving = proving_of(i, &desc, &options, proved_for);
    tap_success(lap_stage_programs_init(&programs, &proving), "%s is linked", cases[i].schedule);
    for (int rank = 0; rank < programs.all.size; rank++)
        for (uint32_t f = 0; f < programs.all.programs[rank].nfragments; f++) {
            if (is_message(&programs.programs[rank].items[f]))
                mutate_steps(&programs, rank, f, &steps);
            mutate_links(&programs, rank, f, &links);
            mutate_kernel(&programs, rank, f, &kernels);
        }
    tap_ok(steps.mutants > 0 && steps.survivors == 0,
           "%s, pp %d: %zu steps of messages taken out are missed, %zu are not", cases[i].schedule,
           cases[i].pp, steps.mutants, steps.survivors);
    tap_ok(links.mutants > 0 && links.survivors == 0,
           "%s, pp %d: %zu links taken out are missed, %zu are not", cases[i].schedule, cases[i].pp,
           links.mutants, links.survivors);
    tap_ok(kernels.mutants > 0 && kernels.survivors == 0,
           "%s, pp %d: %zu kernels taken out are missed, %zu are not", cases[i].schedule,
           cases[i].pp, kernels.mutants, kernels.survivors);
    if (i == 0 || i == 3)
        layout_mutate(&programs.all, i > 0, cases[i].schedule);
    lap_stage_programs_clear(&programs);
}

/* ---- replicas ---- */

/* Whether an action of this rank that comes after fragment f adds to the gradients of a bucket. */
static bool is_early(const lap_stage_programs_t *programs, int rank, uint32_t f)
{
    const lap_stage_item_t *items = programs->programs[rank].items;
    const lap_nn_list_t *list = &programs->all.lists[rank];
    const lap_nn_buckets_t *buckets = &programs->buckets[rank];
    for (uint32_t i = f; i < programs->programs[rank].nitems; i++) {
        const lap_nn_entry_t *entry = &list->entries[items[i].entry];
        const bool adds = items[i].kind == LAP_STAGE_ENTRY || items[i].kind == LAP_STAGE_SCATTER;
        for (uint32_t w = 0; w < list->nweights && adds; w++) {
            const uint32_t grad = list->weights[w].grad;
            const bool writes = items[i].kind == LAP_STAGE_SCATTER
                                    ? lap_stage_tied(list) == &list->weights[w]
                                    : entry->writes[0] == grad || entry->writes[1] == grad;
            if (writes && lap_nn_bucket_has_weight(buckets, items[f].bucket, list, w))
                return true;
        }
    }
    return false;
}

static void check_buckets(const lap_stage_programs_t *programs, const char *schedule)
{
    size_t sent = 0, wanted = 0, early = 0, during = 0;
    for (int rank = 0; rank < programs->all.size; rank++) {
        const lap_stage_program_t *program = &programs->programs[rank];
        wanted += programs->buckets[rank].count;
        uint32_t last = 0;
        for (uint32_t f = 0; f < program->nitems; f++)
            last = program->items[f].kind == LAP_STAGE_ENTRY ? f : last;
        for (uint32_t f = 0; f < program->nitems; f++) {
            const bool begins = program->items[f].kind == LAP_STAGE_BUCKET &&
                                program->items[f].which == LAP_NN_BUCKET_SCATTER;
            sent += begins;
            during += begins && f < last;
            early += begins && is_early(programs, rank, f);
        }
    }
    tap_ok(sent == wanted && early == 0,
           "%s: of %zu buckets %zu are sent, %zu before their gradients are complete", schedule,
           wanted, sent, early);
    tap_ok(2 * during > sent, "%s: %zu of them while the rank has something to compute", schedule,
           during);
}

static void test_replicas(void)
{
    for (size_t i = 0; i < CASES; i++) {
        const lap_target_t *target = lap_target_at(i % 2);
        const lap_nn_desc_t desc = describe((size_t)cases[i].pp * 2, (int)i % 2);
        lap_pp_options_t options;
        lap_stage_programs_t programs;
        lap_stage_proving_t proving = proving_of(i, &desc, &options, target);
        proving.how.replication = (lap_nn_replication_t){
            .replicas = 2, .bucket = 300, .wire = i % 3 ? LAP_FLOAT32 : LAP_BFLOAT16};
        tap_success(lap_stage_programs_init(&programs, &proving), "%s with replicas is linked",
                    cases[i].schedule);
        check_buckets(&programs, cases[i].schedule);
        tap_success(lap_nn_programs_prove(&programs.all, target),
                    "%s, tp %d, pp %d, dp 2 on %s is proved", cases[i].schedule, cases[i].tp,
                    cases[i].pp, target->name);
        lap_stage_programs_clear(&programs);
    }
}

/* ---- the weights of a shared optimizer ---- */

static bool is_gather(const lap_stage_item_t *item)
{
    return item->kind == LAP_STAGE_BUCKET && item->which == LAP_NN_BUCKET_GATHER;
}

/* Each link by which an action waits for its weights is taken out. */
static void mutate_gathers(lap_stage_programs_t *programs, int rank, tally_t *tally)
{
    const lap_stage_item_t *items = programs->programs[rank].items;
    lap_linked_t *linked = &programs->all.programs[rank];
    for (uint32_t f = 0; f < linked->nfragments; f++)
        for (uint32_t i = 0; i < linked->fragments[f].nlinks; i++) {
            lap_link_dep_t *link = &linked->fragments[f].links[i], before = *link;
            if (items[f].kind != LAP_STAGE_ENTRY || !is_gather(&items[link->fragment]))
                continue;
            *link = linked->fragments[f].links[--linked->fragments[f].nlinks];
            count(programs, rank, f, "a link to weights", tally);
            linked->fragments[f].links[linked->fragments[f].nlinks++] = *link;
            *link = before;
        }
}

static void check_gathers(lap_stage_programs_t *programs, const char *what)
{
    size_t gathered = 0, wanted = 0, during = 0;
    for (int rank = 0; rank < programs->all.size; rank++) {
        const lap_stage_program_t *program = &programs->programs[rank];
        bool computes = false;
        wanted += programs->buckets[rank].count;
        for (uint32_t f = 0; f < program->nitems; f++) {
            computes = computes || (program->items[f].kind == LAP_STAGE_ENTRY && f > 0);
            gathered += is_gather(&program->items[f]);
            during += is_gather(&program->items[f]) && computes;
        }
    }
    tap_ok(
        gathered == wanted && 2 * during > gathered,
        "%s: of %zu buckets of weights %zu are gathered, %zu after the rank has begun to compute",
        what, wanted, gathered, during);
}

static void test_weights(void)
{
    static const lap_dtype_t types[] = {LAP_FLOAT32, LAP_BFLOAT16};
    for (size_t i = 0; i < CASES; i++) {
        const lap_target_t *target = lap_target_at(i % 2);
        lap_nn_desc_t desc = describe((size_t)cases[i].pp * 2, (int)i % 2);
        lap_pp_options_t options;
        lap_stage_programs_t programs;
        lap_stage_proving_t proving = proving_of(i, &desc, &options, target);
        tally_t links = {0, 0};
        proved_for = target;
        proving.how.replication =
            (lap_nn_replication_t){.replicas = 2, .bucket = 300, .late = i % 3 == 2, .ahead = true};
        desc.shards = 2;
        desc.shard_bucket = 300;
        desc.dtype = types[i / 2 % 2];
        desc.fp8 = i == 1 || i == 3 || i == 7 ? LAP_FP8_CURRENT : LAP_FP8_NONE;
        desc.fp8_params = i == 1 || i == 7;
        tap_success(lap_stage_programs_init(&programs, &proving), "%s with shards is linked",
                    cases[i].schedule);
        check_gathers(&programs, cases[i].schedule);
        tap_ok(lap_nn_prefetch_started(&programs.all.lists[0], &programs.buckets[0]) > 0,
               "%s: the step before may begin to gather some", cases[i].schedule);
        tap_success(lap_nn_programs_prove(&programs.all, target),
                    "%s, tp %d, pp %d, dp 2 with shards on %s is proved", cases[i].schedule,
                    cases[i].tp, cases[i].pp, target->name);
        if (i < 2) {
            mutate_gathers(&programs, 0, &links);
            tap_ok(links.mutants > 0 && links.survivors == 0,
                   "%s: %zu links to weights taken out are missed, %zu are not", cases[i].schedule,
                   links.mutants, links.survivors);
        }
        lap_stage_programs_clear(&programs);
    }
}

/* ---- the step of the optimizer ---- */

static void mutate_step(lap_stage_programs_t *programs, int rank, uint32_t f, tally_t *tally)
{
    lap_fragment_t *fragment = &programs->all.programs[rank].fragments[f];
    const uint32_t nlinks = fragment->nlinks;
    for (uint32_t i = 0; i < nlinks; i++) {
        const lap_link_dep_t link = fragment->links[i];
        fragment->links[i] = fragment->links[--fragment->nlinks];
        count(programs, rank, f, "a link of the step", tally);
        fragment->links[fragment->nlinks++] = fragment->links[i];
        fragment->links[i] = link;
    }
    mutate_kernel(programs, rank, f, tally);
    if (fragment->schedule.steps[0].kind != LAP_STEP_KERNEL)
        mutate_steps(programs, rank, f, tally);
}

/* Without replicas, with gradients during backward or after it, and where replicas share the optimizer. */
static void test_step(void)
{
    static const struct {
        int replicas;
        size_t shards;
        bool late, mutates;
    } ways[] = {{0, 0, false, true},
                {2, 0, false, false},
                {2, 0, true, false},
                {2, 2, false, true},
                {2, 2, true, false}};
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
        for (size_t i = w % 2; i < CASES; i += 2) {
            const lap_target_t *target = lap_target_at((i / 2 + w) % 2);
            lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
            lap_nn_desc_t desc = describe((size_t)cases[i].pp * 2, i % 4 == 1);
            lap_pp_options_t options;
            lap_stage_programs_t programs;
            lap_stage_proving_t proving = proving_of(i, &desc, &options, target);
            tally_t tally = {0, 0};
            proved_for = target;
            optimizer.clip_norm = i % 3 ? 1 : 0;
            proving.how.optimizer = &optimizer;
            proving.how.replication = (lap_nn_replication_t){.replicas = ways[w].replicas,
                                                             .bucket = 300,
                                                             .wire = LAP_FLOAT32,
                                                             .late = ways[w].late};
            desc.shards = ways[w].shards;
            desc.shard_bucket = ways[w].shards ? 300 : 0;
            tap_success(lap_stage_programs_init(&programs, &proving), "%s with a step is linked",
                        cases[i].schedule);
            tap_success(lap_nn_programs_prove(&programs.all, target),
                        "%s, tp %d, pp %d, dp %d, shards %zu%s on %s and the step are proved",
                        cases[i].schedule, cases[i].tp, cases[i].pp, ways[w].replicas,
                        ways[w].shards, ways[w].late ? ", late" : "", target->name);
            const bool mutates = ways[w].mutates && (i == 1 || i == 2);
            for (int rank = 0; rank < programs.all.size && mutates; rank += programs.all.size - 1)
                for (uint32_t f = 0; f < programs.all.programs[rank].nfragments; f++) {
                    const lap_stage_item_t *item = &programs.programs[rank].items[f];
                    if (item->kind == LAP_STAGE_ENTRY &&
                        item->entry >= programs.all.lists[rank].parts[LAP_NN_REFRESH])
                        mutate_step(&programs, rank, f, &tally);
                }
            if (mutates)
                tap_ok(tally.mutants > 0 && tally.survivors == 0,
                       "%s: %zu mutants of the step are found, %zu are not", cases[i].schedule,
                       tally.mutants, tally.survivors);
            lap_stage_programs_clear(&programs);
        }
}

/* ---- the order ---- */

/*
 * See nn/order.h: no bucket leaves, and no tied gradient is summed, before the last micro-batch has added to it, and no weight is
 * read before the step has made it.
 */
static void mutate_order(size_t i, size_t shards)
{
    lap_nn_desc_t desc = describe((size_t)cases[i].pp * (cases[i].virtual_stages ? 2 : 1) *
                                      (strcmp(cases[i].schedule, "zb-v") == 0 ? 2 : 1),
                                  1);
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_pp_options_t options;
    lap_stage_programs_t programs;
    lap_stage_proving_t proving = proving_of(i, &desc, &options, lap_target_at(i % 2));
    proving.how.optimizer = &optimizer;
    proving.how.replication = (lap_nn_replication_t){.replicas = 2, .bucket = 1000};
    desc.shards = shards;
    desc.shard_bucket = shards ? 1000 : 0;
    tap_success(lap_stage_programs_init(&programs, &proving), "%s is linked", cases[i].schedule);
    order_mutate(&programs.all, true, 101, cases[i].schedule);
    lap_stage_programs_clear(&programs);
}

/*
 * In the first step with delayed FP8 scales nothing has a scale before: a cast of a later micro-batch that comes before
 * the kernel that makes the scale is found.
 */
static void test_first(void)
{
    lap_nn_desc_t desc = describe(2, 0);
    lap_pp_options_t options;
    lap_stage_programs_t programs;
    lap_stage_proving_t proving = proving_of(0, &desc, &options, lap_target_at(0));
    order_tally_t tally = {0};
    desc.fp8 = LAP_FP8_DELAYED;
    proving.how.first = true;
    tap_success(lap_stage_programs_init(&programs, &proving), "a first step is linked");
    order_state_t state = order_begin(&programs.all);
    for (int rank = 0; rank < programs.all.size; rank++) {
        const lap_fragment_t *fragments = programs.all.programs[rank].fragments;
        uint32_t begin = 0; /* its first action, after the scales of weights */
        while (programs.programs[rank].items[begin].kind != LAP_STAGE_ENTRY ||
               programs.programs[rank].items[begin].action.work == LAP_PIPE_WORKS)
            begin++;
        for (uint32_t f = begin + 1; f < programs.all.programs[rank].nfragments; f++)
            if (order_is_kernel(&fragments[f], "cast") && fragments[f].iteration > 0)
                order_try(&state, order_place(&state, rank, f), order_place(&state, rank, begin),
                          &tally);
    }
    tap_ok(tally.wrong > 4 && tally.found == tally.wrong && tally.alarms == 0,
           "%zu of %zu casts before there is a scale are found", tally.found, tally.wrong);
    order_end(&state, "the first step");
    lap_stage_programs_clear(&programs);
}

/* What is sent in line with computing leaves before the rank computes anything else. */
static void test_order(void)
{
    for (size_t i = 0; i < CASES; i++) {
        const lap_nn_desc_t desc = describe((size_t)cases[i].pp * 2, 0);
        lap_pp_options_t options;
        lap_stage_programs_t programs;
        lap_stage_proving_t proving = proving_of(i, &desc, &options, lap_target_at(0));
        size_t sent = 0, late = 0;
        options.overlap = 0;
        if (strcmp(cases[i].schedule, "1f1b") != 0)
            continue; /* others may have no free slot yet */
        tap_success(lap_stage_programs_init(&programs, &proving), "%s is linked",
                    cases[i].schedule);
        for (int rank = 0; rank < programs.all.size; rank++) {
            const lap_pipe_action_t *last = NULL;
            for (uint32_t f = 0; f < programs.programs[rank].nitems; f++) {
                const lap_stage_item_t *item = &programs.programs[rank].items[f];
                if (item->kind == LAP_STAGE_ENTRY)
                    last = &item->action;
                if (item->kind != LAP_STAGE_SEND)
                    continue;
                sent++;
                late += !last || last->micro != item->micro ||
                        (last->work == LAP_PIPE_FORWARD) == item->upstream;
            }
        }
        tap_ok(sent > 0 && late == 0, "%s, tp %d, pp %d: of %zu messages %zu do not leave at once",
               cases[i].schedule, cases[i].tp, cases[i].pp, sent, late);
        lap_stage_programs_clear(&programs);
    }
}

int main(void)
{
    prove_all();
    test_order();
    test_replicas();
    test_weights();
    test_step();
    test_first();
    mutate_order(0, 0);
    mutate_order(6, 2);
    mutate(0);
    mutate(2);
    mutate(3);
    mutate(6);
    return tap_done();
}
