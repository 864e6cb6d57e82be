/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GEMMs of a calibration: those that are cut have sizes that a GPU multiplies FP8 matrices of,
 * and stay within what they may cost.
 */
#include <stdio.h>

#include "tap.h"

#include "schedule/calibrate_gemm.h"

#define LIKED 64u

static const lap_calibrate_extent_t extent = {
    .volume = 1e12, .weight = 268435456.0, .width = 65536};

static bool is_liked(size_t cut, size_t given)
{
    return cut == given || cut < LIKED || cut % LIKED == 0;
}

static void check_size(size_t size)
{
    char example[160] = "";
    for (size_t rows = 64; rows <= 16384; rows *= 2)
        for (uint64_t most = 1000000; most <= 1000000000000; most = most / 10 * 17) {
            const lap_calibrate_shape_t shape =
                lap_calibrate_cut(&extent, (double)rows, size, size, (double)most);
            const double products = (double)shape.n * (double)shape.k;
            const bool right =
                is_liked(shape.n, size) && is_liked(shape.k, size) && shape.n > 0 && shape.k > 0 &&
                (products * (double)rows <= (double)most || products == 1) && shape.rows == rows;
            if (!right && !*example)
                snprintf(example, sizeof(example), ": %zu rows, volume %.4g give n %zu, k %zu",
                         rows, (double)most, shape.n, shape.k);
        }
    tap_ok(!*example, "GEMMs of n = k = %zu are cut to multiples of %u%s", size, LIKED, example);
}

int main(void)
{
    static const size_t sizes[] = {1, 40, 64, 512, 1000, 4096, 8192, 50257};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_size(sizes[i]);
    const lap_calibrate_shape_t whole = lap_calibrate_cut(&extent, 2048, 4096, 1000, 1e12);
    tap_ok(whole.n == 4096 && whole.k == 1000, "one that is small enough is not cut: %zu, %zu",
           whole.n, whole.k);
    return tap_done();
}
