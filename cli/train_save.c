/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of `lap train`: where training begins with --load, and what --save writes as it goes. A checkpoint
 * that cannot be written is reported, and training goes on.
 */
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "core/world.h"
#include "interrupt.h"
#include "nn/nn_fields.h"
#include "train.h"
#include "util/alloc.h"

/* Whether a failure leaves the ranks able to go on: it is the disk's, or memory's, not a peer's. */
static bool is_survived(lap_status_t status)
{
    return status == LAP_ERR_SYSTEM || status == LAP_ERR_NO_MEMORY || status == LAP_ERR_INVALID;
}

/* Whether --save can be written, before there is anything to lose. */
static lap_status_t open_place(lap_trainer_t *trainer)
{
    char before[LAP_ERROR_TEXT];
    const lap_status_t status = lap_trainer_open(trainer);
    if (status == LAP_OK || !trainer->desc.save)
        return status;
    snprintf(before, sizeof(before), "%s", lap_last_error());
    return lap_error(status, "--save %s: %.900s", trainer->desc.save, before);
}

/* A later --load takes the newest: checkpoints of other steps than those of this run are in its way. */
static lap_status_t check_place(const lap_train_saver_t *saver)
{
    const lap_train_t *train = saver->train;
    const uint64_t last = (uint64_t)train->iters;
    char names[400];
    if (lap_ckpt_folder_names(train->save, last + 1, UINT64_MAX, names, sizeof(names)) > 0)
        return lap_error(LAP_ERR_INVALID,
                         "--save %s has checkpoints beyond the %d iterations of this training: %s; "
                         "expected them to be removed, or another folder, since --load takes the "
                         "newest",
                         train->save, train->iters, names);
    if (lap_ckpt_folder_names(train->save, (uint64_t)saver->step + 1, last, names, sizeof(names)))
        lap_tell(lap_train_command.name,
                 "--save %s has checkpoints of steps that this training has not made yet: %s; "
                 "until it has, --load takes those",
                 train->save, names);
    return LAP_OK;
}

#define ORDER_FIELD(number) "on with seed %" number

/* Options that give fields of descriptions: of layers, then of the optimizer. */
static const char *const options[][2] = {
    {"--seq", "seq"},
    {"--seed", "seed"},
    {"--dtype", "dtype"},
    {"--fp8", "fp8"},
    {"--attention-dropout", "attention_dropout"},
    {"--hidden-dropout", "hidden_dropout"},
    {"--lr", "lr"},
    {"--min-lr", "min_lr"},
    {"--lr-warmup-iters", "warmup"},
    {"--lr-decay-style", "lr_decay"},
    {"--weight-decay", "weight_decay"},
    {"--clip-grad", "clip_norm"},
    {"--adam-beta1", "beta1"},
    {"--adam-beta2", "beta2"},
    {"--adam-eps", "epsilon"},
    {"--lr-decay-iters", "lr_decay_steps"}, /* the last: not without a decay */
};
enum { OPTIONS = sizeof(options) / sizeof(options[0]), OF_LAYERS = 6 };

/* What makes the data, the rates and the rounding of later steps. */
static void describe(const lap_train_model_t *model)
{
    const lap_train_t *train = model->train;
    lap_ckpt_fields_t *fields = &model->trainer.checkpoint->training;
    char text[64], room[LAP_FIELD_TEXT_BYTES];
    fields->count = 0;
    for (size_t i = 0; i < OPTIONS - (train->optimizer.lr_decay_steps == 0); i++) {
        const void *of = i < OF_LAYERS ? (const void *)&train->desc : &train->optimizer;
        const lap_field_t *field = i < OF_LAYERS ? lap_nn_fields : lap_optimizer_fields;
        while (strcmp(field->name, options[i][1]) != 0)
            field++;
        lap_ckpt_add_field(fields, options[i][0], lap_field_text(field, of, room));
    }
    snprintf(text, sizeof(text), "%zu", (size_t)train->batch);
    lap_ckpt_add_field(fields, "--batch", text);
    lap_ckpt_add_field(fields, "--data", train->data ? train->data : "none");
    snprintf(text, sizeof(text), model->shuffle ? ORDER_FIELD(PRIu64) : "off", model->data_seed);
    lap_ckpt_add_field(fields, "--shuffle", text);
}

