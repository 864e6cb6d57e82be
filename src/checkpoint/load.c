/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading. Rank 0 chooses a checkpoint; all ranks read their pieces of it into memory of the host; the sums of
 * what they have read must be those of the manifest. Only then weights and moments change. One that is
 * damaged is left for the one before it; one of other layers is an error.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "core/options.h"
#include "core/status.h"
#include "nn/nn.h"
#include "util/alloc.h"
#include "util/log.h"

#define GPT2_PREFIX "transformer."

/* ---- tensors ---- */

/* "[768, 2304]" */
static void shape_text(const lap_st_tensor_t *tensor, char text[96])
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < tensor->ndims && used < 90; i++)
        used +=
            (size_t)snprintf(text + used, 96 - used, "%s%" PRIu64, i ? ", " : "", tensor->dims[i]);
}

static lap_status_t check_shape(const lap_st_file_t *file, const lap_st_tensor_t *found,
                                const lap_st_tensor_t *wanted)
{
    char is[96], expected[96];
    bool same = found->ndims == wanted->ndims;
    for (size_t i = 0; same && i < wanted->ndims; i++)
        same = found->dims[i] == wanted->dims[i];
    if (same)
        return LAP_OK;
    shape_text(found, is);
    shape_text(wanted, expected);
    return lap_error(LAP_ERR_INVALID, "'%s': tensor '%s' is [%s], expected [%s] for these layers",
                     file->path, found->name, is, expected);
}

/* A file that is read, and the tensor at hand. */
typedef struct source {
    const lap_st_file_t *file;
    const lap_st_tensor_t *tensor;
    bool counts;
    uint64_t sum;
} source_t;

static lap_status_t read_run(void *context, uint64_t first, float *run, size_t count)
{
    source_t *source = context;
    LAP_TRY(lap_st_read(source->file, source->tensor, first, count, run));
    if (source->counts)
        source->sum +=
            lap_st_sum(run, count * sizeof(float), source->tensor->begin + first * sizeof(float));
    return LAP_OK;
}

/* Finds a tensor in one of several files. */
static lap_status_t find_tensor(const lap_st_file_t *files, size_t nfiles,
                                const lap_st_tensor_t *wanted, source_t *source)
{
    for (size_t i = 0; i < nfiles; i++) {
        source->file = &files[i];
        source->tensor = lap_st_find(&files[i], wanted->name);
        /* As the model itself is saved there, without its head. */
        if (!source->tensor && strncmp(wanted->name, GPT2_PREFIX, strlen(GPT2_PREFIX)) == 0)
            source->tensor = lap_st_find(&files[i], wanted->name + strlen(GPT2_PREFIX));
        if (source->tensor)
            return check_shape(&files[i], source->tensor, wanted);
    }
    return lap_error(LAP_ERR_INVALID, "'%s'%s no tensor '%s', which these layers have",
                     files[0].path, nfiles > 1 ? " and the files beside it have" : " has",
                     wanted->name);
}

/* Whether a tensor of a file is one of a file of ours. */
static bool is_wanted(const lap_ckpt_file_t *file, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        const char *wanted = file->tensors[i].name;
        const bool gpt2 = strncmp(wanted, GPT2_PREFIX, strlen(GPT2_PREFIX)) == 0;
        if (strcmp(wanted, name) == 0 || (gpt2 && strcmp(wanted + strlen(GPT2_PREFIX), name) == 0))
            return true;
    }
    return false;
}

/* Constants that older files of Hugging Face's have: the mask of attention, and angles of positions. */
static bool is_constant(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t end = strlen(ends[i]);
        if (length > end && strcmp(name + length - end, ends[i]) == 0)
            return true;
    }
    return false;
}

/* Whether a head is there only because embeddings, which are tied to it, were written twice. */
static bool is_embedding(const lap_st_file_t *file, const lap_st_tensor_t *tensor,
                         const lap_ckpt_file_t *ours, const lap_st_file_t *files, size_t nfiles)
{
    float left[512], right[512];
    source_t other;
    if (strcmp(tensor->name, "lm_head.weight") != 0 || ours->nsets != 1 || tensor->ndims != 2 ||
        find_tensor(files, nfiles, &ours->tensors[0], &other) != LAP_OK ||
        other.tensor->ndims != 2 || tensor->dims[0] != other.tensor->dims[0] ||
        tensor->dims[1] != other.tensor->dims[1])
        return false;
    const uint64_t count = tensor->dims[0] * tensor->dims[1];
    for (uint64_t at = 0; at < count; at += 512) {
        const size_t some = count - at < 512 ? (size_t)(count - at) : 512;
        if (lap_st_read(file, tensor, at, some, left) != LAP_OK ||
            lap_st_read(other.file, other.tensor, at, some, right) != LAP_OK ||
            memcmp(left, right, some * sizeof(float)) != 0)
            return false;
    }
    return true;
}

