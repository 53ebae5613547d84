/* A program that closes or replaces descriptors it has not opened, and processes that are created
   while other threads change streams. */
#include "cases.h"
#include <pthread.h>
#include <sys/resource.h>

static int null;

static void close_all(void) {
  for (int fd = 101; fd < 70000; fd++) close(fd);
}

static void closes(void) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  put("a", "first");
  SHOW_TEXT(content("a"));
  /* The limit is raised after the library has opened its own descriptors. */
  rlim_t most = limit.rlim_max < 20000 ? limit.rlim_max : 20000;
  if (limit.rlim_cur < most) limit.rlim_cur = most;
  SHOW(setrlimit(RLIMIT_NOFILE, &limit));
  int high = fcntl(null, F_DUPFD, most - 100);
  SHOW(high >= (int)most - 100);
  SHOW(close(high));
  SHOW(close(high));
  high = fcntl(null, F_DUPFD, most - 100);
  SHOW(close_range(most - 100, most - 1, 0));
  SHOW(fcntl(high, F_GETFD));
  close_all();
  SHOW_TEXT(content("a"));
  closefrom(101);
  SHOW_TEXT(content("a"));
  SHOW(close_range(101, ~0U, 0));
  SHOW_TEXT(content("a"));
  for (int fd = 101; fd < (int)most; fd++) dup2(null, fd);
  SHOW_TEXT(content("a"));
  close_all();
  put("b", "second");
  SHOW_TEXT(content("b"));
  pid_t child = fork();
  if (child == 0) {
    close_all();
    put("c", "third");
    close_all();
    SHOW_TEXT(content("c"));
    closefrom(101);
    _exit(strcmp(content("b"), "second") != 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
  SHOW_TEXT(content("c"));
}

static volatile int ends;

static void *replace_input(void *unused) {
  (void)unused;
  int fd = open("a", O_RDONLY);
  while (!ends) dup2(fd, 0), dup2(null, 0);
  close(fd);
  return NULL;
}

static void forks(void) {
  pthread_t thread;
  SHOW(pthread_create(&thread, NULL, replace_input, NULL));
  int failed = 0;
  for (int i = 0; i < 300 && !failed; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);
      int fd = open("a", O_RDONLY);
      dup2(fd, 1);
      dup2(null, 1);
      _exit(0);
    }
    int status = -1;
    for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms++) {
      if (ms > 60000) kill(child, SIGKILL);
      usleep(1000);
    }
    failed = status;
  }
  ends = 1;
  SHOW(failed);
  SHOW(pthread_join(thread, NULL));
}

static void cases(void) {
  null = open("/dev/null", O_RDWR);
  closes();
  forks();
}
