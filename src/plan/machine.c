/* SPDX-License-Identifier: Apache-2.0 */
/* Reads machine descriptions. Every key is a row of a table; a key that is in none is an error. */
#include "plan/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/yaml.h"
#include "util/nearest.h"

const char *const lap_plan_type_names[LAP_PLAN_TYPES + 1] = {"fp32",  "fp16", "bf16", "fp8",
                                                             "mxfp8", "fp4",  NULL};

typedef enum key_kind { TEXT, NUMBER, CURVE_SIZES, CURVE_VALUES } key_kind_t;

typedef struct setting {
    const char *path;
    key_kind_t kind;
    size_t offset;
    double unit;        /* of the struct's, in a unit of the file */
    double least, most; /* in units of the file */
    bool optional;
} setting_t;

#define AT(field) offsetof(lap_machine_t, field)
#define RATE 1e9
#define PART 1e-6, 1 /* of 1 */

/* Sizes of a curve come before its values: all curves of GEMMs have the same. */
static const setting_t keys[] = {
    {"name", TEXT, AT(name), 1, 0, 0, false},
    {"gpus_per_node", NUMBER, AT(gpus_per_node), 1, 1, 1e6, false},
    {"sms", NUMBER, AT(sms), 1, 1, 1e6, false},
    {"power_w", NUMBER, AT(power_w), 1, 1, 1e6, true},
    {"kernel_us", NUMBER, AT(kernel_s), 1e-6, 0, 1e6, false},
    {"memory.capacity_gb", NUMBER, AT(memory_bytes), 1e9, 1e-3, 1e9, false},
    {"memory.reserved_gb", NUMBER, AT(reserved_bytes), 1e9, 0, 1e9, true},
    {"memory.gb_per_s", NUMBER, AT(memory_bytes_per_s), RATE, 1e-3, 1e9, false},
    {"memory.efficiency", NUMBER, AT(memory_efficiency), 1, PART, false},
    {"memory.optimizer", NUMBER, AT(optimizer_efficiency), 1, PART, true},
    {"peak_tflops.fp32", NUMBER, AT(peak[LAP_PLAN_FP32]), 1e12, 1e-6, 1e9, true},
    {"peak_tflops.fp16", NUMBER, AT(peak[LAP_PLAN_FP16]), 1e12, 1e-6, 1e9, true},
    {"peak_tflops.bf16", NUMBER, AT(peak[LAP_PLAN_BF16]), 1e12, 1e-6, 1e9, true},
    {"peak_tflops.fp8", NUMBER, AT(peak[LAP_PLAN_FP8]), 1e12, 1e-6, 1e9, true},
    {"peak_tflops.mxfp8", NUMBER, AT(peak[LAP_PLAN_MXFP8]), 1e12, 1e-6, 1e9, true},
    {"peak_tflops.fp4", NUMBER, AT(peak[LAP_PLAN_FP4]), 1e12, 1e-6, 1e9, true},
    {"gemm_efficiency.gflop", CURVE_SIZES, 0, 1e9, 1e-9, 1e9, false},
    {"gemm_efficiency.fp32", CURVE_VALUES, AT(gemm[LAP_PLAN_FP32]), 1, PART, true},
    {"gemm_efficiency.fp16", CURVE_VALUES, AT(gemm[LAP_PLAN_FP16]), 1, PART, true},
    {"gemm_efficiency.bf16", CURVE_VALUES, AT(gemm[LAP_PLAN_BF16]), 1, PART, true},
    {"gemm_efficiency.fp8", CURVE_VALUES, AT(gemm[LAP_PLAN_FP8]), 1, PART, true},
    {"gemm_efficiency.mxfp8", CURVE_VALUES, AT(gemm[LAP_PLAN_MXFP8]), 1, PART, true},
    {"gemm_efficiency.fp4", CURVE_VALUES, AT(gemm[LAP_PLAN_FP4]), 1, PART, true},
    {"attention_efficiency.tokens", CURVE_SIZES, 0, 1, 1, 1e12, false},
    {"attention_efficiency.forward", CURVE_VALUES, AT(attention_forward), 1, PART, false},
    {"attention_efficiency.backward", CURVE_VALUES, AT(attention_backward), 1, PART, false},
    {"kernels.norm", NUMBER, AT(kernels[LAP_PLAN_NORM]), RATE, 1e-6, 1e9, true},
    {"kernels.norm_backward", NUMBER, AT(kernels[LAP_PLAN_NORM_BACKWARD]), RATE, 1e-6, 1e9, true},
    {"kernels.swiglu", NUMBER, AT(kernels[LAP_PLAN_SWIGLU]), RATE, 1e-6, 1e9, true},
    {"kernels.swiglu_backward", NUMBER, AT(kernels[LAP_PLAN_SWIGLU_BACKWARD]), RATE, 1e-6, 1e9,
     true},
    {"kernels.rope", NUMBER, AT(kernels[LAP_PLAN_ROPE]), RATE, 1e-6, 1e9, true},
    {"kernels.logit_stats", NUMBER, AT(kernels[LAP_PLAN_LOGIT_STATS]), RATE, 1e-6, 1e9, true},
    {"kernels.cross_entropy", NUMBER, AT(kernels[LAP_PLAN_CROSS_ENTROPY]), RATE, 1e-6, 1e9, true},
    {"kernels.bias", NUMBER, AT(kernels[LAP_PLAN_BIAS]), RATE, 1e-6, 1e9, true},
    {"kernels.gelu", NUMBER, AT(kernels[LAP_PLAN_GELU]), RATE, 1e-6, 1e9, true},
    {"kernels.gelu_backward", NUMBER, AT(kernels[LAP_PLAN_GELU_BACKWARD]), RATE, 1e-6, 1e9, true},
    {"nvlink.gb_per_s", NUMBER, AT(nvlink.bytes_per_s), RATE, 1e-3, 1e9, false},
    {"nvlink.efficiency", NUMBER, AT(nvlink.efficiency), 1, PART, false},
    {"nvlink.latency_us", NUMBER, AT(nvlink.latency_s), 1e-6, 0, 1e6, false},
    {"nvlink.sms", NUMBER, AT(nvlink.sms), 1, 0, 1e6, false},
    {"network.gb_per_s", NUMBER, AT(network.bytes_per_s), RATE, 1e-3, 1e9, false},
    {"network.efficiency", NUMBER, AT(network.efficiency), 1, PART, false},
    {"network.latency_us", NUMBER, AT(network.latency_s), 1e-6, 0, 1e6, false},
    {"network.sms", NUMBER, AT(network.sms), 1, 0, 1e6, false},
};
#define KEYS (sizeof(keys) / sizeof(keys[0]))

