/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the rules of GEMMs from YAML, event by event, so that every mistake has a line. A file says
 * little: a mapping of names to mappings of names to scalars. An anchor is of one of the latter two,
 * as it was understood; an alias is a copy of that, so that no file is larger than it looks. Tags
 * are not looked at.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/status.h"
#include "core/yaml_reader.h"
#include "nn/tp_overlap.h"
#include "util/join.h"
#include "util/nearest.h"

#define WORD_BYTES 64 /* longer words are no names of ours, and are cut in sentences */
#define ANCHORS_MOST 64

/* What is read of one GEMM before its method is known, which sets the defaults. */
typedef struct draft {
    int method; /* -1: not named */
    int values[LAP_TP_FIELDS];
    unsigned given;
    size_t lines[LAP_TP_FIELDS + 1]; /* of the fields, and of the method; 0: not named */
} draft_t;

typedef struct scalar {
    char word[WORD_BYTES]; /* as a printable text */
    bool whole;            /* that is all of it, as it was */
    bool plain;            /* without quotes */
} scalar_t;

/* What has a name for aliases. */
typedef struct anchor {
    char name[WORD_BYTES];
    bool is_rule;    /* the fields of a GEMM, */
    draft_t draft;   /* which are these; */
    scalar_t scalar; /* or a scalar */
} anchor_t;

typedef struct reader {
    lap_yaml_reader_t yaml;
    yaml_event_type_t type; /* of its event; of an alias of a scalar that of a scalar */
    scalar_t scalar;        /* when that is one */
    const anchor_t *alias;  /* when it is an alias: of fields */
    int tp;
    lap_tp_overlap_t overlap;
    size_t lines[LAP_TP_GEMMS]; /* of the names of GEMMs; 0: not named */
    anchor_t anchors[ANCHORS_MOST];
    size_t nanchors;
} reader_t;

/* ---- events ---- */

static size_t line_of(const reader_t *reader)
{
    return lap_yaml_line(&reader->yaml);
}

/* ---- anchors ---- */

/* Copies the name of an anchor; "" without one. */
static lap_status_t copy_name(const reader_t *reader, const yaml_char_t *anchor,
                              char name[WORD_BYTES])
{
    const char *text = anchor ? (const char *)anchor : "";
    if (strlen(text) >= WORD_BYTES)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: the name of an anchor has %zu characters, expected at most %d",
                         reader->yaml.path, line_of(reader), strlen(text), WORD_BYTES - 1);
    snprintf(name, WORD_BYTES, "%s", text);
    return LAP_OK;
}

/* The anchor of a name, or NULL. */
static anchor_t *find_anchor(reader_t *reader, const char *name)
{
    for (size_t i = 0; i < reader->nanchors; i++)
        if (strcmp(reader->anchors[i].name, name) == 0)
            return &reader->anchors[i];
    return NULL;
}

/* Keeps what has an anchor; a second one of the same name takes the place of the first. */
static lap_status_t keep(reader_t *reader, const anchor_t *anchor)
{
    anchor_t *place = find_anchor(reader, anchor->name);
    if (!place && reader->nanchors == ANCHORS_MOST)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: there are more than %d anchors, expected at most %d",
                         reader->yaml.path, line_of(reader), ANCHORS_MOST, ANCHORS_MOST);
    if (!place)
        place = &reader->anchors[reader->nanchors++];
    *place = *anchor;
    return LAP_OK;
}

static void take_scalar(reader_t *reader)
{
    scalar_t *scalar = &reader->scalar;
    scalar->word[0] = '\0';
    scalar->whole = lap_yaml_add_scalar(&reader->yaml, scalar->word, sizeof(scalar->word));
    scalar->plain = lap_yaml_is_plain(&reader->yaml);
}

static lap_status_t keep_scalar(reader_t *reader)
{
    anchor_t anchor = {.is_rule = false, .scalar = reader->scalar};
    if (!reader->yaml.event.data.scalar.anchor)
        return LAP_OK;
    LAP_TRY(copy_name(reader, reader->yaml.event.data.scalar.anchor, anchor.name));
    return keep(reader, &anchor);
}

/* An alias becomes what it is of. */
static lap_status_t follow_alias(reader_t *reader)
{
    char name[WORD_BYTES];
    LAP_TRY(copy_name(reader, reader->yaml.event.data.alias.anchor, name));
    const anchor_t *anchor = find_anchor(reader, name);
    if (!anchor)
        return lap_error(
            LAP_ERR_INVALID,
            "%s:%zu: the alias *%s has no anchor, expected fields or a value marked &%s before it",
            reader->yaml.path, line_of(reader), name, name);
    reader->alias = anchor;
    if (!anchor->is_rule) {
        reader->type = YAML_SCALAR_EVENT;
        reader->scalar = anchor->scalar;
    }
    return LAP_OK;
}

