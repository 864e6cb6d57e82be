/* SPDX-License-Identifier: Apache-2.0 */
/* How much arithmetic GPUs can do at most, as their makers publish it. */
#ifndef LAP_CLI_PEAK_H
#define LAP_CLI_PEAK_H

#include <lap/tensor.h>

/*
 * TFLOP/s of dense products of a type, with sums in fp32, of the GPU that the driver calls `name`; 0:
 * not known. float32 is without TF32, as GEMMs here are.
 */
double lap_peak_tflops(const char *name, lap_dtype_t dtype);

#endif
