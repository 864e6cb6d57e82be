/* SPDX-License-Identifier: Apache-2.0 */
/* The MPS daemon and its guardian: see mps.h. */
#include "mps.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/private_dir.h"
#include "core/status.h"
#include "util/clock.h"
#include "util/deadline.h"

#define START_NS 10000000000u /* for the daemon to answer */
#define QUIT_NS 10000000000u  /* for the daemon to take the request to end */
#define END_NS 5000000000u    /* for all that it started to be gone afterwards */
#define KILL_NS 5000000000u   /* for what was killed to be gone */
#define LOOK_NS 5000000u      /* between two looks */

bool lap_mps_find(char path[PATH_MAX])
{
    const char *rest = getenv("PATH");
    while (rest && *rest) {
        int length = (int)strcspn(rest, ":");
        /* An empty entry means the current directory. */
        snprintf(path, PATH_MAX, "%.*s/%s", length ? length : 1, length ? rest : ".",
                 LAP_MPS_CONTROL);
        struct stat about;
        if (stat(path, &about) == 0 && S_ISREG(about.st_mode) && access(path, X_OK) == 0)
            return true;
        rest += length;
        rest += *rest == ':';
    }
    return false;
}

/* ---- the control program ---- */

/* Where the control program's words go, for our own sentence. */
static void output_path(const lap_mps_t *mps, char path[LAP_DIR_BYTES + 8])
{
    snprintf(path, LAP_DIR_BYTES + 8, "%s/output", mps->dir);
}

static _Noreturn void become_control(const lap_mps_t *mps, const char *flag, int input)
{
    char path[LAP_DIR_BYTES + 8];
    output_path(mps, path);
    int output = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (output < 0 || dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(126);
    close_range(3, ~0u, 0);
    setenv("CUDA_MPS_PIPE_DIRECTORY", mps->pipe, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", mps->log, 1);
    /* The daemon would number the GPUs anew for its clients, which number those they see anyway. */
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execlp(LAP_MPS_CONTROL, LAP_MPS_CONTROL, flag, (char *)NULL);
    _exit(127);
}

/* The exit status of a child, or -1 when it was killed, by us after `limit_ns` or by another. */
static int await(pid_t pid, uint64_t limit_ns)
{
    int status;
    pid_t ended;
    lap_deadline_t deadline = lap_deadline_after(limit_ns);
    /* Others are reaped too: it may be waiting for a daemon that has become our child and ended. */
    while ((ended = waitpid(-1, &status, WNOHANG)) != pid) {
        if (ended < 0)
            return -1;
        if (ended == 0 && lap_deadline_passed(&deadline)) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        if (ended == 0)
            lap_sleep_until_ns(lap_now_ns() + LOOK_NS);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/*
 * Runs the control program with a flag, or NULL and a command for the daemon. Returns its status.
 */
static int control(const lap_mps_t *mps, const char *flag, const char *command, uint64_t limit_ns)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    /* It fits in the pipe, so this cannot block. */
    const bool written = write(ends[1], command, strlen(command)) == (ssize_t)strlen(command);
    close(ends[1]);
    const pid_t pid = written ? fork() : -1;
    if (pid == 0)
        become_control(mps, flag, ends[0]);
    close(ends[0]);
    return pid > 0 ? await(pid, limit_ns) : -1;
}

/* A sentence with the last line that the control program printed. */
static void complain(const lap_mps_t *mps, const char *what, char why[LAP_MPS_WHY])
{
    char path[LAP_DIR_BYTES + 8], line[256], last[256] = "nothing";
    output_path(mps, path);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0])
            snprintf(last, sizeof(last), "%s", line);
    }
    if (file)
        fclose(file);
    snprintf(why, LAP_MPS_WHY, "the MPS daemon %s; %s printed: %s", what, LAP_MPS_CONTROL, last);
}

/* ---- the guardian ---- */