typedef struct reader {
    const char *path;
    lap_machine_t machine;
    lap_curve_t sizes;     /* of the curves that are read, */
    const setting_t *size; /* by this key of their section; NULL: there was none yet */
    size_t lines[KEYS];    /* where a key was; 0: it was not */
    size_t sections[KEYS]; /* where its section was; 0: it was not either */
} reader_t;

/* ---- values ---- */

static lap_status_t wrong_value(const reader_t *reader, const lap_yaml_entry_t *entry,
                                const setting_t *key, const char *expected)
{
    return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is '%s', expected %s from %g to %g", reader->path,
                     entry->line, key->path, entry->value, expected, key->least, key->most);
}

static bool take_number(const char **text, const setting_t *key, double *value_p)
{
    char *end;
    const double value = strtod(*text, &end);
    if (end == *text || !(value >= key->least && value <= key->most))
        return false;
    *text = end;
    *value_p = value * key->unit;
    return true;
}

static lap_status_t read_number(reader_t *reader, const lap_yaml_entry_t *entry,
                                const setting_t *key)
{
    const char *text = entry->value;
    double value;
    if (entry->kind != LAP_YAML_SCALAR || !take_number(&text, key, &value) || *text)
        return wrong_value(reader, entry, key, "a number");
    memcpy((char *)&reader->machine + key->offset, &value, sizeof(value));
    return LAP_OK;
}

/* Whether a key belongs to the section of an entry. */
static bool is_beside(const setting_t *key, const lap_yaml_entry_t *entry)
{
    const size_t length = (size_t)(entry->key - entry->path);
    return strncmp(key->path, entry->path, length) == 0 && !strchr(key->path + length, '.');
}

static lap_status_t read_curve(reader_t *reader, const lap_yaml_entry_t *entry,
                               const setting_t *key)
{
    const char *text = entry->value;
    double values[LAP_COST_POINTS];
    size_t count = 0;
    bool right = entry->kind == LAP_YAML_LIST && entry->whole;
    for (bool more = right; more && right; count++) {
        right = count < LAP_COST_POINTS && take_number(&text, key, &values[count]) &&
                (*text == ',' || *text == '\0');
        more = right && *text == ',';
        text += more;
    }
    if (!right || count == 0)
        return wrong_value(reader, entry, key, "a list of at most 5 numbers");
    if (key->kind == CURVE_SIZES) {
        reader->sizes = (lap_curve_t){.count = count};
        reader->size = key;
        for (size_t i = 0; i < count; i++) {
            if (i > 0 && values[i] <= values[i - 1])
                return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is %s, expected ascending numbers",
                                 reader->path, entry->line, key->path, entry->value);
            reader->sizes.sizes[i] = values[i];
        }
        return LAP_OK;
    }
    const bool sized = reader->size && is_beside(reader->size, entry);
    if (!sized || count != reader->sizes.count)
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: %s has %zu numbers, expected the sizes before it, and as many of "
                         "them: there are %zu",
                         reader->path, entry->line, key->path, count,
                         sized ? reader->sizes.count : 0);
    lap_curve_t curve = reader->sizes;
    memcpy(curve.values, values, count * sizeof(*values));
    memcpy((char *)&reader->machine + key->offset, &curve, sizeof(curve));
    return LAP_OK;
}