/* Whether files have the tensors of a file of ours, in their shapes, and no others. */
static lap_status_t check_tensors(const lap_ckpt_layout_t *layout, const lap_ckpt_file_t *file,
                                  const lap_st_file_t *files, size_t nfiles)
{
    const size_t count = file->nsets * layout->ntensors;
    const lap_st_file_t *has = NULL;
    const char *first = NULL;
    size_t unused = 0;
    source_t source;
    for (size_t i = 0; i < count; i++)
        LAP_TRY(find_tensor(files, nfiles, &file->tensors[i], &source));
    for (size_t f = 0; f < nfiles; f++)
        for (size_t i = 0; i < files[f].count; i++) {
            const char *name = files[f].tensors[i].name;
            if (is_wanted(file, count, name) || is_constant(name) ||
                is_embedding(&files[f], &files[f].tensors[i], file, files, nfiles))
                continue;
            has = first ? has : &files[f];
            first = first ? first : name;
            unused++;
        }
    if (!first)
        return LAP_OK;
    char more[48] = "";
    if (unused > 1)
        snprintf(more, sizeof(more), " (nor %zu others)", unused - 1);
    return lap_error(LAP_ERR_INVALID, "'%s' has tensor '%s', which these layers do not have%s",
                     has->path, first, more);
}

/* Reads this rank's pieces of all sets of a file of ours. */
static lap_status_t read_pieces(lap_checkpoint_t *checkpoint, const lap_ckpt_file_t *file,
                                const lap_st_file_t *files, size_t nfiles, uint64_t *sum_p)
{
    const lap_ckpt_layout_t *layout = &checkpoint->layout;
    float *room = lap_ckpt_array(checkpoint, layout->narrays);
    source_t source = {.sum = 0};
    LAP_TRY(check_tensors(layout, file, files, nfiles));
    for (size_t set = 0; set < file->nsets; set++)
        for (size_t i = 0; i < layout->npieces; i++) {
            const lap_ckpt_piece_t *piece = &layout->pieces[i];
            float *floats = lap_ckpt_array(checkpoint, file->first_array + set) + piece->at;
            LAP_TRY(find_tensor(files, nfiles,
                                &file->tensors[set * layout->ntensors + piece->tensor], &source));
            source.counts = piece->counts;
            LAP_TRY(lap_ckpt_piece_runs(piece, floats, room, true, read_run, &source));
        }
    *sum_p = source.sum;
    return LAP_OK;
}

/* ---- a checkpoint ---- */

/* How it went with one: what ranks tell each other. */
typedef struct outcome {
    int damaged; /* what failed is the file, not the layers */
    uint64_t sums[LAP_CKPT_FILES];
} outcome_t;

/* Opens a file of a checkpoint; what is not as its manifest says is damaged. */
static lap_status_t open_whole(const char *path, uint64_t bytes, uint64_t header_sum,
                               lap_st_file_t *file)
{
    LAP_TRY(lap_st_open(path, file));
    if (file->bytes != bytes)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is damaged: it has %" PRIu64 " bytes, expected %" PRIu64, path,
                         file->bytes, bytes);
    const uint64_t sum = lap_st_sum(file->header, file->data, 0);
    if (sum != header_sum)
        return lap_error(LAP_ERR_INVALID,
                         "'%s' is damaged: the checksum of its header is %016" PRIx64
                         ", expected %016" PRIx64,
                         path, sum, header_sum);
    return LAP_OK;
}

/* The number of a file of ours in a manifest; manifest->nfiles: it has none. */
static size_t find_file(const lap_ckpt_manifest_t *manifest, const lap_ckpt_file_t *file)
{
    size_t i = 0;
    while (i < manifest->nfiles && strcmp(manifest->files[i].name, file->name) != 0)
        i++;
    return i;
}

static bool is_fp8(const lap_checkpoint_t *checkpoint, size_t f)
{
    return &checkpoint->layout.files[f] == checkpoint->layout.fp8.file;
}

