/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `lap train` prints: lines as it goes, from the first rank of each group; at the end tables
 * for people, or JSON for programs.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "about.h"
#include "bench.h"
#include "core/world.h"
#include "nn/nn_fields.h"
#include "stats.h"
#include "table.h"
#include "train.h"
#include "util/alloc.h"

/* ---- as it goes ---- */

void lap_train_log(const lap_train_t *train, const lap_group_t *speaker, const char *format, ...)
{
    char text[8704]; /* a list of all keys of a file, too */
    if (train->json || train->quiet || !speaker || lap_group_rank(speaker) != 0)
        return;
    const lap_world_t *world = speaker->world;
    lap_train_progress_end(train, speaker);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* One write for each line, so that those of several ranks do not mix. */
    printf("[rank%d:node%d] %s\n", world->rank, world->rank / world->local_size, text);
    fflush(stdout);
}

void lap_train_log_group(const lap_train_t *train, const char *what, const lap_group_t *group)
{
    char ranks[400];
    size_t used = 0;
    if (!group)
        return;
    for (int r = 0; r < lap_group_size(group) && used < sizeof(ranks); r++)
        used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%d", r ? ", " : "",
                                 lap_group_world_rank(group, r));
    lap_train_log(train, group, "|-- Created %s group: [%s]", what, ranks);
}

/* A remark; where standard output is for JSON or results only, on standard error. */
static void remark(const lap_train_t *train, const lap_group_t *world, const char *text)
{
    lap_train_log(train, world, "|-- %s", text);
    if ((train->json || train->quiet) && lap_group_rank(world) == 0)
        lap_tell(lap_train_command.name, "%s", text);
}

/* Something about a file. */
static void log_of_file(const lap_train_t *train, const lap_group_t *world, const char *path,
                        const char *text)
{
    char line[9216];
    snprintf(line, sizeof(line), "%s: %s", path, text);
    remark(train, world, line);
}

void lap_train_log_unused(const lap_train_t *train, const lap_group_t *world)
{
    char unused[256], alone[LAP_TRAIN_ALONE_TEXT], text[8448];
    if (lap_train_alone(train, alone))
        remark(train, world, alone);
    if (train->config && *train->config_unused) {
        snprintf(text, sizeof(text), "without effect: %s", train->config_unused);
        log_of_file(train, world, train->config, text);
    }
    if (!train->rules_path)
        return;
    if (lap_tp_overlap_unused(&train->rules, train->device, unused, sizeof(unused)) > 0) {
        snprintf(text, sizeof(text), "without effect on device %s: %s", train->device, unused);
        log_of_file(train, world, train->rules_path, text);
    }
    if (!train->desc.sequence_parallel)
        log_of_file(train, world, train->rules_path,
                    "without effect with --no-sequence-parallel: rules that gather rows");
}

static bool communicates(const lap_nn_gemm_t *gemm)
{
    return gemm->kind && gemm->bytes > 0;
}

/* One line: which method which GEMMs have, and who chose it. */
static void log_methods(const lap_train_t *train, const lap_group_t *tp,
                        const lap_train_result_t *result)
{
    char text[1024] = "", why[64] = "";
    size_t used = 0;
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        const char *method = result->gemms[g].method, *comma = "";
        bool listed = !communicates(&result->gemms[g]);
        for (int h = 0; h < g && !listed; h++)
            listed =
                communicates(&result->gemms[h]) && strcmp(result->gemms[h].method, method) == 0;
        if (listed)
            continue;
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s for ", used ? "; " : "",
                                 method);
        for (int h = g; h < LAP_TRAIN_OTHERS; h++)
            if (communicates(&result->gemms[h]) && strcmp(result->gemms[h].method, method) == 0) {
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", comma,
                                         lap_train_row_name(h));
                comma = ", ";
            }
    }
    if (train->tuned[0])
        snprintf(why, sizeof(why), ", as lap tune found on %s", train->tuned);
    else if (result->overlap && train->switches.automatic)
        snprintf(why, sizeof(why), ", by measurement");
    if (used > 0)
        lap_train_log(train, tp, "|-- Overlap%s: %s", why, text);
}

