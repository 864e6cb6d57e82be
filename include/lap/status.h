/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses: the result of every call that can fail, and the sentence that goes with it. */
#ifndef LAP_STATUS_H
#define LAP_STATUS_H

#include <lap/export.h>

LAP_BEGIN_DECLS

/* The single list of statuses: name, value, text. Failures are negative. */
#define LAP_STATUS_LIST(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(IN_PROGRESS, 1, "still in progress")                                                         \
    X(ERR_INVALID, -1, "invalid argument")                                                         \
    X(ERR_NO_MEMORY, -2, "out of memory")                                                          \
    X(ERR_MISMATCH, -3, "the ranks disagree")                                                      \
    X(ERR_PEER_LOST, -4, "peer lost")                                                              \
    X(ERR_TIMEOUT, -5, "timeout")                                                                  \
    X(ERR_UNSUPPORTED, -6, "not supported")                                                        \
    X(ERR_SYSTEM, -7, "system error")                                                              \
    X(ERR_BUSY, -8, "busy")                                                                        \
    X(ERR_CHECK, -9, "the schedule is not safe")                                                   \
    X(ERR_INTERNAL, -10, "internal error")

/* A status: the names of LAP_STATUS_LIST with LAP_ before them, such as LAP_OK. */
#define LAP_STATUS_ENUM(name, value, text) LAP_##name = (value),
typedef enum lap_status { LAP_STATUS_LIST(LAP_STATUS_ENUM) } lap_status_t;
#undef LAP_STATUS_ENUM

/*
 * What a status means, in a few words.
 * Local. Never NULL, also for a value that is no status. The string belongs to the library.
 */
LAP_API const char *lap_status_string(lap_status_t status);

/*
 * The sentence of the last failure on the calling thread: which argument or rank, its value, what
 * was expected.
 * Local. "" when no call has failed on this thread yet. A call that succeeds does not change it,
 * nor does one that destroys an object, such as lap_op_destroy. The string belongs to the library;
 * the next failure on the same thread overwrites it.
 */
LAP_API const char *lap_last_error(void);

LAP_END_DECLS

#endif