static lap_status_t next(reader_t *reader)
{
    LAP_TRY(lap_yaml_next(&reader->yaml));
    reader->type = reader->yaml.event.type;
    if (reader->type == YAML_ALIAS_EVENT)
        return follow_alias(reader);
    if (reader->type != YAML_SCALAR_EVENT)
        return LAP_OK;
    take_scalar(reader);
    return keep_scalar(reader);
}

static bool is_null(const reader_t *reader)
{
    const scalar_t *scalar = &reader->scalar;
    return reader->type == YAML_SCALAR_EVENT && scalar->plain && scalar->whole &&
           lap_yaml_is_null(scalar->word);
}

/* ---- names ---- */

/* Finds the name at hand among others; `what` and `where` are for the sentence. */
static lap_status_t find_name(const reader_t *reader, const char *what, const char *where,
                              const char *const *names, size_t *index_p)
{
    const char *word = reader->scalar.word;
    char all[256] = "";
    if (reader->type != YAML_SCALAR_EVENT)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: a %s%s is a list or a mapping, expected a word",
                         reader->yaml.path, line_of(reader), what, where);
    for (size_t i = 0; reader->scalar.whole && names[i]; i++) {
        if (strcmp(word, names[i]) == 0) {
            *index_p = i;
            return LAP_OK;
        }
    }
    const char *nearest = lap_nearest(word, names);
    if (nearest)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: unknown %s '%s'%s; did you mean '%s'?",
                         reader->yaml.path, line_of(reader), what, word, where, nearest);
    for (size_t i = 0; names[i]; i++)
        lap_join(all, sizeof(all), names[i]);
    return lap_error(LAP_ERR_INVALID, "%s:%zu: unknown %s '%s'%s; expected one of %s",
                     reader->yaml.path, line_of(reader), what, word, where, all);
}

/* "none" is another word for serial. */
static lap_status_t read_method(const reader_t *reader, const char *where, int *method_p)
{
    const char *names[LAP_TP_AUTO + 3] = {NULL};
    size_t index;
    for (index = 0; index <= LAP_TP_AUTO; index++)
        names[index] = lap_tp_method_names[index];
    names[index] = "none";
    LAP_TRY(find_name(reader, "method", where, names, &index));
    *method_p = index > LAP_TP_AUTO ? LAP_TP_SERIAL : (int)index;
    return LAP_OK;
}

/* ---- values ---- */

/* The words for yes and no of YAML 1.1. */
static bool read_truth(const char *word, int *value_p)
{
    static const char *const words[] = {"false", "true", "False", "True", "FALSE", "TRUE",
                                        "no",    "yes",  "No",    "Yes",  "NO",    "YES",
                                        "off",   "on",   "Off",   "On",   "OFF",   "ON"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word, words[i]) == 0) {
            *value_p = (int)(i % 2);
            return true;
        }
    }
    return false;
}

static bool read_int(const char *word, long least, long most, int *value_p)
{
    char *end;
    errno = 0;
    const long value = strtol(word, &end, 10);
    if (end == word || *end != '\0' || errno != 0 || value < least || value > most)
        return false;
    *value_p = (int)value;
    return true;
}

static lap_status_t read_value(const reader_t *reader, const lap_field_t *field, const char *where,
                               int *value_p)
{
    const bool truth = field->least == 0 && field->most == 1;
    const bool scalar = reader->type == YAML_SCALAR_EVENT;
    const char *word = scalar ? reader->scalar.word : "a list or a mapping";
    const bool whole = scalar && reader->scalar.whole && reader->scalar.plain;
    if (whole && truth && read_truth(word, value_p))
        return LAP_OK;
    if (whole && read_int(word, (long)field->least, (long)field->most, value_p))
        return LAP_OK;
    const char *quote = scalar ? "'" : "";
    if (truth)
        return lap_error(
            LAP_ERR_INVALID, "%s:%zu: %s%s is %s%s%s, expected 0 or 1, or false or true",
            reader->yaml.path, line_of(reader), field->name, where, quote, word, quote);
    return lap_error(LAP_ERR_INVALID,
                     "%s:%zu: %s%s is %s%s%s, expected a whole number, %.0f to %.0f",
                     reader->yaml.path, line_of(reader), field->name, where, quote, word, quote,
                     field->least, field->most);
}

/* For who knows Python better than YAML; the event at hand is a value. */
static const char *none_hint(const reader_t *reader)
{
    const bool none =
        reader->type == YAML_SCALAR_EVENT && strcasecmp(reader->scalar.word, "none") == 0;
    return none ? ", the YAML word for None" : "";
}

/* ---- the rule of one GEMM ---- */

