/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences of ranks that have failed, and which of them are the same: see told.h. */
#include "told.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "core/environment.h"
#include "core/job.h"
#include "core/status.h"
#include "util/clock.h"
#include "util/digest.h"

#define GATHER_NS 3000000000u /* in which ranks that tell the same may tell it */
#define OWN '\1'              /* in the place of a rank's own name */
#define TEXT (sizeof(((lap_told_t *)0)->text) + 64) /* with the name of a rank */

/* What of a text is looked at, or is still to be printed. */
typedef enum part { NOTHING, REST, CAUSE, WHOLE, PARTS } part_t;

/* Ways in which ranks say the same: word by word, but for their own names, or one for all the others. */
typedef enum way { WORDS, OWN_NAMES, ORIGIN, WAYS } way_t;

struct lap_told_in {
    lap_told_t told;
    part_t left;
    uint64_t digests[PARTS]
                    [WAYS]; /* of who says the same they are the same: texts are seldom compared */
};
typedef struct lap_told_in told_in_t;

void lap_told_mark(char *text, size_t bytes)
{
    struct stat about;
    if (fstat(STDERR_FILENO, &about) != 0)
        about = (struct stat){.st_ino = 0};
    snprintf(text, bytes, "LAP_STDERR=%jx:%jx", (uintmax_t)about.st_dev, (uintmax_t)about.st_ino);
}

bool lap_told_is_marked(void)
{
    char mine[64];
    const char *given = getenv("LAP_STDERR");
    lap_told_mark(mine, sizeof(mine));
    return given && strcmp(given, mine + sizeof("LAP_STDERR")) == 0;
}

bool lap_told_send(const char *dir, const lap_told_t *told)
{
    return lap_job_tell(dir, told, sizeof(*told));
}

bool lap_told_launcher(const char *name, const char *sentence)
{
    lap_environment_t environment;
    lap_told_t told = {.rank = 0};
    lap_saved_error_t saved;
    if (!lap_told_is_marked() || !lap_environment_launched())
        return false;
    lap_error_save(&saved); /* the environment knows nothing of it */
    const lap_status_t status = lap_environment_read(&environment);
    lap_error_restore(&saved);
    FILE *text = status == LAP_OK ? fmemopen(told.text, sizeof(told.text), "w") : NULL;
    if (!text)
        return false;
    told.rank = environment.rank;
    snprintf(told.name, sizeof(told.name), "%s", name);
    lap_spelling_print(text, sentence);
    return fclose(text) == 0 && lap_told_send(environment.dir, &told);
}

void lap_told_open(lap_told_box_t *box, const char *dir, int nranks)
{
    *box = (lap_told_box_t){.fd = -1, .room = (size_t)nranks};
    box->list = calloc(box->room, sizeof(*box->list));
    if (box->list)
        box->fd = lap_job_listen(dir);
}

void lap_told_close(lap_told_box_t *box)
{
    if (box->fd >= 0)
        close(box->fd);
    free(box->list);
    *box = (lap_told_box_t){.fd = -1};
}

static int by_rank(const void *left, const void *right)
{
    return ((const told_in_t *)left)->told.rank - ((const told_in_t *)right)->told.rank;
}

static void find_digests(told_in_t *in);

bool lap_told_read(lap_told_box_t *box)
{
    while (box->fd >= 0 && box->count < box->room) {
        lap_told_t *told = &box->list[box->count].told;
        const ptrdiff_t bytes = lap_job_hear(box->fd, told, sizeof(*told));
        if (bytes < 0)
            break;
        if (bytes != (ptrdiff_t)sizeof(*told) || told->rank < 0)
            continue;
        told->name[sizeof(told->name) - 1] = told->text[sizeof(told->text) - 1] = '\0';
        box->list[box->count].left = WHOLE;
        find_digests(&box->list[box->count]);
        if (box->count++ == 0)
            box->since_ns = lap_now_ns();
    }
    if (box->count > 1)
        qsort(box->list, box->count, sizeof(*box->list), by_rank);
    return box->count > 0;
}

