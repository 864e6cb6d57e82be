/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices against each other: the same calls in a world on each of them, with the same data. Where
 * sums are exact all give the same bits; else each is as near to the truth as all must be, so that
 * no two are further apart than twice that.
 *
 * devices NAME...: ranks are the processes of the world that the environment describes.
 */
#include <stdlib.h>
#include <string.h>

#include "suite.h"
#include "tap.h"

enum { DEVICES = 4 };

/* The bytes of d, or of y where there is no d; the caller frees them. */
static void *keep_result(const lap_op_args_t *args, size_t *bytes_p)
{
    const lap_tensor_t *tensor = args->d.data ? &args->d : &args->y;
    const size_t bytes = tensor->rows * tensor->stride * lap_dtype_size(tensor->dtype);
    void *saved = malloc(bytes + 1);
    memcpy(saved, tensor->data, bytes);
    *bytes_p = bytes;
    return saved;
}

/* Runs a call on one device; NULL when it fails or is not right. */
static void *run(lap_group_t *group, lap_op_t *op, const test_method_t *v,
                 const test_shape_t *shape, bool exact, size_t *bytes_p)
{
    const test_flavour_t plain = test_plain();
    test_call_t call = test_call(group, v, &plain, shape, shape->m, 11, exact);
    void *result = NULL;
    test_call_init(&call);
    if (test_call_run(op, &call) == LAP_OK && test_call_error(&call) <= (exact ? 0 : 1))
        result = keep_result(&call.args, bytes_p);
    test_call_clear(&call);
    return result;
}

/* How many of the devices have not the result of the first one, or none at all. */
static int count_others(lap_world_t **worlds, int ndevices, const test_method_t *v)
{
    const test_flavour_t plain = test_plain();
    const size_t size = (size_t)lap_group_size(lap_world_group(worlds[0]));
    const test_shape_t shape = {4 * size + 3, 2 * size + 5, 3 * size + 4};
    void *first = NULL;
    size_t first_bytes = 0;
    int others = 0;
    for (int i = 0; i < ndevices; i++) {
        lap_group_t *group = lap_world_group(worlds[i]);
        size_t bytes = 0;
        lap_op_t *op = test_op(group, NULL, v, &plain, &shape);
        void *exact = op ? run(group, op, v, &shape, true, &bytes) : NULL;
        void *random = op ? run(group, op, v, &shape, false, &bytes) : NULL;
        if (i == 0) {
            first = exact;
            first_bytes = bytes;
            exact = NULL;
            others += !first;
        } else {
            others += !first || !exact || bytes != first_bytes || memcmp(first, exact, bytes) != 0;
        }
        others += !random;
        free(exact);
        free(random);
        lap_op_destroy(op);
    }
    free(first);
    return others;
}

int main(int argc, char **argv)
{
    static const lap_dtype_t dtypes[] = {LAP_FLOAT32, LAP_FLOAT16, LAP_BFLOAT16};
    lap_world_t *worlds[DEVICES];
    char text[128];
    int n = 0;
    if (argc < 2 || argc - 1 > DEVICES)
        return 2;
    for (; n < argc - 1; n++) {
        lap_world_options_t options = LAP_WORLD_OPTIONS_INIT;
        options.device = argv[n + 1];
        if (!tap_success(lap_world_create(&options, &worlds[n]), "a world on %s", argv[n + 1]))
            return tap_done();
    }
    const int size = lap_world_size(worlds[0]);
    for (size_t t = 0; t < sizeof(dtypes) / sizeof(dtypes[0]); t++) {
        test_setting.dtype = dtypes[t];
        const test_flavour_t plain = test_plain();
        for (int i = 0; i < TEST_METHODS; i++) {
            const test_method_t *v = &test_methods[i];
            if (!test_suits(v, &plain, size) || strcmp(v->method, "auto") == 0)
                continue;
            const int others = count_others(worlds, n, v);
            tap_ok(others == 0, "%s %s on %d devices: %d without the same result",
                   test_label(v, &plain, text, sizeof(text)), lap_dtype_name(dtypes[t]), n, others);
        }
    }
    for (int i = 0; i < n; i++)
        lap_world_destroy(worlds[i]);
    return tap_done();
}
