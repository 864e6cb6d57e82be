/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: when each step of a call ran on each rank, and the picture of it. */
#ifndef LAP_TRACE_H
#define LAP_TRACE_H

#include <stddef.h>

#include <lap/export.h>
#include <lap/status.h>
#include <lap/world.h>

LAP_BEGIN_DECLS

/* The times of the steps of one call of an operator. */
typedef struct lap_trace lap_trace_t;

/*
 * Makes an empty trace. Local. Writes *trace_p on success; the caller destroys it. A call that is
 * given the trace replaces its content. Returns LAP_ERR_NO_MEMORY, LAP_ERR_INVALID.
 */
LAP_API lap_status_t lap_trace_create(lap_trace_t **trace_p);

/* Ends a trace. Local, NULL is fine. */
LAP_API void lap_trace_destroy(lap_trace_t *trace);

/*
 * Brings the traces of all ranks together: afterwards rank 0's holds those of the whole group.
 * Collective over the group of the traced call, after the call has ended. Blocks.
 * Returns LAP_ERR_INVALID (NULL, or a trace that has been gathered already), LAP_ERR_MISMATCH
 * (another rank called something else), LAP_ERR_NO_MEMORY, LAP_ERR_PEER_LOST, LAP_ERR_TIMEOUT. When
 * one rank fails, all do.
 */
LAP_API lap_status_t lap_trace_gather(lap_trace_t *trace, lap_group_t *group);

/*
 * Draws a trace as an SVG timeline: a row per rank and stream, a colour per kind of step, a time
 * axis. Ranks are those of the group of the call: lap_group_world_rank gives them in the world. Time
 * in which a rank did no arithmetic is hatched by its cause: data on the wire, a rank that was late,
 * or a core. Causes on other ranks are known once the trace has been gathered; before, all waits
 * count as for the wire.
 * Local. `title` may be NULL. Writes the file whole or not at all. A file that is replaced passes
 * on its mode, and a symbolic link is followed if it is this user's or root's.
 * Returns LAP_ERR_INVALID (NULL, or an empty trace), LAP_ERR_SYSTEM (naming the path),
 * LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_trace_draw(const lap_trace_t *trace, const char *title, const char *path);

LAP_END_DECLS

#endif
