/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of `lap` share: a table of options from which both the parsing and the help
 * are made, and the parsers of values. All of them print their own sentence on standard error; a
 * caller only returns the exit status.
 *
 *     enum { RANKS, JSON, NOPTIONS };
 *     static const lap_option_t options[NOPTIONS] = {
 *         [RANKS] = {'n', "ranks", "P", "ranks to start", "4", INT(ranks, 1, 1024)},
 *         [JSON] = {0, "json", NULL, "print one JSON object on one line", NULL, ON(json)},
 *     };
 *     static const lap_command_t command = {
 *         .name = "lap bench", .usage = "ag|rs M N K [OPTIONS]", .summary = "Times ...",
 *         .options = options, .noptions = NOPTIONS, .min_positionals = 4, .max_positionals = 4,
 *     };
 *     lap_args_t args;
 *     int status = lap_args_parse(&command, argc, argv, &args);
 *     if (status != LAP_CLI_GO)
 *         return status;
 *     request_t request = {.ranks = 0};
 *     if (!lap_args_read(&args, false, &request))
 *         return LAP_CLI_USAGE;
 */
#ifndef LAP_CLI_CLI_H
#define LAP_CLI_CLI_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <lap/buffer.h>
#include <lap/op.h>

#include "core/fields.h"
#include "core/terms.h"
#include "device/device.h"
#include "transport/transport.h"
#include "util/nearest.h"

/*
 * The subcommands. argv[0] is the name of the subcommand ("run"), argv[1..argc) are its arguments;
 * argv[argc] is NULL and the array may be re-ordered. They return the exit status; main checks that
 * standard output could be written.
 */
int lap_cli_run(int argc, char **argv);
int lap_cli_bench(int argc, char **argv);
int lap_cli_train(int argc, char **argv);
int lap_cli_check(int argc, char **argv);
int lap_cli_check_train(int argc, char **argv); /* lap check train */
int lap_cli_check_pipeline(int argc, char **argv);
int lap_cli_show_pipeline(int argc, char **argv);
int lap_cli_show(int argc, char **argv);
int lap_cli_data(int argc, char **argv);
int lap_cli_plan(int argc, char **argv);
int lap_cli_calibrate(int argc, char **argv);
int lap_cli_tune(int argc, char **argv);
int lap_cli_show_train(int argc, char **argv); /* lap show train; argv[-1] is "show" */
int lap_cli_report(int argc, char **argv);
int lap_cli_info(int argc, char **argv);

enum {
    LAP_CLI_GO = -1,        /* lap_args_parse: all is well, go on */
    LAP_CLI_OK = 0,         /* exit status: done */
    LAP_CLI_FAILED = 1,     /* exit status: the work itself failed */
    LAP_CLI_USAGE = 2,      /* exit status: the command line makes no sense */
    LAP_CLI_NOT_FINITE = 3, /* exit status: a loss, or gradients, are not finite */
    LAP_CLI_NOT_HIDDEN = 4, /* exit status: communication is not as well hidden as was asked for */
};

typedef struct lap_args lap_args_t;

/* What the ranks of a job must have alike of an option. */
typedef enum lap_ranks_alike {
    LAP_RANKS_ALIKE, /* its value */
    LAP_RANKS_GIVEN, /* whether it is given */
    LAP_RANKS_OWN,   /* nothing; or it says the same as another option, which they have alike */
} lap_ranks_alike_t;

typedef struct lap_option {
    char letter;               /* 'n' for -n; 0: no short form */
    const char *name;          /* "ranks" for --ranks */
    const char *value;         /* what the help calls its value, such as "N"; NULL: takes none */
                               /* "[=MODE]": may be left out, and is joined when it is there */
    const char *help;          /* a phrase without a full stop; wrapped to the width of the page */
    const char *default_value; /* used when it is not given, and shown by the help; NULL: none */
    lap_field_t
        field; /* of the command's struct, that takes the value; no name: see lap_args_read */
    bool off;  /* of one without a value: the field is 1, and 0 where it is given */
    const char *bare; /* the value that is meant where it is left out */
    bool (*read)(const lap_args_t *args, int option,
                 void *to); /* NULL: as the field's type is read */
    lap_ranks_alike_t ranks;
} lap_option_t;

/* In the place of a field: code of the command reads the value, which depends on others. */
#define LAP_BY_CODE .field = {.name = NULL}

/* Another name of an option, such as other programs have for it. */
typedef struct lap_alias {
    char letter; /* 0: no short form */
    const char *name;
    size_t option; /* its index */
} lap_alias_t;

