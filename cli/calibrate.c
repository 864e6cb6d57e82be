/* SPDX-License-Identifier: Apache-2.0 */
/* `lap calibrate`: a machine description for `lap plan`, measured by ranks on this machine. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "core/environment.h"
#include "core/output.h"
#include "core/status.h"
#include "option_rows.h"
#include "plan/measure.h"
#include "ranks.h"
#include "shared_options.h"

enum { RANKS, OUT, NAME, DEVICE, TRANSPORT, GPU_SHARE, LINK, TIMEOUT, NOPTIONS };

typedef struct request {
    const char *output;
    const char *name_given;
    char name[64];
    const char *device, *transport;
    lap_gpu_mode_t gpus;
    const char *link_text; /* NULL: none */
    lap_link_arg_t link;
    int ranks;
    double timeout_s;
} request_t;

#define OPTIONS_OF request_t
static const lap_option_t options[NOPTIONS] = {
    [RANKS] = {'n', "ranks", "P", "ranks that measure at once; each is a GPU to the planner", "2",
               INT(ranks, 1, 1024), .ranks = LAP_RANKS_OWN},
    [OUT] = {'o', "output", "FILE.yaml", "write it into a file (default: standard output)", NULL,
             TEXT(output), .ranks = LAP_RANKS_OWN},
    [NAME] = {0, "name", "TEXT", "what the machine is called (default: this host)", NULL,
              TEXT(name_given), .ranks = LAP_RANKS_OWN},
    [DEVICE] = {LAP_OPTION_DEVICE, TEXT(device)},
    [TRANSPORT] = {LAP_OPTION_TRANSPORT, TEXT(transport)},
    [GPU_SHARE] = {LAP_OPTION_GPU_SHARE, LAP_BY_CODE, .ranks = LAP_RANKS_OWN},
    [LINK] = {0, "link", "RATE",
              "emulate a link out of each rank, as lap train does: a rate such as 2GB/s, or with a "
              "latency as in 2GB/s,20us",
              NULL, LINK_OF(link)},
    [TIMEOUT] = {LAP_OPTION_TIMEOUT, TIMEOUT_OF(timeout_s), .ranks = LAP_RANKS_OWN},
};

static const lap_command_t command = {
    .name = "lap calibrate",
    .usage = "[OPTIONS]",
    .summary = "Measures this machine and writes a machine description, for lap plan --gpu.",
    .details =
        "GEMMs of several sizes and types, alone and beside communication, attention, the other\n"
        "kernels of layers, a step of the optimizer, memory, copies between ranks and signals are\n"
        "measured while all ranks do the same, which takes seconds. GPUs are brought to their "
        "power\n"
        "limit first, as in training. Peaks are the best rates that were measured, so "
        "efficiencies\n"
        "are parts of these.\n"
        "What is written can be changed by hand: docs/plan.md explains the keys.",
    .exit_status = "  0  the description is written\n"
                   "  1  it could not be measured or written\n"
                   "  2  the command line is wrong",
    .options = options,
    .noptions = NOPTIONS,
};

/* A name is one line between quotes of YAML. */
static bool settle_name(request_t *request)
{
    const char *given = request->name_given;
    char host[sizeof(request->name)] = "";
    if (!given && gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    const char *name = given ? given : *host ? host : "this machine";
    bool plain = strlen(name) < sizeof(request->name);
    for (const char *at = name; *at && plain; at++)
        plain = *at >= ' ' && *at <= '~' && *at != '\'';
    if (!plain)
        return lap_args_wrong(&command, "--name is '%s', expected at most %zu plain characters",
                              name, sizeof(request->name) - 1);
    snprintf(request->name, sizeof(request->name), "%s", name);
    return true;
}

static bool parse(const lap_args_t *args, request_t *request)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    if (!lap_args_read(args, false, request) || !settle_name(request))
        return false;
    request->link_text = args->values[LINK];
    if (request->link.ratio > 0) /* it is one to a step of training, and there is none */
        return lap_args_wrong(&command, "--link is '%s', expected a rate such as 2GB/s",
                              request->link_text);
    if (!lap_arg_backends(&command, args->values[DEVICE], args->values[TRANSPORT], &device,
                          &transport))
        return false;
    request->device = device->name;
    request->transport = transport->name;
    if (lap_environment_launched() && !args->given[RANKS])
        request->ranks = 0;
    return lap_ranks_gpus(&command, args->values[GPU_SHARE], request->device, &request->gpus) &&
           lap_ranks_suit(&command, args->values[TRANSPORT], request->transport, request->ranks);
}

static lap_status_t write_machine(const request_t *request, const lap_machine_t *machine,
                                  int nranks)
{
    lap_output_t output;
    char comment[320], link[64] = "";
    if (request->link_text)
        snprintf(link, sizeof(link), ", with an emulated link of %s", request->link_text);
    snprintf(comment, sizeof(comment),
             "# Measured by lap calibrate: %d rank%s at once, device %s, transport %s%s.\n", nranks,
             nranks == 1 ? "" : "s", request->device, request->transport, link);
    if (!request->output) {
        lap_machine_write(machine, comment, stdout);
        return LAP_OK;
    }
    LAP_TRY(lap_output_open("the machine description", request->output, &output));
    lap_machine_write(machine, comment, output.file);
    return lap_output_close(&output, LAP_OK);
}

static int run_rank(const void *context, lap_world_t *world)
{
    const request_t *request = context;
    lap_machine_t machine;
    lap_status_t status = lap_machine_measure(world, request->link.link, &machine);
    if (status == LAP_OK && lap_world_rank(world) == 0) {
        snprintf(machine.name, sizeof(machine.name), "%s", request->name);
        status = write_machine(request, &machine, lap_world_size(world));
    }
    return status == LAP_OK ? LAP_CLI_OK
                            : lap_ranks_fail(command.name, lap_world_rank(world), status);
}

static int check_ranks(const void *context, int nranks)
{
    (void)context;
    (void)nranks;
    return LAP_CLI_GO;
}

int lap_cli_calibrate(int argc, char **argv)
{
    lap_args_t args;
    request_t request = {.ranks = 0};
    char **again = lap_ranks_arguments(&command, argc, argv);
    if (!again)
        return LAP_CLI_FAILED;
    int result = lap_args_parse(&command, argc, argv, &args);
    if (result == LAP_CLI_GO && !parse(&args, &request))
        result = LAP_CLI_USAGE;
    if (result == LAP_CLI_GO && request.output) {
        const lap_status_t status = lap_output_check("the machine description", request.output);
        result = status == LAP_OK ? LAP_CLI_GO : lap_args_refused(&command, status, "");
    }
    if (result == LAP_CLI_GO) {
        const lap_ranks_t job = {.name = command.name,
                                 .nranks = request.ranks,
                                 .timeout_s = request.timeout_s,
                                 .device = request.device,
                                 .transport = request.transport,
                                 .gpus = request.gpus,
                                 .at_once = true,
                                 .dtype = LAP_BFLOAT16,
                                 .check = check_ranks,
                                 .run = run_rank,
                                 .context = &request,
                                 .args = &args};
        result = lap_ranks_run(&job, again);
    }
    return lap_ranks_end(again, result);
}