static lap_status_t read_file(lap_checkpoint_t *checkpoint, const char *dir,
                              const lap_ckpt_manifest_t *manifest, size_t f, outcome_t *outcome)
{
    char path[PATH_MAX + 64];
    const lap_ckpt_file_t *wanted = &checkpoint->layout.files[f];
    const size_t at = find_file(manifest, wanted);
    lap_st_file_t file;
    snprintf(path, sizeof(path), "%s/%s", dir, wanted->name);
    if (at == manifest->nfiles && is_fp8(checkpoint, f)) {
        lap_ckpt_fp8_reset(&checkpoint->layout.fp8);
        return LAP_OK;
    }
    if (at == manifest->nfiles)
        return lap_error(LAP_ERR_INVALID, "checkpoint '%s' has no %s, which this training needs",
                         dir, wanted->name);
    lap_status_t status =
        open_whole(path, manifest->files[at].bytes, manifest->files[at].header_sum, &file);
    outcome->damaged = status != LAP_OK && status != LAP_ERR_NO_MEMORY;
    if (status == LAP_OK) {
        /* The header is as it was written: tensors that are not there are those of other layers. */
        status = is_fp8(checkpoint, f)
                     ? lap_ckpt_fp8_read(checkpoint, &file, &outcome->sums[f])
                     : read_pieces(checkpoint, wanted, &file, 1, &outcome->sums[f]);
        outcome->damaged = status == LAP_ERR_SYSTEM;
    }
    lap_st_close(&file);
    return status;
}

/* Ends with the fields in which layers differ from those of the checkpoint, if these are others. */
static lap_status_t check_layers(const lap_checkpoint_t *checkpoint, const char *dir,
                                 const lap_ckpt_manifest_t *manifest, lap_status_t status)
{
    char fields[512], before[LAP_ERROR_TEXT];
    lap_ckpt_fields_t ours;
    lap_ckpt_describe(checkpoint->nn, &ours);
    lap_ckpt_describe_config(checkpoint->nn, &ours);
    if ((status != LAP_OK && status != LAP_ERR_INVALID) ||
        !lap_ckpt_differs(&manifest->layers, &ours, fields, sizeof(fields)))
        return status;
    if (status == LAP_OK)
        return lap_error(LAP_ERR_INVALID, "checkpoint '%s' is of other layers: %s", dir, fields);
    snprintf(before, sizeof(before), "%s", lap_last_error());
    return lap_error(status, "%.900s; %s", before, fields);
}

/* Whether all ranks together have read what was written. The same on every rank. */
static lap_status_t compare_sums(const lap_checkpoint_t *checkpoint, const char *dir,
                                 const lap_ckpt_manifest_t *manifest, const outcome_t *all)
{
    for (size_t f = 0; f < checkpoint->layout.nfiles; f++) {
        const size_t at = find_file(manifest, &checkpoint->layout.files[f]);
        if (at == manifest->nfiles)
            continue; /* magnitudes of FP8: they begin anew */
        uint64_t sum = manifest->files[at].header_sum;
        for (int r = 0; r < checkpoint->group->size; r++)
            sum += all[r].sums[f];
        if (sum != manifest->files[at].sum)
            return lap_error(LAP_ERR_INVALID,
                             "'%s/%s' is damaged: its checksum is %016" PRIx64
                             ", expected %016" PRIx64,
                             dir, manifest->files[at].name, sum, manifest->files[at].sum);
    }
    return LAP_OK;
}

/* Reads one into memory of the host; *damaged_p: it failed for that. Collective. */
static lap_status_t read_checkpoint(lap_checkpoint_t *checkpoint, const char *dir,
                                    const lap_ckpt_manifest_t *manifest, bool *damaged_p)
{
    outcome_t mine = {.damaged = 0};
    void *all;
    lap_status_t status = LAP_OK;
    *damaged_p = false;
    for (size_t f = 0; f < checkpoint->layout.nfiles && status == LAP_OK; f++)
        status = read_file(checkpoint, dir, manifest, f, &mine);
    if (!mine.damaged)
        status = check_layers(checkpoint, dir, manifest, status);
    lap_saved_error_t saved;
    lap_error_save(&saved);
    LAP_TRY(lap_group_collect(checkpoint->group, &mine, sizeof(mine), &all));
    lap_error_restore(&saved);
    status = lap_group_agree(checkpoint->group, status);
    for (int r = 0; r < checkpoint->group->size; r++)
        *damaged_p = *damaged_p || ((const outcome_t *)all)[r].damaged;
    if (status == LAP_OK) {
        status = compare_sums(checkpoint, dir, manifest, all);
        *damaged_p = status != LAP_OK;
    }
    lap_free(all);
    return status;
}

