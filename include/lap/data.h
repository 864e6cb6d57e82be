/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens to train on, from files of llm.c: a header of 256 int32 (magic, version, number of tokens),
 * then the tokens, all little-endian. Several files are read as one sequence of tokens.
 *
 *   magic 20240520, version 1   tokens are uint16 (GPT-2, and bytes)
 *   magic 20240801, version 7   tokens are uint32 (Llama 3)
 *
 * Sample i of `seq` tokens begins at token i * seq of the sequence and has one token more, the target
 * of its last one: that token begins sample i + 1. Which tokens sample i has depends only on i. Step s
 * with a global batch of b takes the samples s * b to s * b + b - 1, so that every grid of ranks sees
 * the same data in the same order.
 *
 * Files are read where a sample lies, by pread: nothing is loaded ahead, and a file that is cut while it
 * is in use is an error with its position, not a signal.
 */
#ifndef LAP_DATA_H
#define LAP_DATA_H

#include <stddef.h>
#include <stdint.h>

#include <lap/export.h>
#include <lap/status.h>

LAP_BEGIN_DECLS

/* Files of tokens, open for reading. */
typedef struct lap_data lap_data_t;

/* What is read of them. */
typedef struct lap_data_options {
    size_t size;  /* sizeof(lap_data_options_t), set by LAP_DATA_OPTIONS_INIT */
    size_t seq;   /* tokens of a sample, without its last target */
    size_t vocab; /* tokens must be below it; 0: whatever the files hold */
    int wraps;    /* after the last sample comes the first; 0: that is an error */
} lap_data_options_t;

/* Options in which seq is still to be set. */
#define LAP_DATA_OPTIONS_INIT                                                                      \
    {                                                                                              \
        sizeof(lap_data_options_t), 0, 0, 1                                                        \
    }

/*
 * Opens files of tokens. The headers are read and held against the sizes of the files; tokens are not
 * read.
 * Local. Writes *data_p on success; the caller closes it. `paths` is not needed afterwards.
 * Returns LAP_ERR_INVALID (an argument; or a file that is not one of tokens, is cut or too long, or the
 * files have fewer than seq + 1 tokens: with its name and what was expected), LAP_ERR_SYSTEM (it
 * cannot be opened or read), LAP_ERR_NO_MEMORY.
 */
LAP_API lap_status_t lap_data_open(const char *const *paths, size_t npaths,
                                   const lap_data_options_t *options, lap_data_t **data_p);

/* Closes them. Local, NULL is fine. */
LAP_API void lap_data_close(lap_data_t *data);

/* The number of tokens, and of whole samples. Local. */
LAP_API uint64_t lap_data_tokens(const lap_data_t *data);
LAP_API uint64_t lap_data_samples(const lap_data_t *data);

/*
 * Reads the seq + 1 tokens of a sample: the first seq are its input, the last seq its targets.
 * Local; blocks for the files. May be called from several threads at once.
 * Returns LAP_ERR_INVALID (a sample past the last without `wraps`; a token that is not below `vocab`:
 * with the file and its position), LAP_ERR_SYSTEM (a file cannot be read, or was cut).
 */
LAP_API lap_status_t lap_data_sample(const lap_data_t *data, uint64_t sample, uint32_t *tokens);

LAP_END_DECLS

#endif
