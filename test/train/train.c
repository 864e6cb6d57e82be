/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training as one object: losses and norms of a grid are those of one rank, to a checkpoint and on from it
 * to the last bit; steps that the caller makes save what is due; calls back can end it, with
 * a checkpoint that has begun; what makes no sense is refused.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

enum { SEQ = 8, VOCAB = 17, STEPS = 6, SAVED = 4 };

typedef struct run {
    int tp, dp, cp, pp; /* cp, pp 0: as they are by default */
    const char *schedule;
    float dropout;
    size_t micro, batch;
    uint64_t steps, stop; /* stop: the step at which a call back fails; 0: none */
    const char *save, *load;
    lap_status_t no_data; /* the data fail with it */
    int shared;           /* replicas share the optimizer */
    float lr;
    lap_status_t expected;
    const char *sentence;                         /* that it ends with; NULL: any */
    uint64_t first;                               /* the step before the first */
    double losses[STEPS], norms[STEPS];           /* of rank 0 */
    double seen_losses[STEPS], seen_norms[STEPS]; /* of the run that it is compared with; 0: none */
    double part;                                  /* how much they may differ */
} run_t;

/* What all others are compared with. */
static const run_t one_rank = {.tp = 1,
                               .dp = 1,
                               .micro = 1,
                               .batch = 8,
                               .steps = STEPS,
                               .lr = 0.003f,
                               .part = 1e-5,
                               .dropout = 0.1f};

typedef struct rank {
    run_t *run;
    int number;
    uint64_t logged;
    size_t wrong;
} rank_t;

/* Sample n is a function of n. */
static lap_status_t give(void *context, uint64_t first, size_t count, size_t seq, int32_t *tokens,
                         int32_t *targets)
{
    const rank_t *rank = context;
    for (size_t i = 0; i < count * seq; i++) {
        const uint64_t at = (first + i / seq) * SEQ + i % seq;
        tokens[i] = (int32_t)(tap_random(1, at) % VOCAB);
        targets[i] = (int32_t)((tap_random(1, at) + 1) % VOCAB);
    }
    return rank->run->no_data;
}

static lap_status_t log_step(void *context, const lap_trainer_log_t *log)
{
    rank_t *rank = context;
    run_t *run = rank->run;
    const size_t i = (size_t)log->step - 1;
    const double loss = run->seen_losses[i], norm = run->seen_norms[i];
    rank->logged++;
    rank->wrong += log->samples != log->step * 8 || log->seconds <= 0 || log->lr != (double)run->lr;
    rank->wrong += loss != 0 && !(fabs(log->loss - loss) <= run->part * loss &&
                                  fabs(log->grad_norm - norm) <= run->part * norm);
    if (rank->number == 0) {
        run->losses[i] = log->loss;
        run->norms[i] = log->grad_norm;
    }
    return run->stop == log->step && rank->number == 0 ? LAP_ERR_TIMEOUT : LAP_OK;
}