/* Data go on in the order that they had, unless another one is asked for: before there was one, that was the files'. */
static void take_order(lap_train_model_t *model)
{
    const lap_ckpt_fields_t *loaded = &model->trainer.checkpoint->loaded;
    const char *data = lap_ckpt_find_field(loaded, "--data"),
               *order = lap_ckpt_find_field(loaded, "--shuffle");
    if (model->train->order_given || !model->data || !data || strcmp(data, "none") == 0)
        return;
    /* NOLINTNEXTLINE(cert-err34-c): the file has a checksum */
    model->shuffle = order && sscanf(order, ORDER_FIELD(SCNu64), &model->data_seed) == 1;
    describe(model);
}

/* They may change, and losses are others then than those of a training that was not interrupted. */
static void report_differences(const lap_trainer_t *trainer)
{
    const lap_ckpt_fields_t *ours = &trainer->checkpoint->training;
    for (size_t i = 0; i < ours->count && lap_group_rank(trainer->groups.world) == 0; i++) {
        const lap_ckpt_field_t *own = &ours->all[i];
        const char *was = lap_ckpt_other(&trainer->checkpoint->loaded, own);
        if (was)
            lap_tell(lap_train_command.name, "--load %s: %s is %s in the checkpoint and %s here",
                     trainer->desc.load, own->name, was, own->value);
    }
}

/* Where a folder is, or would be made. The caller frees it; NULL: nowhere, or no memory. */
static char *place_of(const char *path)
{
    char *copy = strdup(path), *name = strdup(path), *place = NULL;
    char *in = copy ? realpath(dirname(copy), NULL) : NULL;
    if (in && name && asprintf(&place, "%s/%s", in, basename(name)) < 0)
        place = NULL;
    free(in);
    free(name);
    free(copy);
    return place;
}

/* Whether --load is the folder of --save, which may not be there yet. */
static bool restarts(const lap_train_t *train)
{
    struct stat load, save;
    if (!train->load || !train->save)
        return false;
    if (stat(train->load, &load) == 0 && stat(train->save, &save) == 0)
        return load.st_dev == save.st_dev && load.st_ino == save.st_ino;
    char *from = place_of(train->load), *to = place_of(train->save);
    const bool same = from && to && strcmp(from, to) == 0;
    free(from);
    free(to);
    return same;
}

int lap_train_load_check(const lap_train_t *train)
{
    if (!train->load || restarts(train) || lap_ckpt_folder_has_any(train->load))
        return LAP_CLI_GO;
    if (access(train->load, F_OK) != 0)
        (void)lap_error_errno("cannot open '%s'", train->load);
    else
        (void)lap_error(
            LAP_ERR_INVALID,
            "there is no whole checkpoint in '%s'; expected what --save has written, or "
            "files of safetensors",
            train->load);
    lap_tell(train->args.command->name, "--load: %s", lap_last_error());
    return LAP_CLI_FAILED;
}

/*
 * A job that is started again, as after a crash, has one command line, whose --load is its own --save: at first there is
 * nothing in it. Any other --load was expected to have something. *goes_on_p: there is something to load. Collective.
 */
static lap_status_t look(lap_train_saver_t *saver, lap_group_t *world, bool *goes_on_p)
{
    const lap_train_t *train = saver->train;
    struct {
        bool restarts, goes_on;
    } found = {.goes_on = true};
    if (lap_group_rank(world) == 0 && train->save) {
        found.restarts = restarts(train);
        found.goes_on = !found.restarts || lap_ckpt_folder_has_any(train->load);
        if (!found.goes_on)
            lap_tell(lap_train_command.name,
                     "--load %s has no checkpoint yet: training begins with step 1", train->load);
    }
    LAP_TRY(lap_group_broadcast(world, &found, sizeof(found)));
    saver->restarts = found.restarts;
    *goes_on_p = found.goes_on;
    return LAP_OK;
}

