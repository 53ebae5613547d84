/* Programs that are executed with a list of arguments: execl(3), execle(3) and execlp(3). */
#include "cases.h"

enum function { EXECL, EXECLE, EXECLP, LOCKER, MISSING };

/* Executes a program with standard output in a file, and shows what it writes. busybox is
   statically linked, and `script` is a virtual program. */
static void run(enum function function, const char *program) {
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    int fd = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    char *environment[] = {"A=first", "B=second", NULL};
    dup2(fd, 1);
    close(fd);
    switch (function) {
    case EXECL: execl(program, "sh", "-c", "echo $0 $*", "one", "2", "3", "4", "5", "6", "7", "8", "9", NULL); break;
    case EXECLE: execle(program, "sh", "-c", "echo $A $B $0", "zero", NULL, environment); break;
    case EXECLP: execlp("busybox", "busybox", "printf", "%s-%s\n", "a", "b", "c", "d", "e", "f", NULL); break;
    case LOCKER: execl(program, program, NULL); break;
    case MISSING: execlp("no-such-program", "no-such-program", "a", NULL); break;
    }
    _exit(100 + errno);
  }
  int status = -1;
  /* A program that holds a lock must not wait for itself. */
  for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms += 10) {
    if (ms > 120000) kill(child, SIGKILL);
    usleep(10000);
  }
  SHOW(status >> 8);
  SHOW_TEXT(content("out"));
}

static void cases(void) {
  const char *busybox = getenv("BUSYBOX");
  put("script", "#!/bin/sh\necho script \"$@\" $A\n");
  chmod("script", 0755);
  run(EXECL, busybox);
  run(EXECLE, busybox);
  run(EXECLP, NULL);
  run(LOCKER, getenv("LOCKER"));
  run(MISSING, NULL);
  run(EXECL, "/bin/sh");
  run(EXECL, "./script");
  run(EXECLE, "./script");
  run(EXECL, "./missing");
}
