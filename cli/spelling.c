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
static const char *config_path;
static size_t lines[LAP_OPTIONS_MAX]; /* of that file, 0: it is not from there */

void lap_spelling_begin(const lap_command_t *command)
{
    speller = command;
    memset(spellings, 0, sizeof(spellings));
    memset(lines, 0, sizeof(lines));
}

void lap_spelling_note(size_t option, const char *typed)
{
    snprintf(spellings[option], LAP_SPELLING_TEXT, "%s", typed);
}

void lap_spelling_file(size_t option, const char *key, const char *path, size_t line)
{
    lap_spelling_note(option, key);
    config_path = path;
    lines[option] = line;
}

/* The option whose name the text begins with, if it was given, or LAP_OPTIONS_MAX; *length_p: of the name. */
static size_t find(const char *text, size_t *length_p)
{
    size_t length = 0;
    while (islower((unsigned char)text[length]) || isdigit((unsigned char)text[length]) ||
           (text[length] == '-' && isalnum((unsigned char)text[length + 1])))
        length++;
    *length_p = length;
    for (size_t o = 0; speller && o < speller->noptions; o++)
        if (strlen(speller->options[o].name) == length &&
            strncmp(speller->options[o].name, text, length) == 0)
            return spellings[o][0] ? o : LAP_OPTIONS_MAX;
    return LAP_OPTIONS_MAX;
}

/* The option that is named at a place of a text, likewise. */
static size_t find_at(const char *text, const char *at, size_t *length_p)
{
    /* What is quoted is a value. */
    const bool begins = at == text || strchr(" (\n", at[-1]) != NULL;
    return begins && strncmp(at, "--", 2) == 0 ? find(at + 2, length_p) : LAP_OPTIONS_MAX;
}

void lap_spelling_print(FILE *file, const char *text)
{
    for (const char *at = text; *at;) {
        size_t length = 0;
        const size_t option = find_at(text, at, &length);
        if (option < LAP_OPTIONS_MAX) {
            fputs(spellings[option], file);
            at += 2 + length;
        } else {
            fputc(*at++, file);
        }
    }
}

/* Where the first option is that a sentence names, if that is in a file. */
static void print_place(FILE *file, const char *sentence)
{
    size_t option = LAP_OPTIONS_MAX, length;
    for (const char *at = sentence; *at && option == LAP_OPTIONS_MAX; at++)
        option = find_at(sentence, at, &length);
    if (option < LAP_OPTIONS_MAX && lines[option] > 0)
        fprintf(file, "%s:%zu: ", config_path, lines[option]);
}

/* In one write, since other ranks tell, too. Without memory for that, with the names of the tables. */
static void print_line(const char *name, const char *sentence)
{
    char *line = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&line, &bytes);
    if (file) {
        fprintf(file, "%s: ", name);
        print_place(file, sentence);
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
