/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher: one poll loop over the output of the ranks and our signals, and the end of all
 * ranks when one fails. Starting a rank is in spawn.c, cutting output into lines in lines.c. It
 * knows one machine only.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/job.h"
#include "failures.h"
#include "interrupt.h"
#include "lines.h"
#include "spawn.h"
#include "util/clock.h"
#include "util/deadline.h"

#define TERM_NS                                                                                    \
    500000000u /* from SIGTERM to SIGKILL: with the grace, less than 2 s after a failure */
#define DRAIN_NS 1000000000u /* for descendants that outlive their rank */
#define SETTLE_NS 100000000u /* what fails so soon after something else fails at the same time */
#define LOOK_NS 2000000u     /* between two looks in that time */
#define DYING_NS 3000000000u /* how long the end of what is dying may take on a busy machine */
#define POLLS 4              /* besides those of the ranks */

/* Where a job stands. What a deadline brings is in escalate(). */
typedef enum phase {
    RUNNING,
    GRACE,       /* a rank has failed: the others may end by themselves; then TERM */
    INTERRUPTED, /* a signal was forwarded: the same; then KILL */
    TERM,        /* SIGTERM was sent; then KILL */
    KILL,        /* SIGKILL was sent */
    DRAIN,       /* every rank has ended, but something holds their output open; then FLUSH */
    FLUSH,       /* the process groups are gone, the last output is being written */
    DONE,
} phase_t;

typedef struct rank {
    pid_t pid; /* also its process group; 0: not started */
    bool ended;
    int ended_fd;         /* by which the others know that it has ended well; -1: they do not */
    lap_lines_t lines[2]; /* standard output, standard error */
} rank_t;

typedef struct job {
    const lap_launch_t *launch;
    rank_t *ranks;
    struct pollfd *polls; /* signals, output, who reads that, failures, then two per rank */
    lap_failures_t failures;
    lap_gpu_share_t gpus;
    lap_spawn_t spawn;
    lap_outbox_t outbox;
    int signals; /* the signalfd; -1: none */
    struct sigaction old_pipe, old_child;
    phase_t phase;
    bool timed;              /* the phase has a deadline, */
    lap_deadline_t deadline; /* this one */
    int running;
    int result;         /* the exit status; -1: nothing has gone wrong yet */
    int signal;         /* that asked us to end; 0: none */
    uint64_t signal_ns; /* when the latest did */
    int first;          /* the rank that failed first, or -1 */
    int also_failed;    /* ranks that failed after it */
    int forced;         /* ranks that still ran when SIGTERM or SIGKILL was sent */
    size_t explained;   /* ranks that have reported why they failed */
} job_t;

static void message(job_t *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Queues a message after the output that came before it. */
static void message(job_t *job, const char *format, ...)
{
    char text[1024];
    int used = snprintf(text, sizeof(text), "%s: ", job->launch->name);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof(text) - (size_t)used, format, args);
    va_end(args);
    lap_outbox_add_line(&job->outbox, text);
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* Every rank has two pipes when lines are prefixed; the soft limit of files is often just 1024. */
static bool raise_file_limit(job_t *job)
{
    rlim_t needed = 2 * (rlim_t)job->launch->nranks + 32;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    job->spawn.files = files;
    if (files.rlim_cur >= needed)
        return true;
    files.rlim_cur = needed;
    if (setrlimit(RLIMIT_NOFILE, &files) == 0)
        return true;
    message(job, "%d ranks need %llu open files, but the limit is %llu (ulimit -Hn)",
            job->launch->nranks, (unsigned long long)needed, (unsigned long long)files.rlim_max);
    return false;
}

/*
 * Turns the signals that concern us into reads. One that is ignored, as SIGHUP is under nohup, is
 * left as it is; SIGCHLD must not be ignored, or the kernel would throw the exit statuses away.
 */
static bool catch_signals(job_t *job)
{
    static const int numbers[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1,
                                  SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};
    struct sigaction standard = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN}, action;
    sigaction(SIGCHLD, &standard, &job->old_child);
    sigaction(SIGPIPE, &ignore, &job->old_pipe);
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&mask, numbers[i]);
    sigprocmask(SIG_BLOCK, &mask, &job->spawn.mask);
    job->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signals >= 0;
}

