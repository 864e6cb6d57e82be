/* SPDX-License-Identifier: Apache-2.0 */
/* Why ranks have failed, and which of their sentences are the same: see failures.h. */
#include "failures.h"

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

#define GATHER_NS 3000000000u /* in which other ranks may report the same */
#define OWN '\1'              /* in the place of a rank's own name */
#define TEXT (sizeof(((lap_failure_t *)0)->text) + 64) /* with the name of a rank */

/* What of a text is looked at, or is still to be printed. */
typedef enum part { NOTHING, REST, CAUSE, WHOLE, PARTS } part_t;

/* Ways in which sentences are the same: word by word, but for the ranks' own names, or one for all the others. */
typedef enum way { WORDS, OWN_NAMES, ORIGIN, WAYS } way_t;

struct lap_received {
    lap_failure_t failure;
    part_t left;
    uint64_t digests[PARTS]
                    [WAYS]; /* of the same texts they are the same: texts are seldom compared */
};
typedef struct lap_received received_t;

void lap_failure_mark(char *text, size_t bytes)
{
    struct stat about;
    if (fstat(STDERR_FILENO, &about) != 0)
        about = (struct stat){.st_ino = 0};
    snprintf(text, bytes, "LAP_STDERR=%jx:%jx", (uintmax_t)about.st_dev, (uintmax_t)about.st_ino);
}

/* Whether standard error of this rank is still the one that it began with. */
static bool is_marked(void)
{
    char mine[64];
    const char *given = getenv("LAP_STDERR");
    lap_failure_mark(mine, sizeof(mine));
    return given && strcmp(given, mine + sizeof("LAP_STDERR")) == 0;
}

bool lap_failure_send(const char *dir, const lap_failure_t *failure)
{
    return lap_job_send(dir, failure, sizeof(*failure));
}

bool lap_failure_report(const char *name, const char *sentence)
{
    lap_environment_t environment;
    lap_failure_t failure = {.rank = 0};
    lap_saved_error_t saved;
    if (!is_marked() || !lap_environment_launched())
        return false;
    lap_error_save(&saved); /* the environment knows nothing of it */
    const lap_status_t status = lap_environment_read(&environment);
    lap_error_restore(&saved);
    FILE *text = status == LAP_OK ? fmemopen(failure.text, sizeof(failure.text), "w") : NULL;
    if (!text)
        return false;
    failure.rank = environment.rank;
    snprintf(failure.name, sizeof(failure.name), "%s", name);
    lap_spelling_print(text, sentence);
    return fclose(text) == 0 && lap_failure_send(environment.dir, &failure);
}

void lap_failures_open(lap_failures_t *box, const char *dir, int nranks)
{
    *box = (lap_failures_t){.fd = -1, .room = (size_t)nranks};
    box->list = calloc(box->room, sizeof(*box->list));
    if (box->list)
        box->fd = lap_job_listen(dir);
}

void lap_failures_close(lap_failures_t *box)
{
    if (box->fd >= 0)
        close(box->fd);
    free(box->list);
    *box = (lap_failures_t){.fd = -1};
}

static int by_rank(const void *left, const void *right)
{
    return ((const received_t *)left)->failure.rank - ((const received_t *)right)->failure.rank;
}

static void find_digests(received_t *in);

bool lap_failures_read(lap_failures_t *box)
{
    while (box->fd >= 0 && box->count < box->room) {
        lap_failure_t *failure = &box->list[box->count].failure;
        const ptrdiff_t bytes = lap_job_receive(box->fd, failure, sizeof(*failure));
        if (bytes < 0)
            break;
        if (bytes != (ptrdiff_t)sizeof(*failure) || failure->rank < 0)
            continue;
        failure->name[sizeof(failure->name) - 1] = failure->text[sizeof(failure->text) - 1] = '\0';
        box->list[box->count].left = WHOLE;
        find_digests(&box->list[box->count]);
        if (box->count++ == 0)
            box->since_ns = lap_now_ns();
    }
    if (box->count > 1)
        qsort(box->list, box->count, sizeof(*box->list), by_rank);
    return box->count > 0;
}

int lap_failures_wait_ms(const lap_failures_t *box, int most)
{
    const uint64_t now = lap_now_ns(), until = box->since_ns + GATHER_NS;
    if (box->count == 0)
        return most;
    const int left =
        box->count == box->room || now >= until ? 0 : (int)((until - now) / 1000000) + 1;
    return most >= 0 && most < left ? most : left;
}

