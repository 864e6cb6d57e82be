/* SPDX-License-Identifier: Apache-2.0 */
/* `lap bench` in a build without MPI: there is no baseline of it. */
#include "bench.h"

const lap_bench_baseline_ops_t *const lap_bench_mpi = NULL;