typedef struct lap_command {
    const char *name;    /* "lap bench": begins every message */
    const char *usage;   /* what follows the name: "ag|rs M N K [OPTIONS]" */
    const char *summary; /* a sentence or two; printed as it is, so break lines below 80 columns */
    const char *details; /* printed after the options as it is; NULL: nothing. Pages of the manual
                            take lists in it for such: see man.c */
    const char *(*more)(void);   /* further details, which a table makes; NULL: none */
    const char *exit_status;     /* lines "  status  meaning" */
    const lap_option_t *options; /* --help is added to them; at most LAP_OPTIONS_MAX */
    size_t noptions;
    size_t min_positionals, max_positionals;
    bool stop_at_positional;    /* all from the first positional on is positional, also options */
    const lap_alias_t *aliases; /* at most LAP_ALIASES_MAX */
    size_t naliases;
} lap_command_t;

#define LAP_OPTIONS_MAX 128
#define LAP_ALIASES_MAX 24

struct lap_args {
    const lap_command_t *command; /* whose they are */
    /* By index of the option: the last value given, or the default; "" for one without a value. */
    const char *values[LAP_OPTIONS_MAX];
    bool given[LAP_OPTIONS_MAX]; /* tells a default from the same value given */
    /* The option before, while its value may be left out and is; and a positional after one. */
    const char *open, *apart, *apart_from;
    char **positionals; /* in argv itself, which is re-ordered; ends with NULL */
    size_t npositionals;
};

/*
 * Sorts argv[1..argc) into options and positionals. Understands `--opt value`, `--opt=value`, `-o
 * value`, `-ovalue`, and `--`, after which all is positional. A negative number is positional, so
 * that the caller can say what is wrong with it. Of two values of an option the last counts; a LIST
 * is refused the second time. Returns LAP_CLI_GO, or the exit status after printing the help (0) or
 * a sentence (2).
 */
int lap_args_parse(const lap_command_t *command, int argc, char **argv, lap_args_t *args_p);

/*
 * Reads the value of each option whose row has a field into that field of the command's struct,
 * *to: what is given, and the defaults of the table unless `given_only`. What is neither stays as
 * it is. Returns true, or false after a sentence.
 */
bool lap_args_read(const lap_args_t *args, bool given_only, void *to);

/* Readers of rows, see option_rows.h. */
bool lap_read_number(const lap_args_t *args, int option, void *to);
bool lap_read_real(const lap_args_t *args, int option, void *to);
bool lap_read_timeout(const lap_args_t *args, int option, void *to);
bool lap_read_link(const lap_args_t *args, int option, void *to);
bool lap_read_target(const lap_args_t *args, int option, void *to);
bool lap_read_epilogue(const lap_args_t *args, int option, void *to);

/* For readers: stores a value in the field of an option, which has its type. */
void lap_option_put(const lap_args_t *args, int option, const void *value, void *to);

/* A float that is not negative, and less than `below`, which is 1; 0: and any will do. */
bool lap_arg_single(const lap_args_t *args, int option, float below, float *number_p);

/* "--name" of an option. */
#define LAP_OPTION_NAME 64
const char *lap_option_name(const lap_args_t *args, int option, char text[LAP_OPTION_NAME]);

/*
 * Lists all that ranks must have alike of a command line, as their rows say. The value of an option
 * with a field is what that holds in *of, the command's struct, also where a default depends on
 * others.
 */
void lap_args_terms(const lap_args_t *args, const void *of, lap_terms_t *terms);