/* Makes the pipes of a rank; the ends that the rank writes to are put into `output`. */
static bool make_pipes(job_t *job, int number, int output[2])
{
    int width = snprintf(NULL, 0, "%d", job->launch->nranks - 1);
    for (int i = 0; i < 2; i++) {
        lap_lines_t *lines = &job->ranks[number].lines[i];
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return false;
        lines->fd = ends[0];
        lines->to = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        snprintf(lines->prefix, sizeof(lines->prefix), "[%*d] ", width, number);
        output[i] = ends[1];
    }
    return true;
}

static int start_rank(job_t *job, int number)
{
    char why[LAP_SPAWN_WHY];
    int output[2] = {-1, -1}, result = 1;
    if (job->launch->prefix && !make_pipes(job, number, output)) {
        snprintf(why, sizeof(why), "cannot start rank %d: %s", number, strerror(errno));
    } else {
        result = lap_spawn_rank(&job->spawn, number, output, &job->ranks[number].pid, why);
    }
    for (int i = 0; i < 2; i++)
        if (output[i] >= 0)
            close(output[i]);
    if (result != 0)
        message(job, "%s", why);
    return result;
}

/* Signals the process groups of all ranks, also of those that have ended: descendants may live. */
static void signal_ranks(job_t *job, int number)
{
    for (int r = 0; r < job->launch->nranks; r++)
        if (job->ranks[r].pid > 0)
            kill(-job->ranks[r].pid, number);
}

static void enter(job_t *job, phase_t phase, uint64_t after_ns)
{
    job->phase = phase;
    job->timed = after_ns > 0;
    job->deadline = lap_deadline_after(after_ns);
}

/* What was asked for, or what there is without: after a failure, or after a signal. */
static double grace_s(const job_t *job, double otherwise)
{
    return job->launch->grace_s >= 0 ? job->launch->grace_s : otherwise;
}

static uint64_t grace_ns(const job_t *job, double otherwise)
{
    return (uint64_t)(grace_s(job, otherwise) * 1e9) + 1;
}

static double stop_s(const job_t *job)
{
    return job->launch->stop_s > 0 ? job->launch->stop_s : LAP_LAUNCH_STOP_S;
}

/* Asks the ranks to end; a stopped one is continued, or it would not notice. */
static void terminate(job_t *job)
{
    job->forced += job->running;
    signal_ranks(job, SIGTERM);
    signal_ranks(job, SIGCONT);
    enter(job, TERM, TERM_NS);
}

static void kill_ranks(job_t *job)
{
    if (job->phase == INTERRUPTED) {
        message(job, "%d rank%s did not end within %g s of signal %d (%s): killed", job->running,
                plural(job->running), grace_s(job, stop_s(job)), job->signal,
                strsignal(job->signal));
        job->forced += job->running;
    }
    signal_ranks(job, SIGKILL);
    enter(job, KILL, 0);
}

/* No rank is left to print: ends what holds the pipes open, and takes what they hold. */
static void end_drain(job_t *job)
{
    signal_ranks(job, SIGKILL);
    enter(job, FLUSH, job->signal ? DRAIN_NS : 0);
    for (int r = 0; r < job->launch->nranks; r++)
        for (int i = 0; i < 2; i++)
            if (job->ranks[r].lines[i].fd >= 0)
                lap_lines_limit(&job->ranks[r].lines[i], &job->outbox);
}

/* Does what the deadline of a phase was set for. */
static void escalate(job_t *job)
{
    switch (job->phase) {
    case GRACE:
        terminate(job);
        break;
    case INTERRUPTED:
    case TERM:
        kill_ranks(job);
        break;
    case DRAIN:
        end_drain(job);
        break;
    case FLUSH:
        enter(job, DONE, 0);
        break;
    case RUNNING:
    case KILL:
    case DONE:
        job->timed = false;
        break;
    }
}

/* The first rank to fail ended so that it, or another for all, has printed why. */
static bool is_reported(const job_t *job)
{
    return job->result >= 0 && job->result < 32 && job->launch->reported >> job->result & 1;
}

/* A rank's failure is reported when it is the first; `info` is what waitid returned. */
static void report_failure(job_t *job, int number, const siginfo_t *info)
{
    bool exited = info->si_code == CLD_EXITED;
    job->first = number;
    job->result = exited ? info->si_status : 128 + info->si_status;
    if (exited && !is_reported(job))
        message(job, "rank %d (pid %d) exited with status %d", number, (int)info->si_pid,
                info->si_status);
    if (!exited)
        message(job, "rank %d (pid %d) was killed by signal %d (%s)%s", number, (int)info->si_pid,
                info->si_status, strsignal(info->si_status),
                info->si_code == CLD_DUMPED ? ", core dumped" : "");
    if (job->running > 0)
        enter(job, GRACE, grace_ns(job, LAP_LAUNCH_GRACE_S));
}