void lap_train_log_gemms(const lap_train_t *train, const lap_group_t *tp,
                         const lap_train_result_t *result)
{
    size_t most = 0;
    int count = 0;
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        const lap_nn_gemm_t *gemm = &result->gemms[g];
        if (!communicates(gemm))
            continue;
        if (train->debug)
            lap_train_log(train, tp, "|-- Register buffer: %-10s %9.1f KiB  %s, %s",
                          lap_train_row_name(g), (double)gemm->bytes / 1024, gemm->kind,
                          gemm->method);
        most = gemm->bytes > most ? gemm->bytes : most;
        count++;
    }
    log_methods(train, tp, result);
    if (count > 0)
        lap_train_log(train, tp, "|-- %d GEMM%s that communicate share a buffer of %.1f KiB", count,
                      count > 1 ? "s" : "", (double)most / 1024);
}

/* ---- tables ---- */

static double ms(double seconds)
{
    return seconds * 1e3;
}

static void print_request(const lap_train_t *train, const lap_train_result_t *result)
{
    const lap_nn_desc_t *desc = &train->desc;
    char link[64], micro[32] = "", more[48] = "";
    lap_bench_link_text(&result->link, link, sizeof(link));
    if (train->grid.cp > 1 || train->grid.pp > 1)
        snprintf(more, sizeof(more), " cp %d, pp %d,", train->grid.cp, train->grid.pp);
    if (train->micro > 1)
        snprintf(micro, sizeof(micro), " in %d micro-batches", train->micro);
    printf("\n%s, tp %d,%s dp %d, %s%s, hidden %zu, seq %zu, batch %zu%s, layers %zu,\n"
           "device %s, transport %s, %s\n",
           train->model ? train->model : lap_nn_kind_name(desc->kind), train->grid.tp, more,
           train->grid.dp, lap_dtype_name(desc->dtype), desc->fp8 ? " with FP8" : "", desc->hidden,
           desc->seq, train->batch, micro, desc->layers, train->device, train->transport, link);
}

/*
 * The median of a figure, `offset` bytes into each iteration; of those that were traced, or were
 * not, if these are separate. The first of them is cold, and counts only if it is the only one.
 */
static double median(const lap_train_t *train, const lap_train_result_t *result, bool traced,
                     size_t offset, double *room)
{
    int count = 0;
    for (int i = 0; i < result->done; i++)
        if (!train->apart || result->iterations[i].traced == traced)
            memcpy(&room[count++], (const char *)&result->iterations[i] + offset, sizeof(double));
    if (count == 0)
        return 0; /* interrupted before those that are traced */
    const int cold = count > 1;
    return lap_stats(room + cold, (size_t)(count - cold)).median;
}

/*
 * What ranks typically waited for, in parts as those of all iterations that count: medians of the parts
 * would not add up.
 */
static void share_causes(const lap_train_result_t *result, int row, lap_train_comm_t *comm)
{
    double sums[LAP_CAUSES] = {0}, waited = 0;
    int seen = 0, traced = 0;
    for (int i = 0; i < result->done; i++)
        traced += result->iterations[i].traced;
    for (int i = 0; i < result->done; i++) {
        const lap_train_comm_t *own = &result->iterations[i].rows[row];
        if (!result->iterations[i].traced || (seen++ == 0 && traced > 1))
            continue;
        for (int c = 0; c < LAP_CAUSES; c++) {
            sums[c] += own->causes[c];
            waited += own->causes[c];
        }
    }
    for (int c = 0; c < LAP_CAUSES && waited > 0; c++)
        comm->causes[c] = comm->waited * sums[c] / waited;
}

/* The median of every figure; zeros when there is no memory for it. */
lap_train_iteration_t lap_train_typical(const lap_train_t *train, const lap_train_result_t *result)
{
    lap_train_iteration_t it = {.traced = train->trace};
    double *room = lap_alloc((size_t)result->done, sizeof(*room));
    if (!room)
        return it;
    it.seconds = median(train, result, false, offsetof(lap_train_iteration_t, seconds), room);
    it.passes = median(train, result, false, offsetof(lap_train_iteration_t, passes), room);
    it.bubble = median(train, result, true, offsetof(lap_train_iteration_t, bubble), room);
    for (int r = 0; r < LAP_TRAIN_ROWS; r++) {
        lap_train_comm_t *row = &it.rows[r];
        const size_t at = offsetof(lap_train_iteration_t, rows) + (size_t)r * sizeof(*row);
        row->total = median(train, result, true, at + offsetof(lap_train_comm_t, total), room);
        row->hidden = median(train, result, true, at + offsetof(lap_train_comm_t, hidden), room);
        row->exposed = row->total - row->hidden; /* in each iteration hidden is no more than all */
        row->waited = median(train, result, true, at + offsetof(lap_train_comm_t, waited), room);
        row->bytes = median(train, result, true, at + offsetof(lap_train_comm_t, bytes), room);
        share_causes(result, r, row);
    }
    lap_free(room);
    return it;
}

