/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the suites of operators share: all methods of all kinds with their knobs, flavours (types,
 * layout and epilogue) to cross them with, and a world to run in. Ranks are the processes of the
 * world that the environment describes, or threads with --threads P; --device, --dtype and --link
 * choose the rest. --quick 1 makes fewer calls with fewer shapes and without `auto`, which
 * measures first, for what would take too long. A new backend gets all of it by one more line in
 * the list of tests.
 */
#ifndef LAP_TEST_OVERLAP_SUITE_H
#define LAP_TEST_OVERLAP_SUITE_H

#include "data.h"
#include "methods.h"

/* What else there is to say about an operator. Types that a kind has not are left out. */
typedef struct test_flavour {
    const char *name;
    lap_dtype_t a, b, out, wire, y;
    lap_layout_t layout;
    lap_epilogue_t epilogue;
    bool accumulate;
    lap_dtype_t vector, aux; /* of bias and bias_grad; of aux */
    bool no_aux;
    bool moves; /* also for the kinds that move an x, which else would only repeat a GEMM */
} test_flavour_t;

/* The suite's own type and nothing else. */
test_flavour_t test_plain(void);

typedef struct test_shape {
    size_t m, n, k;
} test_shape_t;

/* Set once, before the ranks begin. */
typedef struct test_setting {
    lap_link_t link;
    lap_dtype_t dtype;
    bool bits_promised; /* an element has the same bits however rows and columns are split */
    bool in_place;      /* the transport has what the methods that read in place need */
    bool quick;
} test_setting_t;
extern test_setting_t test_setting;

/* How often something is repeated that would be `count` times otherwise. */
static inline int test_times(int count)
{
    return test_setting.quick ? (count + 4) / 5 : count;
}

/* Runs the suite as every rank. What main returns. */
int test_suite(int argc, char **argv, void (*suite)(lap_group_t *group));

/* Whether there is an operator of this method and flavour in a group of `size` ranks. */
bool test_suits(const test_method_t *method, const test_flavour_t *flavour, int size);

/* "gemm_rs/pipeline+3 bf16 bias". */
const char *test_label(const test_method_t *method, const test_flavour_t *flavour, char *text,
                       size_t bytes);

lap_op_desc_t test_describe(const test_method_t *method, const test_flavour_t *flavour,
                            const test_shape_t *shape);

/* A buffer with the suite's link, large enough for all methods with all of these flavours. */
lap_buffer_t *test_buffer(lap_group_t *group, const test_flavour_t *flavours, size_t nflavours,
                          const test_shape_t *shape);

/* An operator; NULL, with a failure noted, when it cannot be made. */
lap_op_t *test_op(lap_group_t *group, lap_buffer_t *buffer, const test_method_t *method,
                  const test_flavour_t *flavour, const test_shape_t *shape);

/* A call of `m` rows, not yet initialised. */
test_call_t test_call(lap_group_t *group, const test_method_t *method,
                      const test_flavour_t *flavour, const test_shape_t *shape, size_t m,
                      uint64_t seed, bool exact);

/*
 * Makes the data of a call, runs it, and returns the error over its bound; infinity when it fails.
 */
double test_run(lap_op_t *op, test_call_t call);

#endif