int lap_told_wait_ms(const lap_told_box_t *box, int most)
{
    const uint64_t now = lap_now_ns(), until = box->since_ns + GATHER_NS;
    if (box->count == 0)
        return most;
    const int left =
        box->count == box->room || now >= until ? 0 : (int)((until - now) / 1000000) + 1;
    return most >= 0 && most < left ? most : left;
}

size_t lap_told_print(lap_told_box_t *box, lap_outbox_t *outbox)
{
    char line[LAP_TOLD_LINE];
    size_t ranks = 0;
    for (; lap_told_read(box); box->count = 0) {
        ranks += box->count;
        while (lap_told_next(box, line))
            lap_outbox_add_line(outbox, line);
    }
    return ranks;
}

/* ---- what is the same ---- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/*
 * Looks at a name, "rank 3", or of a rank of a group "rank 1 (rank 3 of the world)", perhaps with a
 * pid. Returns its length without that, and the number in the world; 0: here is none.
 */
static size_t find_name(const char *text, long *rank_p)
{
    char *end, *of;
    if (!begins(text, "rank ") || !isdigit((unsigned char)text[5]))
        return 0;
    *rank_p = strtol(text + 5, &end, 10);
    if (!begins(end, " (rank "))
        return begins(end, " of the world") ? 0 : (size_t)(end - text);
    *rank_p = strtol(end + 7, &of, 10);
    return begins(of, " of the world") ? (size_t)(of - text) + strlen(" of the world") : 0;
}

/* What a rank says, by the numbers of the world, without what only it can say. */
static void make_common(const char *from, int rank, char text[TEXT])
{
    while (*from) {
        long number;
        const size_t name = find_name(from, &number);
        if (name == 0) {
            *text++ = *from++;
            continue;
        }
        from += name;
        if (number == rank)
            *text++ = OWN;
        else
            text += sprintf(text, "rank %ld", number);
        if (from[-1] == 'd' && begins(from, ", ")) { /* "rank 1 (rank 3 of the world, pid 42)" */
            text += sprintf(text, " (");
            from += 2;
        } else if (from[-1] == 'd' && *from == ')') { /* not where a text was cut off */
            from++;
        }
    }
    *text = '\0';
}

/* "out of memory: no memory for ..." as other ranks repeat it: "out of memory: rank 0: no memory for ...". */
static void add_origin(const char *from, int rank, char text[TEXT])
{
    const char *colon = strstr(from, ": ");
    const char *sentence = colon ? colon + 2 : from;
    long origin;
    const size_t name = find_name(sentence, &origin);
    const char *rest = sentence + name + (sentence[name] == ')');
    const bool told = name > 0 && begins(rest, ": ");
    snprintf(text, TEXT, "%.*srank %ld: %s", (int)(sentence - from), from, told ? origin : rank,
             told ? rest + 2 : sentence);
}

/* A part of what a rank tells, so that it can be compared, and printed for all who say so. */
static void take(const told_in_t *in, part_t part, way_t way, char text[TEXT])
{
    const char *semicolon = strstr(in->told.text, "; ");
    char words[sizeof(in->told.text)];
    snprintf(words, sizeof(words), "%s",
             part != REST ? in->told.text
             : semicolon  ? semicolon + 2
                          : "");
    if (part == CAUSE && semicolon)
        words[semicolon - in->told.text] = '\0';
    if (way == OWN_NAMES)
        make_common(words, in->told.rank, text);
    else if (way == ORIGIN && part != REST)
        add_origin(words, in->told.rank, text);
    else
        memcpy(text, words, strlen(words) + 1);
}