/* ---- files of others ---- */

/* Files that are open. */
typedef struct file_list {
    lap_st_file_t *files;
    uint32_t count;
    size_t room;
} file_list_t;

static lap_status_t add_file(file_list_t *list, const char *dir, const char *name)
{
    char path[PATH_MAX + 256];
    lap_st_file_t *files = lap_grow(list->files, list->count, &list->room, sizeof(*files));
    if (!files)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the files of '%s'", dir);
    list->files = files;
    snprintf(path, sizeof(path), "%s%s%s", dir, *name ? "/" : "", name);
    return lap_st_open(path, &files[list->count++]);
}

/* Opens a file, or all such files of a folder. */
static lap_status_t open_weights(const char *path, file_list_t *list)
{
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISDIR(about.st_mode))
        return add_file(list, path, "");
    DIR *folder = opendir(path);
    if (!folder)
        return lap_error_errno("cannot open '%s'", path);
    lap_status_t status = LAP_OK;
    for (const struct dirent *entry; status == LAP_OK && (entry = readdir(folder)) != NULL;)
        if (lap_ckpt_is_safetensors(entry->d_name))
            status = add_file(list, path, entry->d_name);
    closedir(folder);
    if (status == LAP_OK && list->count == 0)
        return lap_error(LAP_ERR_INVALID, "there is no file of safetensors in '%s'", path);
    return status;
}

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* What layers the weights are of is in the manifest, if they are of a checkpoint of ours, or in config.json. */
static lap_status_t check_neighbours(const lap_checkpoint_t *checkpoint, const char *path,
                                     lap_status_t status)
{
    char dir[PATH_MAX];
    lap_ckpt_manifest_t manifest = {.nfiles = 0};
    struct stat about;
    bool told = true; /* what they are of */
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (stat(path, &about) == 0 && !S_ISDIR(about.st_mode))
        snprintf(slash ? slash : dir, 2, "%s", slash ? "" : ".");
    lap_saved_error_t saved;
    lap_status_t read = LAP_OK;
    lap_error_save(&saved);
    if (has_file(dir, LAP_CKPT_MANIFEST))
        read = lap_ckpt_manifest_read(dir, &manifest);
    else
        read =
            lap_ckpt_read_config(dir, checkpoint->nn->list.plan.desc.seq, &manifest.layers, &told);
    if (read != LAP_OK && status == LAP_OK)
        return read;
    if (!told && status == LAP_OK && checkpoint->group->rank == 0)
        lap_warn("there is no " LAP_CKPT_CONFIG " beside the weights of '%s': heads, norms and "
                 "positions are expected to be those of these layers",
                 path);
    lap_error_restore(&saved);
    return check_layers(checkpoint, path, &manifest, status);
}

/* Weights only: moments begin with zeros, and magnitudes of FP8 with none. */
static lap_status_t read_weights(lap_checkpoint_t *checkpoint, const char *path)
{
    const lap_ckpt_layout_t *layout = &checkpoint->layout;
    file_list_t list = {.files = NULL};
    uint64_t sum;
    lap_status_t status = open_weights(path, &list);
    if (status == LAP_OK)
        status =
            read_pieces(checkpoint, &layout->files[LAP_CKPT_MODEL], list.files, list.count, &sum);
    status = check_neighbours(checkpoint, path, status);
    for (size_t a = 1; a < layout->narrays; a++)
        memset(lap_ckpt_array(checkpoint, a), 0, checkpoint->count * sizeof(float));
    lap_ckpt_fp8_reset(&checkpoint->layout.fp8);
    for (uint32_t i = 0; i < list.count; i++)
        lap_st_close(&list.files[i]);
    lap_free(list.files);
    return status;
}

/* ---- choosing ---- */

/* What rank 0 has chosen. */
typedef struct choice {
    enum { NOTHING, CHECKPOINT, WEIGHTS_ONLY } kind;
    bool has_config;
    lap_ckpt_manifest_t manifest;
    char path[PATH_MAX];
} choice_t;

