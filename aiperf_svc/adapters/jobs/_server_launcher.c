/* Starts the server of one index of a Job, in the container of the server's own image.
 *
 *     server_launcher FOLDER SECONDS
 *
 * FOLDER/argv holds the command with its arguments, FOLDER/env holds NAME=VALUE for each variable to add to the
 * container's environment. Each string ends with a zero byte. The pods of a Job share one template, so this is how the
 * servers of its indexes get different arguments. The image needs no shell.
 *
 * A server that ignores SIGTERM is killed after SECONDS: its measurement is over, and its pod waits for it.
 *
 * When the server ends, the launcher writes how into FOLDER/ended and waits for SIGTERM: the kubelet would restart a
 * container that ended in the middle of a measurement. If the launcher finds that it was restarted all the same, its
 * whole container was killed, in most cases because it was out of memory.
 *
 * Linked statically, because the contents of the image are unknown.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t server;
static volatile sig_atomic_t is_told;
static unsigned int grace_s;

static void pass_on(int number) {
    is_told = 1;
    if (server > 0) kill(server, number);
    alarm(grace_s);
}

static void kill_server(int number) {
    (void)number;
    if (server > 0) kill(server, SIGKILL);
}

static int fail(const char *what) {
    fprintf(stderr, "server_launcher: %s: %s\n", what, strerror(errno));
    return 70;
}

/* Reads the strings of a file and adds a NULL after the last one. */
static char **read_strings(const char *name) {
    struct stat found;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found) < 0) return NULL;
    size_t size = found.st_size, have = 0, count = 0;
    char *bytes = calloc(size + 1, 1);
    if (!bytes) return NULL;
    while (have < size) {
        ssize_t got = read(file, bytes + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return NULL;
        have += got;
    }
    close(file);
    for (size_t at = 0; at < size; at++) count += !bytes[at];
    char **strings = calloc(count + 1, sizeof *strings);
    if (!strings) return NULL;
    char *next = bytes;
    for (size_t at = 0; at < count; at++, next += strlen(next) + 1) strings[at] = next;
    return strings;
}

static void say_ended(const char *text) {
    int file = open("ended.part", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text)) rename("ended.part", "ended");
    if (file >= 0) close(file);
    fprintf(stderr, "server_launcher: the server %s\n", text);
}

static int wait_to_be_told(sigset_t *outside) {
    while (!is_told) sigsuspend(outside);
    return 0;
}

int main(int count, char **words) {
    struct sigaction action = {.sa_handler = pass_on}, late = {.sa_handler = kill_server};
    sigset_t told, outside;
    char text[512];
    int folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (count != 3 || chdir(words[1]) < 0) return fail(count == 3 ? words[1] : "expected a folder and seconds");
    grace_s = atoi(words[2]);
    sigemptyset(&told);
    sigaddset(&told, SIGTERM);
    sigaddset(&told, SIGINT);
    sigprocmask(SIG_BLOCK, &told, &outside);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGALRM, &late, NULL);
    int once = open("started", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (once < 0 && errno == EEXIST) {
        if (access("ended", F_OK) < 0) say_ended("was killed with its container, out of memory in most cases");
        return wait_to_be_told(&outside);
    }
    if (once < 0) return fail("started");
    char **command = read_strings("argv"), **variables = read_strings("env");
    if (!command || !command[0] || !variables) return fail("argv or env");
    server = fork();
    if (server < 0) return fail("fork");
    if (!server) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        sigprocmask(SIG_SETMASK, &outside, NULL);
        if (fchdir(folder) < 0) _exit(fail("the working directory"));
        for (; *variables; variables++) putenv(*variables);
        execvp(command[0], command);
        int problem = errno;
        if (chdir(words[1]) == 0) {
            snprintf(text, sizeof text, "cannot be started: %s: %s", command[0], strerror(problem));
            say_ended(text);
        }
        _exit(127);
    }
    sigprocmask(SIG_SETMASK, &outside, NULL);
    for (;;) {
        int status;
        pid_t ended = wait(&status); /* and whatever the server has left to process 1 */
        if (ended < 0 && errno == EINTR) continue;
        if (ended < 0) return fail("wait");
        if (ended != server) continue;
        server = 0;
        if (WIFSIGNALED(status))
            snprintf(text, sizeof text, "was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            snprintf(text, sizeof text, "ended with exit code %d", WEXITSTATUS(status));
        if (is_told) return 0;
        if (access("ended", F_OK) < 0) say_ended(text);
        sigprocmask(SIG_BLOCK, &told, NULL);
        return wait_to_be_told(&outside);
    }
}