/* Reads one field; the event at hand is its name, and afterwards its value. */
static lap_status_t read_field(reader_t *reader, const char *where, draft_t *draft)
{
    const char *names[LAP_TP_FIELDS + 2] = {NULL};
    size_t field;
    for (field = 0; field < LAP_TP_FIELDS; field++)
        names[field] = lap_tp_fields[field].name;
    names[field] = "method";
    LAP_TRY(find_name(reader, "field", where, names, &field));
    if (draft->lines[field] != 0)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: %s%s is there twice, first in line %zu",
                         reader->yaml.path, line_of(reader), names[field], where,
                         draft->lines[field]);
    draft->lines[field] = line_of(reader);
    LAP_TRY(next(reader));
    if (is_null(reader))
        return LAP_OK;
    if (field == LAP_TP_FIELDS)
        return read_method(reader, where, &draft->method);
    draft->given |= 1u << field;
    return read_value(reader, &lap_tp_fields[field], where, &draft->values[field]);
}

/* Puts a sentence of the rules, which know no files, after the line that it is about. */
static lap_status_t at_line(const reader_t *reader, size_t line, lap_status_t status)
{
    char sentence[LAP_ERROR_TEXT];
    if (status == LAP_OK)
        return LAP_OK;
    snprintf(sentence, sizeof(sentence), "%s", lap_last_error());
    return lap_error(status, "%s:%zu: %s", reader->yaml.path, line, sentence);
}

/* The rule that a draft makes: the defaults of its method, and what was given over them. */
static lap_status_t finish_rule(reader_t *reader, lap_tp_gemm_t gemm, const draft_t *draft)
{
    lap_tp_rule_t *rule = &reader->overlap.rules[gemm];
    if (draft->method >= 0)
        *rule = lap_tp_rule_default(gemm, (lap_tp_method_t)draft->method, reader->tp);
    rule->given = draft->given;
    for (size_t i = 0; i < LAP_TP_FIELDS; i++)
        if ((draft->given >> i & 1) != 0)
            lap_field_set(&lap_tp_fields[i], rule, (uint64_t)draft->values[i]);
    const size_t line = draft->lines[LAP_TP_FIELDS];
    return at_line(reader, line ? line : reader->lines[gemm],
                   lap_tp_rule_check(gemm, rule, reader->tp));
}

/* Takes from a draft what another does not name; that is then in `line`, or where it was. */
static void merge(draft_t *draft, const draft_t *from, size_t line)
{
    for (size_t i = 0; i <= LAP_TP_FIELDS; i++) {
        if (draft->lines[i] != 0 || from->lines[i] == 0)
            continue;
        draft->lines[i] = line ? line : from->lines[i];
        if (i == LAP_TP_FIELDS) {
            draft->method = from->method;
            continue;
        }
        draft->values[i] = from->values[i];
        draft->given |= from->given & 1u << i;
    }
}

/* Reads what `<<` merges: an alias, or a list of them, of which the first that names a field counts. */
static lap_status_t read_merged(reader_t *reader, const char *where, draft_t *merged)
{
    LAP_TRY(next(reader));
    const bool list = reader->type == YAML_SEQUENCE_START_EVENT;
    if (list)
        LAP_TRY(next(reader));
    while (reader->type != YAML_SEQUENCE_END_EVENT) {
        if (reader->type != YAML_ALIAS_EVENT)
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: <<%s is not an alias of fields, expected an alias such as "
                             "*name, or a list of aliases",
                             reader->yaml.path, line_of(reader), where);
        merge(merged, &reader->alias->draft, 0);
        if (!list)
            return LAP_OK;
        LAP_TRY(next(reader));
    }
    return LAP_OK;
}

static bool is_merge(const reader_t *reader)
{
    return reader->type == YAML_SCALAR_EVENT && reader->scalar.plain &&
           strcmp(reader->scalar.word, "<<") == 0;
}

/* Reads the fields of a GEMM; the event at hand begins them. */
static lap_status_t read_fields(reader_t *reader, const char *where, draft_t *draft)
{
    anchor_t anchor = {.is_rule = true};
    draft_t merged = {.method = -1};
    size_t merges = 0; /* the line of << */
    LAP_TRY(copy_name(reader, reader->yaml.event.data.mapping_start.anchor, anchor.name));
    LAP_TRY(next(reader));
    while (reader->type != YAML_MAPPING_END_EVENT) {
        if (!is_merge(reader)) {
            LAP_TRY(read_field(reader, where, draft));
        } else if (merges != 0) {
            return lap_error(LAP_ERR_INVALID, "%s:%zu: <<%s is there twice, first in line %zu",
                             reader->yaml.path, line_of(reader), where, merges);
        } else {
            merges = line_of(reader);
            LAP_TRY(read_merged(reader, where, &merged));
        }
        LAP_TRY(next(reader));
    }
    merge(draft, &merged, merges);
    anchor.draft = *draft;
    return anchor.name[0] ? keep(reader, &anchor) : LAP_OK;
}