/* Where rank 0 is in its search. */
typedef struct search {
    const char *dir;
    lap_ckpt_name_t *names;
    size_t count, next;
    char damage[LAP_ERROR_TEXT]; /* of the newest that is not whole */
} search_t;

/* Something is wrong with one, as lap_last_error tells. */
static void leave_out(search_t *search, const char *path)
{
    if (!search->damage[0])
        snprintf(search->damage, sizeof(search->damage), "%s", lap_last_error());
    lap_warn("checkpoint '%s' is left out: %s", path, lap_last_error());
}

/* Whether there are files of safetensors. */
static bool has_weights(const char *dir)
{
    bool found = false;
    DIR *folder = opendir(dir);
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder)) != NULL;)
        found = lap_ckpt_is_safetensors(entry->d_name);
    if (folder)
        closedir(folder);
    return found;
}

/*
 * The manifest of a checkpoint, and config.json. Layers are compared by the former; but what other programs would take
 * for another model, or for none, is no whole checkpoint.
 */
static lap_status_t read_about(const lap_checkpoint_t *checkpoint, const char *dir,
                               choice_t *choice)
{
    char fields[512];
    lap_ckpt_fields_t config;
    LAP_TRY(lap_ckpt_manifest_read(dir, &choice->manifest));
    LAP_TRY(lap_ckpt_read_config(dir, checkpoint->nn->list.plan.desc.seq, &config,
                                 &choice->has_config));
    if (lap_ckpt_differs(&choice->manifest.layers, &config, fields, sizeof(fields)))
        return lap_error(LAP_ERR_INVALID, "'%s/" LAP_CKPT_CONFIG "' is of another model: %s", dir,
                         fields);
    choice->kind = CHECKPOINT;
    return LAP_OK;
}

/* The folder itself, or the file. */
static lap_status_t begin_search(const lap_checkpoint_t *checkpoint, search_t *search,
                                 choice_t *choice)
{
    struct stat about;
    if (stat(search->dir, &about) != 0)
        return lap_error_errno("cannot open '%s'", search->dir);
    if (!S_ISDIR(about.st_mode)) {
        choice->kind = WEIGHTS_ONLY;
    } else if (has_file(search->dir, LAP_CKPT_MANIFEST)) {
        LAP_TRY(read_about(checkpoint, search->dir, choice));
    } else {
        LAP_TRY(lap_ckpt_folder_list(search->dir, &search->names, &search->count));
        if (search->count == 0 && has_weights(search->dir)) {
            LAP_TRY(lap_ckpt_folder_not_remains(search->dir));
            choice->kind = WEIGHTS_ONLY;
        }
    }
    if (choice->kind != NOTHING)
        snprintf(choice->path, sizeof(choice->path), "%s", search->dir);
    return LAP_OK;
}

static void search_on(const lap_checkpoint_t *checkpoint, search_t *search, choice_t *choice)
{
    choice->kind = NOTHING;
    while (choice->kind == NOTHING && search->next < search->count) {
        const char *name = search->names[search->next++].name;
        if (snprintf(choice->path, sizeof(choice->path), "%s/%s", search->dir, name) >=
            (int)sizeof(choice->path) - 64)
            continue;
        if (read_about(checkpoint, choice->path, choice) != LAP_OK)
            leave_out(search, choice->path);
    }
}

/* Gives all ranks what rank 0 has, with how it went there. Collective. */
static lap_status_t share(lap_group_t *group, void *data, size_t bytes, lap_status_t mine)
{
    LAP_TRY(lap_group_agree(group, mine));
    return lap_group_broadcast(group, data, bytes);
}

static lap_status_t none_whole(lap_checkpoint_t *checkpoint, search_t *search)
{
    LAP_TRY(share(checkpoint->group, search->damage, sizeof(search->damage), LAP_OK));
    return lap_error(LAP_ERR_INVALID, "there is no whole checkpoint in '%s'%s%.800s", search->dir,
                     search->damage[0] ? "; of the newest: " : "", search->damage);
}

/* What a checkpoint that was read lacks, and training goes on without. */
static void warn_of_missing(const lap_checkpoint_t *checkpoint, const choice_t *choice)
{
    const lap_ckpt_file_t *file = checkpoint->layout.fp8.file;
    if (checkpoint->layout.config[0] && !choice->has_config)
        lap_warn("checkpoint '%s' has no " LAP_CKPT_CONFIG
                 ", by which other programs know its model; it is not needed here",
                 choice->path);
    if (file && find_file(&choice->manifest, file) == choice->manifest.nfiles)
        lap_warn("checkpoint '%s' has no %s: delayed FP8 scaling begins without a history",
                 choice->path, file->name);
}

