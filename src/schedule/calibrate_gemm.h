/* SPDX-License-Identifier: Apache-2.0 */
/* What calibrate.c and calibrate_gemm.c share: one rank at its measurements. */
#ifndef LAP_SCHEDULE_CALIBRATE_GEMM_H
#define LAP_SCHEDULE_CALIBRATE_GEMM_H

#include "schedule/calibrate.h"
#include "util/clock.h"

/*
 * What a GEMM of many rows writes does not fit into a cache. With few products to a sum it may be
 * slower than one of fewer rows, and is measured too.
 */
enum { LAP_MANY_ROWS = LAP_COST_POINTS - 1 };

/* How much is measured: what keeps a device busy for longer than it takes to tell it. */
typedef struct lap_calibrate_extent {
    double rows[LAP_COST_POINTS];    /* of the GEMMs; the last only where a sum has few products */
    double volume, weight;           /* most multiply-adds of one, and elements of its weight, */
    size_t width;                    /* and of its n and k */
    double first_rows, first_volume; /* of the one that says how fast the device is about */
    int repeats;                     /* of anything, issued at once */
} lap_calibrate_extent_t;

typedef struct lap_calibrate_shape {
    size_t rows, n, k;
} lap_calibrate_shape_t;

/*
 * A GEMM of so many rows with no more than `volume` multiply-adds: n and k are cut to what that
 * allows, evenly as far as they go, and to multiples that devices are fast with.
 */
lap_calibrate_shape_t lap_calibrate_cut(const lap_calibrate_extent_t *extent, double rows, size_t n,
                                        size_t k, double volume);

/* Multiply-adds per second: at each number of rows, and with few columns. */
typedef struct lap_calibrate_rates {
    double rows[LAP_COST_POINTS];
    double few_columns;
} lap_calibrate_rates_t;

/* Those of GEMMs of one type, n and k. A group keeps a list of them. */
typedef struct lap_gemm_rates {
    lap_dtype_t dtype;
    size_t n, k;
    lap_calibrate_rates_t rates;
    size_t all_n, few_n; /* columns of the last of rates.rows, and of rates.few_columns */
    struct lap_gemm_rates *next;
} lap_gemm_rates_t;

/* One rank at its measurements. */
typedef struct lap_calibration {
    lap_group_t *group;
    lap_engine_t *engine;
    const lap_device_ops_t *ops;
    lap_stream_t *stream;
    lap_buffer_t *buffer;
    lap_calibrate_extent_t extent;
    char *memory; /* what copies, or the GEMMs, need */
} lap_calibration_t;

static inline double lap_calibrate_since(uint64_t begin)
{
    return (double)(lap_now_ns() - begin) * 1e-9;
}

/*
 * The best figure of any rank, in place: all ranks are taken to run on cores of one kind, and what
 * makes one of them slower is then a disturbance. Collective.
 */
lap_status_t lap_calibrate_best(lap_group_t *group, double *figures, size_t count,
                                bool more_is_better);

/*
 * Memory with numbers that look random: pages that only exist on paper would be too fast, and so
 * would zeros be on some devices.
 */
lap_status_t lap_calibrate_alloc(lap_calibration_t *bench, lap_dtype_t dtype, size_t bytes);
void lap_calibrate_free(lap_calibration_t *bench);

/*
 * Measures the rates of GEMMs of the type, n and k of an entry, whose rates are 0. Where there is no
 * memory for them, or for what the device needs besides, GEMMs of fewer columns and products must
 * do. Collective.
 */
lap_status_t lap_calibrate_gemm(lap_calibration_t *bench, lap_gemm_rates_t *entry);

#endif