static void train(lap_world_t *world, void *arg)
{
    run_t *run = arg;
    rank_t rank = {.run = run, .number = lap_world_rank(world)};
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_trainer_t *trainer = NULL;
    desc.model = &model;
    desc.optimizer = &optimizer;
    tap_success(lap_model_preset("gpt", &model), "a model");
    model.layers = 2;
    model.hidden = 16;
    model.heads = 4;
    model.kv_heads = 0;
    model.head_dim = 0;
    model.ffn = 24;
    model.vocab = VOCAB;
    model.seq = SEQ;
    model.max_positions = 0;
    model.batch = run->batch;
    model.hidden_dropout = run->dropout;
    lap_pp_options_t pipeline = LAP_PP_OPTIONS_INIT;
    pipeline.schedule = run->schedule ? run->schedule : pipeline.schedule;
    desc.tp = run->tp;
    desc.dp = run->dp;
    if (run->cp)
        desc.cp = run->cp;
    if (run->pp) {
        desc.pp = run->pp;
        desc.pipeline = &pipeline;
    }
    desc.micro_batches = run->micro;
    desc.distributed_optimizer = run->shared;
    optimizer.lr = run->lr;
    optimizer.clip_norm = 1;
    desc.steps = run->steps;
    desc.data = give;
    desc.log = log_step;
    desc.context = &rank;
    desc.save = run->save;
    desc.load = run->load;
    if (!tap_success(lap_trainer_create(world, &desc, &trainer),
                     "tp %d, cp %d, pp %d, dp %d%s, micro-batches %zu", run->tp, desc.cp, desc.pp,
                     run->dp, run->shared ? ", which share the optimizer" : "", run->micro))
        return;
    const lap_status_t status = lap_trainer_run(trainer);
    tap_ok(status == run->expected, "... ends with %s: %s", lap_status_string(run->expected),
           status == LAP_OK ? "" : lap_last_error());
    if (run->sentence)
        tap_ok(strstr(lap_last_error(), run->sentence) != NULL, "... and says: %s", run->sentence);
    if (run->expected == LAP_OK)
        tap_ok(rank.logged == run->steps - run->first && rank.wrong == 0 &&
                   lap_trainer_steps(trainer) == run->steps &&
                   lap_group_size(lap_trainer_group(trainer)) == run->tp &&
                   lap_trainer_model(trainer) != NULL,
               "... rank %d: all of %zu steps are logged, with what was expected", rank.number,
               (size_t)rank.logged);
    lap_trainer_destroy(trainer);
}

static void start(run_t *run)
{
    const int others = (run->cp ? run->cp : 1) * (run->pp ? run->pp : 1);
    tap_ranks(run->tp * others * (run->dp > 0 ? run->dp : 2), NULL, train, run);
}

/* What later runs are compared with. */
static void keep(run_t *run)
{
    memcpy(run->seen_losses, run->losses, sizeof(run->losses));
    memcpy(run->seen_norms, run->norms, sizeof(run->norms));
}

/* Stages and contexts: from one rank, to a checkpoint and on from it. */
static void test_grids(const char *dir)
{
    run_t run = one_rank;
    start(&run);
    keep(&run);
    run.pp = 2;
    run.dp = 0; /* two, which are left */
    run.micro = 4;
    run.batch = 1;
    run.schedule = "zb-h1";
    start(&run);
    keep(&run);
    run.part = 0;
    run.steps = SAVED;
    run.save = dir;
    start(&run);
    run.steps = STEPS;
    run.first = SAVED;
    run.save = NULL;
    run.load = dir;
    start(&run);
    run = one_rank;
    start(&run);
    keep(&run);
    run.cp = run.pp = 2;
    run.micro = 2;
    run.batch = 4;
    start(&run);
    run.pp = 0;
    run.dp = 2;
    run.batch = 2;
    run.shared = 1;
    start(&run);
}

/* A field that rank 1 gives otherwise, and what all ranks then say. */
typedef struct differs {
    const char *words;
    lap_status_t status;
    uint64_t steps, every;
    size_t micro, batch;
    const char *save, *load;
    float dropout;
    lap_trainer_log_fn_t log;
} differs_t;

static void try_other(lap_world_t *world, void *arg)
{
    const differs_t *other = arg;
    const bool says = lap_world_rank(world) == 1;
    rank_t rank = {.run = &(run_t){.lr = 0}};
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_trainer_t *trainer = NULL;
    (void)lap_model_preset("gpt", &model);
    model.batch = says ? other->batch : 2;
    model.hidden_dropout = says ? other->dropout : 0;
    desc.model = &model;
    desc.steps = says ? other->steps : 4;
    desc.micro_batches = says ? other->micro : 2;
    desc.save = says ? other->save : NULL;
    desc.load = says ? other->load : NULL;
    desc.save_every = says ? other->every : 0;
    desc.log = says ? other->log : NULL;
    desc.data = give;
    desc.context = &rank;
    tap_failure(lap_trainer_create(world, &desc, &trainer), other->status, other->words, NULL);
    lap_trainer_destroy(trainer);
    tap_success(lap_group_barrier(lap_world_group(world)), "... and the ranks can go on");
}

