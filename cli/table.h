/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables on standard output. Columns are a template of their heading, "%-8[method] %9[total ms]  %?6[noise]": the spaces before
 * a column, its width, below 0 of words, which begin on the left, and its title with the unit. A ? says
 * that numbers may be NAN, which is a -. A column whose width is 0 is left out, with its spaces.
 */
#ifndef LAP_CLI_TABLE_H
#define LAP_CLI_TABLE_H

/* The titles as a line. */
void lap_table_head(const char *columns);

/*
 * A line: a format with a tab between what is for one column and the next. What is wider than its
 * column goes on into the next, which begins behind it. Rows may have fewer texts than there are columns,
 * and texts for which there is no column.
 */
void lap_table_row(const char *columns, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