static void summarise(job_t *job)
{
    const int others = job->launch->nranks - 1;
    const bool explained = is_reported(job) || job->explained >= (size_t)job->also_failed;
    if (job->first < 0 || job->also_failed == 0 || (explained && job->forced == 0))
        return;
    if (others == 1) {
        message(job, "then the other rank failed too%s",
                job->forced > 0 ? "; it had to be ended" : "");
        return;
    }
    char forced[64] = "";
    if (job->forced > 0)
        snprintf(forced, sizeof(forced), "; %d had to be ended", job->forced);
    message(job, "then %d of the other %d ranks failed too%s", job->also_failed, others, forced);
}

/* Failures that were found at once. */
typedef struct failures {
    siginfo_t cause;
    int rank; /* whose it is; -1: there is none */
    int count;
} failures_t;

/*
 * Looks which ranks have ended. They stay zombies until the job is over, so that their process
 * groups cannot become somebody else's. Of several failures a death by signal is taken for the cause
 * and a status for the consequence.
 */
static void find_failures(job_t *job, failures_t *found)
{
    for (int r = 0; r < job->launch->nranks; r++) {
        rank_t *rank = &job->ranks[r];
        siginfo_t info = {0};
        if (rank->ended ||
            waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        rank->ended = true;
        job->running--;
        if (info.si_code == CLD_EXITED && info.si_status == 0) {
            rank->ended_fd = lap_job_announce(job->spawn.place.dir, r, LAP_JOB_ENDED);
            continue;
        }
        found->count++;
        if (found->rank < 0 || (found->cause.si_code == CLD_EXITED && info.si_code != CLD_EXITED)) {
            found->rank = r;
            found->cause = info;
        }
    }
}

/* The status of a process, from the kernel. */
#define STATUS_TEXT 4096
static void read_status(pid_t pid, char text[STATUS_TEXT])
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    lap_file_read_text(path, text, STATUS_TEXT);
}

/* Whether a process ends, but has not yet: it is to be killed, writes its core, or has no memory. */
static bool is_dying(pid_t pid)
{
    char text[STATUS_TEXT];
    read_status(pid, text);
    const char *pending = strstr(text, "\nShdPnd:");
    const unsigned long long mask = pending ? strtoull(pending + strlen("\nShdPnd:"), NULL, 16) : 0;
    return mask >> (SIGKILL - 1) & 1 || strstr(text, "\nCoreDumping:\t1") ||
           (pending && !strstr(text, "\nVmSize:"));
}

static bool any_is_dying(const job_t *job)
{
    bool dying = false;
    for (int r = 0; r < job->launch->nranks; r++)
        dying = dying || (!job->ranks[r].ended && is_dying(job->ranks[r].pid));
    return dying;
}

/* Whether every rank that has not ended is stopped, by a signal or a debugger: none of them ends by itself. */
static bool only_stopped_run(const job_t *job)
{
    char text[STATUS_TEXT];
    bool only = true;
    for (int r = 0; r < job->launch->nranks && only; r++)
        if (!job->ranks[r].ended) {
            read_status(job->ranks[r].pid, text);
            only = strstr(text, "\nState:\tT") || strstr(text, "\nState:\tt");
        }
    return only;
}

/* Gives what fails at the same time the time to end; what has ended already needs none. */
static void settle(job_t *job, failures_t *found)
{
    const uint64_t until = lap_now_ns() + SETTLE_NS;
    while (job->running > 0 && lap_now_ns() < until) {
        lap_sleep_until_ns(lap_now_ns() + LOOK_NS);
        find_failures(job, found);
    }
}

static void look_at_ranks(job_t *job)
{
    failures_t found = {.rank = -1};
    find_failures(job, &found);
    /* What happens after something else went wrong is its consequence. */
    const bool first = found.rank >= 0 && job->result < 0;
    if (first && found.cause.si_code == CLD_EXITED && job->running > 0) {
        /* Peers may see a rank die, and end, before it has died so far that we can see it. */
        const uint64_t until = lap_now_ns() + DYING_NS;
        do {
            settle(job, &found);
        } while (found.cause.si_code == CLD_EXITED && any_is_dying(job) && lap_now_ns() < until);
    }
    job->also_failed += first ? found.count - 1 : found.count;
    if (first)
        report_failure(job, found.rank, &found.cause);
    if (job->phase == GRACE && job->running > 0 && only_stopped_run(job))
        terminate(job);
    if (job->running == 0 && job->phase < DRAIN) {
        job->explained += lap_failures_print(&job->failures, &job->outbox);
        summarise(job);
        enter(job, DRAIN, DRAIN_NS);
    }
}