static void find_digests(told_in_t *in)
{
    char text[TEXT];
    for (int part = REST; part < PARTS; part++)
        for (int way = WORDS; way < WAYS; way++) {
            take(in, (part_t)part, (way_t)way, text);
            in->digests[part][way] = lap_digest(LAP_DIGEST_INIT, text, strlen(text));
        }
}

/* Who says the same, in the way in which most do. */
typedef struct group {
    const told_in_t *first;
    part_t part;
    way_t way;
    size_t count;
} group_t;

static bool is_in(const group_t *group, const told_in_t *first, const told_in_t *other)
{
    char one[TEXT], two[TEXT];
    if (other->left != (group->part == REST ? REST : WHOLE) ||
        first->digests[group->part][group->way] != other->digests[group->part][group->way] ||
        strcmp(first->told.name, other->told.name) != 0)
        return false;
    take(first, group->part, group->way, one);
    take(other, group->part, group->way, two);
    return strcmp(one, two) == 0;
}

static group_t find_group(const lap_told_box_t *box, const told_in_t *first, part_t part)
{
    group_t most = {.count = 0};
    for (int way = WORDS; way < WAYS; way++) {
        group_t group = {.first = first, .part = part, .way = (way_t)way};
        for (const told_in_t *it = box->list; it < box->list + box->count; it++)
            group.count += is_in(&group, first, it);
        most = group.count > most.count ? group : most;
    }
    return most;
}

/* ---- lines ---- */

static void add(char *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *line, const char *format, ...)
{
    const size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, LAP_TOLD_LINE - used, format, args);
    va_end(args);
}

/* Adds "ranks 0, 1, 3-5: "; what they have told is left then. */
static void add_ranks(lap_told_box_t *box, const group_t *group, part_t left, char *line)
{
    const told_in_t first = *group->first; /* it is one of those that change */
    int begin = first.told.rank, end = begin;
    add(line, "%s %d", group->count > 1 ? "ranks" : "rank", begin);
    for (told_in_t *it = box->list; it < box->list + box->count; it++) {
        if (!is_in(group, &first, it))
            continue;
        const int rank = it->told.rank;
        if (rank > end + 1 && end > begin)
            add(line, "%s%d", end > begin + 1 ? "-" : ", ", end);
        if (rank > end + 1)
            add(line, ", %d", begin = rank);
        end = rank;
        it->left = strstr(it->told.text, "; ") ? left : NOTHING;
    }
    if (end > begin)
        add(line, "%s%d", end > begin + 1 ? "-" : ", ", end);
    add(line, ": ");
}

/* A line of a group, which has `left` to say after it. */
static void write_line(lap_told_box_t *box, const group_t *group, part_t left, char *line)
{
    char text[TEXT];
    const told_in_t *first = group->first;
    const int rank = first->told.rank;
    long number;
    take(first, group->part, group->way, text);
    snprintf(line, LAP_TOLD_LINE, "%s: ", first->told.name);
    const size_t named = strlen(line);
    add_ranks(box, group, left, line);
    if (group->part == REST && group->count == 1 && find_name(text, &number) && number == rank)
        line[named] = '\0'; /* it names itself */
    for (const char *it = text; *it; it++)
        add(line, *it == OWN ? "each" : "%c", *it);
}

static const told_in_t *find(const lap_told_box_t *box, part_t left)
{
    for (const told_in_t *it = box->list; it < box->list + box->count; it++)
        if (it->left == left)
            return it;
    return NULL;
}

bool lap_told_next(lap_told_box_t *box, char line[LAP_TOLD_LINE])
{
    const told_in_t *first = find(box, REST);
    if (first) {
        const group_t group = find_group(box, first, REST);
        write_line(box, &group, NOTHING, line);
        return true;
    }
    first = find(box, WHOLE);
    if (!first)
        return false;
    const group_t whole = find_group(box, first, WHOLE), cause = find_group(box, first, CAUSE);
    const bool parts = cause.count > whole.count;
    write_line(box, parts ? &cause : &whole, parts ? REST : NOTHING, line);
    return true;
}