/* Prints "lap bench: <sentence>" on standard error, adds the newline, and returns LAP_CLI_USAGE. */
int lap_args_fail(const lap_command_t *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same, and returns false: for parsers. */
bool lap_args_wrong(const lap_command_t *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * The same with lap_last_error appended to `what`, after a call of the library has failed. Returns
 * LAP_CLI_FAILED where that is no mistake in the request: there was no memory, the system failed.
 */
int lap_args_refused(const lap_command_t *command, lap_status_t status, const char *what);

/* The sentence that these three have told last; "": none. */
const char *lap_args_told(void);

/*
 * Writes a sentence of the library about a field as one about the option that the field is of:
 * "kv_heads is 3" as "--kv-heads is 3". Returns the option; -1: it is about none.
 */
int lap_args_of_field(const lap_command_t *command, const char *sentence, char *told, size_t bytes);

/*
 * The parsers below return true and write their output, or print a sentence with `what` ("--ranks",
 * "M"), the value and what was expected, and return false.
 */

/* A whole number from `min` to `max`. */
bool lap_arg_int(const lap_command_t *command, const char *what, const char *text, int min, int max,
                 int *value_p);

/* Any whole number that is not negative. */
bool lap_arg_number(const lap_command_t *command, const char *what, const char *text,
                    uint64_t *value_p);

/* A size from `min` to `max`, such as 2048, 64K, 1M or 2G; the letters are powers of 1024. */
bool lap_arg_size(const lap_command_t *command, const char *what, const char *text, size_t min,
                  size_t max, size_t *value_p);

/* A number of seconds from `min` to `max`, such as 3 or 0.25. */
bool lap_arg_seconds(const lap_command_t *command, const char *what, const char *text, double min,
                     double max, double *value_p);

/* A number from `min`, not below 0, to `max`, such as 0.9. */
bool lap_arg_real(const lap_command_t *command, const char *what, const char *text, double min,
                  double max, double *value_p);

/* The seconds of --timeout: what LAP_TIMEOUT_S may be. */
bool lap_arg_timeout(const lap_command_t *command, const char *text, double *seconds_p);

/* One of `names` (NULL at the end); writes its index. The sentence lists them. */
bool lap_arg_choice(const lap_command_t *command, const char *what, const char *text,
                    const char *const *names, size_t *index_p);

#define LAP_LIST_MAX 32
#define LAP_LIST_TEXT 64

typedef struct lap_list {
    size_t count;
    char items[LAP_LIST_MAX][LAP_LIST_TEXT];
} lap_list_t;

/* A list a,b,c of 1 to LAP_LIST_MAX items, none empty. */
bool lap_arg_list(const lap_command_t *command, const char *what, const char *text,
                  lap_list_t *list_p);

/* What --link says. */
typedef struct lap_link_arg {
    lap_link_t link; /* bytes_per_s is 0 when a ratio was given */
    double ratio;    /* serial communication as a part of the GEMM time; 0: a rate was given */
} lap_link_arg_t;

/*
 * 2GB/s, 500MB/s, 2.5GB/s,5us, ratio:0.4 or ratio:0.4,5us. Rates count in powers of 1000 (B/s,
 * kB/s, MB/s, GB/s, TB/s); latencies are in ns, us, ms or s.
 */
bool lap_arg_link(const lap_command_t *command, const char *what, const char *text,
                  lap_link_arg_t *link_p);

/* ---- spelling.c: sentences name options as the user does ---- */

#define LAP_SPELLING_TEXT 64

/*
 * Prints "name: <sentence>" and a newline on standard error, as all messages of lap are printed. An
 * option is named in it by the name that the table has, --iters; who typed --steps or -i, or
 * max_steps in a file of --config, reads that.
 */
void lap_tell(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lap_vtell(const char *name, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Prints a text, such as an explanation of results, with such names. */
void lap_spelling_print(FILE *file, const char *text);

/* For lap_args_parse: another command line is read; an option of it is `typed` so. */
void lap_spelling_begin(const lap_command_t *command);
void lap_spelling_note(size_t option, const char *typed);

/*
 * An option that a file has, by a key in this line. A sentence on standard error that is about it,
 * and about none of the command line, begins with the place: "model.yaml:7: num_attention_heads is
 * 25". The path lives as long.
 */
void lap_spelling_file(size_t option, const char *key, const char *path, size_t line);

/* ---- words.c ---- */

#define LAP_KINDS (LAP_EXTERNAL_RS + 1)

/* How a kind of operator is called on command lines, in headings, and what it is. */
typedef struct lap_kind_words {
    const char *word, *title, *meaning;
} lap_kind_words_t;

/* In the order of lap_op_kind_t. */
extern const lap_kind_words_t lap_kind_words[LAP_KINDS];

/*
 * Fills in what a kind needs besides m, n and k: bulk GEMMs have the layouts of a backward pass and
 * move k columns; what a kind cannot have is left out.
 */
void lap_kind_complete(lap_op_desc_t *desc);

/* A type of elements, by any of its names. */
bool lap_arg_dtype(const lap_command_t *command, const char *what, const char *text,
                   lap_dtype_t *dtype_p);

/*
 * Features of an MLP by --mlp-expansion-factor, which excludes --ffn. Neither is given: *ffn_p
 * stays as it is.
 */
bool lap_arg_expansion(const lap_args_t *args, size_t ffn, size_t expansion, size_t hidden,
                       size_t *ffn_p);

/*
 * A device and a transport by their names. NULL: what LAP_DEVICE and LAP_TRANSPORT of the
 * environment say, or else cpu and what fits the device and where the ranks are.
 */
bool lap_arg_backends(const lap_command_t *command, const char *device_name,
                      const char *transport_name, const lap_device_ops_t **device_p,
                      const lap_transport_ops_t **transport_p);

/*
 * A value of a field, within its bounds and at least `least`, as its type has it: a number, a word
 * or a type of elements. Writes it to the field of `of`.
 */
bool lap_arg_field(const lap_command_t *command, const char *what, const char *text,
                   const lap_field_t *field, int least, void *of);

/* A method of desc->kind with its knobs, such as "ring" or "pipeline:num_splits=8"; or auto. */
bool lap_arg_method(const lap_command_t *command, const char *item, lap_op_desc_t *desc);

#define LAP_SOURCE_TEXT 64

/* "--transport mpi", where that was `given`, or "LAP_TRANSPORT=mpi": who is to blame for it. */
void lap_transport_source(const char *given, const char *name, char text[LAP_SOURCE_TEXT]);

#define LAP_EPILOGUE_TEXT 32

/* "bias,gelu": some of bias, gelu, dgelu and bias-grad; or none; in LAP_EPILOGUE_TEXT bytes. */
void lap_epilogue_text(lap_epilogue_t epilogue, char *text, size_t bytes);

#endif
