/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The angles of rotary positions: plain, and scaled as Hugging Face's transformers scale those of Llama 3.2
 * (rope_type "llama3"), whose formula gave the numbers below.
 */
#include <math.h>

#include "nn/nn.h"
#include "tap.h"

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

int main(void)
{
    /* Of Llama 3.2 1B: heads of 64, theta 500000, a factor of 32. */
    static const struct {
        size_t pair;
        double rate;
    } rows[] = {{0, 1.0},
                {8, 0.03760603093086393},
                {14, 0.003211445994752591}, /* as ever */
                {15, 0.001290547928209264}, /* mixed, */
                {16, 0.00042955679655936815},
                {17, 9.70828780262767e-05},
                {18, 1.9461638184831125e-05}, /* slower */
                {20, 8.570255489881478e-06},
                {31, 9.41830672543491e-08}};
    lap_nn_desc_t desc = LAP_NN_DESC_INIT;
    desc.head_dim = 64;
    desc.rope_theta = 500000;
    for (size_t i = 0; i < 32; i++)
        tap_ok(is_near(lap_nn_rope_rate(&desc, i), pow(500000, -(double)i / 32)),
               "pair %zu turns as ever with a factor of 1", i);
    desc.rope_factor = 32;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tap_ok(is_near(lap_nn_rope_rate(&desc, rows[i].pair), rows[i].rate),
               "scaled, pair %zu turns by %.17g, expected %.17g", rows[i].pair,
               lap_nn_rope_rate(&desc, rows[i].pair), rows[i].rate);
    return tap_done();
}