static lap_status_t refuse_key(const reader_t *reader, const lap_yaml_entry_t *entry)
{
    const char *names[KEYS + 1] = {NULL};
    for (size_t i = 0; i < KEYS; i++)
        names[i] = keys[i].path;
    const char *nearest = lap_nearest(entry->path, names);
    return lap_error(LAP_ERR_INVALID, "%s:%zu: there is no key '%s'%s%s%s", reader->path,
                     entry->line, entry->path, nearest ? "; did you mean " : "",
                     nearest ? nearest : "", nearest ? "?" : "");
}

/* Where keys are, or should be, that are in the section of an entry. */
static void note_section(reader_t *reader, const lap_yaml_entry_t *entry)
{
    for (size_t i = 0; i < KEYS; i++)
        if (is_beside(&keys[i], entry))
            reader->sections[i] = entry->section;
}

static lap_status_t take_entry(void *context, const lap_yaml_entry_t *entry)
{
    reader_t *reader = context;
    size_t i = 0;
    if (entry->kind == LAP_YAML_MAPPING)
        return LAP_OK; /* its keys are looked at */
    while (i < KEYS && strcmp(keys[i].path, entry->path) != 0)
        i++;
    if (i == KEYS)
        return refuse_key(reader, entry);
    if (reader->lines[i] != 0)
        return lap_error(LAP_ERR_INVALID, "%s:%zu: %s is there twice, first in line %zu",
                         reader->path, entry->line, entry->path, reader->lines[i]);
    reader->lines[i] = entry->line;
    note_section(reader, entry);
    if (keys[i].kind == NUMBER)
        return read_number(reader, entry, &keys[i]);
    if (keys[i].kind != TEXT)
        return read_curve(reader, entry, &keys[i]);
    if (entry->kind != LAP_YAML_SCALAR || strlen(entry->value) >= sizeof(reader->machine.name))
        return lap_error(LAP_ERR_INVALID,
                         "%s:%zu: name is '%s', expected a text of 1 to %zu characters",
                         reader->path, entry->line, entry->value, sizeof(reader->machine.name) - 1);
    memcpy(reader->machine.name, entry->value, strlen(entry->value) + 1);
    return LAP_OK;
}

/* ---- all of it ---- */

/* Where the peak of a type is, or its curve. */
static size_t line_of_type(const reader_t *reader, bool peak, int type)
{
    const size_t offset = peak ? AT(peak) + (size_t)type * sizeof(double)
                               : AT(gemm) + (size_t)type * sizeof(lap_curve_t);
    for (size_t i = 0; i < KEYS; i++)
        if (keys[i].offset == offset && keys[i].kind == (peak ? NUMBER : CURVE_VALUES))
            return reader->lines[i];
    return 0;
}

/* Collectives have some of the SMs of a GPU. */
static lap_status_t check_sms(const reader_t *reader)
{
    const lap_machine_t *machine = &reader->machine;
    for (size_t i = 0; i < KEYS; i++) {
        const bool of_wire = keys[i].offset == AT(nvlink.sms) || keys[i].offset == AT(network.sms);
        double sms;
        memcpy(&sms, (const char *)machine + keys[i].offset, sizeof(sms));
        if (of_wire && keys[i].kind == NUMBER && sms > machine->sms)
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s is %g, expected at most the %g sms of a GPU", reader->path,
                             reader->lines[i], keys[i].path, sms, machine->sms);
    }
    return LAP_OK;
}

/* What a context and others hold leaves some memory to a plan. */
static lap_status_t check_memory(const reader_t *reader)
{
    const lap_machine_t *machine = &reader->machine;
    for (size_t i = 0; i < KEYS; i++)
        if (keys[i].offset == AT(reserved_bytes) && keys[i].kind == NUMBER &&
            machine->reserved_bytes >= machine->memory_bytes)
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s is %g, expected less than the %g of "
                             "memory.capacity_gb",
                             reader->path, reader->lines[i], keys[i].path,
                             machine->reserved_bytes / keys[i].unit,
                             machine->memory_bytes / keys[i].unit);
    return LAP_OK;
}