/* Reads the newest that is whole. Collective. */
static lap_status_t read_newest(lap_checkpoint_t *checkpoint, search_t *search, choice_t *choice)
{
    const bool first = checkpoint->group->rank == 0;
    bool begun = false;
    for (;;) {
        bool damaged = false;
        lap_status_t mine = LAP_OK;
        if (first && !begun)
            mine = begin_search(checkpoint, search, choice);
        if (first && mine == LAP_OK && (begun || choice->kind == NOTHING))
            search_on(checkpoint, search, choice);
        begun = true;
        LAP_TRY(share(checkpoint->group, choice, sizeof(*choice), mine));
        if (choice->kind == NOTHING)
            return none_whole(checkpoint, search);
        if (first && choice->kind == CHECKPOINT && choice->manifest.layers.count == 0)
            lap_warn("checkpoint '%s' is of an older version, which does not tell heads, norms and "
                     "positions: expected to be those of these layers",
                     choice->path);
        if (choice->kind == WEIGHTS_ONLY)
            return lap_group_agree(checkpoint->group, read_weights(checkpoint, choice->path));
        const lap_status_t status =
            read_checkpoint(checkpoint, choice->path, &choice->manifest, &damaged);
        if (!damaged) {
            if (first && status == LAP_OK)
                warn_of_missing(checkpoint, choice);
            return status;
        }
        if (first)
            leave_out(search, choice->path);
    }
}

/* Weights and moments become what was read. */
static lap_status_t take_over(lap_checkpoint_t *checkpoint, const choice_t *choice)
{
    lap_status_t status = lap_ckpt_copy(checkpoint, false);
    if (checkpoint->nn->sharers)
        status = lap_group_agree(checkpoint->nn->sharers, status);
    if (status == LAP_OK)
        status = lap_nn_refresh(checkpoint->nn);
    if (status == LAP_OK)
        status = lap_nn_wait(checkpoint->nn);
    lap_optimizer_set_steps(checkpoint->optimizer, (size_t)choice->manifest.optimizer_steps);
    return lap_group_agree(checkpoint->group, status);
}

/* What a load needs besides. */
typedef struct loading {
    search_t search;
    choice_t choice;
} loading_t;

static lap_status_t load(lap_checkpoint_t *checkpoint, const char *dir,
                         lap_checkpoint_state_t *state)
{
    lap_status_t status = lap_ckpt_reserve(checkpoint);
    loading_t *it = lap_alloc(1, sizeof(*it));
    if (status == LAP_OK && !it)
        status = lap_error(LAP_ERR_NO_MEMORY, "no memory to load a checkpoint");
    status = lap_group_agree(checkpoint->group, status);
    if (status != LAP_OK || !it) {
        lap_free(it);
        return status;
    }
    it->search.dir = dir;
    status = read_newest(checkpoint, &it->search, &it->choice);
    if (status == LAP_OK)
        status = take_over(checkpoint, &it->choice);
    checkpoint->loaded = it->choice.manifest.training;
    state->step = it->choice.manifest.step;
    state->samples = it->choice.manifest.samples;
    lap_free(it->search.names);
    lap_free(it);
    return status;
}

lap_status_t lap_checkpoint_load(lap_checkpoint_t *checkpoint, const char *dir,
                                 lap_checkpoint_state_t *state_p)
{
    lap_checkpoint_state_t known = LAP_CHECKPOINT_STATE_INIT;
    if (!checkpoint || !dir || !state_p)
        return lap_error(LAP_ERR_INVALID, "lap_checkpoint_load: %s is NULL",
                         !checkpoint ? "checkpoint"
                         : !dir      ? "dir"
                                     : "state_p");
    LAP_TRY(lap_read_options(&known, sizeof(known), state_p, "LAP_CHECKPOINT_STATE"));
    LAP_TRY(lap_checkpoint_wait(checkpoint));
    const char *before = lap_enter(checkpoint->group->world, "lap_checkpoint_load");
    const lap_status_t status = load(checkpoint, dir, &known);
    lap_leave(checkpoint->group->world, before);
    LAP_TRY(status);
    state_p->step = known.step;
    state_p->samples = known.samples;
    return LAP_OK;
}
