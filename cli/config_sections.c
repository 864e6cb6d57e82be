/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which sections a file of settings may have. A key counts only in those that are read here: the same name in a section of
 * another tool, such as a teacher's, is another's. An unknown section is a mistake, since its keys might have been meant.
 */
#include "config_sections.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "util/nearest.h"

/* Paths, in the file or in its section `model`. */
static const char *const read_here[] = {
    /* NeMo */
    "model",
    "trainer",
    "data",
    "data.train_ds",
    "optim",
    "optim.sched",
    "optim.lr_scheduler",
    "mcore_customization_config",
    /* Megatron */
    "language_model",
    "model_parallel",
    "optimizer",
    "scheduler",
    "train",
    "dataset",
    "ddp",
    "rng",
    "mixed_precision",
    "comm_overlap",
    /* Lightning */
    "trainer.strategy",
    "trainer.strategy.ddp",
    "trainer.plugins",
    "strategy",
    "plugins",
    "lr_scheduler",
    /* Hugging Face */
    "rope_scaling",
    "rope_parameters",
};

/* Of these a value may have the name, too: optimizer: adam, strategy: auto, data: PATH. */
static const char *const or_values[] = {
    "optimizer", "scheduler",        "lr_scheduler",    "strategy", "plugins",
    "data",      "trainer.strategy", "trainer.plugins", "dataset",  "data.train_ds"};

/* Names of sections of other tools, wherever they stand: of files, logs, launchers, inference, and other models. */
static const char *const of_others[] = {
    "exp_manager",
    "hydra",
    "logger",
    "loggers",
    "log",
    "logging",
    "wandb",
    "tensorboard",
    "mlflow",
    "callbacks",
    "checkpoint",
    "checkpointing",
    "s3_checkpointing",
    "resume",
    "restore_config",
    "tokenizer",
    "nsys_profile",
    "profile",
    "profiler",
    "profiling",
    "memory_profile",
    "megatron_timer_kwargs",
    "run",
    "cluster",
    "launcher",
    "slurm",
    "env_vars",
    "dist",
    "fault_tolerance",
    "straggler",
    "rerun_state_machine",
    "data_impl_kwargs",
    "fim",
    "index_mapping",
    "validation_ds",
    "test_ds",
    "validation",
    "evaluation",
    "eval",
    "inference",
    "generation",
    "generation_config",
    "teacher",
    "reward_model",
    "critic",
    "export",
    "conversion",
    "id2label",
    "label2id",
    "auto_map",
    "task_specific_params",
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static bool is_among(const char *const *names, size_t count, const char *name, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return true;
    return false;
}

/* Without the sections `model` that lie around others. */
static const char *skip_model(const char *path)
{
    static const char model[] = "model.";
    while (strncmp(path, model, strlen(model)) == 0)
        path += strlen(model);
    return path;
}

static bool is_read(const char *path)
{
    const char *own = skip_model(path);
    return *own == '\0' || is_among(read_here, COUNT_OF(read_here), own, strlen(own));
}

static bool is_of_others(const char *path)
{
    for (const char *name = path; *name; name += strcspn(name, "."), name += *name == '.')
        if (is_among(of_others, COUNT_OF(of_others), name, strcspn(name, ".")))
            return true;
    return false;
}

void lap_config_unwrap(const lap_yaml_entry_t *entry, char path[LAP_YAML_PATH])
{
    static const char *const wraps[] = {"init_args", "config"};
    size_t used = 0;
    path[0] = '\0';
    for (const char *name = entry->path; *name;) {
        const size_t length = strcspn(name, ".");
        const bool section = name[length] == '.' || entry->kind == LAP_YAML_MAPPING;
        if (!section || !is_among(wraps, COUNT_OF(wraps), name, length))
            used += (size_t)snprintf(path + used, LAP_YAML_PATH - used, "%s%.*s", used ? "." : "",
                                     (int)length, name);
        name += length + (name[length] == '.');
    }
}

static lap_status_t refuse_unknown(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                   const char *path)
{
    const char *names[COUNT_OF(read_here) + COUNT_OF(of_others) + 1] = {NULL};
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    char hint[LAP_NEAREST_HINT];
    size_t count = 0;
    for (size_t i = 0; i < COUNT_OF(read_here); i++) {
        const char *last = strrchr(read_here[i], '.');
        names[count++] = last ? last + 1 : read_here[i];
    }
    memcpy(names + count, of_others, sizeof(of_others));
    lap_nearest_hint(name, names, hint);
    return lap_error(
        LAP_ERR_INVALID, "%s:%zu: unknown section '%s'%s", given->path, entry->line, path,
        *hint ? hint : ", expected such as model, trainer, data, optim or exp_manager");
}

lap_status_t lap_config_section(const lap_config_given_t *given, const lap_yaml_entry_t *entry,
                                const char *path, bool key, bool *read_p)
{
    const bool mapping = entry->kind == LAP_YAML_MAPPING;
    const char *dot = strrchr(path, '.'), *own = skip_model(path);
    char section[LAP_YAML_PATH];
    snprintf(section, sizeof(section), "%.*s", dot ? (int)(dot - path) : 0, path);
    *read_p = false;
    if (is_of_others(section) || (mapping && is_of_others(path)))
        return LAP_OK;
    if (!is_read(section)) /* of a key with dots; others began with their section */
        return refuse_unknown(given, entry, section);
    if (mapping && !is_read(path))
        return key ? lap_config_refuse(given, entry, "one value")
                   : refuse_unknown(given, entry, path);
    if (entry->kind == LAP_YAML_ALIAS && !is_of_others(path))
        return lap_config_refuse(given, entry, "what it stands for: aliases are not followed");
    if (!mapping && entry->kind != LAP_YAML_NULL && is_read(path) &&
        !is_among(or_values, COUNT_OF(or_values), own, strlen(own)))
        return lap_config_refuse(given, entry, "a section: keys with values");
    *read_p = true;
    return LAP_OK;
}
