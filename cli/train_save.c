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

/* Whether --save can be written, before there is anything to lose. By rank 0. */
static lap_status_t open_place(lap_train_saver_t *saver)
{
    char before[LAP_ERROR_TEXT];
    const lap_status_t status = lap_ckpt_folder_lock(saver->train->save, &saver->lock);
    if (status == LAP_OK)
        return LAP_OK;
    snprintf(before, sizeof(before), "%s", lap_last_error());
    return lap_error(status, "--save %s: %.900s", saver->train->save, before);
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

/* Fields of a description by the options that give them. */
static const char *const nn_options[][2] = {
    {"--seq", "seq"},
    {"--seed", "seed"},
    {"--dtype", "dtype"},
    {"--fp8", "fp8"},
    {"--attention-dropout", "attention_dropout"},
    {"--hidden-dropout", "hidden_dropout"},
    {NULL, NULL},
};
static const char *const rate_options[][2] = {
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
    {NULL, NULL},
};

static void describe_options(const char *const (*options)[2], const lap_field_t *table,
                             const void *of, lap_ckpt_fields_t *fields)
{
    char room[LAP_FIELD_TEXT_BYTES];
    for (; (*options)[0]; options++)
        for (const lap_field_t *field = table; field->name; field++)
            if (strcmp(field->name, (*options)[1]) == 0)
                lap_ckpt_add_field(fields, (*options)[0], lap_field_text(field, of, room));
}

/* What makes the data, the rates and the rounding of later steps. */
static void describe(const lap_train_model_t *model, lap_ckpt_fields_t *fields)
{
    const lap_train_t *train = model->train;
    char text[64];
    fields->count = 0;
    describe_options(nn_options, lap_nn_fields, &train->desc, fields);
    describe_options(rate_options, lap_optimizer_fields, &train->optimizer, fields);
    if (train->optimizer.lr_decay_steps == 0)
        fields->count--;
    snprintf(text, sizeof(text), "%zu", (size_t)train->batch);
    lap_ckpt_add_field(fields, "--batch", text);
    lap_ckpt_add_field(fields, "--data", train->data ? train->data : "none");
    snprintf(text, sizeof(text), model->shuffle ? ORDER_FIELD(PRIu64) : "off", model->data_seed);
    lap_ckpt_add_field(fields, "--shuffle", text);
}

/* The value of a field; NULL: it has none of this name. */
static const char *find_field(const lap_ckpt_fields_t *fields, const char *name)
{
    for (size_t i = 0; i < fields->count; i++)
        if (strcmp(fields->all[i].name, name) == 0)
            return fields->all[i].value;
    return NULL;
}

/* Data go on in the order that they had, unless another one is asked for: before there was one, that was the files'. */
static void take_order(lap_train_saver_t *saver)
{
    lap_train_model_t *model = saver->model;
    const lap_ckpt_fields_t *loaded = &saver->checkpoint->loaded;
    const char *data = find_field(loaded, "--data"), *order = find_field(loaded, "--shuffle");
    if (saver->train->order_given || !model->data || !data || strcmp(data, "none") == 0)
        return;
    /* NOLINTNEXTLINE(cert-err34-c): the file has a checksum */
    model->shuffle = order && sscanf(order, ORDER_FIELD(SCNu64), &model->data_seed) == 1;
    describe(model, &saver->checkpoint->training);
}

/* They may change, and losses are others then than those of a training that was not interrupted. */
static void tell_differences(const lap_train_saver_t *saver)
{
    const lap_ckpt_fields_t *ours = &saver->checkpoint->training;
    for (size_t i = 0; i < ours->count && lap_group_rank(saver->group) == 0; i++) {
        const lap_ckpt_field_t *own = &ours->all[i],
                               *was = lap_ckpt_other(&saver->checkpoint->loaded, own);
        if (was)
            lap_tell(lap_train_command.name, "--load %s: %s is %s in the checkpoint and %s here",
                     saver->train->load, own->name, was->value, own->value);
    }
}

/* What dynamic loss scaling has come to goes on with the training. */
#define SCALE_FIELD "loss_scale"

static void add_scale(lap_train_saver_t *saver)
{
    const lap_loss_scale_t *scale = &saver->model->scale;
    char text[96];
    describe(saver->model, &saver->checkpoint->training);
    if (!saver->train->dynamic)
        return;
    snprintf(text, sizeof(text), "%.17g %" PRIu64 " %" PRIu64 " %" PRIu64, scale->scale,
             scale->made, scale->left, scale->skipped);
    lap_ckpt_add_field(&saver->checkpoint->training, SCALE_FIELD, text);
}

static void take_scale(lap_train_saver_t *saver)
{
    const lap_ckpt_fields_t *loaded = &saver->checkpoint->loaded;
    lap_loss_scale_t found = saver->model->scale;
    const char *value = saver->train->dynamic ? find_field(loaded, SCALE_FIELD) : NULL;
    if (value &&
        /* NOLINTNEXTLINE(cert-err34-c): the file has a checksum, and bounds follow */
        sscanf(value, "%lf %" SCNu64 " %" SCNu64 " %" SCNu64, &found.scale, &found.made,
               &found.left, &found.skipped) == 4 &&
        found.scale >= found.least && found.scale <= 0x1p127)
        saver->model->scale = found;
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
static lap_status_t look(lap_train_saver_t *saver, bool *goes_on_p)
{
    const lap_train_t *train = saver->train;
    struct {
        bool restarts, goes_on;
    } found = {.goes_on = true};
    if (lap_group_rank(saver->group) == 0 && train->save) {
        found.restarts = restarts(train);
        found.goes_on = !found.restarts || lap_ckpt_folder_has_any(train->load);
        if (!found.goes_on)
            lap_tell(lap_train_command.name,
                     "--load %s has no checkpoint yet: training begins with step 1", train->load);
    }
    LAP_TRY(lap_group_broadcast(saver->group, &found, sizeof(found)));
    saver->restarts = found.restarts;
    *goes_on_p = found.goes_on;
    return LAP_OK;
}

static lap_status_t load(lap_train_saver_t *saver, lap_train_model_t *model)
{
    const lap_train_t *train = saver->train;
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    bool goes_on = false;
    LAP_TRY(look(saver, &goes_on));
    if (!goes_on)
        return LAP_OK;
    LAP_TRY(lap_checkpoint_load(saver->checkpoint, train->load, &state));
    const bool ended = saver->restarts && state.step == (uint64_t)train->iters;
    if (ended && lap_group_rank(saver->group) == 0)
        lap_tell(lap_train_command.name,
                 "--load %s has the checkpoint of step %" PRIu64
                 ", the last of --iters %d: nothing is left to train",
                 train->load, state.step, train->iters);
    if (!ended && state.step >= (uint64_t)train->iters)
        return lap_error(LAP_ERR_INVALID,
                         "--load %s is a checkpoint of step %" PRIu64
                         "; expected --iters to be more than that, not %d",
                         train->load, state.step, train->iters);
    take_order(saver);
    tell_differences(saver);
    take_scale(saver);
    saver->step = saver->saved = model->loaded = (int)state.step;
    saver->samples = state.samples;
    lap_train_say(train, saver->group, "|-- Loaded step %" PRIu64 " from %s", state.step,
                  train->load);
    return LAP_OK;
}

lap_status_t lap_train_saver_init(lap_train_saver_t *saver, lap_train_model_t *model)
{
    const lap_train_t *train = model->train;
    *saver = (lap_train_saver_t){.train = train, .group = model->groups.world, .model = model};
    model->loaded = -1;
    if (!train->save && !train->load)
        return LAP_OK;
    const bool first = lap_group_rank(saver->group) == 0;
    LAP_TRY(lap_group_agree(saver->group, first && train->save ? open_place(saver) : LAP_OK));
    LAP_TRY(
        lap_group_agree(saver->group, lap_checkpoint_create(saver->group, model->nn,
                                                            model->optimizer, &saver->checkpoint)));
    describe(model, &saver->checkpoint->training);
    if (train->load)
        LAP_TRY(lap_group_agree(saver->group, load(saver, model)));
    return lap_group_agree(saver->group, first && train->save ? check_place(saver) : LAP_OK);
}

void lap_train_saver_clear(lap_train_saver_t *saver)
{
    lap_checkpoint_destroy(saver->checkpoint);
    saver->checkpoint = NULL;
    if (saver->lock > 0)
        close(saver->lock);
    saver->lock = 0;
}

/*
 * All but the newest of --keep; one that cannot be removed stays. One that is damaged, or was not finished, is none that
 * training can go on from: it does not count, and goes with those that are older.
 */
static void remove_old(const lap_train_saver_t *saver)
{
    lap_ckpt_name_t *names = NULL;
    lap_ckpt_manifest_t unused;
    size_t count = 0;
    char path[PATH_MAX];
    int newer = 0;
    if (lap_ckpt_folder_list(saver->train->save, &names, &count) != LAP_OK)
        return;
    for (size_t i = 0; i < count; i++) { /* the newest first */
        if (names[i].step > (uint64_t)saver->saved ||
            snprintf(path, sizeof(path), "%s/%s", saver->train->save, names[i].name) >= PATH_MAX)
            continue;
        if (newer >= saver->train->keep)
            lap_ckpt_folder_remove(path);
        else if (lap_ckpt_manifest_read(path, &unused) == LAP_OK)
            newer++;
    }
    lap_free(names);
}

/* What came of a save: reports it. A failure that is survived is none of training. */
static lap_status_t conclude(lap_train_saver_t *saver, lap_status_t status)
{
    if (status == LAP_OK && saver->writing) {
        lap_train_say(saver->train, saver->group, "|-- Saved step %d in %s", saver->wanted,
                      saver->train->save);
        lap_interrupt_lock();
        saver->saved = saver->wanted;
        saver->wrote = true;
        lap_interrupt_unlock();
        saver->failed = saver->writing = false;
        if (saver->train->keep > 0 && lap_group_rank(saver->group) == 0)
            remove_old(saver);
    }
    if (status == LAP_OK || status == LAP_IN_PROGRESS || !is_survived(status))
        return status == LAP_IN_PROGRESS ? LAP_OK : status;
    if (lap_group_rank(saver->group) == 0)
        lap_tell(lap_train_command.name, "the checkpoint of step %d was not saved: %s%s",
                 saver->wanted, lap_last_error(), saver->ended ? "" : "; training goes on");
    saver->failed = true;
    saver->writing = false;
    return LAP_OK;
}

static lap_status_t begin(lap_train_saver_t *saver)
{
    lap_checkpoint_state_t state = LAP_CHECKPOINT_STATE_INIT;
    LAP_TRY(conclude(saver, lap_checkpoint_wait(saver->checkpoint)));
    state.step = (uint64_t)saver->step;
    state.samples = saver->samples;
    saver->wanted = saver->step;
    add_scale(saver);
    const lap_status_t status = lap_checkpoint_save(saver->checkpoint, saver->train->save, &state);
    saver->writing = status == LAP_OK;
    return status == LAP_OK ? LAP_OK : conclude(saver, status);
}

lap_status_t lap_train_saver_step(lap_train_saver_t *saver)
{
    const lap_train_t *train = saver->train;
    lap_interrupt_lock();
    saver->step++;
    lap_interrupt_unlock();
    saver->samples += train->batch;
    if (!train->save)
        return LAP_OK;
    if (train->save_every > 0 && saver->step % train->save_every == 0 && saver->step < train->iters)
        return begin(saver);
    return saver->writing ? conclude(saver, lap_checkpoint_poll(saver->checkpoint)) : LAP_OK;
}

lap_status_t lap_train_saver_end(lap_train_saver_t *saver, bool finite)
{
    if (!saver->train->save)
        return LAP_OK;
    saver->ended = true;
    if (finite && saver->step > saver->saved && !(saver->writing && saver->wanted == saver->step))
        LAP_TRY(begin(saver));
    return conclude(saver, lap_checkpoint_wait(saver->checkpoint));
}

void lap_train_saver_finish(lap_train_saver_t *saver)
{
    lap_saved_error_t saved;
    if (!saver->writing)
        return;
    lap_error_save(&saved);
    saver->ended = true;
    (void)conclude(saver, lap_checkpoint_wait(saver->checkpoint));
    lap_error_restore(&saved);
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

void lap_train_saver_tell(const lap_train_saver_t *saver)
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
