/* SPDX-License-Identifier: Apache-2.0 */
/* `lap run`: the command line of the launcher. The launcher itself is launch.c. */
#include <string.h>

#include "cli.h"
#include "launch.h"
#include "option_rows.h"

enum { RANKS, NO_PREFIX, GRACE, TIMEOUT, GPU_SHARE, NOPTIONS };

#define OPTIONS_OF lap_launch_t
static const lap_option_t options[NOPTIONS] = {
    [RANKS] = {'n', "ranks", "N", "how many ranks to start, 1 to 1024", NULL,
               INT(nranks, 1, LAP_LAUNCH_MAX)},
    [NO_PREFIX] = {0, "no-prefix", NULL,
                   "let the ranks write directly, without \"[rank] \" before each line", NULL,
                   OFF(prefix)},
    [GRACE] = {0, "grace", "SECONDS",
               "how long ranks may take to end by themselves when one has failed, or a signal has "
               "asked them to (default: 1, or 3 after a signal)",
               NULL, LAP_BY_CODE},
    [TIMEOUT] = {0, "timeout", "SECONDS",
                 "how long a rank waits for another one before its call fails (LAP_TIMEOUT_S)",
                 NULL, TEXT(timeout)},
    [GPU_SHARE] = {0, "gpu-share", "[=MODE]",
                   "give each rank its own GPU, or its own part of a GPU: on, auto (on where "
                   "possible) or off; without =MODE: on",
                   "off", LAP_BY_CODE},
};

static const lap_command_t command = {
    .name = "lap run",
    .usage = "-n N [OPTIONS] PROGRAM [ARGUMENTS]",
    .summary = "Starts N ranks of a program on this machine, and ends all of them when one fails.",
    .details =
        "Options end at PROGRAM. Each rank finds its number in LAP_RANK and the number of\n"
        "ranks in LAP_SIZE; lap_world_create does the rest. OPENBLAS_NUM_THREADS and\n"
        "OMP_NUM_THREADS are set to each rank's share of the cores unless they are set\n"
        "already. Standard input goes to rank 0, unless it is a terminal.\n\n"
        "With --gpu-share rank r gets GPU r mod the number of GPUs. Where ranks share a GPU\n"
        "each gets its own SMs, and a private MPS daemon runs as long as the job. LAP_GPU and\n"
        "LAP_GPU_PART are set for each rank. If LAP_GPU is set for lap run itself, all ranks\n"
        "get that GPU.",
    .exit_status =
        "  0         every rank ended well\n"
        "  2         the command line is wrong\n"
        "  126, 127  the program cannot be run\n"
        "  128 + n   signal n killed the first rank that failed, or asked lap run to end\n"
        "  other     that of the first rank that failed",
    .options = options,
    .noptions = NOPTIONS,
    .min_positionals = 1,
    .max_positionals = (size_t)-1,
    .stop_at_positional = true,
};

int lap_cli_run(int argc, char **argv)
{
    lap_args_t args;
    int status = lap_args_parse(&command, argc, argv, &args);
    if (status != LAP_CLI_GO)
        return status;
    if (!args.values[RANKS])
        return lap_args_fail(&command, "-n is missing, expected the number of ranks; usage: %s %s",
                             command.name, command.usage);
    /* A mode apart from its option would be the program. */
    for (size_t i = 0; args.apart && lap_gpu_modes[i]; i++)
        if (strcmp(args.apart, lap_gpu_modes[i]) == 0)
            return lap_args_fail(&command, "'%s' would be the program; did you mean '--%s=%s'?",
                                 args.apart, args.apart_from, args.apart);
    lap_launch_t job = {
        .name = command.name,
        .argv = args.positionals,
        .prefix = true,
        .grace_s = -1,
    };
    double timeout;
    if (!lap_args_read(&args, false, &job) ||
        (args.values[GRACE] &&
         !lap_arg_seconds(&command, "--grace", args.values[GRACE], 0, 86400, &job.grace_s)) ||
        (job.timeout && !lap_arg_timeout(&command, job.timeout, &timeout)) ||
        !lap_arg_gpu_share(&command, args.values[GPU_SHARE], &job.gpus))
        return LAP_CLI_USAGE;
    return lap_launch(&job);
}