/* Reads what belongs to a GEMM: fields, an alias of some, or null. The event at hand is its name. */
static lap_status_t read_rule(reader_t *reader, lap_tp_gemm_t gemm)
{
    draft_t draft = {.method = -1};
    char where[32];
    snprintf(where, sizeof(where), " of %s", lap_tp_gemm_names[gemm]);
    LAP_TRY(next(reader));
    if (is_null(reader)) {
        draft.method = LAP_TP_SERIAL;
    } else if (reader->type == YAML_ALIAS_EVENT) {
        draft = reader->alias->draft;
        draft.lines[LAP_TP_FIELDS] = line_of(reader); /* reported for what does not fit this GEMM */
    } else if (reader->type == YAML_MAPPING_START_EVENT) {
        LAP_TRY(read_fields(reader, where, &draft));
    } else {
        return lap_error(
            LAP_ERR_INVALID,
            "%s:%zu: %s is not a mapping, expected fields such as 'method: %s', or null%s",
            reader->yaml.path, line_of(reader), lap_tp_gemm_names[gemm],
            lap_tp_method_names[reader->overlap.rules[gemm].method], none_hint(reader));
    }
    return finish_rule(reader, gemm, &draft);
}

/* ---- the file ---- */

static lap_status_t read_rules(lap_yaml_reader_t *yaml)
{
    reader_t *reader = yaml->context;
    LAP_TRY(next(reader));
    while (reader->type != YAML_MAPPING_END_EVENT) {
        size_t gemm = 0;
        LAP_TRY(find_name(reader, "key", "", lap_tp_gemm_names, &gemm));
        if (reader->lines[gemm] != 0)
            return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is there twice, first in line %zu",
                             reader->yaml.path, line_of(reader), lap_tp_gemm_names[gemm],
                             reader->lines[gemm]);
        reader->lines[gemm] = line_of(reader);
        LAP_TRY(read_rule(reader, (lap_tp_gemm_t)gemm));
        LAP_TRY(next(reader));
    }
    return LAP_OK;
}

/* A dgrad that reduces leaves nothing to do at the same time as its wgrad. */
static lap_status_t check_pairs(reader_t *reader)
{
    for (int gemm = LAP_QKV_DGRAD; gemm < LAP_TP_GEMMS; gemm++) {
        lap_tp_rule_t *rule = &reader->overlap.rules[gemm];
        if (!lap_tp_is_paired_wgrad((lap_tp_gemm_t)gemm) || !rule[-1].is_reduce_scatter)
            continue;
        if (reader->lines[gemm] != 0 && rule->method != LAP_TP_SERIAL)
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s is %s, but %s reduces by itself (%s): expected null, or "
                             "%s with method bulk",
                             reader->yaml.path, reader->lines[gemm], lap_tp_gemm_names[gemm],
                             lap_tp_method_names[rule->method], lap_tp_gemm_names[gemm - 1],
                             lap_tp_method_names[rule[-1].method], lap_tp_gemm_names[gemm - 1]);
        rule->method = LAP_TP_SERIAL;
    }
    return LAP_OK;
}

static lap_status_t begin(reader_t *reader)
{
    reader->yaml = (lap_yaml_reader_t){
        .expected = "rules such as 'qkv_fprop:'", .body = read_rules, .context = reader};
    return lap_tp_overlap_init(reader->tp, &reader->overlap);
}

static lap_status_t finish(reader_t *reader, lap_status_t status, lap_tp_overlap_t *overlap_p)
{
    LAP_TRY(status);
    LAP_TRY(check_pairs(reader));
    *overlap_p = reader->overlap;
    return LAP_OK;
}

lap_status_t lap_tp_overlap_load(const char *path, int tp, lap_tp_overlap_t *overlap_p)
{
    reader_t reader = {.tp = tp};
    if (!path || !overlap_p)
        return lap_error(LAP_ERR_INVALID, "%s is NULL, expected %s", path ? "overlap_p" : "path",
                         path ? "a pointer to write the rules to" : "the name of a file");
    LAP_TRY(begin(&reader));
    return finish(&reader, lap_yaml_read_file(&reader.yaml, path), overlap_p);
}

lap_status_t lap_tp_overlap_parse(const char *name, const char *text, size_t bytes, int tp,
                                  lap_tp_overlap_t *overlap_p)
{
    reader_t reader = {.tp = tp};
    if (!name || !text || !overlap_p)
        return lap_error(LAP_ERR_INVALID, "lap_tp_overlap_parse: %s is NULL",
                         !name  ? "name"
                         : text ? "overlap_p"
                                : "text");
    LAP_TRY(begin(&reader));
    return finish(&reader, lap_yaml_read_text(&reader.yaml, name, text, bytes), overlap_p);
}
