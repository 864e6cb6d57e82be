/* SPDX-License-Identifier: Apache-2.0 */
/* The words for operators, types and epilogues that several subcommands read and print. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "core/environment.h"
#include "device/cuda/cuda_info.h"
#include "overlap/overlap.h"

const lap_kind_words_t lap_kind_words[LAP_KINDS] = {
    [LAP_AG_GEMM] = {"ag", "AG+GEMM", "all-gather, then GEMM"},
    [LAP_GEMM_RS] = {"rs", "GEMM+RS", "GEMM, then reduce-scatter"},
    [LAP_GEMM_AR] = {"ar", "GEMM+AR", "GEMM, then all-reduce"},
    [LAP_GEMM] = {"gemm", "GEMM", "no communication"},
    [LAP_BULK_AG] = {"bulk-ag", "bulk AG", "a GEMM and an independent all-gather"},
    [LAP_BULK_RS] = {"bulk-rs", "bulk RS", "a GEMM and an independent reduce-scatter"},
    [LAP_EXTERNAL_AG] = {"external-ag", "external AG", "an all-gather without a GEMM"},
    [LAP_EXTERNAL_RS] = {"external-rs", "external RS", "a reduce-scatter without a GEMM"},
};

static const char *const epilogue_names[] = {"none", "bias", "gelu", "dgelu", "bias-grad", NULL};
static const lap_epilogue_t epilogue_bits[] = {LAP_EPILOGUE_NONE, LAP_EPILOGUE_BIAS,
                                               LAP_EPILOGUE_GELU, LAP_EPILOGUE_DGELU,
                                               LAP_EPILOGUE_BIAS_GRAD};

bool lap_arg_dtype(const lap_command_t *command, const char *what, const char *text,
                   lap_dtype_t *dtype_p)
{
    if (lap_dtype_parse(text, dtype_p) == LAP_OK)
        return true;
    return lap_args_wrong(command, "%s: %s", what, lap_last_error());
}

bool lap_arg_field(const lap_command_t *command, const char *what, const char *text,
                   const lap_field_t *field, int least, void *of)
{
    const double most = field->type == LAP_FIELD_FLAG ? 1 : field->most;
    size_t size = 0;
    int number = 0;
    lap_dtype_t dtype = LAP_FLOAT32;
    bool right;
    switch (field->type) {
    case LAP_FIELD_CHOICE:
        right = lap_arg_choice(command, what, text, field->words, &size);
        break;
    case LAP_FIELD_DTYPE:
        right = lap_arg_dtype(command, what, text, &dtype);
        size = (size_t)dtype;
        break;
    case LAP_FIELD_INT:
    case LAP_FIELD_FLAG:
        right = lap_arg_int(command, what, text, least, (int)most, &number);
        size = (size_t)number;
        break;
    default:
        right = lap_arg_size(command, what, text, (size_t)least, most > 0 ? (size_t)most : SIZE_MAX,
                             &size);
    }
    if (right)
        lap_field_set(field, of, size);
    return right;
}

bool lap_arg_expansion(const lap_args_t *args, size_t ffn, size_t expansion, size_t hidden,
                       size_t *ffn_p)
{
    size_t factor;
    if (args->given[ffn] && args->given[expansion])
        return lap_args_wrong(
            args->command, "--ffn and --mlp-expansion-factor are both given; expected one of them");
    if (!args->given[expansion])
        return true;
    if (!lap_arg_size(args->command, "--mlp-expansion-factor", args->values[expansion], 1,
                      INT32_MAX / hidden, &factor))
        return false;
    *ffn_p = factor * hidden;
    return true;
}

bool lap_read_target(const lap_args_t *args, int option, void *to)
{
    enum { NAMES = 8 };
    const char *names[NAMES + 1] = {NULL};
    char name[LAP_OPTION_NAME];
    size_t index;
    for (size_t i = 0; i < NAMES && lap_target_at(i); i++)
        names[i] = lap_target_at(i)->name;
    if (!lap_arg_choice(args->command, lap_option_name(args, option, name), args->values[option],
                        names, &index))
        return false;
    lap_option_put(args, option, &(const lap_target_t *){lap_target_at(index)}, to);
    return true;
}

bool lap_ranks_span(void)
{
    lap_environment_t environment;
    return lap_environment_read(&environment) == LAP_OK && environment.hosts[0];
}

/* What a world would choose by itself for ranks where they are. */
static const char *fitting_transport(const lap_device_ops_t *device)
{
    const lap_transport_ops_t *ops;
    const bool far = lap_ranks_span();
    if (!device->transport)
        return far && lap_transport_find("hosts", &ops) == LAP_OK ? "hosts" : "shm";
    for (size_t i = 0; far && (ops = lap_transport_at(i)) != NULL; i++)
        if (lap_transport_fits(ops, device) && (ops->can & LAP_CAN_SPAN))
            return ops->name;
    return device->transport;
}