static lap_status_t load(lap_train_saver_t *saver, lap_train_model_t *model)
{
    const lap_train_t *train = saver->train;
    lap_trainer_t *trainer = &model->trainer;
    lap_group_t *world = trainer->groups.world;
    bool goes_on = false;
    LAP_TRY(look(saver, world, &goes_on));
    if (!goes_on)
        return LAP_OK;
    LAP_TRY(lap_trainer_load(trainer));
    const bool ended = saver->restarts && trainer->step == (uint64_t)train->iters;
    if (ended && lap_group_rank(world) == 0)
        lap_tell(lap_train_command.name,
                 "--load %s has the checkpoint of step %" PRIu64
                 ", the last of --iters %d: nothing is left to train",
                 train->load, trainer->step, train->iters);
    if (!ended && trainer->step >= (uint64_t)train->iters)
        return lap_error(LAP_ERR_INVALID,
                         "--load %s is a checkpoint of step %" PRIu64
                         "; expected --iters to be more than that, not %d",
                         train->load, trainer->step, train->iters);
    take_order(model);
    report_differences(trainer);
    saver->step = saver->saved = model->loaded = (int)trainer->step;
    lap_train_log(train, world, "|-- Loaded step %" PRIu64 " from %s", trainer->step, train->load);
    return LAP_OK;
}

/* What came of a save. A failure that is survived is reported, and none of training. */
static lap_status_t report(void *context, uint64_t step, lap_status_t status)
{
    lap_train_saver_t *saver = context;
    if (status != LAP_OK && !is_survived(status))
        return status;
    saver->failed = status != LAP_OK;
    if (!saver->failed) {
        lap_train_log(saver->train, saver->world, "|-- Saved step %" PRIu64 " in %s", step,
                      saver->train->save);
        lap_interrupt_lock();
        saver->saved = (int)step;
        saver->wrote = true;
        lap_interrupt_unlock();
    } else if (lap_group_rank(saver->world) == 0) {
        lap_tell(lap_train_command.name, "the checkpoint of step %" PRIu64 " was not saved: %s%s",
                 step, lap_last_error(), saver->ended ? "" : "; training goes on");
    }
    return LAP_OK;
}

lap_status_t lap_train_saver_init(lap_train_saver_t *saver, lap_train_model_t *model)
{
    const lap_train_t *train = model->train;
    lap_trainer_t *trainer = &model->trainer;
    lap_group_t *world = trainer->groups.world;
    *saver = (lap_train_saver_t){.train = train, .world = world};
    trainer->on_saved = report;
    trainer->saver = saver;
    LAP_TRY(open_place(trainer));
    if (!trainer->checkpoint)
        return LAP_OK;
    describe(model);
    if (train->load)
        LAP_TRY(lap_group_agree(world, load(saver, model)));
    const bool looks = train->save && lap_group_rank(world) == 0;
    return lap_group_agree(world, looks ? check_place(saver) : LAP_OK);
}

/* ---- interrupted ---- */

/* A word of a command line as a shell reads it. */
static void print_word(FILE *text, const char *word)
{
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:=@%";
    if (*word && word[strspn(word, plain)] == '\0') {
        fprintf(text, " %s", word);
        return;
    }
    fputs(" '", text);
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, text);
    fputs("'", text);
}

/* The command line that goes on from the newest checkpoint of --save: of two --load the last counts. */
static void print_again(FILE *text, const lap_train_saver_t *saver)
{
    const lap_train_t *train = saver->train;
    fputs("lap", text);
    for (char *const *word = train->again + 1; *word; word++)
        print_word(text, *word);
    if (!saver->restarts) {
        print_word(text, "--load");
        print_word(text, train->save);
    }
}

void lap_train_saver_report(const lap_train_saver_t *saver)
{
    const lap_train_t *train = saver->train;
    char *sentence = NULL;
    size_t bytes = 0;
    FILE *text = open_memstream(&sentence, &bytes);
    if (!text || !train->again ||
        (!train->model && !train->save)) { /* layers alone are for measurements */
        if (text)
            fclose(text);
        free(sentence);
        return;
    }
    const bool there = saver->wrote || (saver->restarts && saver->saved > 0);
    if (!train->save)
        fputs("interrupted: no checkpoint was written; --save FOLDER would have written one, and "
              "--load "
              "FOLDER goes on from it",
              text);
    else if (!there)
        fprintf(text, "interrupted after step %d: no checkpoint was written to %s", saver->step,
                train->save);
    else if (saver->saved < saver->step)
        fprintf(
            text,
            "interrupted after step %d: the newest checkpoint in %s is that of step %d; this goes "
            "on from there: ",
            saver->step, train->save, saver->saved);
    else
        fprintf(text, "interrupted after step %d: its checkpoint was written to %s; this goes on: ",
                saver->step, train->save);
    if (there)
        print_again(text, saver);
    if (fclose(text) == 0)
        lap_tell(lap_train_command.name, "%s", sentence);
    free(sentence);
}
