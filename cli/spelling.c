/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences about options, in the spelling of whoever typed them: an option may have several names, and the code
 * knows it by one. A process reads one command line, so there is one list of spellings. lap_args_parse fills it; all
 * sentences on standard error pass through here.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const lap_command_t *speller;
static char spellings[LAP_OPTIONS_MAX][LAP_SPELLING_TEXT]; /* "": not given */

void lap_spelling_begin(const lap_command_t *command)
{
    speller = command;
    memset(spellings, 0, sizeof(spellings));
}

void lap_spelling_note(size_t option, const char *typed)
{
    snprintf(spellings[option], LAP_SPELLING_TEXT, "%s", typed);
}

/* The spelling of the option whose name the text begins with, or NULL; *length_p: of the name. */
static const char *find(const char *text, size_t *length_p)
{
    size_t length = 0;
    while (islower((unsigned char)text[length]) || isdigit((unsigned char)text[length]) ||
           (text[length] == '-' && isalnum((unsigned char)text[length + 1])))
        length++;
    *length_p = length;
    for (size_t o = 0; speller && o < speller->noptions; o++)
        if (strlen(speller->options[o].name) == length &&
            strncmp(speller->options[o].name, text, length) == 0)
            return spellings[o][0] ? spellings[o] : NULL;
    return NULL;
}

void lap_spelling_print(FILE *file, const char *text)
{
    for (const char *at = text; *at;) {
        /* What is quoted is a value. */
        const bool begins = at == text || strchr(" (\n", at[-1]) != NULL;
        size_t length = 0;
        const char *spelling = begins && strncmp(at, "--", 2) == 0 ? find(at + 2, &length) : NULL;
        if (spelling) {
            fputs(spelling, file);
            at += 2 + length;
        } else {
            fputc(*at++, file);
        }
    }
}

/* In one write, since other ranks tell, too. Without memory for that, with the names of the tables. */
static void print_line(const char *name, const char *sentence)
{
    char *line = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&line, &bytes);
    if (file) {
        fprintf(file, "%s: ", name);
        lap_spelling_print(file, sentence);
        fputc('\n', file);
    }
    if (file && fclose(file) == 0)
        fputs(line, stderr);
    else
        fprintf(stderr, "%s: %s\n", name, sentence);
    free(line);
}

void lap_vtell(const char *name, const char *format, va_list args)
{
    char *sentence = NULL;
    va_list again;
    va_copy(again, args);
    if (vasprintf(&sentence, format, args) >= 0) {
        print_line(name, sentence);
        free(sentence);
    } else {
        fprintf(stderr, "%s: ", name);
        vfprintf(stderr, format, again);
        fputc('\n', stderr);
    }
    va_end(again);
}

void lap_tell(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    lap_vtell(name, format, args);
    va_end(args);
}
