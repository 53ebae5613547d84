/* Functions that replace the standard descriptors: daemon(3), login_tty(3) and forkpty(3), while
 * they are files in the directory. */
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

/* Makes standard output and standard error the file `name`. */
static void redirect(const char *name) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    close(fd);
}

static void show(const char *name) {
    char text[200];
    int fd = open(name, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[length < 0 ? 0 : length] = 0;
    printf("%s: %zd: %s\n", name, length, text);
    if (fd >= 0)
        close(fd);
}

/* Runs `work` in a child and waits for it, and for the descendants that hold the pipe. */
static void run(void (*work)(int)) {
    int ends[2], status;
    char byte;
    if (pipe(ends) < 0)
        return;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        work(ends[1]);
        _exit(3);
    }
    close(ends[1]);
    while (read(ends[0], &byte, 1) > 0)
        ;
    close(ends[0]);
    waitpid(child, &status, 0);
    printf("ended with %d\n", WEXITSTATUS(status));
}

static void become_daemon(int pipe) {
    (void)pipe;
    redirect("daemon");
    dprintf(1, "before\n");
    int result = daemon(1, 0);
    dprintf(1, "lost\n");
    int fd = open("result", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    dprintf(fd, "daemon: %d\n", result);
    close(fd);
    _exit(0);
}

static void log_in(int pipe) {
    int first, second;
    (void)pipe;
    redirect("login");
    dprintf(1, "before\n");
    openpty(&first, &second, NULL, NULL, NULL);
    int result = login_tty(second);
    int fd = open("result", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    dprintf(fd, "login_tty: %d %d %d\n", result, isatty(0), isatty(2));
    close(fd);
    dprintf(1, "on the terminal\n");
    _exit(0);
}

static void fork_with_terminal(int pipe) {
    int terminal, status;
    char text[100] = "";
    (void)pipe;
    redirect("fork");
    dprintf(1, "before\n");
    pid_t child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0) {
        dprintf(1, "child %d\n", isatty(1));
        _exit(7);
    }
    ssize_t length = read(terminal, text, sizeof text - 1);
    waitpid(child, &status, 0);
    dprintf(1, "after %zd %s %d\n", length, text, WEXITSTATUS(status));
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0)
        return 2;
    run(become_daemon);
    show("daemon");
    show("result");
    run(log_in);
    show("login");
    show("result");
    run(fork_with_terminal);
    show("fork");
    return 0;
}
