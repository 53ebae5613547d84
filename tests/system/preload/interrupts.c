/* A signal interrupts a process that waits to append, because another holds the lock in the store.
   The argument is a virtual directory, and STORE its store. */
#include "cases.h"

static void noticed(int signal) { (void)signal; }

static void cases(void) {
  char path[PATH_MAX];
  put("f", "text");
  snprintf(path, sizeof path, "%s/f.container/access", getenv("STORE"));
  int lock = open(path, O_RDWR), fd = open("f", O_WRONLY | O_APPEND);
  struct flock all = {.l_type = F_WRLCK};
  SHOW(fcntl(lock, F_OFD_SETLK, &all));
  struct sigaction action = {.sa_handler = noticed};
  sigaction(SIGALRM, &action, NULL);
  alarm(1);
  SHOW(write(fd, " more", 5));
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(1);
    write(fd, " more", 5);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
  all.l_type = F_UNLCK;
  SHOW(fcntl(lock, F_OFD_SETLK, &all));
  SHOW(write(fd, " again", 6));
  SHOW(close(fd));
  SHOW_TEXT(content("f"));
}
