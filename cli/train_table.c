/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the options of `lap train`, their other names, and the texts of its help. */
#include <string.h>

#include "launch.h"
#include "nn/nn_fields.h"
#include "nn/plan.h"
#include "option_rows.h"
#include "shared_options.h"
#include "train_options.h"

/* Of --bucket-by, by replicas.by_layer. */
static const char *const bucket_ends[] = {"size", "layer", NULL};

#define OPTIONS_OF lap_train_t /* whose fields take the values */
const lap_option_t lap_train_options[NOPTIONS] = {
#define OPTION(name, ...) [name] = {__VA_ARGS__},
#include "train_options.def"
#undef OPTION
};

/* The names that TransformerEngine's examples have for them, and other trainers. */
static const lap_alias_t aliases[] = {
    {0, "layer-type", LAYER},
    {0, "tp-size", TP},
    {'i', "num-iters", ITERS},
    {'s', "seq-length", SEQ},
    {0, "num-heads", HEADS},
    {0, "save-interval", SAVE_EVERY},
    {0, "steps", ITERS},
    {0, "dp", REPLICAS},
    {0, "global-batch", BATCH},
    {0, "no-overlap-p2p-communication", NO_OVERLAP_P2P},
    {0, "use-distributed-optimizer", DISTRIBUTED},
};

const lap_command_t lap_train_command = {
    .name = "lap train",
    .usage = "[OPTIONS]",
    .summary = "Trains layers on random data, or a language model on text, over ranks that share\n"
               "the weights, the sequences or the layers; overlaps their communication with their\n"
               "GEMMs, and says how much of it was hidden.",
    .details =
        "The data x are normally distributed, and the layers learn to give -x: the loss is half\n"
        "the mean square of the difference. A language model learns the tokens of --data, or a\n"
        "Markov chain, and its loss is the mean cross-entropy. The same seed gives the same\n"
        "weights and data for any P and any number of replicas; so do the same files.\n"
        "\n"
        "time           forward, backward, gradients between replicas and the optimizer step\n"
        "passes         forward and backward; with the optimizer step where all of it is\n"
        "               one launch: without traces, and with --clip-grad\n"
        "predicted      the same, by a simulation of all ranks' programs with what GEMMs, "
        "kernels,\n"
        "               copies and signals cost by themselves\n"
        "communication  time in which data were on their way from a rank or to it; mean of the "
        "ranks\n"
        "hidden         ... while the rank computed\n"
        "exposed        ... while it did not: communication is hidden and exposed\n"
        "waited         within the calls that communicate, the rank did not compute, whether or\n"
        "               not something was on its way: it waited\n"
        "  wire         ... for data on their way\n"
        "  late         ... for a rank that was late, because it computed or slept\n"
        "  core         ... for a core: a thread that could go on, of this rank or of the rank\n"
        "               that it waited for, was not running\n"
        "messages       between stages of a pipeline\n"
        "bubble         a rank of a pipeline stood still for what other stages compute; it is not\n"
        "               a part of waited\n"
        "tokens/s       of all replicas; TFLOP/s (of the GEMMs of a rank) and GB/s (sent by a\n"
        "               rank) are over the time of an iteration, too\n"
        "MFU            GEMMs and causal attention of a rank over the time of an iteration, as a\n"
        "               part of the peak of its GPU for their type, or of --peak-tflops\n"
        "\n"
        "Under `lap run`, mpirun, srun or torchrun each process is one of their ranks; all ranks\n"
        "need the same arguments.",
    .exit_status =
        "  0        all iterations were done\n"
        "  1        a rank failed, or a file cannot be written\n"
        "  128 + n  signal n killed a rank, or asked lap train to end\n"
        "  2        the command line is wrong\n"
        "  3        a loss, or the norm of the gradients, is not finite: standard error names\n"
        "           the first layer and tensor that is not finite, in the order of forward and\n"
        "           then backward, and what was measured so far is printed\n"
        "  4        less communication was hidden than --assert-hidden asks for, or none was\n"
        "           traced",
    .options = lap_train_options,
    .noptions = NOPTIONS,
    .aliases = aliases,
    .naliases = sizeof(aliases) / sizeof(aliases[0]),
};

_Static_assert(NOPTIONS + LAP_TRAIN_OWN_MAX <= LAP_OPTIONS_MAX,
               "room for options of other commands");

const lap_command_t *lap_train_extend(lap_train_form_t *form, const lap_option_t *own, size_t nown)
{
    lap_command_t *command = &form->command;
    memcpy(form->options, lap_train_options, sizeof(lap_train_options));
    memcpy(form->options + NOPTIONS, own, nown * sizeof(*own));
    command->options = form->options;
    command->noptions = NOPTIONS + nown;
    command->aliases = aliases;
    command->naliases = sizeof(aliases) / sizeof(aliases[0]);
    return command;
}
