/* SPDX-License-Identifier: Apache-2.0 */
/* Options that mean the same wherever ranks are started, as entries of a table of options. */
#ifndef LAP_CLI_SHARED_OPTIONS_H
#define LAP_CLI_SHARED_OPTIONS_H

/* clang-format off */
#define LAP_OPTION_DEVICE                                                                          \
    0, "device", "NAME", "cpu, ref or cuda (default LAP_DEVICE, or else cpu)", NULL

#define LAP_OPTION_TRANSPORT                                                                       \
    0, "transport", "NAME",                                                                       \
     "shm (ranks are processes) or self (ranks are threads of one process); under mpirun also mpi " \
     "(messages between all ranks) or hosts (messages between hosts, shm inside); with --device "  \
     "cuda cuda_ipc or nccl (default LAP_TRANSPORT, or else what fits)",                           \
     NULL

#define LAP_OPTION_GPU_SHARE                                                                       \
    0, "gpu-share", "[=MODE]",                                                                    \
     "parts of GPUs for the ranks, as in lap run: on, auto or off (default auto with --device "    \
     "cuda, else off)",                                                                            \
     NULL

#define LAP_OPTION_TIMEOUT                                                                         \
    0, "timeout", "SECONDS",                                                                      \
     "how long a rank waits for another (default LAP_TIMEOUT_S, or else 60)", NULL

#define LAP_OPTION_JSON 0, "json", NULL, "print one JSON object on one line", NULL

#define LAP_OPTION_AFTER                                                                           \
    0, "after", "PASS",                                                                           \
     "stop after this pass of lowering; build: show the schedule as it was built "                 \
     "(default: after all)",                                                                       \
     NULL

#define LAP_OPTION_EACH                                                                            \
    0, "each", NULL, "show the schedule as built, and after each pass that the target needs", NULL

#define LAP_OPTION_SVG 0, "svg", "FILE", "draw it into a file instead", NULL

#define LAP_OPTION_TARGET_OF_DEVICE                                                                \
    0, "target", "NAME", "lower for cpu, cuda or nccl (default: as --device and --transport)", NULL

/* `of` says what is in the file. */
#define LAP_OPTION_TRACE(of)                                                                       \
    0, "trace", "FILE.json[.gz]",                                                                 \
     "write the timeline of " of ", for ui.perfetto.dev and lap report; .gz: compressed", NULL

#define LAP_OPTION_TRACE_FORMAT                                                                    \
    0, "trace-format", "NAME",                                                                    \
     "format of --trace: perfetto, or kineto, a file FILE.RANK.json for each rank as "             \
     "PyTorch's profiler writes it",                                                               \
     NULL

#define LAP_OPTION_CONFIG_KEYS                                                                     \
    0, "config-keys", NULL,                                                                       \
     "list all keys of --config without effect, also those of other tools, of which there is a "   \
     "count else",                                                                                 \
     NULL
/* clang-format on */

#endif