/* The columns of communication. */
#define BRIEF " %?14[communication] %?8[hidden] %?8[exposed]"
#define LONG BRIEF " %?8[waited] %?8[wire] %?8[late] %?8[core]"

/* A line: what is in the own columns of a table, and the communication of a row of an iteration. */
static void print_comm(const char *columns, const char *own, const lap_train_iteration_t *it,
                       int row)
{
    const lap_train_comm_t *comm = &it->rows[row];
    const double unit = it->traced ? 1e3 : NAN;
    lap_table_row(columns, "%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f", own, comm->total * unit,
                  comm->hidden * unit, comm->exposed * unit, comm->waited * unit,
                  comm->causes[LAP_CAUSE_WIRE] * unit, comm->causes[LAP_CAUSE_LATE] * unit,
                  comm->causes[LAP_CAUSE_CORE] * unit);
}

/* Whether there are figures of communication: a rank alone has none, and what was not traced is not known. */
static bool has_comm(const lap_train_comm_t *comm)
{
    return comm->total > 0 || comm->waited > 0;
}

static bool has_any_comm(const lap_train_result_t *result)
{
    bool any = false;
    for (int i = 0; i < result->done && !any; i++)
        any = has_comm(&result->iterations[i].rows[LAP_TRAIN_ALL]);
    return any;
}

double lap_train_tokens(const lap_train_t *train)
{
    return (double)train->desc.seq * (double)train->batch;
}

/* A figure of an iteration over its time; 0 when it took none. */
static double rate(double figure, double seconds)
{
    return seconds > 0 ? figure / seconds : 0;
}

static void print_iterations(const lap_train_t *train, const lap_train_result_t *result)
{
    const char *columns =
        has_any_comm(result)
            ? "%9[iteration]  %12[loss]  %10[time ms]  %9[passes]  %9[tokens/s]" BRIEF
            : "%9[iteration]  %12[loss]  %10[time ms]  %9[passes]  %9[tokens/s]";
    printf("\n");
    lap_table_head(columns);
    for (int i = 0; i < result->done; i++) {
        const lap_train_iteration_t *it = &result->iterations[i];
        /* A model may make thousands of steps: the table has those of --log-interval, and the last. */
        if (train->model && (result->first + i + 1) % train->log_interval != 0 &&
            i < result->done - 1)
            continue;
        char own[128];
        snprintf(own, sizeof(own), "%d\t%.9f\t%.3f\t%.3f\t%.0f", result->first + i + 1, it->loss,
                 ms(it->seconds), ms(it->passes), rate(lap_train_tokens(train), it->seconds));
        print_comm(columns, own, it, LAP_TRAIN_ALL);
    }
    if (train->quiet)
        return;
    if (train->trace && !train->apart && strcmp(train->device, "cuda") == 0)
        lap_spelling_print(stdout, "All iterations were traced, which takes time: with --iters 3 "
                                   "or more some are not.\n");
    if (train->apart)
        printf("Iterations with figures of communication were traced, which takes time: their "
               "times do not count.\n");
}

static void print_comm_rows(const lap_train_t *train, const lap_train_result_t *result,
                            const lap_train_iteration_t *it)
{
    static const struct {
        int row;
        const char *words;
    } others[] = {{LAP_TRAIN_OTHERS, "other collectives\t\t"},
                  {LAP_TRAIN_MESSAGES, "messages between stages\t\t"},
                  {LAP_TRAIN_GRADIENTS, "gradients to replicas\t\t"}, /* contexts sum them, too */
                  {LAP_TRAIN_ALL, "all\t\t"}};
    const bool several = result->done > 1 && result->iterations[result->done - 2].traced;
    static const char columns[] = "%-10[GEMM]  %-8[operator]  %-8[method]" LONG;
    printf("\n");
    lap_table_head(columns);
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        char words[80];
        if (!result->gemms[g].kind || !has_comm(&it->rows[g]))
            continue;
        snprintf(words, sizeof(words), "%s\t%s\t%s", lap_train_row_name(g), result->gemms[g].kind,
                 result->gemms[g].method);
        print_comm(columns, words, it, g);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (has_comm(&it->rows[others[i].row]))
            print_comm(columns, others[i].words, it, others[i].row);
    if (!train->quiet)
        printf("ms%s; hidden: the rank computed, exposed: it did not; waited in calls for\n"
               "the wire, a rank that was late, or a core; all%s: of a step, what happens at once "
               "counts once\n",
               several ? ", medians without the first" : "",
               train->grid.pp > 1 ? ", messages" : "");
}

