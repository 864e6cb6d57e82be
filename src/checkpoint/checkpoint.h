/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of checkpoints: which tensors their files have, and which parts of these a rank has. */
#ifndef LAP_CHECKPOINT_CHECKPOINT_H
#define LAP_CHECKPOINT_CHECKPOINT_H

#include <lap/checkpoint.h>

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "checkpoint/safetensors.h"
#include "core/world.h"

struct lap_nn_list;

enum { LAP_CKPT_MODEL, LAP_CKPT_OPTIMIZER, LAP_CKPT_FILES = 3 }; /* and one for FP8 */
#define LAP_CKPT_MODEL_FILE "model.safetensors"
#define LAP_CKPT_OPTIMIZER_FILE "optimizer.safetensors"
#define LAP_CKPT_FP8_FILE "fp8.safetensors"
enum { LAP_CKPT_ARRAYS = 3 }; /* masters, first moments, second moments */

/* ---- names.c ---- */

/* The tensors that a parameter is in the files: one, or one for each of its parts. */
typedef struct lap_ckpt_tensors {
    size_t count;
    bool turned; /* they are transposed */
    char names[LAP_NN_PARTS][LAP_ST_NAME];
    size_t rows[LAP_NN_PARTS]; /* of each, before it is turned */
} lap_ckpt_tensors_t;

void lap_ckpt_names(const lap_nn_t *nn, const lap_nn_param_t *param, lap_ckpt_tensors_t *tensors_p);

/* The model of Hugging Face's transformers that has these layers, as "gpt2"; NULL: none. */
const char *lap_ckpt_model(const lap_nn_desc_t *desc);

#define LAP_CKPT_CONFIG_BYTES 1024 /* of config.json */

/* ---- layout.c ---- */

/* A part of a tensor of the files that this rank has: rows and columns of a weight. */
typedef struct lap_ckpt_piece {
    size_t tensor; /* its number among those of the model */
    bool turned;   /* the file has the transpose */
    bool counts;   /* of all ranks that have it this one writes it, and counts for its checksum */
    size_t at;     /* where it begins in lap_nn_masters */
    size_t rows, cols;
    size_t first_row, first_col; /* in the tensor, before it is turned */
    size_t all_rows, all_cols;
} lap_ckpt_piece_t;

/* The tensors of a file. A set is a tensor for each of the model, from one array. */
typedef struct lap_ckpt_file {
    const char *name;
    size_t nsets, first_array;
    const char *suffixes[2];  /* of the names of each set */
    lap_st_tensor_t *tensors; /* nsets * ntensors */
    char *header;
    size_t header_bytes;
    uint64_t bytes; /* of all of it */
} lap_ckpt_file_t;

/* Delayed FP8 scaling: the matrices with a history. Without it there is no file. */
typedef struct lap_ckpt_fp8 {
    lap_ckpt_file_t *file; /* NULL: none */
    size_t all;            /* matrices of the model, */
    size_t count;          /* and of this rank: */
    size_t *tensors;       /* the number of each among all */
    size_t length;         /* magnitudes of each: since scales were renewed, and the history */
    size_t replicas, contexts, replica; /* this rank's among both */
    float *own;   /* [count, length], as in the file; then as many as they are on the device */
    bool seen[2]; /* there was a forward, and a backward */
} lap_ckpt_fp8_t;

typedef struct lap_ckpt_layout {
    size_t ntensors; /* of the model */
    lap_ckpt_piece_t *pieces;
    size_t npieces;
    lap_ckpt_file_t files[LAP_CKPT_FILES];
    size_t nfiles, narrays;
    lap_ckpt_fp8_t fp8;
    char config[LAP_CKPT_CONFIG_BYTES]; /* config.json; "": none */
    size_t most;                        /* floats of the longest run of a piece that is turned */
} lap_ckpt_layout_t;

lap_status_t lap_ckpt_layout_init(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                                  lap_optimizer_t *optimizer, const lap_group_t *replicas);
void lap_ckpt_layout_clear(lap_ckpt_layout_t *layout);

/*
 * Goes through the runs of a piece that lie together in the file: `floats` is the piece, `room` has room
 * for layout->most. `run` is called with each, and where in the tensor it begins; it reads or writes
 * `run`, which is then put back if it `reads`.
 */
typedef lap_status_t (*lap_ckpt_run_t)(void *context, uint64_t first, float *run, size_t count);
lap_status_t lap_ckpt_piece_runs(const lap_ckpt_piece_t *piece, float *floats, float *room,
                                 bool reads, lap_ckpt_run_t run, void *context);

