/* Calls on virtual files that the library refuses. The argument is a virtual directory. */
#include "cases.h"
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static void restarted(int signal) { (void)signal; }

static void cases(void) {
  long page = sysconf(_SC_PAGESIZE);
  put("f", "0123456789");
  int fd = open("f", O_RDWR);
  for (int i = 0; i < 2; i++) {
    SHOW(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
  }
  SHOW(ftruncate(fd, 3L << 30));
  SHOW(mmap(NULL, 2L << 30, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
  SHOW(mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 2L << 30) == MAP_FAILED ? -1 : 0);
  SHOW(syscall(SYS_io_uring_setup, 1, NULL));
  FILE *native = fopen("/dev/null", "r");
  SHOW(freopen("f", "r", native) == NULL ? -1 : 0);
  fclose(native);

  /* A process that has inherited the descriptor cannot lock it with flock(2). */
  SHOW(flock(fd, LOCK_EX));
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    SHOW(flock(fd, LOCK_UN));
    SHOW(flock(fd, LOCK_EX));
    int own = open("f", O_RDWR);
    SHOW(flock(own, LOCK_EX | LOCK_NB));
    exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);

  /* A handler with SA_RESTART does not end a wait. */
  int ready[2];
  SHOW(pipe(ready));
  child = fork();
  if (child == 0) {
    struct flock range = {.l_type = F_WRLCK};
    int own = open("f", O_RDWR);
    if (fcntl(own, F_SETLK, &range) != 0) _exit(1);
    write(ready[1], "", 1);
    usleep(500000);
    kill(getppid(), SIGUSR1);
    usleep(500000);
    _exit(0);
  }
  struct sigaction action = {.sa_handler = restarted, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &action, NULL);
  char byte;
  SHOW(read(ready[0], &byte, 1));
  struct flock range = {.l_type = F_WRLCK};
  SHOW(fcntl(fd, F_SETLKW, &range));
  waitpid(child, &status, 0);
  SHOW(status);
}
