/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LayerNorm and RMSNorm on a host: row after row, in double, rounded once. The sums over rows are
 * taken in double, in the order of rows.
 */
#include <math.h>
#include <string.h>

#include "kernel/host/host.h"

/* Scratch: rows of float for what is widened, and of double for results and sums. */
typedef struct rows {
    float *x, *dy, *skip;
    double *result, *dgamma, *dbeta;
} rows_t;

size_t lap_host_norm_scratch(size_t rows, size_t cols)
{
    (void)rows;
    return cols * (3 * sizeof(double) + 3 * sizeof(float));
}

static rows_t cut(void *scratch, size_t cols)
{
    double *doubles = scratch;
    float *floats = (float *)(doubles + 3 * cols);
    return (rows_t){floats,  floats + cols,  floats + 2 * cols,
                    doubles, doubles + cols, doubles + 2 * cols};
}

static double mean_of(const float *x, size_t cols)
{
    double sum = 0;
    for (size_t c = 0; c < cols; c++)
        sum += (double)x[c];
    return sum / (double)cols;
}

static double mean_square_of(const float *x, double mean, size_t cols)
{
    double sum = 0;
    for (size_t c = 0; c < cols; c++)
        sum += ((double)x[c] - mean) * ((double)x[c] - mean);
    return sum / (double)cols;
}

void lap_run_norm_forward(const lap_norm_forward_t *norm)
{
    const size_t cols = norm->x.cols;
    const rows_t room = cut(norm->scratch, cols);
    for (size_t i = 0; i < norm->x.rows; i++) {
        const float *x = lap_floats_of(&norm->x, i, 0, room.x, cols);
        const double mean = norm->kind == LAP_LAYERNORM ? mean_of(x, cols) : 0;
        const double rstd = 1 / sqrt(mean_square_of(x, mean, cols) + (double)norm->epsilon);
        for (size_t c = 0; c < cols; c++)
            room.result[c] = ((double)x[c] - mean) * rstd * (double)norm->gamma[c] +
                             (norm->beta ? (double)norm->beta[c] : 0);
        norm->mean[i] = (float)mean;
        norm->rstd[i] = (float)rstd;
        lap_from_double(norm->y.dtype, room.result, lap_element(&norm->y, i, 0), cols);
    }
}

/*
 * With g = dy gamma and n = (x - mean) rstd: dx = rstd (g - mean(g) - n mean(g n)), without mean(g)
 * where x was not centred. Adds this row to the sums.
 */
static void turn_row(const lap_norm_backward_t *norm, size_t i, const float *x, const float *dy,
                     const rows_t *room)
{
    const double mean = (double)norm->mean[i], rstd = (double)norm->rstd[i];
    double g_sum = 0, gn_sum = 0;
    for (size_t c = 0; c < norm->x.cols; c++) {
        const double g = (double)dy[c] * (double)norm->gamma[c];
        const double n = ((double)x[c] - mean) * rstd;
        g_sum += g;
        gn_sum += g * n;
        room->dgamma[c] += (double)dy[c] * n;
        room->dbeta[c] += (double)dy[c];
    }
    const double g_mean = norm->kind == LAP_LAYERNORM ? g_sum / (double)norm->x.cols : 0;
    const double gn_mean = gn_sum / (double)norm->x.cols;
    for (size_t c = 0; c < norm->x.cols; c++) {
        const double g = (double)dy[c] * (double)norm->gamma[c];
        const double n = ((double)x[c] - mean) * rstd;
        room->result[c] = rstd * (g - g_mean - n * gn_mean);
    }
}

void lap_run_norm_backward(const lap_norm_backward_t *norm)
{
    const size_t cols = norm->x.cols;
    const rows_t room = cut(norm->scratch, cols);
    memset(room.dgamma, 0, 2 * cols * sizeof(double)); /* and dbeta, which follows it */
    for (size_t i = 0; i < norm->x.rows; i++) {
        const float *x = lap_floats_of(&norm->x, i, 0, room.x, cols);
        const float *dy = lap_floats_of(&norm->dy, i, 0, room.dy, cols);
        turn_row(norm, i, x, dy, &room);
        if (norm->skip.data) {
            const float *skip = lap_floats_of(&norm->skip, i, 0, room.skip, cols);
            for (size_t c = 0; c < cols; c++)
                room.result[c] += (double)skip[c];
        }
        lap_from_double(norm->dx.dtype, room.result, lap_element(&norm->dx, i, 0), cols);
    }
    lap_from_double(LAP_FLOAT32, room.dgamma, norm->dgamma, cols);
    if (norm->dbeta)
        lap_from_double(LAP_FLOAT32, room.dbeta, norm->dbeta, cols);
}
