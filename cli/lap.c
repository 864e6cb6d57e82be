/* SPDX-License-Identifier: Apache-2.0 */
/* The command `lap`: finds the subcommand and runs it. Everything else is in the subcommands. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lap/version.h>

#include "commands.h"
#include "help.h"
#include "interrupt.h"

#define SUBCOMMANDS_MAX 16
#define LARGE_BYTES (1 << 20)

static const lap_subcommand_t *find(const char *name)
{
    const lap_subcommand_t *found = lap_subcommand_find(name);
    if (found)
        return found;
    const char *names[SUBCOMMANDS_MAX + 3] = {"--help", "--version"};
    for (size_t i = 0; lap_subcommands[i].name; i++) {
        assert(i < SUBCOMMANDS_MAX);
        names[i + 2] = lap_subcommands[i].name;
    }
    const char *nearest = lap_nearest(name, names);
    const char *what = name[0] == '-' ? "option" : "command";
    if (nearest)
        (void)lap_args_wrong(&lap_command, "unknown %s '%s'; did you mean '%s'?", what, name,
                             nearest);
    else
        (void)lap_args_wrong(&lap_command, "unknown %s '%s'; 'lap --help' lists the commands", what,
                             name);
    return NULL;
}

/* `part`: of the subcommand, such as `train` of `lap check`; NULL: all of it. */
static int show_help(const char *name, char *part)
{
    if (!name)
        return lap_help_asked(&lap_command, NULL);
    const lap_subcommand_t *subcommand = find(name);
    char own[] = "help", help[] = "--help";
    char *argv[] = {own, part ? part : help, part ? help : NULL, NULL};
    if (!subcommand)
        return LAP_CLI_USAGE;
    size_t i = 0;
    while (part && subcommand->parts[i] && strcmp(subcommand->parts[i], part) != 0)
        i++;
    if (part && !subcommand->parts[i]) {
        fprintf(stderr, "lap: unexpected argument '%s' after '%s'\n", part, name);
        return LAP_CLI_USAGE;
    }
    return subcommand->run(part ? 3 : 2, argv);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        lap_help(stderr, &lap_command, LAP_HELP_TEXT);
        return LAP_CLI_USAGE;
    }
    const char *name = argv[1];
    const bool version = strcmp(name, "--version") == 0;
    const bool help =
        strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    const char *format = strncmp(name, "--help=", 7) == 0 ? name + 7 : NULL;
    const int most = help ? 4 : 2; /* 'lap help COMMAND PART' */
    if ((help || version || format) && argc > most) {
        fprintf(stderr, "lap: unexpected argument '%s' after '%s'\n", argv[most], argv[most - 1]);
        return LAP_CLI_USAGE;
    }
    if (help)
        return show_help(argv[2], argc > 3 ? argv[3] : NULL);
    if (format)
        return lap_help_asked(&lap_command, format);
    if (version) {
        printf("lap %s\n", lap_version_string());
        return LAP_CLI_OK;
    }
    const char *log = getenv("LAP_LOG");
    if (log && *log && strcmp(log, "quiet") != 0) {
        fprintf(stderr, "lap: LAP_LOG is '%s', expected quiet\n", log);
        return LAP_CLI_USAGE;
    }
    const lap_subcommand_t *subcommand = find(name);
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

static int run(int argc, char **argv)
{
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
    if (lap_interrupt_is_status(status))
        lap_interrupt_leave();
    return status;
}

/* ---- little stack ---- */

#define STACK_BYTES ((size_t)2 << 20)

typedef struct arguments {
    int argc;
    char **argv;
} arguments_t;

/* Ends the process itself: it may be one that was forked here, in which there is no other thread. */
static void *run_main(void *context)
{
    const arguments_t *given = context;
    exit(run(given->argc, given->argv));
}

/*
 * Where ulimit -s leaves little, the command runs in a thread with a stack of its own, and so do
 * threads of libraries that ask for none. Returns where there is enough, or no such thread.
 */
static void run_with_stack(int argc, char **argv)
{
    pthread_t thread;
    pthread_attr_t attributes;
    struct rlimit limit;
    arguments_t given = {argc, argv};
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_BYTES ||
        pthread_attr_init(&attributes) != 0)
        return;
    if (pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0 &&
        pthread_setattr_default_np(&attributes) == 0 &&
        pthread_create(&thread, NULL, run_main, &given) == 0) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, NULL); /* signals are for the other */
        for (;;)
            pause();
    }
    pthread_attr_destroy(&attributes);
}

/*
 * malloc of the GNU C library reserves 64 MiB of addresses for each thread that allocates while
 * another does. Where addresses are scarce OpenBLAS needs them more, and threads can share.
 */
static void share_arena(void)
{
#ifdef M_ARENA_MAX
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
#endif
}

/*
 * Large memory that was freed goes back to the system. The GNU C library would keep the most that a
 * measurement before a training had, beside all that the training takes.
 */
static void give_back(void)
{
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
#endif
}

int main(int argc, char **argv)
{
    take_standard_fds();
    share_arena();
    give_back();
    signal(SIGXFSZ,
           SIG_IGN); /* a file that may not grow is an error of the write, with a sentence */
    run_with_stack(argc, argv);
    return run(argc, argv);
}
