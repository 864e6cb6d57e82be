/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap train`: trains layers on a grid of ranks (src/train) and reports what their communication cost. What the options mean
 * is in train_options.h, what is measured in train_measure.c, and what is printed in train_report.c.
 */
#ifndef LAP_CLI_TRAIN_H
#define LAP_CLI_TRAIN_H

#include <stdbool.h>
#include <stdio.h>

#include <lap/checkpoint.h>
#include <lap/data.h>
#include <lap/data_parallel.h>
#include <lap/model.h>
#include <lap/nn.h>
#include <lap/optimizer.h>
#include <lap/pipeline.h>

#include "cli.h"
#include "gpu_share.h"
#include "nn/program.h"
#include "schedule/comm_times.h"
#include "schedule/trace.h"
#include "trace_file.h"
#include "train/trainer.h"
#include "util/json_write.h"

#define LAP_TRAIN_STAGES 1024 /* of a pipeline, at most */

/* What is to be done. */
typedef struct lap_train {
    lap_grid_t grid;
    lap_pp_options_t pipeline;       /* see lap_train_stages */
    size_t stages[LAP_TRAIN_STAGES]; /* layers of each */
    lap_dp_options_t replicas;       /* see lap_train_replicas */
    int iters;
    int log_interval;   /* of how many iterations one logs what it does */
    bool quiet;         /* none does, and tables have no remarks */
    const char *model;  /* the name of a preset; NULL: layers */
    size_t batch;       /* sequences of an iteration, of all replicas together */
    int micro;          /* forwards and backwards of an iteration, which share them */
    lap_nn_desc_t desc; /* of one replica, without overlap and buffer; batch is that of a forward */
    lap_optimizer_desc_t optimizer;
    lap_tp_overlap_t rules;     /* as the file, or the defaults, and the switches make them */
    lap_tp_overlap_t serial;    /* the same, with nothing overlapped */
    const char *rules_path;     /* NULL: the defaults */
    lap_tp_switches_t switches; /* those that made the rules */
    bool cache;                 /* what lap tune has found may be used */
    char tuned[16];             /* the day when that was; "": the rules are not from there */
    bool overlap, compare;      /* compare: with and without overlap, one after the other */
    const char *data;           /* files of tokens; NULL: made from the seed */
    bool data_ends;             /* after their last sample */
    const char *config;         /* the file of --config; NULL: none */
    const char *config_unused;  /* its keys that nothing comes of */
    const char *save, *load;    /* folders of checkpoints; NULL: none */
    int save_every;             /* steps; 0: at the end only */
    int keep;                   /* checkpoints; 0: all */
    int shuffle;                /* the samples of the files, */
    uint64_t data_seed;         /* with this seed; */
    bool order_given;           /* else a checkpoint's order goes on */
    const char *loss_scale;     /* "dynamic", or a number */
    bool dynamic;               /* it changes, */
    lap_loss_scale_t scale;     /* from this on */
    const char *device, *transport;
    lap_gpu_mode_t gpus;
    lap_link_arg_t link;
    double timeout_s;
    double peak_tflops; /* of a rank; 0: by the name of the GPU */
    bool json, debug;
    bool predicts; /* how long forward and backward take */
    bool goes_on;  /* when a loss is not finite */
    /* What is printed: how many iterations were asked for, where a signal interrupted them; else 0. */
    int interrupted;
    bool trace;             /* look at what every GEMM does, */
    const char *trace_path; /* NULL: no trace is written */
    const char *report;     /* NULL: no page is */
    bool trace_simulated;   /* a simulated pass is in both, too */
    lap_trace_format_t trace_format;
    double least_hidden; /* per cent; NAN: any will do */
    bool apart;      /* in some iterations only, whose times do not count: it takes time on a GPU */
    lap_args_t args; /* as they were given */
    char *const *again; /* the command line itself; NULL: of another command than lap train */
} lap_train_t;

extern const lap_command_t lap_train_command;

/*
 * A command that takes the options of `lap train`, and a few of its own. Its name and texts are given;
 * what lap_train_extend adds lives as long as the form. Fields of its own options are of a struct that begins with lap_train_t.
 */
#define LAP_TRAIN_OWN_MAX 16
typedef struct lap_train_form {
    lap_command_t command;
    lap_option_t options[LAP_OPTIONS_MAX];
} lap_train_form_t;
const lap_command_t *lap_train_extend(lap_train_form_t *form, const lap_option_t *own, size_t nown);

/* What there is to make of the options, with `overlap` as they have it, or without: layers, a pipeline, and replicas. */
lap_nn_desc_t lap_train_layers(const lap_train_t *train, bool overlap);
lap_pp_options_t lap_train_stages(const lap_train_t *train, bool overlap);
lap_dp_options_t lap_train_replicas(const lap_train_t *train, bool overlap);

/* The same of so many replicas for a proof. */
lap_nn_replication_t lap_train_replication(const lap_train_t *train, int replicas);

/* All ranks of the grid. */
int lap_train_ranks(const lap_train_t *train);

/*
 * Reads the command line into the struct that *train begins. Returns LAP_CLI_GO, or the exit status after its sentence. A
 * step that is not run here, but proved or shown, may be for a device that this build does not have.
 */
int lap_train_parse(const lap_command_t *command, bool runs, int argc, char **argv,
                    lap_train_t *train);

/* The target of the device and the transport. */
struct lap_target;
lap_status_t lap_train_target(const lap_train_t *train, const struct lap_target **target_p);

/* Checks what depends on the number of ranks. Returns as lap_train_parse. */
int lap_train_check(const lap_train_t *train, int nranks);

/*
 * Tells why a description is refused, as lap_args_refused. A sentence of the library about a field is one about the option that
 * the field is made of: kv_heads is --kv-heads, in the spelling of whoever typed it.
 */
int lap_train_refuse(const lap_train_t *train, lap_status_t status);

/*
 * The bytes that a rank needs at least where its device has its memory, roughly. Fails as lap_nn_plan
 * does, or without the memory to count them; then *bytes_p is what one matrix would take that no memory has, or 0.
 */
lap_status_t lap_train_device_bytes(const lap_train_t *train, double *bytes_p);

/*
 * Runs the ranks of a command with these options, which begins with lap_train_t in its `context`;
 * `again` is its command line, see lap_ranks_run. Returns the exit status.
 */
int lap_train_start(const lap_train_t *train, int (*run)(const void *context, lap_world_t *world),
                    const void *context, char *const *again);

/* ---- a model ---- */

/* When an iteration ran, computed and communicated, by the clock of the rank. */
typedef struct lap_train_times {
    lap_comm_times_t kinds[LAP_AXES + 1]; /* by lap_axis_t; the last: of groups of no axis */
    lap_comm_times_t messages;            /* between stages: a part of LAP_AXIS_PP */
    lap_intervals_t bubbles; /* it had nothing to do, in a pipeline: no communication's fault */
    lap_intervals_t busy;    /* the rank computed, as far as that is known */
    lap_intervals_t step;    /* the iteration ran, */
    uint64_t ns;             /* for so long in all, */
    uint64_t since;          /* and runs again since then */
} lap_train_times_t;

/* A trainer with its data, and what is looked at of its steps. */
typedef struct lap_train_model {
    const lap_train_t *train;
    lap_trainer_t trainer;
    lap_data_t *data;      /* where tokens come from; NULL: from the seed */
    bool shuffle;          /* in a random order, */
    uint64_t data_seed;    /* with this seed: as asked for, or as a checkpoint has it */
    bool reported;         /* a loss or a norm was not finite */
    lap_trace_t *timeline; /* that passes are added to: records; NULL: none */
    lap_trace_t records;
    lap_train_times_t times; /* of this iteration */
    int loaded;              /* the steps of the checkpoint that was loaded; -1: none was */
} lap_train_model_t;

/*
 * Makes a model with fresh weights, which stays where it is. `overlap`: with the rules for it. Collective over the world;
 * lap_train_model_clear undoes it, also after a failure and of one that is all zero.
 */
lap_status_t lap_train_model_init(lap_train_model_t *model, const lap_train_t *train,
                                  const lap_grid_groups_t *groups, bool overlap, bool trace,
                                  lap_link_t link);
void lap_train_model_clear(lap_train_model_t *model);

/* From the next iteration on communication is looked at, or not. */
lap_status_t lap_train_trace(lap_train_model_t *model, bool on);

/*
 * Whether the optimizer's step is a part of the last pass of an iteration. It is not where times are looked at
 * one by one, nor where gradients are not clipped: then the host looks at the loss before each step.
 */
bool lap_train_joins(const lap_train_t *train, bool traced);

/* Adds the digest of a step (schedule/digest.h) to an object; 0: null. */
void lap_json_digest(lap_json_t *json, uint64_t digest);

/* Whether steps compute the norm of the gradients: to clip by it, or to see whether a scale that changes was too large. */
static inline bool lap_train_has_norm(const lap_train_t *train)
{
    return train->optimizer.clip_norm > 0 || train->dynamic;
}

/*
 * Makes a step on data that were read, but for one whose loss is not finite, and fills what the trainer and the clock know of
 * it, which is `traced` or not. Where it `logs`, each part is logged as it begins.
 */
typedef struct lap_train_iteration lap_train_iteration_t;
lap_status_t lap_train_step(lap_train_model_t *model, bool logs, lap_train_iteration_t *iteration);

/*
 * Reports on standard error, once for all ranks, that a loss or a norm is not finite, and which tensor
 * is the first that is not. Collective over the world.
 */
lap_status_t lap_train_report_not_finite(lap_train_model_t *model, const char *way,
                                         const lap_train_iteration_t *iteration);

/* ---- tokens: train_data.c ---- */

/* Opens the files of --data, and looks whether they do for this training. */
lap_status_t lap_train_data_open(const lap_train_t *train, lap_data_t **data_p);
lap_status_t lap_train_data_check(const lap_train_t *train);

/* Gives samples of a model, the context, to its trainer. */
lap_status_t lap_train_data_give(void *context, uint64_t first, size_t count, size_t seq,
                                 int32_t *tokens, int32_t *targets);

/* Logs how many samples there are, and in which order they come. */
void lap_train_log_data(const lap_train_model_t *model);

/* Of `count` samples in the order of a seed, which one sample n is: each once in every `count`. */
uint64_t lap_train_shuffled(uint64_t seed, uint64_t n, uint64_t count);

/* ---- checkpoints: train_save.c ---- */

/* Their part of the log. */
typedef struct lap_train_saver {
    const lap_train_t *train;
    lap_group_t *world;
    int step;      /* made so far, with those of the checkpoint that was loaded */
    int saved;     /* the step of the latest checkpoint */
    bool failed;   /* the latest could not be written */
    bool ended;    /* no iteration follows */
    bool wrote;    /* there is a checkpoint of this training, */
    bool restarts; /* --load is --save: the same command line begins and goes on */
} lap_train_saver_t;

/* How long a signal lets a training finish its step and write the checkpoint of it, where it writes any. */
#define LAP_TRAIN_SAVE_S 25.0

/* Whether --load has something to load, or may be empty: LAP_CLI_GO, or the exit status after a sentence. */
int lap_train_load_check(const lap_train_t *train);

/* Locks the folder of --save, and loads what --load names. From then on what came of each save is reported. Collective. */
lap_status_t lap_train_saver_init(lap_train_saver_t *saver, lap_train_model_t *model);
/* After a signal: prints which checkpoint there is, and the command line that goes on from it. */
void lap_train_saver_report(const lap_train_saver_t *saver);

/* ---- what is measured ---- */

/*
 * Of communication, in seconds, as the mean of the ranks. A row adds up its calls. By kind and in all
 * these are times of the step, and what happens at once counts once: none is more than the step. What is
 * hidden is as in a timeline (lap_trace_times): trace, report and table have one definition.
 */
typedef struct lap_train_comm {
    double total;              /* something was in flight from the rank or to it */
    double hidden;             /* ... while the rank computed, */
    double exposed;            /* ... and while it did not */
    double waited;             /* in a call the rank did not compute, */
    double causes[LAP_CAUSES]; /* for these, which add up to it; for several at once: the first */
    double bytes;              /* that the rank sent; not a time */
} lap_train_comm_t;

/*
 * Figures are for each GEMM, by lap_tp_gemm_t, as sums over layers; for those of a model's logits;
 * then for others, and all.
 */
enum {
    LAP_TRAIN_HEAD = LAP_TP_GEMMS,         /* and its dgrad and wgrad */
    LAP_TRAIN_OTHERS = LAP_TRAIN_HEAD + 3, /* calls that are no GEMMs: of embeddings, the loss, */
    LAP_TRAIN_MESSAGES,                    /* gradients of norms, scales; between stages, */
    LAP_TRAIN_GRADIENTS,                   /* to other replicas */
    LAP_TRAIN_ALL,
    LAP_TRAIN_ROWS
};

/* The row of a GEMM, and what it is called. */
int lap_train_row(const lap_train_t *train, const lap_nn_gemm_t *gemm);
const char *lap_train_row_name(int row);

struct lap_train_iteration {
    double loss;    /* of all replicas */
    double norm;    /* of the gradients; 0 unless lap_train_has_norm */
    double scale;   /* of its loss, */
    bool skipped;   /* which was too large: no step was made */
    bool traced;    /* there are figures of communication */
    uint64_t skips; /* so far */
    /* From here to the end: means of the ranks. */
    double seconds; /* all of it, */
    double passes;  /* until forward and backward had ended, with a step in them, */
    double issue;   /* until they were begun */
    double bubble;  /* a rank of a pipeline waited for what other stages compute */
    lap_train_comm_t rows[LAP_TRAIN_ROWS]; /* of communication, by what it is for, */
    lap_train_comm_t kinds[LAP_AXES];      /* and by the group that it is in */
};

/* Before passes: the calls that they do not make have cost nothing in them. */
void lap_train_forget(const lap_train_model_t *model);

/* What the latest passes of this rank have cost: adds to `iteration`. */
lap_status_t lap_train_measure_passes(lap_train_model_t *model, lap_train_iteration_t *iteration);

/* The same for the last of them, and for what came after it; and the sums. */
lap_status_t lap_train_measure(lap_train_model_t *model, lap_train_iteration_t *iteration);

/* A call between ranks: whose it is, what it did, and where its figures are. */
typedef struct lap_train_call {
    lap_group_t *group;
    lap_trace_t *trace;
    int row, kind; /* LAP_AXES: of a group of no axis */
} lap_train_call_t;

/* Calls `each` for calls, in the same order on all ranks that make them together. */
typedef lap_status_t (*lap_train_each_t)(void *context, const lap_train_call_t *call);
typedef lap_status_t (*lap_train_walk_t)(const lap_train_model_t *model, lap_train_each_t each,
                                         void *context);

/* Those of the latest passes: of a pipeline's step, and those that layers have made by themselves. */
lap_status_t lap_train_each_call(const lap_train_model_t *model, lap_train_each_t each,
                                 void *context);

/* Adds when a rank of a trace computed; -1: all that it has. */
void lap_train_add_work(const lap_trace_t *trace, int rank, lap_intervals_t *work);

/* ---- causes: train_causes.c ---- */

/*
 * What the calls of a group have cost this rank: what was in flight from it and to it, when it waited, and why. Adds to their
 * rows and kinds. Collective over the group.
 */
lap_status_t lap_train_explain(lap_train_model_t *model, lap_train_walk_t walk, lap_group_t *group,
                               lap_train_iteration_t *iteration);

/* The same of gradients. Collective over the replicas. */
lap_status_t lap_train_explain_gradients(lap_train_model_t *model,
                                         lap_train_iteration_t *iteration);

/* Forgets all times. */
void lap_train_times_reset(lap_train_times_t *times);

/* From now on the iteration runs, until it is interrupted to look at it, or ends. */
void lap_train_times_resume(lap_train_times_t *times);
void lap_train_times_pause(lap_train_times_t *times);

/* Makes the figures of all ranks into means, the same on every rank. Collective. */
lap_status_t lap_train_average(lap_group_t *world, lap_train_iteration_t *iteration);

/*
 * The link that --link asks for. With a ratio that is measured: communication that is not
 * overlapped takes this part of the time of the GEMMs. Collective.
 */
lap_status_t lap_train_find_link(const lap_train_t *train, const lap_grid_groups_t *groups,
                                 lap_link_t *link_p);

/* A GEMM of another rank; kind "": it has none. */
typedef struct lap_train_words {
    char kind[24], method[24];
    uint64_t bytes;
} lap_train_words_t;

/* One way of training: with or without overlap. */
typedef struct lap_train_result {
    bool overlap;
    lap_link_t link;
    lap_train_iteration_t *iterations; /* room for train->iters of them, */
    int done;                          /* how many there are, */
    int first;                         /* and which one is the first of them, from 0 */
    int cores, local_ranks;            /* of this machine */
    double flops;                      /* of the GEMMs of a rank in an iteration */
    double peak;                       /* what a rank can do of them in a second; 0: not known */
    uint64_t digest;                   /* of a step; 0: it is not known */
    double predicted;                  /* seconds of its forwards and backwards; 0: not predicted */
    lap_trace_t simulated; /* of a forward and backward, on rank 0; empty: not asked for */
    /* By row, of the first layer; kind is NULL when there is none. */
    lap_nn_gemm_t gemms[LAP_TRAIN_OTHERS];
    lap_train_words_t words[LAP_TRAIN_OTHERS]; /* of a pipeline: what these are on other ranks */
} lap_train_result_t;

/* An iteration of the medians of all figures. */
lap_train_iteration_t lap_train_typical(const lap_train_t *train, const lap_train_result_t *result);

/* Tokens of an iteration, of all replicas. */
double lap_train_tokens(const lap_train_t *train);

/* ---- traces: train_trace.c ---- */

/* From now on the model's passes are added to a timeline, if traced. */
lap_status_t lap_train_timeline_init(lap_train_model_t *model);

/* Adds what the host has done since then, if there is a timeline. */
void lap_train_note(const lap_train_model_t *model, const char *what, uint64_t begin);

/* Writes the file; one that cannot be written is an exit status, after a sentence. Collective. */
lap_status_t lap_train_write_trace(lap_train_model_t *model, const lap_train_result_t *result,
                                   int *end_p);

/* Whether as much was hidden as --assert-hidden asks for; prints how much was if not. */
bool lap_train_is_hidden(const lap_train_t *train, const lap_train_result_t *result, bool speaks);

/* ---- printing ---- */

/*
 * Figures of communication as members of an object of JSON: comm_ms and so on; null where nothing was traced.
 */
void lap_train_json_comm(lap_json_t *json, const lap_train_comm_t *comm, bool traced);

/*
 * A line of the log, after its rank: "[rank4:node0] ". Nothing with --json or --quiet, from ranks that are not their
 * group's first, or where there is no speaker.
 */
void lap_train_log(const lap_train_t *train, const lap_group_t *speaker, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "Created tensor-parallel group: [0, 1]", by its first rank; nothing of NULL. */
void lap_train_log_group(const lap_train_t *train, const char *what, const lap_group_t *group);

/* What one replica makes nothing of, as "without effect with one replica: --OPTION, ..."; false: of nothing that is given. */
enum { LAP_TRAIN_ALONE_TEXT = 384 };
bool lap_train_alone(const lap_train_t *train, char text[LAP_TRAIN_ALONE_TEXT]);

/* That, keys of --config, and fields of the rules, that nothing comes of; on standard error with --json. */
void lap_train_log_unused(const lap_train_t *train, const lap_group_t *world);

/* ---- train_step.c ---- */

/* One step of a model, by rank 0: with --json an object, else a line. */
void lap_train_log_step(const lap_train_t *train, const lap_group_t *world,
                        const lap_train_result_t *result, int step, const char *way,
                        const lap_train_iteration_t *iteration);

/* FLOP/s that a rank can do at most, of ranks that share the GPUs of this machine; 0: not known. */
double lap_train_peak(const lap_train_t *train, int local_ranks);

/* The part of that which an iteration made use of; not a number: it is not known. */
double lap_train_mfu(const lap_train_t *train, const lap_train_result_t *result, double seconds);

/* Where standard error is a terminal: a line that is written again and again, and its end. */
void lap_train_progress(const lap_train_t *train, const lap_group_t *world, int done, int of,
                        double loss, double seconds);
void lap_train_progress_end(const lap_train_t *train, const lap_group_t *world);

/* The symmetric memory of each GEMM, and what it is called with. */
void lap_train_log_gemms(const lap_train_t *train, const lap_group_t *tp,
                         const lap_train_result_t *result);

/* Tables for people, or one line of JSON, of one or two ways of training. */
void lap_train_report(const lap_train_t *train, const lap_train_result_t *results, size_t count);

#endif
