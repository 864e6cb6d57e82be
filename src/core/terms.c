/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing what ranks say. As a rule all say the same, and a digest of it is all that travels;
 * only where digests differ the terms themselves do, a few at a time, until one is found.
 */
#include "core/terms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/world.h"
#include "util/alloc.h"
#include "util/digest.h"

#define AT_A_TIME 16 /* terms that travel together */

/* A digest of the terms of a rank, before any of them is looked at. */
typedef struct record {
    uint64_t digest, count;
} record_t;

void lap_terms_clear(lap_terms_t *terms)
{
    lap_free(terms->all);
    *terms = (lap_terms_t){.of = terms->of};
}

static lap_status_t make_room(lap_terms_t *terms)
{
    lap_term_t *grown = lap_grow(terms->all, terms->count, &terms->room, sizeof(*grown));
    if (!grown)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory to compare %zu values", terms->count + 1);
    terms->all = grown;
    return LAP_OK;
}

void lap_terms_text(lap_terms_t *terms, const char *name, const char *value)
{
    const char *text = value ? value : "";
    if (terms->status == LAP_OK)
        terms->status = make_room(terms);
    if (terms->status != LAP_OK)
        return;
    lap_term_t *term = &terms->all[terms->count++];
    memset(term, 0, sizeof(*term)); /* it is compared and sent as bytes */
    snprintf(term->name, sizeof(term->name), "%s%s", terms->prefix ? terms->prefix : "", name);
    const int length = snprintf(term->value, sizeof(term->value), "%s", text);
    if ((size_t)length < sizeof(term->value))
        return;
    char tail[32];
    const int tail_length =
        snprintf(tail, sizeof(tail), "... (%llx)",
                 (unsigned long long)lap_digest(LAP_DIGEST_INIT, text, strlen(text)));
    memcpy(term->value + sizeof(term->value) - 1 - tail_length, tail, (size_t)tail_length);
}

void lap_terms_number(lap_terms_t *terms, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    lap_terms_text(terms, name, text);
}

/* With as few digits as tell it from all others. */
void lap_terms_real(lap_terms_t *terms, const char *name, double value)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    lap_terms_text(terms, name, text);
}

const char *lap_single_text(float value, char text[LAP_SINGLE_TEXT])
{
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, LAP_SINGLE_TEXT, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return text;
}

/* ---- comparing ---- */

static bool is_there(const lap_term_t *term)
{
    return term->name[0] != '\0';
}

/* "rank 1 says m = 8", or that it says nothing where others say something. */
static void describe(const lap_group_t *group, int rank, const lap_term_t *term, char *text,
                     size_t bytes)
{
    char name[LAP_RANK_TEXT];
    lap_group_name(group, rank, name);
    if (!is_there(term))
        snprintf(text, bytes, "%s says nothing more", name);
    else
        snprintf(text, bytes, "%s says %s = %s", name, term->name,
                 term->value[0] ? term->value : "nothing");
}

static lap_status_t differ(const lap_terms_t *terms, const lap_group_t *group, int rank,
                           const lap_term_t *zero, const lap_term_t *other)
{
    char first[224], second[224];
    describe(group, 0, zero, first, sizeof(first));
    describe(group, rank, other, second, sizeof(second));
    return lap_error(LAP_ERR_MISMATCH, "%s%s%s, %s", terms->of ? terms->of : "",
                     terms->of ? ": " : "", first, second);
}

/* Of some terms of all ranks. All compare with rank 0's, so that all find the same difference. */
static lap_status_t compare(const lap_terms_t *terms, const lap_group_t *group,
                            const lap_term_t *all)
{
    for (size_t i = 0; i < AT_A_TIME; i++)
        for (int rank = 1; rank < group->size; rank++) {
            const lap_term_t *other = &all[(size_t)rank * AT_A_TIME + i];
            if (memcmp(&all[i], other, sizeof(*other)) != 0)
                return differ(terms, group, rank, &all[i], other);
        }
    return LAP_OK;
}

/* When digests differ: one of the first `most` terms does. */
static lap_status_t find_difference(const lap_terms_t *terms, lap_group_t *group, size_t most)
{
    for (size_t first = 0; first < most; first += AT_A_TIME) {
        lap_term_t mine[AT_A_TIME];
        void *all;
        memset(mine, 0, sizeof(mine));
        for (size_t i = 0; i < AT_A_TIME && first + i < terms->count; i++)
            mine[i] = terms->all[first + i];
        LAP_TRY(lap_group_collect(group, mine, sizeof(mine), &all));
        const lap_status_t status = compare(terms, group, all);
        lap_free(all);
        LAP_TRY(status);
    }
    return lap_error(LAP_ERR_INTERNAL,
                     "the digests of the ranks' values differ, but none of the values does");
}

lap_status_t lap_terms_agree(const lap_terms_t *terms, lap_group_t *group, lap_status_t mine)
{
    const record_t record = {
        lap_digest(LAP_DIGEST_INIT, terms->all, terms->count * sizeof(*terms->all)), terms->count};
    void *memory;
    LAP_TRY(lap_group_agree(group, mine == LAP_OK ? terms->status : mine));
    LAP_TRY(lap_group_collect(group, &record, sizeof(record), &memory));
    const record_t *records = memory;
    bool same = true;
    size_t most = 0;
    for (int rank = 0; rank < group->size; rank++) {
        same = same && memcmp(&records[rank], &record, sizeof(record)) == 0;
        most = records[rank].count > most ? records[rank].count : most;
    }
    lap_free(memory);
    return same ? LAP_OK : find_difference(terms, group, most);
}