/* ---- fp8.c ---- */

/* Adds the file of magnitudes to a layout, if FP8 scales are delayed. `whole`: all of the model. */
lap_status_t lap_ckpt_fp8_init(lap_ckpt_layout_t *layout, const lap_nn_t *nn,
                               const struct lap_nn_list *whole, const lap_group_t *replicas);
lap_status_t lap_ckpt_fp8_reserve(lap_ckpt_fp8_t *fp8);
void lap_ckpt_fp8_clear(lap_ckpt_fp8_t *fp8);

/* As lap_ckpt_copy and lap_ckpt_collect, the latter over the ranks that share weights. */
lap_status_t lap_ckpt_fp8_copy(lap_checkpoint_t *checkpoint, bool to_host);
lap_status_t lap_ckpt_fp8_collect(lap_checkpoint_t *checkpoint, lap_status_t mine);

/* What this rank writes of the file; what it reads. Adds to, or writes, the sum of it. */
lap_status_t lap_ckpt_fp8_write(const lap_checkpoint_t *checkpoint, int fd, const char *path,
                                uint64_t *sum_p);
lap_status_t lap_ckpt_fp8_read(lap_checkpoint_t *checkpoint, const lap_st_file_t *file,
                               uint64_t *sum_p);

/* No pass has been: scales begin anew. */
void lap_ckpt_fp8_reset(lap_ckpt_fp8_t *fp8);

/* ---- describe.c ---- */

enum { LAP_CKPT_FIELDS = 32, LAP_CKPT_VALUE = 96 };
typedef struct lap_ckpt_field {
    char name[32], value[LAP_CKPT_VALUE];
} lap_ckpt_field_t;

typedef struct lap_ckpt_fields {
    size_t count;
    lap_ckpt_field_t all[LAP_CKPT_FIELDS];
} lap_ckpt_fields_t;

/* Adds one; of a value that is too long its end. */
void lap_ckpt_add_field(lap_ckpt_fields_t *fields, const char *name, const char *value);

/* The fields of a description that change what layers compute with their weights. */
void lap_ckpt_describe(const lap_nn_t *nn, lap_ckpt_fields_t *fields_p);

/* The value of the field of a name; NULL: there is none. Of one with another value than `field`. */
const char *lap_ckpt_find_field(const lap_ckpt_fields_t *fields, const char *name);
const char *lap_ckpt_other(const lap_ckpt_fields_t *fields, const lap_ckpt_field_t *field);

/* Whether fields are others than those of a checkpoint; writes each that differs, with both values. */
bool lap_ckpt_differs(const lap_ckpt_fields_t *theirs, const lap_ckpt_fields_t *ours, char *text,
                      size_t room);

/* ---- config.c ---- */

/* What config.json says of a model that Hugging Face's transformers know. Returns its length; 0: none. */
size_t lap_ckpt_config(const lap_nn_t *nn, char *text, size_t room);

/*
 * The fields that config.json gives of files of Hugging Face's transformers, and its keys that are no fields; none
 * without it: *there_p. `seq`: tokens of a sequence. LAP_ERR_INVALID: it is no JSON.
 */
lap_status_t lap_ckpt_read_config(const char *dir, size_t seq, lap_ckpt_fields_t *fields_p,
                                  bool *there_p);

/* Adds what such keys would be of these layers, if they are those of a model that is known there. */
void lap_ckpt_describe_config(const lap_nn_t *nn, lap_ckpt_fields_t *fields);

/* ---- manifest.c ---- */

typedef struct lap_ckpt_manifest {
    uint64_t step, samples, optimizer_steps;
    lap_ckpt_fields_t layers;   /* none: it was written before there were any */
    lap_ckpt_fields_t training; /* as the program has set them: its data and the like */
    size_t nfiles;
    struct {
        char name[32];
        uint64_t bytes, header_sum, sum;
    } files[LAP_CKPT_FILES];
} lap_ckpt_manifest_t;

/* Writes the manifest of a checkpoint, and waits until the disk has it. */
lap_status_t lap_ckpt_manifest_write(const char *dir, const lap_ckpt_manifest_t *manifest);

/*
 * LAP_ERR_INVALID: it is damaged. LAP_ERR_UNSUPPORTED: it is of a newer version. Else it cannot be read, or is not
 * there.
 */
