/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU without enough memory: the error has how much was asked for and how much is free,
 * all ranks fail together, nothing is lost, and smaller things work afterwards. See suite.h for how
 * it is started; on a device that works in the memory of the host there is nothing to test here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "suite.h"
#include "tap.h"

#define ABSURD ((size_t)1 << 50)
#define SLACK ((size_t)16 << 20) /* small buffers that peers have not unmapped yet */

enum { BUFFERS = 64 };

/* The numbers in the sentence of a failure: "no memory for A bytes ... has B of C bytes free". */
static bool read_sentence(const char *sentence, size_t *asked_p, size_t *free_p)
{
    const char *text = strstr(sentence, "no memory for ");
    int gpu;
    size_t total;
    return text &&
           sscanf(text, "no memory for %zu bytes on device cuda: GPU %d has %zu of %zu bytes free",
                  asked_p, &gpu, free_p, &total) == 4 &&
           *free_p <= total;
}

/* Asks for more than there is, to learn how much there is. */
static size_t free_bytes(lap_group_t *group)
{
    lap_device_t *device = test_device(group);
    void *memory;
    size_t asked = 0, free = 0;
    const lap_status_t status = device->ops->alloc(device, ABSURD, &memory);
    tap_ok(status == LAP_ERR_NO_MEMORY && read_sentence(lap_last_error(), &asked, &free) &&
               asked == ABSURD,
           "2^50 bytes: %s", lap_last_error());
    return free;
}

/* When all ranks have given up what they had: the next end of a buffer frees that at last. */
static size_t settled_bytes(lap_group_t *group)
{
    lap_buffer_t *buffer = NULL;
    lap_group_barrier(group);
    tap_success(lap_buffer_create(group, 64, 1, NULL, &buffer), "a small buffer");
    lap_buffer_destroy(buffer);
    lap_group_barrier(group);
    const size_t bytes = free_bytes(group);
    lap_group_barrier(group);
    return bytes;
}

/* A rank may also return the sentence of another one. */
static void test_absurd(lap_group_t *group)
{
    lap_buffer_t *buffer = NULL;
    lap_op_t *op = NULL;
    lap_op_desc_t desc = LAP_OP_DESC_INIT;
    desc.kind = LAP_AG_GEMM;
    desc.m = (size_t)1 << 24;
    desc.n = 64;
    desc.k = (size_t)1 << 24;
    size_t asked = 0, free = 0;
    tap_ok(lap_buffer_create(group, ABSURD, 1, NULL, &buffer) == LAP_ERR_NO_MEMORY &&
               read_sentence(lap_last_error(), &asked, &free) && asked >= ABSURD && free < asked,
           "a buffer of 2^50 bytes: %s", lap_last_error());
    if (lap_group_size(group) == 1)
        return; /* nothing travels: there is nothing to be allocated */
    tap_ok(lap_op_create(group, &desc, &op) == LAP_ERR_NO_MEMORY &&
               read_sentence(lap_last_error(), &asked, &free) && asked > free,
           "an operator for 2^50 bytes: %s", lap_last_error());
}

/* As many buffers as fit, and one more. */
static void test_full(lap_group_t *group)
{
    lap_buffer_t *buffers[BUFFERS] = {NULL};
    uint64_t mine = free_bytes(group) / 8, all[64];
    lap_group_allgather(group, &mine, sizeof(mine), all);
    for (int r = 0; r < lap_group_size(group); r++)
        mine = all[r] < mine ? all[r] : mine;
    lap_status_t status = LAP_OK;
    int count = 0;
    while (count < BUFFERS && status == LAP_OK) {
        status = lap_buffer_create(group, mine, 1, NULL, &buffers[count]);
        count += status == LAP_OK;
    }
    size_t asked = 0, free = 0;
    tap_ok(status == LAP_ERR_NO_MEMORY && count > 0 &&
               read_sentence(lap_last_error(), &asked, &free) && asked >= mine,
           "%d buffers of %" PRIu64 " bytes fit; then %s", count, mine, lap_last_error());
    for (int i = 0; i < count; i++)
        lap_buffer_destroy(buffers[i]);
}

static void test_use(lap_group_t *group)
{
    const test_flavour_t plain = test_plain();
    const test_shape_t shape = {3 * (size_t)lap_group_size(group) + 2, 9, 6};
    const test_method_t ring = {LAP_AG_GEMM, "ring", 0, 0, 0, 0};
    lap_op_t *op = test_op(group, NULL, &ring, &plain, &shape);
    tap_ok(op && test_run(op, test_call(group, &ring, &plain, &shape, shape.m, 1, true)) == 0,
           "an operator works");
    lap_op_destroy(op);
}

static void suite(lap_group_t *group)
{
    if (!test_device(group)) {
        tap_skip("this device has no memory of its own");
        return;
    }
    test_use(group); /* what is made once is there */
    const size_t before = settled_bytes(group);
    for (int round = 0; round < 3; round++) {
        test_absurd(group);
        test_full(group);
        test_use(group);
    }
    const size_t after = settled_bytes(group);
    tap_ok(after + SLACK >= before, "%zu bytes were free before, %zu are after", before, after);
}

int main(int argc, char **argv)
{
    return test_suite(argc, argv, suite);
}