static bool start_daemon(const lap_mps_t *mps, char why[LAP_MPS_WHY])
{
    int fd = -1;
    if (lap_private_dir_make(mps->dir, &fd) != LAP_OK) {
        snprintf(why, LAP_MPS_WHY, "there is no directory for MPS: %.400s", lap_last_error());
        return false;
    }
    const bool made = mkdirat(fd, "pipe", 0700) == 0 && mkdirat(fd, "log", 0700) == 0;
    close(fd);
    if (!made) {
        snprintf(why, LAP_MPS_WHY, "cannot make directories in %s for MPS: %s", mps->dir,
                 strerror(errno));
        return false;
    }
    const uint64_t end = lap_now_ns() + START_NS; /* no deadline: each try may last as long */
    if (control(mps, "-d", "", START_NS) != 0) {
        complain(mps, "cannot be started", why);
        return false;
    }
    /* A client that comes before the daemon listens would silently do without it. */
    while (control(mps, NULL, "get_default_active_thread_percentage\n", START_NS) != 0) {
        if (lap_now_ns() >= end) {
            complain(mps, "was started, but does not answer", why);
            return false;
        }
        lap_sleep_until_ns(lap_now_ns() + LOOK_NS);
    }
    return true;
}

/* Reaps children as they end; true when none is left, false after `limit_ns`. */
static bool await_children(uint64_t limit_ns)
{
    lap_deadline_t deadline = lap_deadline_after(limit_ns);
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD)
            return true;
        if (pid == 0 && lap_deadline_passed(&deadline))
            return false;
        if (pid == 0)
            lap_sleep_until_ns(lap_now_ns() + LOOK_NS);
    }
}

/* The parent of a process, after the name in its line; 0 when it is gone. */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%.16s/stat", pid);
    lap_file_read_text(path, text, sizeof(text));
    const char *name_end = strrchr(text, ')');
    /* ") S 123": the state, then the parent. */
    return name_end && strlen(name_end) > 4 ? (pid_t)strtol(name_end + 4, NULL, 10) : 0;
}

/* Kills the processes whose parent we are; their children become ours next. */
static void kill_children(void)
{
    DIR *dir = opendir("/proc");
    if (!dir)
        return;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (isdigit((unsigned char)entry->d_name[0]) && parent_of(entry->d_name) == getpid())
            kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL);
    closedir(dir);
}

/* Opens a directory in an open one; no link. */
static DIR *open_inside(int fd, const char *name)
{
    const int inner = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = inner < 0 ? NULL : fdopendir(inner);
    if (inner >= 0 && !dir)
        close(inner);
    return dir;
}

/* Removes the files of a directory in an open one, then itself. */
static void remove_inside(int fd, const char *name)
{
    DIR *dir = open_inside(fd, name);
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
        unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    unlinkat(fd, name, AT_REMOVEDIR);
}

/* The whole of it was made for the daemon, by us and by it, where nobody else can enter. */
static void remove_directory(const lap_mps_t *mps)
{
    const int fd = lap_private_dir_look(mps->dir);
    if (fd < 0)
        return;
    remove_inside(fd, "pipe");
    remove_inside(fd, "log");
    unlinkat(fd, "output", 0);
    lap_private_dir_remove(mps->dir, fd);
    close(fd);
}

/* Asks the daemon to end, with its servers, whoever still uses them. */
static void quit(const lap_mps_t *mps)
{
    control(mps, NULL, "quit -t 1\n", QUIT_NS);
}