/* What an option says, or else the environment, or else NULL. */
static const char *choose_name(const char *given, const char *variable)
{
    const char *name = getenv(variable);
    return given ? given : name && *name ? name : NULL;
}

/* "--device cpu", "LAP_DEVICE=cpu", or "the device cpu": where a name comes from. */
static void tell_source(const char *given, const char *word, const char *variable, const char *name,
                        char text[LAP_SOURCE_TEXT])
{
    if (given)
        snprintf(text, LAP_SOURCE_TEXT, "--%s %.32s", word, name);
    else if (choose_name(NULL, variable))
        snprintf(text, LAP_SOURCE_TEXT, "%s=%.32s", variable, name);
    else
        snprintf(text, LAP_SOURCE_TEXT, "the %s %.32s", word, name);
}

void lap_transport_source(const char *given, const char *name, char text[LAP_SOURCE_TEXT])
{
    tell_source(given, "transport", "LAP_TRANSPORT", name, text);
}

bool lap_arg_backends(const lap_command_t *command, const char *device_name,
                      const char *transport_name, const lap_device_ops_t **device_p,
                      const lap_transport_ops_t **transport_p)
{
    const lap_device_ops_t *device;
    const lap_transport_ops_t *transport;
    const char *name = choose_name(device_name, "LAP_DEVICE");
    if (lap_device_find(name ? name : "cpu", &device) != LAP_OK) {
        lap_cuda_info_t unused;
        if (name && strcmp(name, "cuda") == 0)
            (void)lap_cuda_info(&unused); /* which says that this build has none */
        return lap_args_wrong(command, "%s: %s", device_name ? "--device" : "LAP_DEVICE",
                              lap_last_error());
    }
    name = choose_name(transport_name, "LAP_TRANSPORT");
    if (lap_transport_find(name ? name : fitting_transport(device), &transport) != LAP_OK)
        return lap_args_wrong(command, "%s: %s", transport_name ? "--transport" : "LAP_TRANSPORT",
                              lap_last_error());
    if (!lap_transport_fits(transport, device)) {
        char mine[LAP_SOURCE_TEXT], other[LAP_SOURCE_TEXT];
        lap_transport_source(transport_name, transport->name, mine);
        tell_source(device_name, "device", "LAP_DEVICE", device->name, other);
        return lap_args_wrong(command, "%s cannot reach the memory of %s", mine, other);
    }
    *device_p = device;
    *transport_p = transport;
    return true;
}

bool lap_read_epilogue(const lap_args_t *args, int option, void *to)
{
    const lap_command_t *command = args->command;
    const char *text = args->values[option];
    char what[LAP_OPTION_NAME];
    lap_list_t list;
    lap_epilogue_t epilogue = LAP_EPILOGUE_NONE;
    lap_option_name(args, option, what);
    if (!lap_arg_list(command, what, text, &list))
        return false;
    for (size_t i = 0; i < list.count; i++) {
        size_t index;
        if (!lap_arg_choice(command, what, list.items[i], epilogue_names, &index))
            return false;
        epilogue |= epilogue_bits[index];
    }
    const lap_epilogue_t both = LAP_EPILOGUE_GELU | LAP_EPILOGUE_DGELU;
    if ((epilogue & both) == both)
        return lap_args_wrong(command, "%s is '%s'; expected gelu or dgelu, not both", what, text);
    lap_option_put(args, option, &epilogue, to);
    return true;
}

void lap_epilogue_text(lap_epilogue_t epilogue, char *text, size_t bytes)
{
    size_t used = 0;
    snprintf(text, bytes, "%s", epilogue_names[0]);
    for (size_t i = 1; epilogue_names[i]; i++)
        if ((epilogue & epilogue_bits[i]) != 0 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? "," : "",
                                     epilogue_names[i]);
}

void lap_kind_complete(lap_op_desc_t *desc)
{
    if (desc->kind == LAP_BULK_AG)
        desc->layout = LAP_DGRAD;
    if (desc->kind == LAP_BULK_RS) {
        desc->layout = LAP_WGRAD;
        desc->epilogue &= LAP_EPILOGUE_BIAS_GRAD;
    }
    if (lap_kind_moves(desc->kind))
        desc->cols = desc->k;
    if (!lap_kind_multiplies(desc->kind)) {
        desc->epilogue = LAP_EPILOGUE_NONE;
        desc->n = desc->k = 0;
    }
}