static void print_rows(const lap_train_t *train, const lap_train_result_t *result)
{
    const lap_train_iteration_t it = lap_train_typical(train, result);
    if (has_any_comm(result))
        print_comm_rows(train, result, &it);
    else
        printf("\n");
    if (train->grid.pp > 1 && it.traced && it.passes > 0)
        printf(
            "bubble %.3f ms, %.0f %% of the passes: a rank waits for what other stages compute\n",
            ms(it.bubble), 100 * it.bubble / it.passes);
    if (result->predicted > 0 && it.passes > 0)
        printf("passes %.3f ms, predicted %.3f ms (%+.0f %%)\n", ms(it.passes),
               ms(result->predicted), 100 * (result->predicted / it.passes - 1));
    printf("%.0f tokens/s, %.3g TFLOP/s of a rank's GEMMs",
           rate(lap_train_tokens(train), it.seconds), rate(result->flops, it.seconds) * 1e-12);
    if (result->peak > 0)
        printf(", MFU %.1f %%", 100 * lap_train_mfu(train, result, it.seconds));
    if (it.traced)
        printf(", %.3g GB/s that a rank sends",
               rate(it.rows[LAP_TRAIN_ALL].bytes, it.seconds) * 1e-9);
    printf("\n");
}

/* What overlap has hidden of what is exposed without it. */
static void print_comparison(const lap_train_t *train, const lap_train_result_t *results)
{
    const lap_train_iteration_t with = lap_train_typical(train, &results[0]);
    const lap_train_iteration_t without = lap_train_typical(train, &results[1]);
    bool same = results[0].done ==
                results[1].done; /* by their bits: what is not a number is not equal to itself */
    for (int i = 0; i < results[1].done; i++)
        same = same && memcmp(&results[0].iterations[i].loss, &results[1].iterations[i].loss,
                              sizeof(results[0].iterations[i].loss)) == 0;
    const lap_train_comm_t *all = &with.rows[LAP_TRAIN_ALL];
    const lap_train_comm_t *serial = &without.rows[LAP_TRAIN_ALL];
    char own[64];
    const char *columns = has_any_comm(&results[0]) || has_any_comm(&results[1])
                              ? "%-16[]  %10[time ms]  %10[passes]" LONG
                              : "%-16[]  %10[time ms]  %10[passes]";
    printf("\n");
    lap_table_head(columns);
    snprintf(own, sizeof(own), "without overlap\t%.3f\t%.3f", ms(without.seconds),
             ms(without.passes));
    print_comm(columns, own, &without, LAP_TRAIN_ALL);
    snprintf(own, sizeof(own), "with overlap\t%.3f\t%.3f", ms(with.seconds), ms(with.passes));
    print_comm(columns, own, &with, LAP_TRAIN_ALL);
    if (train->apart)
        printf("\nOverlap %s %.3f ms %s forward and backward, in which communication takes %.3f ms "
               "without it.",
               with.passes > without.passes ? "adds" : "takes",
               fabs(ms(without.passes - with.passes)), with.passes > without.passes ? "to" : "off",
               ms(serial->total));
    else if (serial->exposed > 0 && all->exposed <= serial->exposed)
        printf("\nOverlap hides %.0f %% of what is exposed without it.",
               100 * (1 - all->exposed / serial->exposed));
    else if (serial->exposed > 0)
        printf("\nOverlap exposes %.0f %% more than is exposed without it.",
               100 * (all->exposed / serial->exposed - 1));
    printf("\nAn iteration is %.2f times as fast with it, forward and backward are %.2f times.\n",
           without.seconds / with.seconds, without.passes / with.passes);
    printf("The losses are %s.\n", same ? "the same to the last bit" : "not bit for bit the same");
    if (!same && !train->quiet && strcmp(train->device, "cpu") == 0)
        printf(
            "OpenBLAS may round a GEMM otherwise that is cut into pieces; --device ref does not, "
            "nor does it on\nmost processors unless LAP_BLAS_EVEN is 0.\n");
}