/* The life of the guardian. Its standard input is the launcher's hold, its output the report. */
static _Noreturn void guard(const lap_mps_t *mps)
{
    char why[LAP_MPS_WHY] = "", byte;
    bool started = start_daemon(mps, why);
    bool reported = write(STDOUT_FILENO, why, sizeof(why)) == (ssize_t)sizeof(why);
    /* Nobody writes: the end of the input is the launcher's end, or its wish. */
    while (started && reported && read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
        continue;
    quit(mps);
    bool ended = await_children(END_NS);
    lap_deadline_t deadline = lap_deadline_after(KILL_NS);
    for (bool gone = ended; !gone && !lap_deadline_passed(&deadline);
         gone = await_children(LOOK_NS))
        kill_children();
    remove_directory(mps);
    _exit(ended ? 0 : 1);
}

/* What the guardian needs to outlive the launcher and whatever is sent to its process group. */
static _Noreturn void become_guardian(const lap_mps_t *mps, int hold, int report)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    /* Were it ignored, as our caller may have it, the kernel would throw exit statuses away. */
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &standard, NULL);
    setsid();
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || null < 0 || dup2(hold, STDIN_FILENO) < 0 ||
        dup2(report, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0)
        _exit(1);
    close_range(3, ~0u, 0);
    prctl(PR_SET_NAME, "lap-mps-guard");
    guard(mps);
}

/* ---- the launcher's side ---- */

/* Thinks of a directory whose sockets have names that are not too long. */
static bool choose_directory(lap_mps_t *mps, char why[LAP_MPS_WHY])
{
    if (lap_private_dir_name("lap-mps-", sizeof("/pipe/control_privileged"), mps->dir) != LAP_OK) {
        snprintf(why, LAP_MPS_WHY, "there is no directory for MPS: %.400s", lap_last_error());
        return false;
    }
    snprintf(mps->pipe, sizeof(mps->pipe), "%.*s/pipe", (int)sizeof(mps->pipe) - 6, mps->dir);
    snprintf(mps->log, sizeof(mps->log), "%.*s/log", (int)sizeof(mps->log) - 5, mps->dir);
    return true;
}

/* Reads what the guardian reports: "" when the daemon answers. */
static void read_report(int report, char why[LAP_MPS_WHY])
{
    size_t have = 0;
    ssize_t count;
    do {
        count = read(report, why + have, LAP_MPS_WHY - have);
        have += count > 0 ? (size_t)count : 0;
    } while (have < LAP_MPS_WHY && (count > 0 || (count < 0 && errno == EINTR)));
    if (have < LAP_MPS_WHY)
        snprintf(why, LAP_MPS_WHY, "the guardian of the MPS daemon died");
}

bool lap_mps_start(lap_mps_t *mps_p, char why[LAP_MPS_WHY])
{
    lap_mps_t mps = {.hold = -1};
    char path[PATH_MAX];
    int hold[2] = {-1, -1}, report[2] = {-1, -1};
    if (!lap_mps_find(path)) {
        snprintf(why, LAP_MPS_WHY, "%s, which comes with the NVIDIA driver, is not in PATH",
                 LAP_MPS_CONTROL);
        return false;
    }
    if (!choose_directory(&mps, why))
        return false;
    if (pipe2(hold, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0)
        goto err_pipes;
    mps.guardian = fork();
    if (mps.guardian == 0)
        become_guardian(&mps, hold[0], report[1]);
    if (mps.guardian < 0)
        goto err_pipes;
    close(hold[0]);
    close(report[1]);
    read_report(report[0], why);
    close(report[0]);
    mps.hold = hold[1];
    if (why[0]) {
        lap_mps_stop(&mps);
        return false;
    }
    *mps_p = mps;
    return true;

err_pipes:
    snprintf(why, LAP_MPS_WHY, "cannot start the guardian of the MPS daemon: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        if (hold[i] >= 0)
            close(hold[i]);
        if (report[i] >= 0)
            close(report[i]);
    }
    return false;
}

bool lap_mps_stop(lap_mps_t *mps)
{
    int status = 0;
    if (!mps->dir[0])
        return true;
    close(mps->hold);
    while (waitpid(mps->guardian, &status, 0) < 0 && errno == EINTR)
        continue;
    /* Somebody killed the guardian: then the daemon has to be asked from here. */
    if (WIFSIGNALED(status)) {
        quit(mps);
        remove_directory(mps);
    }
    *mps = (lap_mps_t){.hold = -1};
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
