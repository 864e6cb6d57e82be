/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories that nobody but this user can enter: where ranks meet, and where the MPS daemon has
 * its sockets. They lie where others may write, so a path is never trusted twice: it is opened
 * once, and what happens inside happens through the descriptor. Removed is only what we have made.
 */
#ifndef LAP_CORE_PRIVATE_DIR_H
#define LAP_CORE_PRIVATE_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/un.h>

#include "core/environment.h"

/*
 * Thinks of a path below lap_environment_base that nobody can guess: "<base>/<prefix><16 digits>".
 * `room` is for what the caller adds to it, with its end.
 */
lap_status_t lap_private_dir_name(const char *prefix, size_t room, char dir[LAP_DIR_BYTES]);

/* Makes the directory and opens it. On failure nothing is left of it. */
lap_status_t lap_private_dir_make(const char *dir, int *fd_p);

/*
 * A new directory for ranks to meet in, with a name of its own; and its end, with the socket if a
 * rank has left that. On failure `dir` is "" and *fd_p -1; removing that does nothing.
 */
lap_status_t lap_rendezvous_dir_make(char dir[LAP_DIR_BYTES], int *fd_p);
void lap_rendezvous_dir_remove(const char *dir, int fd);

/*
 * Opens a directory that is there: no link, ours, closed to others; what is not is refused with a
 * sentence. Where there is nothing *fd_p is -1.
 */
lap_status_t lap_private_dir_open(const char *dir, int *fd_p);

/*
 * What follows may be called by a handler of signals. The first is lap_private_dir_open without a
 * sentence: -1 in all other cases.
 */
int lap_private_dir_look(const char *dir);

/*
 * The address of the socket where ranks meet, in an open directory; and a new socket for it, which
 * never blocks: -1 with errno.
 */
struct sockaddr_un lap_private_dir_socket(int fd);
int lap_private_dir_open_socket(void);

/* Whether there is that socket, of this user; and its removal: false when there was none. */
bool lap_private_dir_has_socket(int fd);
bool lap_private_dir_remove_socket(int fd);

/*
 * Removes an open directory, if it is empty and still has its name. What somebody has put in its
 * place stays. The descriptor stays open.
 */
void lap_private_dir_remove(const char *dir, int fd);

#endif
