/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a trace that is being drawn: its page (draw.c) and the bars on it (draw_bars.c). */
#ifndef LAP_SCHEDULE_DRAW_H
#define LAP_SCHEDULE_DRAW_H

#include <stdio.h>

#include "schedule/trace.h"

/* The page, in pixels. */
enum {
    PAGE_WIDTH = 1200,
    PLOT_LEFT = 136,
    PLOT_RIGHT = 1176,
    PLOT_TOP = 134,
    ROW_HEIGHT = 20,
    ROW_STEP = 24,
    RANK_GAP = 12,
    AXIS_HEIGHT = 48,
};

#define COLOUR_GEMM "#0072b2"
#define COLOUR_REDUCE "#009e73"
#define COLOUR_COPY "#cc79a7"
#define COLOUR_TRANSFER "#e69f00"
#define COLOUR_EMULATED "#f8d98c"
#define COLOUR_WAIT "#d9d9d9"
#define COLOUR_SIGNAL "#555555"

/* How each cause is hatched. */
typedef struct lap_hatch {
    const char *colour, *fill;
    const char *lines; /* within 6 by 6 pixels */
    const char *legend;
} lap_hatch_t;

extern const lap_hatch_t lap_hatches[LAP_CAUSES];

typedef struct lap_picture {
    FILE *file;
    const lap_trace_t *trace;
    lap_trace_view_t *views;     /* per rank */
    double (*rows)[LAP_STREAMS]; /* top of the row of each rank and stream; 0: not drawn */
    uint64_t begin, end;         /* what the axis shows */
    double bottom;               /* of the last row */
} lap_picture_t;

static inline double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static inline double x_at(const lap_picture_t *picture, uint64_t when)
{
    double part = (double)(when - picture->begin) / (double)(picture->end - picture->begin);
    return PLOT_LEFT + part * (PLOT_RIGHT - PLOT_LEFT);
}

/* What a record says: that it waited, what it sent, what it did. Each draws nothing where there is none. */
void lap_draw_wait(const lap_picture_t *picture, const lap_trace_record_t *record);
void lap_draw_flight(const lap_picture_t *picture, const lap_trace_record_t *record);
void lap_draw_work(const lap_picture_t *picture, const lap_trace_record_t *record);

/*
 * Hatches the time in which a rank's compute stream stood still. Gaps too narrow to see only count
 * in the sum.
 */
void lap_draw_waited(const lap_picture_t *picture, int rank);

#endif
