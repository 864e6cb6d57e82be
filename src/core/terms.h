/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Terms: named values that all ranks must have alike, such as the fields of a description or the
 * options of a command. They are stored as text, so that errors can quote them.
 */
#ifndef LAP_CORE_TERMS_H
#define LAP_CORE_TERMS_H

#include <stddef.h>
#include <stdint.h>

#include <lap/tensor.h>
#include <lap/world.h>

typedef struct lap_term {
    char name[48];
    char value[80]; /* of a longer one the beginning and a digest */
} lap_term_t;

/* All zero is an empty list; lap_terms_clear frees what it holds. */
typedef struct lap_terms {
    const char *of;     /* begins the sentence: "lap_op_create"; NULL: nothing does */
    const char *prefix; /* of the names that are added next: "optimizer."; NULL: none */
    lap_term_t *all;
    size_t count, room;
    lap_status_t status; /* LAP_ERR_NO_MEMORY when there was no room for one */
} lap_terms_t;

void lap_terms_clear(lap_terms_t *terms);

/* Adds a term. The values of NULL and "" are one. */
void lap_terms_text(lap_terms_t *terms, const char *name, const char *value);
void lap_terms_number(lap_terms_t *terms, const char *name, uint64_t value);
void lap_terms_real(lap_terms_t *terms, const char *name,
                    double value); /* so that it can be read back */

/* A number with as few digits as tell it from all others. Returns the text. */
#define LAP_SINGLE_TEXT 24
const char *lap_single_text(float value, char text[LAP_SINGLE_TEXT]);

/*
 * Ends what ranks prepared each by itself, as lap_group_agree does, and when all went well compares
 * their terms: LAP_ERR_MISMATCH names the first that differs, two ranks and both values, in the
 * same words on every rank. Collective.
 */
lap_status_t lap_terms_agree(const lap_terms_t *terms, lap_group_t *group, lap_status_t mine);

#endif