/* A key that is missing has the line of its section, or of the file. */
static lap_status_t check_there(const reader_t *reader)
{
    static const char *const expected[] = {[TEXT] = "a name",
                                           [NUMBER] = "a number",
                                           [CURVE_SIZES] = "a list of at most 5 numbers",
                                           [CURVE_VALUES] = "a list of at most 5 numbers"};
    for (size_t i = 0; i < KEYS; i++) {
        const setting_t *key = &keys[i];
        char bounds[64] = "";
        if (key->optional || reader->lines[i] != 0)
            continue;
        if (key->kind != TEXT)
            snprintf(bounds, sizeof(bounds), " from %g to %g", key->least, key->most);
        return lap_error(LAP_ERR_INVALID, "%s:%zu: there is no %s, expected %s%s", reader->path,
                         reader->sections[i] ? reader->sections[i] : 1, key->path,
                         expected[key->kind], bounds);
    }
    return LAP_OK;
}

/* Every type with a peak has a curve, and the other way round. */
static lap_status_t check_types(const reader_t *reader)
{
    const lap_machine_t *machine = &reader->machine;
    bool any = false;
    for (int type = 0; type < LAP_PLAN_TYPES; type++) {
        any = any || machine->peak[type] > 0;
        if ((machine->peak[type] > 0) != (machine->gemm[type].count > 0))
            return lap_error(LAP_ERR_INVALID,
                             "%s:%zu: %s.%s is there without %s.%s, expected both or none",
                             reader->path, line_of_type(reader, machine->peak[type] > 0, type),
                             machine->peak[type] > 0 ? "peak_tflops" : "gemm_efficiency",
                             lap_plan_type_names[type],
                             machine->peak[type] > 0 ? "gemm_efficiency" : "peak_tflops",
                             lap_plan_type_names[type]);
    }
    if (!any)
        return lap_error(LAP_ERR_INVALID,
                         "%s:1: there is no peak_tflops, expected at least one type", reader->path);
    return LAP_OK;
}

lap_status_t lap_machine_read(const char *path, const char *text, size_t bytes,
                              lap_machine_t *machine_p)
{
    reader_t reader = {.path = path};
    LAP_TRY(text ? lap_yaml_parse(path, text, bytes, take_entry, &reader)
                 : lap_yaml_read(path, take_entry, &reader));
    LAP_TRY(check_there(&reader));
    LAP_TRY(check_types(&reader));
    LAP_TRY(check_sms(&reader));
    LAP_TRY(check_memory(&reader));
    *machine_p = reader.machine;
    return LAP_OK;
}

double lap_machine_gemm_s(const lap_machine_t *machine, lap_plan_type_t type, double flops)
{
    return flops / (machine->peak[type] * lap_curve_at(&machine->gemm[type], flops));
}

/* ---- writing ---- */

/* Whether a key has nothing to say: an optional one that is 0. */
static bool is_empty(const lap_machine_t *machine, const setting_t *key)
{
    const char *at = (const char *)machine + key->offset;
    double number;
    lap_curve_t curve;
    memcpy(&number, at, sizeof(number));
    if (key->kind == CURVE_VALUES) {
        memcpy(&curve, at, sizeof(curve));
        return key->optional && curve.count == 0;
    }
    return key->kind == NUMBER && key->optional && number == 0;
}

static void write_list(FILE *file, const double *values, size_t count, double unit)
{
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s%.5g", i ? ", " : "[", values[i] / unit);
    fprintf(file, "]\n");
}

/* Sizes are those of the first curve after them. */
static void write_value(const lap_machine_t *machine, const setting_t *key, FILE *file)
{
    const char *at = (const char *)machine + key->offset;
    lap_curve_t curve = {.count = 0};
    double number;
    if (key->kind == TEXT) {
        fprintf(file, "'%s'\n", at);
        return;
    }
    if (key->kind == NUMBER) {
        memcpy(&number, at, sizeof(number));
        fprintf(file, "%.6g\n", number / key->unit);
        return;
    }
    for (const setting_t *with = key; with < keys + KEYS && curve.count == 0; with++)
        if (with->kind == CURVE_VALUES)
            memcpy(&curve, (const char *)machine + with->offset, sizeof(curve));
    const bool sizes = key->kind == CURVE_SIZES;
    write_list(file, sizes ? curve.sizes : curve.values, curve.count, key->unit);
}

void lap_machine_write(const lap_machine_t *machine, const char *comment, FILE *file)
{
    const char *group = "";
    fprintf(file, "%s", comment);
    for (size_t i = 0; i < KEYS; i++) {
        const setting_t *key = &keys[i];
        const char *dot = strchr(key->path, '.');
        const int length = dot ? (int)(dot - key->path) : 0;
        if (is_empty(machine, key))
            continue;
        if (dot && strncmp(group, key->path, (size_t)length + 1) != 0)
            fprintf(file, "%.*s:\n", length, key->path);
        group = dot ? key->path : "";
        fprintf(file, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : key->path);
        write_value(machine, key, file);
    }
}
