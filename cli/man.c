/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of the manual, made from the tables of options that --help shows, and from those of
 * commands.h. The texts of a command are plain, and become macros by their form: a paragraph whose
 * first line has two spaces inside is a list of "tag  meaning", with continuations indented; one
 * that begins with "word: " is a list of such lines; any other is filled.
 */
#include "man.h"

#include <ctype.h>
#include <string.h>

#include <lap/version.h>

#include "commands.h"
#include "help.h"
#include "lap_commit.h"

#define LINE 55        /* after so many characters of text a line ends */
#define CONTINUATION 8 /* spaces before a line that goes on with the tag above it */

/*
 * Prints text so that roff prints it as it is. Where roff fills lines, long ones are broken: a
 * line of a page should be short.
 */
static void put(FILE *file, const char *text, size_t bytes, bool filled)
{
    static const struct {
        char c;
        const char *roff;
    } escapes[] = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"},
                   {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};
    size_t begin = 0;
    for (size_t i = 0; i < bytes; i++) {
        const char *roff = NULL;
        for (size_t e = 0; e < sizeof(escapes) / sizeof(escapes[0]); e++)
            if (escapes[e].c == text[i])
                roff = escapes[e].roff;
        if (i == begin && text[i] == '.') /* else it would be a macro */
            fputs("\\&", file);
        if (roff) {
            fputs(roff, file);
        } else if (filled && text[i] == ' ' && i - begin > LINE) {
            fputc('\n', file);
            begin = i + 1;
        } else {
            fputc(text[i], file);
        }
    }
}

static void put_text(FILE *file, const char *text)
{
    put(file, text, strlen(text), true);
}

/* The bytes of the tag that a line of a list begins with, and where its meaning begins; or 0. */
static size_t find_tag(const char *line, size_t bytes, bool columns, const char **meaning_p)
{
    size_t i = strspn(line, " ");
    if (columns && i >= CONTINUATION)
        return 0;
    for (; i + 1 < bytes; i++) {
        const bool gap = line[i] == ' ' && line[i + 1] == ' ';
        const bool colon = line[i] == ':' && line[i + 1] == ' ';
        if (columns ? gap : colon) {
            *meaning_p = line + i + 1 + strspn(line + i + 1, " ");
            return i;
        }
        if (!columns && !islower((unsigned char)line[i]) && line[i] != '-')
            return 0;
    }
    return 0;
}

/* Prints a paragraph of `bytes` bytes. A list, or the first of a section, needs no macro before. */
static void put_paragraph(FILE *file, const char *text, size_t bytes, bool first)
{
    const char *meaning, *end = text + bytes;
    size_t length = strcspn(text, "\n");
    const bool columns = find_tag(text, length, true, &meaning) > 0;
    const bool list = columns || find_tag(text, length, false, &meaning) > 0;
    if (!list && !first)
        fprintf(file, ".PP\n");
    for (; text < end; text += length + 1) {
        length = strcspn(text, "\n");
        const size_t tag = list ? find_tag(text, length, columns, &meaning) : 0;
        const char *rest = tag ? meaning : text + strspn(text, " ");
        if (tag) {
            fprintf(file, ".TP\n\\fB");
            put(file, text + strspn(text, " "), tag - strspn(text, " "), true);
            fprintf(file, "\\fR\n");
        }
        put(file, rest, (size_t)(text + length - rest), true);
        fputc('\n', file);
    }
}

/* Prints paragraphs, with empty lines between them; `first`: they begin a section. */
static void put_paragraphs(FILE *file, const char *text, bool first)
{
    while (text && *text) {
        const char *end = strstr(text, "\n\n");
        const size_t bytes = end ? (size_t)(end - text) : strlen(text);
        put_paragraph(file, text, bytes, first);
        first = false;
        text += bytes + strspn(text + bytes, "\n");
    }
}

static void put_synopsis(FILE *file, const lap_command_t *command)
{
    const size_t name = strlen(command->name);
    fprintf(file, ".SH SYNOPSIS\n");
    for (const char *line = command->usage; *line;) {
        const size_t length = strcspn(line, "\n");
        const char *rest = line + strspn(line, " ");
        if (strncmp(rest, command->name, name) == 0)
            rest += name + 1;
        fprintf(file, "%s\\fB%s\\fR ", line == command->usage ? "" : ".br\n", command->name);
        put(file, rest, (size_t)(line + length - rest), true);
        fputc('\n', file);
        line += length + (line[length] == '\n');
    }
}