lap_status_t lap_ckpt_manifest_read(const char *dir, lap_ckpt_manifest_t *manifest_p);
lap_status_t lap_ckpt_manifest_parse(const char *path, const char *text, size_t bytes,
                                     lap_ckpt_manifest_t *manifest_p);

/* ---- checkpoint.c ---- */

struct lap_checkpoint {
    lap_group_t *group;
    lap_nn_t *nn;
    lap_optimizer_t *optimizer; /* NULL: none */
    lap_ckpt_layout_t layout;
    size_t count;                       /* floats of an array */
    lap_ckpt_fields_t training, loaded; /* for the next save; of the checkpoint that was loaded */
    float *host; /* layout.narrays of them, one after the other; then layout.most more */

    bool saving; /* a save is in progress: */
    char dir[PATH_MAX];
    lap_ckpt_manifest_t manifest;
    pthread_t thread;
    atomic_bool ended; /* the thread has */
    bool joined;
    lap_status_t status; /* of the thread */
    char sentence[LAP_ERROR_TEXT];
};

/* Makes room for them on the host. */
lap_status_t lap_ckpt_reserve(lap_checkpoint_t *checkpoint);

/* Copies all arrays from the device to the host, or back; or this rank's part, where ranks share them. */
lap_status_t lap_ckpt_copy(lap_checkpoint_t *checkpoint, bool to_host);

/* Issues a copy of floats between the host and the device. */
lap_status_t lap_ckpt_copy_floats(lap_checkpoint_t *checkpoint, float *host, float *device,
                                  size_t count, bool to_host);

/*
 * Where ranks share the optimizer: makes the arrays of the host whole. Collective over them; `mine`: what has
 * failed here before. Else returns that.
 */
lap_status_t lap_ckpt_collect(lap_checkpoint_t *checkpoint, lap_status_t mine);

/* An array of the host. */
static inline float *lap_ckpt_array(const lap_checkpoint_t *checkpoint, size_t array)
{
    return checkpoint->host + array * checkpoint->count;
}

/* ---- folder.c ---- */

/* DIR/step-00000050, with a suffix; LAP_ERR_INVALID where that is too long. */
lap_status_t lap_ckpt_path(const char *dir, uint64_t step, const char *suffix, char path[PATH_MAX]);

/* Makes the folder of a checkpoint with its files, as large as they will be; by one rank. */
lap_status_t lap_ckpt_folder_make(const char *dir, const char *path,
                                  const lap_ckpt_layout_t *layout);

/*
 * Makes `dir` if it is not there, sees whether folders can be made in it, and locks it against other
 * trainings: *lock_p is a descriptor, which the caller closes. LAP_ERR_INVALID: another one has it.
 */
lap_status_t lap_ckpt_folder_lock(const char *dir, int *lock_p);

/* Names the whole checkpoints of steps from `least` to `most` that are in `dir`. Returns how many. */
size_t lap_ckpt_folder_names(const char *dir, uint64_t least, uint64_t most, char *text,
                             size_t room);

/*
 * LAP_ERR_INVALID where `dir`, which has no manifest, has files that only checkpoints have, or the name of one: moments and
 * steps would be lost if it were taken for weights of another program.
 */
lap_status_t lap_ckpt_folder_not_remains(const char *dir);

/* Whether a file of this name is one of safetensors. */
bool lap_ckpt_is_safetensors(const char *name);

/*
 * Whether `dir` has a checkpoint, whole or damaged, or files of safetensors: something to load. A folder without a
 * manifest is a save that was killed.
 */
bool lap_ckpt_folder_has_any(const char *dir);

/* Removes one, with the files of a checkpoint that are in it, and nothing else. */
void lap_ckpt_folder_remove(const char *path);

/* The same after a save that failed: one that was there before is back. */
void lap_ckpt_folder_undo(const char *path);

/* Waits until the disk has the names in a folder. */
lap_status_t lap_ckpt_folder_sync(const char *path);

/* The folders of checkpoints in `dir`, the newest first; the caller frees *names_p with lap_free. */
typedef struct lap_ckpt_name {
    char name[32];
    uint64_t step;
} lap_ckpt_name_t;
lap_status_t lap_ckpt_folder_list(const char *dir, lap_ckpt_name_t **names_p, size_t *count_p);

#define LAP_CKPT_OLD ".old" /* of one that is being replaced */
#define LAP_CKPT_MANIFEST "manifest.json"
#define LAP_CKPT_CONFIG "config.json"

#endif