/* Two replicas, which compare little by themselves: all ranks learn at once which field one gives otherwise. */
static void test_differences(void)
{
    differs_t all[9];
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        all[i] = (differs_t){
            .steps = 4, .micro = 2, .batch = 2, .status = LAP_ERR_MISMATCH, .save = NULL};
    all[0].steps = 5, all[0].words = "rank 0 says steps = 4, rank 1 says steps = 5";
    all[1].micro = 1, all[1].words = "rank 0 says micro_batches = 2, rank 1 says micro_batches = 1";
    all[2].batch = 3, all[2].words = "rank 0 says model.batch = 2, rank 1 says model.batch = 3";
    all[3].save = "/nowhere", all[3].words = "rank 1 says save = /nowhere";
    all[4].load = "/nowhere", all[4].words = "rank 1 says load = /nowhere";
    all[5].every = 1, all[5].words = "rank 0 says save_every = 0, rank 1 says save_every = 1";
    all[6].log = log_step, all[6].words = "rank 0 says log = NULL, rank 1 says log = a function";
    all[7].dropout = 0.5f, all[7].words = "rank 1 says model.hidden_dropout = 0.5";
    all[8].micro = 0, all[8].status = LAP_ERR_INVALID,
    all[8].words = "micro_batches is 0, expected 1";
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        tap_ranks(2, NULL, try_other, &all[i]);
}

/* A place that nothing can be written to is told before the first step. */
static void try_place(lap_world_t *world, void *arg)
{
    rank_t rank = {.run = arg};
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_trainer_t *trainer = NULL;
    (void)lap_model_preset("gpt", &model);
    desc.model = &model;
    desc.steps = 1;
    desc.data = give;
    desc.context = &rank;
    desc.save = "/proc/lap/nowhere";
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_SYSTEM,
                "cannot make the folder '/proc/lap/nowhere'", NULL);
    lap_trainer_destroy(trainer);
}

static bool is_whole(const char *dir, unsigned step)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/step-%08u/manifest.json", dir, step);
    return access(path, R_OK) == 0;
}

/* Steps that the caller makes one by one, without lap_trainer_run. */
typedef struct steps {
    const char *dir;
    uint64_t steps, every, made;
    unsigned whole; /* the checkpoint that has to be whole when the steps are made */
} steps_t;

static void try_steps(lap_world_t *world, void *arg)
{
    const steps_t *own = arg;
    rank_t rank = {.run = &(run_t){.lr = 0}};
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_trainer_t *trainer = NULL, *other = NULL;
    lap_status_t status = LAP_OK;
    (void)lap_model_preset("gpt", &model);
    model.layers = 1;
    model.hidden = model.ffn = 16;
    model.heads = 4;
    model.kv_heads = model.head_dim = model.max_positions = 0;
    model.seq = SEQ;
    model.vocab = VOCAB;
    desc.model = &model;
    desc.steps = own->steps;
    desc.save = own->dir;
    desc.save_every = own->every;
    desc.data = give;
    desc.context = &rank;
    if (!tap_success(lap_trainer_create(world, &desc, &trainer), "a training that is stepped"))
        return;
    tap_failure(lap_trainer_create(world, &desc, &other), LAP_ERR_INVALID,
                "another training saves into the folder", NULL);
    for (uint64_t i = 0; i < own->made && status == LAP_OK; i++) {
        status = lap_trainer_step(trainer, NULL);
        /* A thread writes before the last step; a later step finishes what it wrote. */
        if (own->made < own->steps && i + 1 >= own->whole && !is_whole(own->dir, own->whole))
            usleep(10000);
    }
    tap_success(status, "... %zu of %zu steps", (size_t)own->made, (size_t)own->steps);
    tap_ok(is_whole(own->dir, own->whole),
           "... the checkpoint of step %u is whole, saved every %zu", own->whole,
           (size_t)own->every);
    lap_trainer_destroy(trainer);
    tap_ok(is_whole(own->dir, own->whole), "... and after lap_trainer_destroy");
}

