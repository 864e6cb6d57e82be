/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lap show pipeline` and `lap check pipeline`: builds or reads the table of a pipeline schedule,
 * proves it, and prints or draws it with the bubbles that it has. Nothing is run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "about.h"
#include "cli.h"
#include "core/file.h"
#include "core/output.h"
#include "core/status.h"
#include "option_rows.h"
#include "parallel/pipeline.h"
#include "shared_options.h"
#include "table.h"

/* Forward and backward of so many are a gigabyte, and take a minute. */
enum { PASSES_MOST = 1 << 24 };

enum { PP, VIRTUAL_PP, MICROS, SCHEDULE, COSTS, CSV, SVG, JSON, NOPTIONS };

typedef struct request {
    const lap_command_t *command;
    const char *schedule, *csv, *svg;
    int ranks, chunks, micros;
    lap_pipe_costs_t costs;
    bool json;
} request_t;

#define OPTIONS_OF request_t
static const lap_option_t options[NOPTIONS] = {
    [PP] = {0, "pp", "P", "ranks of the pipeline", "4", INT(ranks, 1, LAP_PIPE_MOST)},
    [VIRTUAL_PP] = {0, "virtual-pp", "V", "stages on a rank, of interleaved (default 2)", NULL,
                    INT(chunks, 1, LAP_PIPE_MOST)},
    [MICROS] = {0, "micro-batches", "M", "micro-batches of a step (default 2 * P)", NULL,
                INT(micros, 1, LAP_PIPE_MOST)},
    [SCHEDULE] =
        {0, "schedule", "NAME",
         "1f1b, interleaved, zb-h1, zb-v or 1f1b-eager; or FILE.csv, a table as PyTorch stores "
         "them: a "
         "line per rank of actions such as 0F3 (stage, forward, micro-batch), B backward, I "
         "and W its two gradients",
         "1f1b", TEXT(schedule)},
    [COSTS] =
        {0, "costs", "F,I,W[,S]",
         "time of a stage's forward, of the gradients of its input and of its weights, and of "
         "a message",
         "1,1,1,0", LAP_BY_CODE},
    [CSV] = {0, "csv", "FILE", "write the table into a file that PyTorch reads", NULL, TEXT(csv)},
    [SVG] = {0, "svg", "FILE", "draw it into a file", NULL, TEXT(svg)},
    [JSON] = {LAP_OPTION_JSON, ON(json)},
};

#define EXIT_STATUS                                                                                \
    "  0  the table is safe\n"                                                                     \
    "  1  it is not, or a file could not be written\n"                                             \
    "  2  the command line is wrong"

static const lap_command_t show_command = {
    .name = "lap show pipeline",
    .usage = "[OPTIONS]",
    .summary = "Prints what each rank of a pipeline does in a step, when, and how long it idles.",
    .details = "A table that misses a micro-batch or deadlocks is refused with the rank and the\n"
               "action. Of a file, actions that move data or weights (SEND_F, RECV_F, SEND_B,\n"
               "RECV_B, UNSHARD, RESHARD, REDUCE_GRAD) are left out: they follow from the others.\n"
               "Sizes that are given with a file must be those that it has.",
    .exit_status = EXIT_STATUS,
    .options = options,
    .noptions = NOPTIONS,
};

static const lap_command_t check_command = {
    .name = "lap check pipeline",
    .usage = "[OPTIONS]",
    .summary = "Proves that a pipeline schedule does all of a step, in order, without deadlock.",
    .details = "The options are those of lap show pipeline.",
    .exit_status = EXIT_STATUS,
    .options = options,
    .noptions = NOPTIONS,
};

/* ---- reading ---- */

static bool is_file(const char *schedule)
{
    const size_t length = strlen(schedule);
    return length > 4 && strcmp(schedule + length - 4, ".csv") == 0;
}

static bool parse_costs(request_t *request, const char *text)
{
    double *const costs[] = {&request->costs.forward, &request->costs.input_grad,
                             &request->costs.weight_grad, &request->costs.message};
    const char *rest = text;
    size_t count = 0;
    for (bool more = true; more && count < 4; count++) {
        char *end;
        *costs[count] = strtod(rest, &end);
        if (end == rest || (*end != '\0' && *end != ',') || !(*costs[count] >= 0) ||
            *costs[count] > 1e9)
            return lap_args_wrong(request->command,
                                  "--costs is '%s', expected numbers from 0 to 1e9 with commas",
                                  text);
        more = *end == ',';
        rest = end + more;
    }
    if (count < 3 || rest[-1] == ',')
        return lap_args_wrong(request->command,
                              "--costs is '%s', expected three numbers F,I,W, or four", text);
    return true;
}

/* No file is written over another one, nor over the table that it is made from. */
static bool check_files(const request_t *request)
{
    const char *const table = is_file(request->schedule) ? request->schedule : NULL;
    const struct {
        const char *name, *path;
    } files[] = {{"schedule", table}, {"csv", request->csv}, {"svg", request->svg}};
    for (size_t i = 0; i < 3; i++)
        for (size_t j = i + 1; j < 3; j++)
            if (files[i].path && files[j].path && lap_output_same(files[i].path, files[j].path))
                return lap_args_wrong(request->command,
                                      "--%s and --%s are both %s; expected two files",
                                      files[i].name, files[j].name, files[j].path);
    return true;
}

static bool parse(const lap_args_t *args, request_t *request)
{
    const lap_command_t *command = request->command;
    const int most = (int)LAP_PIPE_MOST;
    if (!lap_args_read(args, false, request) || !parse_costs(request, args->values[COSTS]) ||
        !check_files(request))
        return false;
    if (!args->given[VIRTUAL_PP])
        request->chunks = strcmp(request->schedule, "interleaved") == 0 ? 2 : 1;
    if (!args->given[MICROS])
        request->micros = request->ranks <= most / 2 ? 2 * request->ranks : most;
    const double passes = (double)request->ranks * request->chunks * request->micros;
    return passes <= PASSES_MOST || is_file(request->schedule) ||
           lap_args_wrong(command,
                          "--pp %d with %d micro-batches and --virtual-pp %d has %.0f passes, "
                          "expected at most %d",
                          request->ranks, request->micros, request->chunks, passes, PASSES_MOST);
}

/* A file has its sizes: those that are given must be the same. */
static bool agrees(const lap_args_t *args, const request_t *request, const lap_pipeline_t *pipeline)
{
    const uint32_t chunks = (pipeline->stages + pipeline->ranks - 1) / pipeline->ranks;
    const struct {
        int option, asked;
        uint32_t has;
    } sizes[] = {{PP, request->ranks, pipeline->ranks},
                 {VIRTUAL_PP, request->chunks, chunks},
                 {MICROS, request->micros, pipeline->micros}};
    for (size_t i = 0; i < 3 && is_file(request->schedule); i++)
        if (args->given[sizes[i].option] && (uint32_t)sizes[i].asked != sizes[i].has)
            return lap_args_wrong(request->command,
                                  "--%s is %d, expected %u, as the table in %s has, or none",
                                  options[sizes[i].option].name, sizes[i].asked,
                                  (unsigned)sizes[i].has, request->schedule);
    return true;
}

static lap_status_t load(const request_t *request, lap_pipeline_t *pipeline_p)
{
    if (!is_file(request->schedule))
        return lap_pipeline_build(request->schedule, (uint32_t)request->ranks,
                                  (uint32_t)request->chunks, (uint32_t)request->micros, pipeline_p);
    int fd;
    uint64_t bytes;
    *pipeline_p = (lap_pipeline_t){.ranks = 0};
    LAP_TRY(lap_file_open(request->schedule, &fd, &bytes));
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to read %s", request->schedule);
    }
    const lap_status_t status = lap_pipeline_read(file, request->schedule, pipeline_p);
    fclose(file);
    return status;
}

/* ---- text ---- */

/* The time of the table's work on the rank that has most of it: no schedule takes less. */
static double most_busy(const lap_pipeline_t *pipeline, const lap_pipe_times_t *times)
{
    double most = 0;
    for (uint32_t r = 0; r < pipeline->ranks; r++)
        most = fmax(most, times->ranks[r].busy);
    return most;
}

static void print_heading(const request_t *request, const lap_pipeline_t *pipeline)
{
    printf("%s: %u rank%s, %u stage%s, %u micro-batch%s\n", request->schedule,
           (unsigned)pipeline->ranks, pipeline->ranks == 1 ? "" : "s", (unsigned)pipeline->stages,
           pipeline->stages == 1 ? "" : "s", (unsigned)pipeline->micros,
           pipeline->micros == 1 ? "" : "es");
}

static void print_text(const request_t *request, const lap_pipeline_t *pipeline,
                       const lap_pipe_times_t *times)
{
    const lap_pipe_costs_t *costs = &request->costs;
    const double busy = most_busy(pipeline, times);
    print_heading(request, pipeline);
    printf(
        "F forward %g, I gradient of the input %g, W of the weights %g, B both; a message %g\n\n",
        costs->forward, costs->input_grad, costs->weight_grad, costs->message);
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        printf("rank %u:", (unsigned)r);
        for (uint32_t i = 0; i < pipeline->rows[r].nactions; i++) {
            char text[LAP_PIPE_TEXT];
            printf(" %s", lap_pipe_text(&pipeline->rows[r].actions[i], text));
        }
        printf("\n");
    }
    static const char columns[] = "%6[rank] %10[begin] %10[end] %10[busy] %10[idle] %6[live]";
    printf("\n");
    lap_table_head(columns);
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        const lap_pipe_rank_t *rank = &times->ranks[r];
        lap_table_row(columns, "%u\t%.6g\t%.6g\t%.6g\t%.6g\t%u", r, rank->begin, rank->end,
                      rank->busy, rank->end - rank->begin - rank->busy, rank->most_live);
    }
    printf(
        "idle: between its first action and its last; live: most activations of a micro-batch and "
        "stage held at once\n");
    printf("a step takes %g, %g of it work: %.1f %% are bubble\n", times->span, busy,
           times->span > 0 ? 100 * (times->span - busy) / times->span : 0);
}

static void print_json(const request_t *request, const lap_pipeline_t *pipeline,
                       const lap_pipe_times_t *times)
{
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{stages:%u micro_batches:%u span:%.9g work:%.9g ranks:[", pipeline->stages,
                 pipeline->micros, times->span, most_busy(pipeline, times));
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        const lap_pipe_rank_t *rank = &times->ranks[r];
        lap_json_put(&json, "{begin:%.9g end:%.9g busy:%.9g live:%u actions:[", rank->begin,
                     rank->end, rank->busy, rank->most_live);
        for (uint32_t i = 0; i < pipeline->rows[r].nactions; i++) {
            char text[LAP_PIPE_TEXT];
            lap_json_put(&json, "{action:%s begin:%.9g}",
                         lap_pipe_text(&pipeline->rows[r].actions[i], text), times->begins[r][i]);
        }
        lap_json_put(&json, "]}");
    }
    lap_json_put(&json, "] schedule:%s", request->schedule);
    lap_about_json(&json, "cpu");
    lap_json_put(&json, "}");
}

/* ---- pictures ---- */

enum { LEFT = 64, TOP = 64, ROW = 34, BAR = 28, WIDTH = 1400, LABELLED = 18 };

/* Stages of a rank after its first are darker; a bar has its micro-batch in it where there is room. */
static void draw_action(FILE *file, const request_t *request, const lap_pipeline_t *pipeline,
                        const lap_pipe_action_t *action, uint32_t rank, double begin, double unit)
{
    static const char *const colours[LAP_PIPE_WORKS] = {
        [LAP_PIPE_FORWARD] = "#0072b2",
        [LAP_PIPE_BACKWARD] = "#009e73",
        [LAP_PIPE_INPUT_GRAD] = "#009e73",
        [LAP_PIPE_WEIGHT_GRAD] = "#e69f00",
    };
    char text[LAP_PIPE_TEXT];
    const double width = lap_pipe_cost(&request->costs, action) * unit;
    const double x = LEFT + begin * unit;
    const uint32_t y = TOP + rank * ROW;
    const bool later = action->stage >= pipeline->ranks;
    fprintf(file,
            "<g><title>rank %u: %s, from %g</title><rect x=\"%.2f\" y=\"%u\" width=\"%.2f\" "
            "height=\"%d\" fill=\"%s\" fill-opacity=\"%s\" stroke=\"#ffffff\"/>",
            (unsigned)rank, lap_pipe_text(action, text), begin, x, (unsigned)y, width, BAR,
            colours[action->work], later ? "0.65" : "1");
    if (width >= LABELLED)
        fprintf(file, "<text x=\"%.2f\" y=\"%u\" text-anchor=\"middle\" fill=\"%s\">%u</text>",
                x + width / 2, (unsigned)y + BAR / 2 + 5,
                later || action->work == LAP_PIPE_WEIGHT_GRAD ? "#111111" : "#ffffff",
                (unsigned)action->micro);
    fprintf(file, "</g>\n");
}

static void draw(FILE *file, const request_t *request, const lap_pipeline_t *pipeline,
                 const lap_pipe_times_t *times)
{
    const double unit = times->span > 0 ? WIDTH / times->span : 1;
    const uint32_t height = TOP + pipeline->ranks * ROW + 16;
    const double busy = most_busy(pipeline, times);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
            "<text x=\"16\" y=\"24\" font-size=\"16\">%u ranks, %u stages, %u micro-batches: %g, "
            "%.1f %% bubble</text>\n",
            LEFT + WIDTH + 16, (unsigned)height, (unsigned)pipeline->ranks,
            (unsigned)pipeline->stages, (unsigned)pipeline->micros, times->span,
            times->span > 0 ? 100 * (times->span - busy) / times->span : 0);
    fprintf(file,
            "<text x=\"16\" y=\"48\"><tspan fill=\"#0072b2\">forward</tspan>  <tspan "
            "fill=\"#009e73\" dx=\"12\">backward, or gradient of the input</tspan>  <tspan "
            "fill=\"#b07800\" dx=\"12\">gradient of the weights</tspan><tspan dx=\"12\">paler: a "
            "rank's later stages; the number is the micro-batch</tspan></text>\n");
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        fprintf(file, "<text x=\"16\" y=\"%u\">rank %u</text>\n",
                (unsigned)(TOP + r * ROW) + BAR / 2 + 5, (unsigned)r);
        for (uint32_t i = 0; i < pipeline->rows[r].nactions; i++)
            draw_action(file, request, pipeline, &pipeline->rows[r].actions[i], r,
                        times->begins[r][i], unit);
    }
    fprintf(file, "</svg>\n");
}

/* ---- the commands ---- */

static lap_status_t write_files(const request_t *request, const lap_pipeline_t *pipeline,
                                const lap_pipe_times_t *times)
{
    lap_output_t output;
    if (request->csv) {
        LAP_TRY(lap_output_open("the table", request->csv, &output));
        LAP_TRY(lap_output_close(&output, lap_pipeline_write(pipeline, output.file)));
    }
    if (request->svg) {
        LAP_TRY(lap_output_open("the picture", request->svg, &output));
        draw(output.file, request, pipeline, times);
        LAP_TRY(lap_output_close(&output, LAP_OK));
    }
    return LAP_OK;
}

static lap_status_t answer(const request_t *request, const lap_pipeline_t *pipeline,
                           const lap_pipe_times_t *times)
{
    LAP_TRY(write_files(request, pipeline, times));
    if (request->json)
        print_json(request, pipeline, times);
    else if (request->command == &show_command)
        print_text(request, pipeline, times);
    else {
        print_heading(request, pipeline);
        printf(
            "proved: every stage does each micro-batch forward and backward, in order, and no rank "
            "waits for ever\n");
    }
    return LAP_OK;
}

static int run(const lap_command_t *command, int argc, char **argv)
{
    lap_args_t args;
    request_t request = {.command = command};
    const int parsed = lap_args_parse(command, argc, argv, &args);
    if (parsed != LAP_CLI_GO)
        return parsed;
    if (!parse(&args, &request))
        return LAP_CLI_USAGE;
    lap_pipeline_t pipeline;
    lap_pipe_times_t times = {.span = 0};
    lap_status_t status = load(&request, &pipeline);
    int result = LAP_CLI_OK;
    if (status == LAP_OK && !agrees(&args, &request, &pipeline))
        result = LAP_CLI_USAGE;
    if (status == LAP_OK && result == LAP_CLI_OK)
        status = lap_pipeline_simulate(&pipeline, &request.costs, &times);
    if (status == LAP_OK && result == LAP_CLI_OK)
        status = answer(&request, &pipeline, &times);
    if (status != LAP_OK)
        result = lap_args_refused(command, status, "");
    if (status == LAP_ERR_CHECK)
        result = LAP_CLI_FAILED;
    lap_pipe_times_clear(&times, pipeline.ranks);
    lap_pipeline_clear(&pipeline);
    return result;
}

int lap_cli_show_pipeline(int argc, char **argv)
{
    return run(&show_command, argc, argv);
}

int lap_cli_check_pipeline(int argc, char **argv)
{
    return run(&check_command, argc, argv);
}
