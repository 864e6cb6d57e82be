/* SPDX-License-Identifier: Apache-2.0 */
/* Help as text and as words for completions: see help.h. Pages of the manual are made in man.c. */
#include "help.h"

#include <ctype.h>
#include <string.h>

#include "commands.h"
#include "man.h"

#define HELP_COLUMNS 80
#define WIDTH_MOST 36 /* of names: what is longer has its explanation in the next line */

const char *const lap_help_formats[] = {"text", "man", "words", NULL};

const lap_option_t lap_help_option = {
    'h',
    "help",
    "[=FORMAT]",
    "show this text and stop; =man: as a page of the manual, =words: the words that shells "
    "complete",
    NULL,
    LAP_BY_CODE};

bool lap_option_is_optional(const lap_option_t *option)
{
    return option->value && option->value[0] == '[';
}

lap_option_t lap_option_of_alias(const lap_command_t *command, const lap_alias_t *alias,
                                 char help[LAP_ALIAS_TEXT])
{
    lap_option_t option = command->options[alias->option];
    snprintf(help, LAP_ALIAS_TEXT, "the same as --%s", option.name);
    option.letter = alias->letter;
    option.name = alias->name;
    option.help = help;
    option.default_value = NULL;
    return option;
}

void lap_option_explain(const lap_option_t *option, char text[LAP_OPTION_TEXT])
{
    const char *value = option->default_value;
    snprintf(text, LAP_OPTION_TEXT, "%s%s%s%s", option->help, value ? " (default " : "",
             value ? value : "", value ? ")" : "");
}

/* ---- text ---- */

/* Prints text with line breaks at spaces; the cursor is at `indent` already. */
static void print_wrapped(FILE *file, const char *text, int indent)
{
    int column = indent;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word >= HELP_COLUMNS) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(file, "%s%.*s", column > indent ? " " : "", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fprintf(file, "\n");
}

static void print_option(FILE *file, const lap_option_t *option, int width)
{
    char text[128], help[LAP_OPTION_TEXT];
    char letter[] = {'-', option->letter, ',', '\0'};
    const bool apart = option->value && !lap_option_is_optional(option);
    snprintf(text, sizeof(text), "%3s --%s%s%s", option->letter ? letter : "", option->name,
             apart ? " " : "", option->value ? option->value : "");
    lap_option_explain(option, help);
    const int used = fprintf(file, "  %-*s", width, text);
    if (used > width + 2)
        fprintf(file, "\n%*s", width + 2, "");
    fprintf(file, "  ");
    print_wrapped(file, help, width + 4);
}

/* The columns of an option without its explanation. */
static int width_of(const lap_option_t *option)
{
    const int value = option->value ? 1 + (int)strlen(option->value) : 0;
    return 6 + (int)strlen(option->name) + value;
}

static void print_text(FILE *file, const lap_command_t *command)
{
    fprintf(file, "Usage: %s %s\n\n%s\n\n", command->name, command->usage, command->summary);
    if (command == &lap_command) {
        fprintf(file, "Commands:\n");
        for (const lap_subcommand_t *one = lap_subcommands; one->name; one++)
            fprintf(file, "  %-9s  %s\n", one->name, one->brief);
        fprintf(file, "\n");
    }
    fprintf(file, "Options:\n");
    int width = width_of(&lap_help_option);
    for (size_t i = 0; i < command->noptions; i++)
        if (width_of(&command->options[i]) > width && width_of(&command->options[i]) <= WIDTH_MOST)
            width = width_of(&command->options[i]);
    for (size_t i = 0; i < command->noptions; i++)
        print_option(file, &command->options[i], width);
    for (size_t i = 0; i < command->naliases; i++) {
        char help[LAP_ALIAS_TEXT];
        const lap_option_t option = lap_option_of_alias(command, &command->aliases[i], help);
        print_option(file, &option, width);
    }
    print_option(file, &lap_help_option, width);
    if (command->details)
        fprintf(file, "\n%s\n", command->details);
    if (command->more)
        fprintf(file, "\n%s\n", command->more());
    if (command->exit_status)
        fprintf(file, "\nExit status:\n%s\n", command->exit_status);
}

/* ---- words ---- */

/* Those parts of "ag|rs|..." that can be typed as they are. */
static void print_choices(FILE *file, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++) {
        const size_t begin = at;
        bool plain = true;
        for (; at < bytes && text[at] != '|'; at++)
            plain = plain && (islower((unsigned char)text[at]) || (text[at] == '-' && at > begin));
        if (plain && at > begin)
            fprintf(file, "%.*s\n", (int)(at - begin), text + begin);
    }
}

static void print_words(FILE *file, const lap_command_t *command)
{
    for (const lap_subcommand_t *one = lap_subcommands; command == &lap_command && one->name; one++)
        fprintf(file, "%s\n", one->name);
    /* A usage is a line for each form, of which all but the first begin with the command. */
    for (const char *line = command->usage; *line; line += strcspn(line, "\n")) {
        line += strspn(line, " \n");
        const size_t name = strlen(command->name);
        if (strncmp(line, command->name, name) == 0)
            line += name + strspn(line + name, " ");
        print_choices(file, line, strcspn(line, " \n"));
    }
    for (size_t i = 0; i < command->noptions; i++)
        fprintf(file, "--%s\n", command->options[i].name);
    for (size_t i = 0; i < command->naliases; i++)
        fprintf(file, "--%s\n", command->aliases[i].name);
    fprintf(file, "--%s\n", lap_help_option.name);
}

void lap_help(FILE *file, const lap_command_t *command, lap_help_format_t format)
{
    if (format == LAP_HELP_TEXT)
        print_text(file, command);
    else if (format == LAP_HELP_WORDS)
        print_words(file, command);
    else
        lap_man(file, command);
}

int lap_help_asked(const lap_command_t *command, const char *format)
{
    size_t index = LAP_HELP_TEXT;
    if (format && !lap_arg_choice(command, "--help", format, lap_help_formats, &index))
        return LAP_CLI_USAGE;
    lap_help(stdout, command, (lap_help_format_t)index);
    return LAP_CLI_OK;
}