/* The last line. */
static void print_hidden(const lap_train_t *train, const lap_train_result_t *result)
{
    const lap_train_iteration_t it = lap_train_typical(train, result);
    const lap_train_comm_t *all = &it.rows[LAP_TRAIN_ALL];
    if (it.traced && all->total > 0)
        printf("\nCommunication %.3f ms of a step%s, %.0f %% hidden, %.3f ms exposed.\n",
               ms(all->total), train->compare ? " with overlap" : "",
               100 * all->hidden / all->total, ms(all->exposed));
}

static void print_tables(const lap_train_t *train, const lap_train_result_t *results, size_t count)
{
    print_request(train, &results[0]);
    for (size_t i = 0; i < count && results[i].done > 0; i++) {
        if (count > 1)
            printf("\n%s\n", results[i].overlap ? "With overlap:" : "Without overlap:");
        print_iterations(train, &results[i]);
        print_rows(train, &results[i]);
    }
    if (count > 1 && results[1].done > 0)
        print_comparison(train, results);
    if (train->interrupted)
        printf("\nInterrupted: %d of %d iterations.\n", results[count - 1].done,
               train->interrupted);
    lap_bench_print_cores(train->device, results[0].local_ranks, results[0].cores);
    if (results[0].done > 0)
        print_hidden(train, &results[0]);
}

/* ---- JSON ---- */

void lap_train_json_comm(lap_json_t *json, const lap_train_comm_t *comm, bool traced)
{
    const double unit = traced ? 1e3 : NAN;
    lap_json_put(json,
                 "comm_ms:%.9g hidden_ms:%.9g exposed_ms:%.9g waited_ms:%.9g waited_wire_ms:%.9g "
                 "waited_late_ms:%.9g waited_core_ms:%.9g",
                 comm->total * unit, comm->hidden * unit, comm->exposed * unit, comm->waited * unit,
                 comm->causes[LAP_CAUSE_WIRE] * unit, comm->causes[LAP_CAUSE_LATE] * unit,
                 comm->causes[LAP_CAUSE_CORE] * unit);
}

/* Of an iteration, or of a typical one, over its time. */
static void json_rates(lap_json_t *json, const lap_train_t *train, const lap_train_result_t *result,
                       const lap_train_iteration_t *it)
{
    const double bytes = it->rows[LAP_TRAIN_ALL].bytes;
    lap_json_put(json, "tokens_per_s:%.6g tflops:%.6g mfu:%.6g wire_gbps:%.6g",
                 rate(lap_train_tokens(train), it->seconds),
                 rate(result->flops, it->seconds) * 1e-12,
                 lap_train_mfu(train, result, it->seconds),
                 it->traced ? rate(bytes, it->seconds) * 1e-9 : NAN);
}

static void json_iteration(lap_json_t *json, const lap_train_t *train,
                           const lap_train_result_t *result, const lap_train_iteration_t *it)
{
    lap_json_put(json, "{loss:%.17g grad_norm:%.17g ms:%.6g", it->loss,
                 lap_train_has_norm(train) ? it->norm : NAN, ms(it->seconds));
    lap_train_json_comm(json, &it->rows[LAP_TRAIN_ALL], it->traced);
    lap_json_put(json, "passes_ms:%.6g issue_ms:%.6g traced:%i", ms(it->passes), ms(it->issue),
                 it->traced);
    json_rates(json, train, result, it);
    lap_json_put(json, "}");
}