static void put_option(FILE *file, const lap_option_t *option)
{
    char text[LAP_OPTION_TEXT];
    lap_option_explain(option, text);
    fprintf(file, ".TP\n");
    if (option->letter)
        fprintf(file, "\\fB\\-%c\\fR, ", option->letter);
    fprintf(file, "\\fB\\-\\-");
    put_text(file, option->name);
    fprintf(file, "\\fR%s\\fI", option->value && !lap_option_is_optional(option) ? " " : "");
    put_text(file, option->value ? option->value : "");
    fprintf(file, "\\fR\n");
    put_text(file, text);
    fputc('\n', file);
}

static void put_options(FILE *file, const lap_command_t *command)
{
    fprintf(file, ".SH OPTIONS\n");
    for (size_t i = 0; i < command->noptions; i++)
        put_option(file, &command->options[i]);
    for (size_t i = 0; i < command->naliases; i++) {
        char help[LAP_ALIAS_TEXT];
        const lap_option_t option = lap_option_of_alias(command, &command->aliases[i], help);
        put_option(file, &option);
    }
    put_option(file, &lap_help_option);
}

static void put_commands(FILE *file)
{
    fprintf(file, ".SH COMMANDS\n");
    for (const lap_subcommand_t *one = lap_subcommands; one->name; one++) {
        fprintf(file, ".TP\n\\fBlap\\-%s\\fR(1)\n", one->name);
        put_text(file, one->brief);
        fputc('\n', file);
    }
}

static void put_environment(FILE *file, const lap_subcommand_t *own)
{
    fprintf(file, ".SH ENVIRONMENT\n");
    for (const lap_variable_t *variable = lap_variables; variable->name; variable++) {
        if (own != &lap_itself && variable->commands && !strstr(variable->commands, own->name))
            continue;
        fprintf(file, ".TP\n\\fB%s\\fR\n", variable->name);
        put_text(file, variable->meaning);
        fputc('\n', file);
    }
}

static void put_examples(FILE *file, const lap_subcommand_t *own)
{
    fprintf(file, ".SH EXAMPLES\n");
    for (size_t i = 0; i < LAP_EXAMPLES_MAX && own->examples[i].line; i++) {
        put_paragraphs(file, own->examples[i].meaning, i == 0);
        fprintf(file, ".PP\n.in +4n\n.nf\n");
        put(file, own->examples[i].line, strlen(own->examples[i].line), false);
        fprintf(file, "\n.fi\n.in\n");
    }
}

static void put_see_also(FILE *file, const lap_subcommand_t *own)
{
    fprintf(file, ".SH SEE ALSO\n");
    if (own != &lap_itself)
        fprintf(file, "\\fBlap\\fR(1),\n");
    for (const lap_subcommand_t *one = lap_subcommands; one->name; one++) {
        const bool last = !one[1].name || (one + 1 == own && !one[2].name);
        if (one != own)
            fprintf(file, "\\fBlap\\-%s\\fR(1)%s\n", one->name, last ? "" : ",");
    }
    fprintf(file, ".PP\nDocuments, examples and the reference of the library are installed in\n"
                  "\\fIshare/doc/lap\\fR.\n");
}

void lap_man(FILE *file, const lap_command_t *command)
{
    const bool itself = command == &lap_command;
    char title[32], first[32] = ""; /* of "lap show train": "lap-show-train" and "show" */
    (void)sscanf(command->name, "lap %31s", first);
    const lap_subcommand_t *own = itself ? &lap_itself : lap_subcommand_find(first);
    snprintf(title, sizeof(title), "%s", command->name);
    for (char *c = title; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    fprintf(file, ".\\\" Made from the tables of the command by %s --help=man.\n.TH ",
            command->name);
    for (const char *c = title; *c; c++)
        fputc(toupper((unsigned char)*c), file);
    fprintf(file, " 1 \"%s\" \"Lapstrake %s\" \"User Commands\"\n.SH NAME\n", LAP_DATE,
            lap_version_string());
    put_text(file, title);
    fprintf(file, " \\- ");
    put_text(file, own->brief);
    fputc('\n', file);
    put_synopsis(file, command);
    fprintf(file, ".SH DESCRIPTION\n");
    put_paragraphs(file, command->summary, true);
    put_paragraphs(file, command->details, false);
    put_paragraphs(file, command->more ? command->more() : NULL, false);
    if (itself)
        put_commands(file);
    put_options(file, command);
    fprintf(file, ".SH \"EXIT STATUS\"\n");
    put_paragraphs(file, command->exit_status, true);
    put_environment(file, own);
    if (own->files) {
        fprintf(file, ".SH FILES\n");
        put_paragraphs(file, own->files, true);
    }
    put_examples(file, own);
    put_see_also(file, own);
}
