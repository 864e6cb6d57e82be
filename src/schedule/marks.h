/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks for profilers that listen to NVTX, such as Nsight Systems: ranges with a name around what a
 * thread issues, which they also show where it runs on a GPU.
 */
#ifndef LAP_SCHEDULE_MARKS_H
#define LAP_SCHEDULE_MARKS_H

typedef struct lap_marks lap_marks_t;

/* NULL when nobody listens, or this build has no NVTX: then there is nothing to mark. */
lap_marks_t *lap_marks_open(void);
void lap_marks_close(lap_marks_t *marks); /* NULL is fine */

/* A range of the calling thread; they nest. The marks are not NULL. */
void lap_marks_push(lap_marks_t *marks, const char *name);
void lap_marks_pop(lap_marks_t *marks);

#endif
