/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel a GEMM gets on a GPU, over the fake driver, whose GEMMs take the time that is set:
 * of two that are about as fast, on Hopper the one that takes less power, elsewhere the one that
 * cuBLASLt proposes first; and always the one that is faster by more than a trifle, unless it adds in
 * another order than the first: times must not decide about bits. What fails on a GPU is reported,
 * and not taken for a GPU that is busy or full.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "each.h"
#include "shared.h"
#include "tap.h"

#define ROWS 512u
#define K 256u
#define TIMES 32

static char log_path[] = "kernel_choice.XXXXXX"; /* where the fake tells of GEMMs */

static void set_times(int wide_s, int tall_s)
{
    char text[TIMES];
    (void)snprintf(text, sizeof(text), "%d %d", tall_s, wide_s);
    (void)setenv("FAKE_GEMM_S", text, 1);
}

/* The tile of the one kernel that has run since; "" if there were others, or none. */
static const char *read_tile(void)
{
    static char tile[TIMES];
    char more[TIMES];
    FILE *file = fopen(log_path, "r");
    const int found = file ? fscanf(file, "%31s %31s", tile, more) : 0;
    if (file)
        (void)fclose(file);
    return found == 1 ? tile : "";
}

/* The tile of the kernel that does a GEMM which nobody has asked for before, as n is another. */
static const char *choose(size_t n, int wide_s, int tall_s)
{
    const size_t element = lap_dtype_size(LAP_BFLOAT16);
    char *a = new_shared(device, ROWS * K * element), *b = new_shared(device, n * K * element);
    char *d = new_shared(device, ROWS * n * element);
    lap_gemm_block_t block = {
        .rows = ROWS, .a = a, .a_stride = K * element, .d = d, .d_stride = n * element};
    const lap_gemm_t gemm = {.a_dtype = LAP_BFLOAT16,
                             .b_dtype = LAP_BFLOAT16,
                             .d_dtype = LAP_BFLOAT16,
                             .scale = 1,
                             .n = n,
                             .k = K,
                             .b = b,
                             .b_stride = K * element,
                             .blocks = &block,
                             .nblocks = 1};
    set_times(wide_s, tall_s);
    const bool prepared = ops->gemm_prepare(stream, &gemm, true) == LAP_OK;
    const bool cleared = truncate(log_path, 0) == 0;
    const bool done = prepared && cleared && ops->gemm(stream, &gemm) == LAP_OK &&
                      ops->stream_synchronize(stream) == LAP_OK;
    free_shared(device, a);
    free_shared(device, b);
    free_shared(device, d);
    return done ? read_tile() : lap_last_error();
}

static void test_choice(void)
{
    const char *capability = getenv("FAKE_CAPABILITY");
    const bool hopper = !capability || strcmp(capability, "90") == 0;
    static const struct {
        int wide_s, tall_s;
        const char *hopper, *other;
    } cases[] = {
        {100, 100, "128x256", "256x128"}, {102, 100, "128x256", "256x128"},
        {98, 100, "128x256", "256x128"},  {105, 100, "256x128", "256x128"},
        {94, 100, "128x256", "128x256"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *expected = hopper ? cases[i].hopper : cases[i].other;
        const char *tile = choose(ROWS + 8 * i, cases[i].wide_s, cases[i].tall_s);
        tap_ok(strcmp(tile, expected) == 0, "128x256 in %d s, 256x128 in %d: %s, expected %s",
               cases[i].wide_s, cases[i].tall_s, tile, expected);
    }
}

/* However fast it is, on any GPU. */
static void test_bits(void)
{
    static const char *const others[] = {"FAKE_OTHER_ID", "FAKE_OTHER_SPLIT", "FAKE_OTHER_SCHEME"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        (void)setenv(others[i], "2", 1);
        const char *tile = choose(ROWS + 8 * (20 + i), 50, 100);
        (void)unsetenv(others[i]);
        tap_ok(strcmp(tile, "256x128") == 0, "%s=2, twice as fast: %s, expected 256x128", others[i],
               tile);
    }
}

static void test_failures(void)
{
    static const struct {
        const char *call, *what;
    } cases[] = {
        {"cuStreamQuery now:700", "what a stream of the GPU was given failed"},
        {"cuMemAlloc now:700", "cuMemAlloc failed"},
    };
    (void)choose(ROWS + 8 * 9, 100, 100); /* what is made once is there */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)setenv("FAKE_FAILS", cases[i].call, 1);
        const char *sentence = choose(ROWS + 8 * (10 + i), 100, 100);
        (void)unsetenv("FAKE_FAILS");
        tap_ok(strstr(sentence, cases[i].what) && strstr(sentence, "CUDA_ERROR_ILLEGAL_ADDRESS"),
               "%s: %s", cases[i].call, sentence);
    }
    const char *tile = choose(ROWS + 8 * 10, 100, 100);
    tap_ok(strstr(tile, "x") && strlen(tile) == 7, "afterwards a kernel is found: %s", tile);
}

static void test_all(void)
{
    test_choice();
    test_bits();
    test_failures();
}

int main(void)
{
    const int file = mkstemp(log_path);
    if (file < 0)
        return 1;
    (void)close(file);
    (void)setenv("FAKE_GEMMS", log_path, 1);
    const int result = test_devices("cuda", test_all);
    (void)unlink(log_path);
    return result;
}