static void test_steps(const char *dir)
{
    steps_t all[] = {{.steps = 4, .every = 2, .made = 4, .whole = 4},
                     {.steps = 5, .every = 0, .made = 5, .whole = 5},
                     {.steps = 7, .every = 4, .made = 7, .whole = 7},
                     {.steps = 100, .every = 40, .made = 79, .whole = 40}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        all[i].dir = dir;
        tap_ranks(all[i].made < all[i].steps ? 1 : 2, NULL, try_steps, &all[i]);
    }
}

/* A failure that all ranks have, while the checkpoint of a step is being written. */
typedef struct failure {
    enum { OF_DATA, OF_LOG, OF_LOSS } of;
    const char *dir, *words;
} failure_t;

typedef struct failing {
    const failure_t *failure;
    rank_t rank;
} failing_t;

static lap_status_t give_two(void *context, uint64_t first, size_t count, size_t seq,
                             int32_t *tokens, int32_t *targets)
{
    failing_t *own = context;
    const lap_status_t status = give(&own->rank, first, count, seq, tokens, targets);
    const bool fails = own->failure->of == OF_DATA && own->rank.number == 1 && first == 2;
    return fails ? LAP_ERR_SYSTEM : status;
}

static lap_status_t log_two(void *context, const lap_trainer_log_t *log)
{
    const failing_t *own = context;
    const bool fails = own->failure->of == OF_LOG && own->rank.number == 1 && log->step == 2;
    return fails ? LAP_ERR_SYSTEM : LAP_OK;
}

static void try_failure(lap_world_t *world, void *arg)
{
    const failure_t *failure = arg;
    failing_t own = {.failure = failure,
                     .rank = {.run = &(run_t){.lr = 0}, .number = lap_world_rank(world)}};
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_optimizer_desc_t optimizer = LAP_OPTIMIZER_DESC_INIT;
    lap_trainer_t *trainer = NULL;
    (void)lap_model_preset("gpt", &model);
    model.layers = model.batch = 1;
    model.hidden = model.ffn = 16;
    model.heads = 4;
    model.kv_heads = model.head_dim = model.max_positions = 0;
    model.seq = SEQ;
    model.vocab = VOCAB;
    optimizer.lr = failure->of == OF_LOSS ? 1e30f : 0.01f;
    desc.model = &model;
    desc.optimizer = &optimizer;
    desc.tp = 2;
    desc.steps = 5;
    desc.save = failure->dir;
    desc.save_every = failure->of == OF_LOSS ? 1 : 2;
    desc.data = give_two;
    desc.log = log_two;
    desc.context = &own;
    if (!tap_success(lap_trainer_create(world, &desc, &trainer), "a training that fails"))
        return;
    const lap_status_t status = lap_trainer_run(trainer);
    tap_failure(status, failure->of == OF_LOSS ? LAP_ERR_INVALID : LAP_ERR_SYSTEM, failure->words,
                NULL);
    tap_ok(lap_trainer_steps(trainer) == (failure->of == OF_LOSS ? 1 : 2),
           "... with the steps that were made");
    tap_ok(is_whole(failure->dir, (unsigned)desc.save_every),
           "... the checkpoint that had begun is whole");
    lap_trainer_destroy(trainer);
}

static void test_failures(const char *dir)
{
    static const char *const words[] = {"step 3: the function of the description that gives data",
                                        "step 2: the function of the description that logs steps",
                                        "step 2: the loss is"};
    char place[64];
    for (int of = OF_DATA; of <= OF_LOSS; of++) {
        failure_t failure = {.of = of, .dir = place, .words = words[of]};
        snprintf(place, sizeof(place), "%s/of-%d", dir, of);
        tap_ranks(2, NULL, try_failure, &failure);
    }
}