size_t lap_failures_print(lap_failures_t *box, lap_outbox_t *outbox)
{
    char line[LAP_FAILURES_LINE];
    size_t ranks = 0;
    for (; lap_failures_read(box); box->count = 0) {
        ranks += box->count;
        while (lap_failures_next(box, line))
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

/* The sentence of a rank by numbers of the world, without the rank's own name. */
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
    const bool named = name > 0 && begins(rest, ": ");
    snprintf(text, TEXT, "%.*srank %ld: %s", (int)(sentence - from), from, named ? origin : rank,
             named ? rest + 2 : sentence);
}

/* A part of a sentence, so that it can be compared, and printed for all ranks that have it. */
static void take(const received_t *in, part_t part, way_t way, char text[TEXT])
{
    const char *semicolon = strstr(in->failure.text, "; ");
    char words[sizeof(in->failure.text)];
    snprintf(words, sizeof(words), "%s",
             part != REST ? in->failure.text
             : semicolon  ? semicolon + 2
                          : "");
    if (part == CAUSE && semicolon)
        words[semicolon - in->failure.text] = '\0';
    if (way == OWN_NAMES)
        make_common(words, in->failure.rank, text);
    else if (way == ORIGIN && part != REST)
        add_origin(words, in->failure.rank, text);
    else
        memcpy(text, words, strlen(words) + 1);
}

static void find_digests(received_t *in)
{
    char text[TEXT];
    for (int part = REST; part < PARTS; part++)
        for (int way = WORDS; way < WAYS; way++) {
            take(in, (part_t)part, (way_t)way, text);
            in->digests[part][way] = lap_digest(LAP_DIGEST_INIT, text, strlen(text));
        }
}

/* Ranks with the same sentence, in the way in which most have it. */
typedef struct group {
    const received_t *first;
    part_t part;
    way_t way;
    size_t count;
} group_t;

static bool is_in(const group_t *group, const received_t *first, const received_t *other)
{
    char one[TEXT], two[TEXT];
    if (other->left != (group->part == REST ? REST : WHOLE) ||
        first->digests[group->part][group->way] != other->digests[group->part][group->way] ||
        strcmp(first->failure.name, other->failure.name) != 0)
        return false;
    take(first, group->part, group->way, one);
    take(other, group->part, group->way, two);
    return strcmp(one, two) == 0;
}

static group_t find_group(const lap_failures_t *box, const received_t *first, part_t part)
{
    group_t most = {.count = 0};
    for (int way = WORDS; way < WAYS; way++) {
        group_t group = {.first = first, .part = part, .way = (way_t)way};
        for (const received_t *it = box->list; it < box->list + box->count; it++)
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
    vsnprintf(line + used, LAP_FAILURES_LINE - used, format, args);
    va_end(args);
}

/* Adds "ranks 0, 1, 3-5: "; `left` of their sentences is to be printed then. */
static void add_ranks(lap_failures_t *box, const group_t *group, part_t left, char *line)
{
    const received_t first = *group->first; /* it is one of those that change */
    int begin = first.failure.rank, end = begin;
    add(line, "%s %d", group->count > 1 ? "ranks" : "rank", begin);
    for (received_t *it = box->list; it < box->list + box->count; it++) {
        if (!is_in(group, &first, it))
            continue;
        const int rank = it->failure.rank;
        if (rank > end + 1 && end > begin)
            add(line, "%s%d", end > begin + 1 ? "-" : ", ", end);
        if (rank > end + 1)
            add(line, ", %d", begin = rank);
        end = rank;
        it->left = strstr(it->failure.text, "; ") ? left : NOTHING;
    }
    if (end > begin)
        add(line, "%s%d", end > begin + 1 ? "-" : ", ", end);
    add(line, ": ");
}

/* A line of a group; `left` of its sentences is to be printed after it. */
static void write_line(lap_failures_t *box, const group_t *group, part_t left, char *line)
{
    char text[TEXT];
    const received_t *first = group->first;
    const int rank = first->failure.rank;
    long number;
    take(first, group->part, group->way, text);
    snprintf(line, LAP_FAILURES_LINE, "%s: ", first->failure.name);
    const size_t named = strlen(line);
    add_ranks(box, group, left, line);
    if (group->part == REST && group->count == 1 && find_name(text, &number) && number == rank)
        line[named] = '\0'; /* it names itself */
    for (const char *it = text; *it; it++)
        add(line, *it == OWN ? "each" : "%c", *it);
}

static const received_t *find(const lap_failures_t *box, part_t left)
{
    for (const received_t *it = box->list; it < box->list + box->count; it++)
        if (it->left == left)
            return it;
    return NULL;
}

bool lap_failures_next(lap_failures_t *box, char line[LAP_FAILURES_LINE])
{
    const received_t *first = find(box, REST);
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
