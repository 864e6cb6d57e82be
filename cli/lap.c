/* SPDX-License-Identifier: Apache-2.0 */
/* The command `lap`: finds the subcommand and runs it. Everything else is in the subcommands. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lap/version.h>

#include "cli.h"

typedef struct subcommand {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} subcommand_t;

static const subcommand_t subcommands[] = {
    {"run", "start the ranks of a program on this machine", lap_cli_run},
    {"bench", "time an operator with every method, and verify the results", lap_cli_bench},
    {"train", "train layers with their communication hidden, and say what it cost", lap_cli_train},
    {"check", "prove that the schedules of an operator are safe", lap_cli_check},
    {"info", "show what was built in, and what this machine offers", lap_cli_info},
};

enum { NSUBCOMMANDS = sizeof(subcommands) / sizeof(subcommands[0]) };

static void print_help(FILE *file)
{
    fprintf(file, "Usage: lap COMMAND [ARGUMENTS]\n\n"
                  "Communication hidden behind computation in transformer training.\n\n"
                  "Commands:\n");
    for (size_t i = 0; i < NSUBCOMMANDS; i++)
        fprintf(file, "  %-9s  %s\n", subcommands[i].name, subcommands[i].summary);
    fprintf(file, "\nOptions:\n"
                  "  --help     show this text and stop\n"
                  "  --version  show the version and stop\n\n"
                  "'lap COMMAND --help' or 'lap help COMMAND' tells more about a command.\n");
}

static const subcommand_t *find(const char *name)
{
    const char *names[NSUBCOMMANDS + 3] = {"--help", "--version"};
    for (size_t i = 0; i < NSUBCOMMANDS; i++) {
        names[i + 2] = subcommands[i].name;
        if (strcmp(name, subcommands[i].name) == 0)
            return &subcommands[i];
    }
    const char *nearest = lap_nearest(name, names);
    const char *what = name[0] == '-' ? "option" : "command";
    if (nearest)
        fprintf(stderr, "lap: unknown %s '%s'; did you mean '%s'?\n", what, name, nearest);
    else
        fprintf(stderr, "lap: unknown %s '%s'; 'lap --help' lists the commands\n", what, name);
    return NULL;
}

static int show_help(const char *name)
{
    if (!name) {
        print_help(stdout);
        return LAP_CLI_OK;
    }
    const subcommand_t *subcommand = find(name);
    char own[] = "help", help[] = "--help";
    char *argv[] = {own, help, NULL};
    return subcommand ? subcommand->run(2, argv) : LAP_CLI_USAGE;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return LAP_CLI_USAGE;
    }
    const char *name = argv[1];
    const bool version = strcmp(name, "--version") == 0;
    const bool help =
        strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    const int most = help ? 3 : 2; /* 'lap help COMMAND' */
    if ((help || version) && argc > most) {
        fprintf(stderr, "lap: unexpected argument '%s' after '%s'\n", argv[most], argv[most - 1]);
        return LAP_CLI_USAGE;
    }
    if (help)
        return show_help(argv[2]);
    if (version) {
        printf("lap %s\n", lap_version_string());
        return LAP_CLI_OK;
    }
    const char *log = getenv("LAP_LOG");
    if (log && *log && strcmp(log, "quiet") != 0) {
        fprintf(stderr, "lap: LAP_LOG is '%s', expected quiet\n", log);
        return LAP_CLI_USAGE;
    }
    const subcommand_t *subcommand = find(name);
    return subcommand ? subcommand->run(argc - 1, argv + 1) : LAP_CLI_USAGE;
}

/*
 * Makes sure that descriptors 0, 1 and 2 are taken: a file opened later must not become somebody's
 * standard output. They are opened the wrong way round, so that using them still fails.
 */
static void take_standard_fds(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", modes[fd]);
}

/* Whether anybody reads what we write, as far as that can be known. */
static bool is_read(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO};
    return poll(&output, 1, 0) <= 0 || (output.revents & POLLERR) == 0;
}

int main(int argc, char **argv)
{
    take_standard_fds();
    int status = dispatch(argc, argv);
    /* A full disk must not look like success. */
    errno = 0;
    const bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && status == LAP_CLI_OK && !is_read())
        return 128 + SIGPIPE; /* nobody wants to hear of it either */
    if (failed && status == LAP_CLI_OK) {
        fprintf(stderr, "lap: cannot write standard output: %s\n",
                errno ? strerror(errno) : "the output is incomplete");
        status = LAP_CLI_FAILED;
    }
    return status;
}