static void interrupt(job_t *job, int number)
{
    const uint64_t now = lap_now_ns();
    if (job->signal == number && now < job->signal_ns + LAP_INTERRUPT_ONCE_NS)
        return;
    job->signal_ns = now;
    signal_ranks(job, number);
    signal_ranks(job, SIGCONT);
    job->signal = number;
    if (job->result < 0)
        job->result = 128 + number;
    if (job->phase < INTERRUPTED)
        enter(job, INTERRUPTED, grace_ns(job, stop_s(job)));
    else if (job->phase == FLUSH && !job->timed)
        enter(job, FLUSH, DRAIN_NS);
}

/* Stops with the ranks, as a shell's Ctrl-Z asks. */
static void stop_all(job_t *job)
{
    signal_ranks(job, SIGSTOP);
    kill(getpid(), SIGSTOP);
}

static void take_signals(job_t *job)
{
    struct signalfd_siginfo info;
    while (read(job->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        int number = (int)info.ssi_signo;
        if (number == SIGTSTP)
            stop_all(job);
        else if (number == SIGCONT || number == SIGUSR1 || number == SIGUSR2)
            signal_ranks(job, number);
        else if (number != SIGCHLD)
            interrupt(job, number);
    }
    look_at_ranks(job);
}

/* Nobody reads our output any more: there is no point in going on. */
static void output_broke(job_t *job, int fd, int error)
{
    message(job, "cannot write standard %s: %s", fd == STDOUT_FILENO ? "output" : "error",
            strerror(error));
    if (job->result < 0)
        job->result = 1;
    if (job->phase < TERM)
        terminate(job);
}

/* The same where the ranks write by themselves: neither they nor we print any more. */
static void reader_left(job_t *job)
{
    if (job->result < 0)
        job->result = 128 + SIGPIPE;
    terminate(job);
}

static void no_memory(job_t *job, lap_lines_t *lines)
{
    lap_lines_clear(lines);
    message(job, "no memory for the output of the ranks");
    if (job->result < 0)
        job->result = 1;
    if (job->phase < KILL)
        kill_ranks(job);
}

static lap_lines_t *lines_at(job_t *job, size_t i)
{
    return &job->ranks[i / 2].lines[i % 2];
}

/* One round of the loop: waits for signals, output and the deadline. Output goes first: a rank's last words. */
static void poll_once(job_t *job)
{
    size_t nlines = 2 * (size_t)job->launch->nranks;
    struct pollfd *signals = &job->polls[0], *out = &job->polls[1], *reader = &job->polls[2];
    struct pollfd *in = &job->polls[POLLS];
    bool full = job->outbox.pending >= LAP_OUTBOX_FULL, open = false;
    *signals = (struct pollfd){.fd = job->signals, .events = POLLIN};
    *out = (struct pollfd){.fd = lap_outbox_fd(&job->outbox), .events = POLLOUT};
    *reader =
        (struct pollfd){.fd = job->launch->needs_reader && job->phase < TERM ? STDOUT_FILENO : -1};
    job->polls[3] = (struct pollfd){
        .fd = job->failures.count < job->failures.room ? job->failures.fd : -1, .events = POLLIN};
    for (size_t i = 0; i < nlines; i++) {
        int fd = lines_at(job, i)->fd;
        open = open || fd >= 0;
        in[i] = (struct pollfd){.fd = full ? -1 : fd, .events = POLLIN};
    }
    if (job->phase == DRAIN && !open)
        end_drain(job);
    if (job->phase == FLUSH && !open && out->fd < 0) {
        enter(job, DONE, 0);
        return;
    }
    const int wait_ms = job->timed ? lap_deadline_poll_ms(&job->deadline) : -1;
    if (poll(job->polls, (nfds_t)(POLLS + nlines), lap_failures_wait_ms(&job->failures, wait_ms)) <
        0)
        return;
    for (size_t i = 0; i < nlines; i++)
        if (in[i].revents && !lap_lines_read(lines_at(job, i), &job->outbox))
            no_memory(job, lines_at(job, i));
    if (out->revents) {
        int error = lap_outbox_write(&job->outbox);
        if (error)
            output_broke(job, out->fd, error);
    }
    /* Others may report the same, but not as late as a long --grace lets them run. */
    if (lap_failures_read(&job->failures) &&
        (job->phase >= DRAIN || lap_failures_wait_ms(&job->failures, -1) == 0))
        job->explained += lap_failures_print(&job->failures, &job->outbox);
    if (signals->revents)
        take_signals(job);
    if ((reader->revents & POLLERR) != 0 && job->phase < TERM)
        reader_left(job);
    if (job->timed && lap_deadline_passed(&job->deadline))
        escalate(job);
}

/* Who asked for parts of GPUs gets them or nothing; else ranks may take turns. */
static bool share_gpus(job_t *job)
{
    char why[LAP_GPU_WHY];
    if (lap_gpu_share_begin(job->launch->gpus, job->launch->nranks, job->launch->gpu_answer,
                            &job->gpus, why))
        return true;
    const bool needed = job->launch->gpus == LAP_GPU_ON;
    message(job, "%s%s%s", needed ? "--gpu-share: " : "", why,
            needed ? "" : "; ranks on the same GPU will take turns, which is slow");
    return !needed;
}

static bool prepare(job_t *job)
{
    size_t nranks = (size_t)job->launch->nranks;
    job->ranks = calloc(nranks, sizeof(*job->ranks));
    job->polls = calloc(POLLS + 2 * nranks, sizeof(*job->polls));
    for (size_t i = 0; job->ranks && i < 2 * nranks; i++)
        lines_at(job, i)->fd = job->ranks[i / 2].ended_fd = -1;
    if (!job->ranks || !job->polls) {
        message(job, "no memory for %zu ranks", nranks);
        return false;
    }
    if (!share_gpus(job))
        return false;
    char why[LAP_SPAWN_WHY];
    if (!lap_spawn_init(&job->spawn, job->launch, &job->gpus, why)) {
        message(job, "%s", why);
        return false;
    }
    lap_failures_open(&job->failures, job->spawn.place.dir, job->launch->nranks);
    if (!raise_file_limit(job))
        return false;
    if (!catch_signals(job)) {
        message(job, "cannot watch for signals: %s", strerror(errno));
        return false;
    }
    return true;
}

static void start_all(job_t *job)
{
    for (int r = 0; r < job->launch->nranks; r++) {
        int status = start_rank(job, r);
        job->running += status == 0;
        if (status == 0)
            continue;
        /* The ranks that were not started count as ended; the others are of no use without them. */
        for (int rest = r; rest < job->launch->nranks; rest++)
            job->ranks[rest].ended = true;
        job->result = status;
        kill_ranks(job);
        look_at_ranks(job);
        return;
    }
}

/* Reaps the ranks and undoes what prepare did, however far it came. */
static void clean_up(job_t *job)
{
    for (int r = 0; job->ranks && r < job->launch->nranks; r++) {
        rank_t *rank = &job->ranks[r];
        if (rank->pid > 0) {
            kill(-rank->pid, SIGKILL);
            waitpid(rank->pid, NULL, 0);
        }
        lap_lines_clear(&rank->lines[0]);
        lap_lines_clear(&rank->lines[1]);
        if (rank->ended_fd >= 0)
            close(rank->ended_fd);
    }
    if (!lap_gpu_share_end(&job->gpus))
        lap_tell(job->launch->name, "the MPS daemon did not end when it was asked to");
    if (job->signals >= 0) {
        close(job->signals);
        sigprocmask(SIG_SETMASK, &job->spawn.mask, NULL);
        sigaction(SIGPIPE, &job->old_pipe, NULL);
        sigaction(SIGCHLD, &job->old_child, NULL);
    }
    lap_failures_close(&job->failures);
    lap_spawn_clear(&job->spawn);
    lap_outbox_clear(&job->outbox);
    free(job->polls);
    free(job->ranks);
}

int lap_launch(const lap_launch_t *launch)
{
    job_t job = {
        .launch = launch, .signals = -1, .result = -1, .first = -1, .failures = {.fd = -1}};
    fflush(stdout);
    fflush(stderr);
    if (prepare(&job)) {
        start_all(&job);
        while (job.phase != DONE)
            poll_once(&job);
    } else {
        job.result = 1;
        while (lap_outbox_fd(&job.outbox) >= 0)
            lap_outbox_write(&job.outbox);
    }
    clean_up(&job);
    return job.result < 0 ? 0 : job.result;
}