static void json_result(lap_json_t *json, const lap_train_t *train,
                        const lap_train_result_t *result)
{
    const lap_train_iteration_t it = lap_train_typical(train, result);
    lap_json_put(json, "overlap:%i iterations:[", result->overlap);
    for (int i = 0; i < result->done; i++)
        json_iteration(json, train, result, &result->iterations[i]);
    lap_json_put(json, "] gemms:[");
    for (int g = 0; g < LAP_TRAIN_OTHERS; g++) {
        const lap_nn_gemm_t *gemm = &result->gemms[g];
        if (!gemm->kind)
            continue;
        lap_json_put(json, "{gemm:%s op:%s method:%s bytes:%zu", lap_train_row_name(g), gemm->kind,
                     gemm->method, gemm->bytes);
        lap_train_json_comm(json, &it.rows[g], it.traced);
        lap_json_put(json, "}");
    }
    lap_json_put(json, "] collectives:{");
    lap_train_json_comm(json, &it.rows[LAP_TRAIN_OTHERS], it.traced);
    if (train->grid.pp > 1) {
        lap_json_put(json, "} messages:{");
        lap_train_json_comm(json, &it.rows[LAP_TRAIN_MESSAGES], it.traced);
        lap_json_put(json, "bubble_ms:%.6g", it.traced ? ms(it.bubble) : NAN);
    }
    lap_json_put(json, "} gradients:{");
    lap_train_json_comm(json, &it.rows[LAP_TRAIN_GRADIENTS], it.traced);
    lap_json_put(json, "} all:{");
    lap_train_json_comm(json, &it.rows[LAP_TRAIN_ALL], it.traced);
    lap_json_put(json, "}");
    lap_json_digest(json, result->digest);
    lap_json_put(json, "predicted_ms:%.6g passes_ms:%.6g",
                 result->predicted > 0 ? ms(result->predicted) : NAN, ms(it.passes));
    json_rates(json, train, result, &it);
}

/* What else the layers and the optimizer are made of. */
static void json_model(lap_json_t *json, const lap_train_t *train)
{
    const lap_nn_desc_t *desc = &train->desc;
    lap_json_put(json, "heads:%zu kv_heads:%zu head_dim:%zu ffn:%zu activation:%s norm:%s",
                 desc->heads, lap_nn_kv_heads(desc), desc->head_dim, lap_nn_ffn(desc),
                 lap_activation_names[desc->activation], lap_norm_names[desc->norm]);
    if (train->model)
        lap_json_put(json, "model:%s vocab:%zu positions:%s tied:%i", train->model, desc->vocab,
                     lap_positions_names[desc->positions], desc->tied);
    lap_json_put(json, "optimizer:%s lr:%.9g", lap_optimizer_names[train->optimizer.kind],
                 (double)train->optimizer.lr);
}

static void print_json(const lap_train_t *train, const lap_train_result_t *results, size_t count)
{
    const lap_nn_desc_t *desc = &train->desc;
    const lap_grid_t *grid = &train->grid;
    lap_json_t json = {.file = stdout};
    lap_json_put(&json, "{layer:%s tp:%d cp:%d pp:%d dp:%d", lap_nn_kind_name(desc->kind), grid->tp,
                 grid->cp, grid->pp, grid->dp);
    if (grid->cp > 1)
        lap_json_put(&json, "cp_comm_type:%s", lap_cp_comm_names[desc->cp_comm]);
    if (grid->pp > 1)
        lap_json_put(&json, "schedule:%s", train->pipeline.schedule);
    lap_json_put(&json, "dtype:%s device:%s", lap_dtype_name(desc->dtype), train->device);
    json_result(&json, train, &results[0]);
    lap_json_put(&json,
                 "fp8:%s hidden:%zu seq:%zu batch:%zu micro_batches:%d layers:%zu transport:%s",
                 lap_fp8_recipe_names[desc->fp8], desc->hidden, desc->seq, train->batch,
                 train->micro, desc->layers, train->transport);
    json_model(&json, train);
    lap_json_put(&json, "tuned:%s", train->tuned[0] ? train->tuned : NULL);
    lap_bench_json_link(&json, &results[0].link);
    if (count > 1) {
        lap_json_put(&json, "baseline:{");
        json_result(&json, train, &results[1]);
        lap_json_put(&json, "}");
    }
    if (train->interrupted)
        lap_json_put(&json, "interrupted:true");
    lap_json_put(&json, "tokens:%.0f gemm_flops:%.9g seed:%lu cores:%d local_ranks:%d",
                 lap_train_tokens(train), results[0].flops, desc->seed, results[0].cores,
                 results[0].local_ranks);
    lap_about_json(&json, train->device);
    lap_json_put(&json, "}");
}

void lap_train_report(const lap_train_t *train, const lap_train_result_t *results, size_t count)
{
    (train->json ? print_json : print_tables)(train, results, count);
}
