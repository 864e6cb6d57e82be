/* SPDX-License-Identifier: Apache-2.0 */
/* The line that `lap train --model` prints of each step: for people, or as JSON. */
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

#include "train.h"

static const char *const kinds[] = {"tp", "dp"};
enum { KINDS = 2 };

/* Communication of a kind, of all GEMMs or of gradients. */
static lap_train_comm_t comm_of(const lap_train_iteration_t *it, int kind)
{
    lap_train_comm_t sum = {.total = 0};
    if (kind == 1)
        return it->rows[LAP_TRAIN_GRADIENTS];
    for (int g = 0; g < LAP_TRAIN_GRADIENTS; g++) {
        sum.total += it->rows[g].total;
        sum.hidden += it->rows[g].hidden;
        sum.exposed += it->rows[g].exposed;
    }
    return sum;
}

/* Whether there is any. */
static bool has_kind(const lap_train_t *train, int kind)
{
    return kind == 0 ? train->grid.tp > 1 : train->grid.dp > 1;
}

/* Of this rank, at most so far. */
static double memory_mib(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024 : 0;
}

static void print_number(const char *key, double number, const char *format)
{
    printf(",\"%s\":", key);
    if (isfinite(number))
        printf(format, number); /* NOLINT(clang-diagnostic-format-nonliteral): of this file */
    else
        printf("null");
}

static void print_json(const lap_train_t *train, int step, const lap_train_iteration_t *it,
                       double lr, double flops)
{
    printf("{\"step\":%d", step);
    print_number("loss", it->loss, "%.17g");
    print_number("grad_norm", it->norm, "%.17g");
    print_number("lr", lr, "%.9g");
    print_number("ms", it->seconds * 1e3, "%.6g");
    print_number("tokens_per_s", lap_train_tokens(train) / it->seconds, "%.6g");
    print_number("tflops", flops / it->seconds * 1e-12, "%.6g");
    print_number("memory_mib", memory_mib(), "%.6g");
    printf(",\"comm\":{");
    bool first = true;
    for (int k = 0; k < KINDS; k++) {
        const lap_train_comm_t comm = comm_of(it, k);
        if (!has_kind(train, k) || !it->traced)
            continue;
        printf("%s\"%s\":{\"ms\":%.6g,\"hidden_ms\":%.6g,\"exposed_ms\":%.6g}", first ? "" : ",",
               kinds[k], comm.total * 1e3, comm.hidden * 1e3, comm.exposed * 1e3);
        first = false;
    }
    printf("}}\n");
    fflush(stdout);
}

void lap_train_say_step(const lap_train_t *train, const lap_group_t *world, int step,
                        const char *way, const lap_train_iteration_t *it, double flops)
{
    char comm[160] = "";
    size_t used = 0;
    const double lr = lap_optimizer_rate(&train->optimizer, (size_t)step);
    if (lap_group_rank(world) != 0)
        return;
    if (train->json && !train->compare)
        print_json(train, step, it, lr, flops);
    for (int k = 0; k < KINDS && it->traced; k++) {
        const lap_train_comm_t sum = comm_of(it, k);
        if (has_kind(train, k))
            used +=
                (size_t)snprintf(comm + used, sizeof(comm) - used, ", %s %.3g ms (%.3g exposed)",
                                 kinds[k], sum.total * 1e3, sum.exposed * 1e3);
    }
    lap_train_say(train, world,
                  "Step %d/%d%s: loss %.6f, norm %.4g, lr %.4g, %.4g ms, %.0f tokens/s, "
                  "%.3g TFLOP/s, %.0f MiB%s",
                  step, train->iters, way, it->loss, it->norm, lr, it->seconds * 1e3,
                  lap_train_tokens(train) / it->seconds, flops / it->seconds * 1e-12, memory_mib(),
                  comm);
}
