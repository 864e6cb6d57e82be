/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that a signal ends while it waits for the others at its directory would leave that there;
 * `lap run` removes it for its ranks, other launchers do not know of it. Between begin and end
 * signals whose effect is to end the process still do, but take the directory away first, unless it
 * was there before. The library itself cannot do that: signals belong to the program. SIGKILL still
 * leaves the directory, which the next job of the same place then takes over.
 */
#ifndef LAP_CLI_RENDEZVOUS_H
#define LAP_CLI_RENDEZVOUS_H

/* A process has one rendezvous at a time. `dir`: where this rank is the host; "": nowhere. */
void lap_rendezvous_begin(const char *dir);
void lap_rendezvous_end(void);

#endif