static void test_refused(void)
{
    lap_trainer_desc_t desc = LAP_TRAINER_DESC_INIT;
    lap_nn_desc_t model = LAP_NN_DESC_INIT;
    lap_trainer_t *trainer;
    lap_world_t *world;
    if (!tap_success(lap_world_create(NULL, &world), "a world"))
        return;
    tap_failure(lap_trainer_create(world, NULL, &trainer), LAP_ERR_INVALID, "desc is NULL", NULL);
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "model is NULL, expected a model", NULL);
    desc.model = &model;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "model is transformer, expected a model", NULL);
    (void)lap_model_preset("gpt", &model);
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID, "data is NULL", NULL);
    desc.data = give;
    desc.tp = 2;
    desc.dp = 1;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "tp 2, cp 1, pp 1, dp 1 is 2 ranks, but 1 rank was started", NULL);
    desc.tp = 0;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "tp is 0, expected at least 1", NULL);
    desc.tp = 1;
    desc.cp = 0;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "cp is 0, expected at least 1", NULL);
    desc.cp = 1;
    desc.pp = -1;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "pp is -1, expected at least 1", NULL);
    desc.pp = 2;
    desc.dp = 0;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "tp 1, cp 1, pp 2, dp 1 is 2 ranks, but 1 rank was started", NULL);
    desc.pp = 1;
    desc.micro_batches = 0;
    tap_failure(lap_trainer_create(world, &desc, &trainer), LAP_ERR_INVALID,
                "micro_batches is 0, expected 1 to", NULL);
    tap_failure(lap_trainer_step(NULL, NULL), LAP_ERR_INVALID, "trainer is NULL", NULL);
    lap_trainer_destroy(NULL);
    lap_world_destroy(world);
}

int main(void)
{
    char dir[] = "/tmp/lap-train-XXXXXX", command[96];
    if (!mkdtemp(dir))
        return 1;
    run_t run = one_rank;
    start(&run);
    tap_ok(run.losses[STEPS - 1] < run.losses[0], "the loss falls from %.4f to %.4f", run.losses[0],
           run.losses[STEPS - 1]);
    keep(&run);
    run.tp = 2;
    run.dp = 0; /* two, which are left */
    run.micro = 2;
    run.batch = 2;
    run.shared = 1;
    start(&run);
    run.shared = 0;
    start(&run);
    keep(&run);
    run.part = 0;
    run.dp = 2;
    run.steps = SAVED;
    run.save = dir;
    start(&run);
    run.steps = STEPS;
    run.first = SAVED;
    run.save = NULL;
    run.load = dir;
    start(&run);
    run.load = NULL;
    run.first = 0;
    run.stop = 2;
    run.expected = LAP_ERR_TIMEOUT;
    run.sentence = "step 2: the function of the description that logs steps returned";
    start(&run);
    run.stop = 0;
    run.no_data = LAP_ERR_SYSTEM;
    run.expected = LAP_ERR_SYSTEM;
    run.sentence = "step 1: the function of the description that gives data returned";
    start(&run);
    run.no_data = (lap_status_t)7;
    run.expected = LAP_ERR_INVALID;
    run.sentence = "gives data returned 7 (unknown status), expected a status of the library";
    start(&run);
    run.no_data = LAP_OK;
    run.sentence = NULL;
    run.lr = 1e30f;
    memset(run.seen_losses, 0, sizeof(run.seen_losses));
    run.expected = LAP_ERR_INVALID;
    start(&run);
    char again[] = "/tmp/lap-train-XXXXXX", stepped[] = "/tmp/lap-train-XXXXXX";
    if (!mkdtemp(again) || !mkdtemp(stepped))
        return 1;
    test_grids(again);
    test_steps(stepped);
    test_failures(stepped);
    test_refused();
    test_differences();
    tap_ranks(2, NULL, try_place, &run);
    snprintf(command, sizeof(command), "rm -rf %s %s %s", dir, again, stepped);
    return system(command) == 0 ? tap_done() : 1; /* NOLINT(cert-env33-c): its own folder */
}
