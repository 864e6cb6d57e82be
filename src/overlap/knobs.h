/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fields of an operator's description, the knobs of its methods among them: one row each. What
 * is checked, compared between ranks, tried by "auto", proved by `lap check` and taken by `lap bench`
 * follows from the row.
 */
#ifndef LAP_OVERLAP_KNOBS_H
#define LAP_OVERLAP_KNOBS_H

#include "core/fields.h"
#include "overlap/overlap.h"

#define LAP_KNOB_VALUES 4 /* most that a row lists, with the 0 at their end */

/* What the value of a knob depends on. */
typedef struct lap_knob_view {
    const lap_op_desc_t *desc;
    const lap_builder_t *builder;
    int size;
    unsigned can;
} lap_knob_view_t;

typedef struct lap_op_field {
    lap_field_t field;
    unsigned kinds;  /* 1 << kind: the operators that have it; 0: all. Others leave it 0, */
    const char *why; /* for this reason */

    /* The rest is of knobs. */
    unsigned knob; /* LAP_KNOB_..., which methods have it; 0: it is no knob */
    const char
        *help; /* for command lines; NULL: it changes what calls return, so it is no option */
    size_t tried[LAP_KNOB_VALUES];  /* by "auto", besides the default; 0 ends the list */
    size_t proved[LAP_KNOB_VALUES]; /* by `lap check`, besides it */
    bool in_parts;                  /* these values are rows: a shard, divided by what is listed */
    bool (*fits)(int size);         /* whether groups of that size can have it; NULL: all can */
    bool (*is_worth)(const lap_knob_view_t *view);      /* whether "auto" tries it; NULL: always */
    size_t (*usual)(const lap_knob_view_t *view);       /* the default; NULL: 0 */
    lap_status_t (*check)(const lap_knob_view_t *view); /* what bounds cannot say; NULL: nothing */
} lap_op_field_t;

extern const char *const lap_layout_names[];

/* In the order of lap_op_desc_t; the last row has no name. */
extern const lap_op_field_t lap_op_fields[];

/* Whether a row is a knob that a method has. */
static inline bool lap_knob_of(const lap_op_field_t *row, const lap_builder_t *builder)
{
    return row->knob == LAP_KNOB_NUM_SM || (row->knob & builder->knobs) != 0;
}

/* Whether a method has every knob that a description turns: "auto" leaves the others out. */
bool lap_knobs_suit(const lap_op_desc_t *desc, const lap_builder_t *builder);

/* Whether groups of a size can have all knobs that a description turns. */
bool lap_knobs_fit(const lap_op_desc_t *desc, int size);

/* Cuts num_splits to n, for a description whose n was chosen after it. */
void lap_knobs_clamp(lap_op_desc_t *desc);

/* The value that entry `listed` of a row stands for. */
size_t lap_knob_value(const lap_op_field_t *row, size_t listed, const lap_op_desc_t *desc,
                      int size);

/* Adds `before` and "num_splits=8", or of a flag its name, to a label. */
void lap_knob_label(const lap_op_field_t *row, const lap_op_desc_t *desc, char before, char *label,
                    size_t bytes);

/* "ring, direct": the methods that have a knob, of one kind or of LAP_ALL_KINDS. Returns text. */
#define LAP_ALL_KINDS ((lap_op_kind_t)(LAP_EXTERNAL_RS + 1))
#define LAP_OWNERS_TEXT 64
const char *lap_knob_owners(const lap_op_field_t *row, lap_op_kind_t kind,
                            char text[LAP_OWNERS_TEXT]);

/* Whether each field is within its bounds, and one that the kind has. The kind comes first. */
lap_status_t lap_op_fields_check(const lap_op_desc_t *desc);

/* Whether the method has the knobs that are turned; fills in those that it has and are not. */
lap_status_t lap_knobs_complete(lap_op_desc_t *desc, const lap_builder_t *builder, int size,
                                unsigned can);

#endif
