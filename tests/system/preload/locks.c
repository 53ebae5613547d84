/* Locks: fcntl(2) of processes and of open file descriptions, flock(2) and lockf(3). */
#include "cases.h"
#include <sys/file.h>

static int record(int fd, int command, int type, off_t start, off_t length) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  int result = fcntl(fd, command, &range);
  if (result == 0 && (command == F_GETLK || command == F_OFD_GETLK)) {
    fprintf(results, "type %d start %ld length %ld\n", range.l_type, (long)range.l_start, (long)range.l_len);
  }
  return result;
}

static void alarmed(int signal) { (void)signal; }

/* Runs a function in a child, whose results are printed before the parent continues. */
static void in_child(void (*act)(void)) {
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    act();
    exit(fflush(results) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
}

static void other_process(void) {
  int fd = open("f", O_RDWR);
  SHOW(record(fd, F_GETLK, F_WRLCK, 0, 0));
  SHOW(record(fd, F_GETLK, F_RDLCK, 0, 10));
  SHOW(record(fd, F_SETLK, F_WRLCK, 10, 10));
  SHOW(record(fd, F_SETLK, F_WRLCK, 30, 10));
  SHOW(record(fd, F_SETLK, F_RDLCK, 19, 1));
  SHOW(record(fd, F_SETLK, F_RDLCK, 50, 5));
  SHOW(record(fd, F_SETLK, F_WRLCK, 50, 5));
  struct sigaction action = {.sa_handler = alarmed};
  sigaction(SIGALRM, &action, NULL);
  alarm(1);
  SHOW(record(fd, F_SETLKW, F_WRLCK, 10, 1));
  SHOW(close(fd));
}

static void after_close(void) {
  int fd = open("f", O_RDWR);
  SHOW(record(fd, F_SETLK, F_WRLCK, 0, 0));
  SHOW(close(fd));
}

static void whole_file_taken(void) {
  int fd = open("f", O_RDWR);
  SHOW(flock(fd, LOCK_SH | LOCK_NB));
  SHOW(flock(fd, LOCK_EX | LOCK_NB));
  SHOW(record(fd, F_SETLK, F_WRLCK, 0, 0));
  SHOW(close(fd));
}

static void waits(void) {
  int fd = open("f", O_RDWR);
  SHOW(record(fd, F_SETLKW, F_WRLCK, 0, 4));
  char text[8] = "";
  SHOW(pread(fd, text, 4, 0));
  SHOW_TEXT(text);
  SHOW(close(fd));
}

static void of_processes(void) {
  int fd = open("f", O_RDWR), again = open("f", O_RDWR), reader = open("f", O_RDONLY), writer = open("f", O_WRONLY);
  SHOW(record(fd, F_SETLK, F_WRLCK, 10, 10));
  SHOW(record(fd, F_SETLK, F_RDLCK, 50, 0));
  SHOW(record(again, F_GETLK, F_WRLCK, 10, 10));
  SHOW(record(again, F_SETLK, F_WRLCK, 15, 1));
  SHOW(record(reader, F_SETLK, F_WRLCK, 90, 1));
  SHOW(record(writer, F_SETLK, F_RDLCK, 90, 1));
  SHOW(record(fd, F_SETLK, F_WRLCK, -1, 1));
  SHOW(record(fd, F_SETLK, 77, 0, 1));
  SHOW(record(-1, F_SETLK, F_WRLCK, 0, 1));
  in_child(other_process);
  SHOW(record(fd, F_SETLK, F_UNLCK, 12, 2));
  in_child(other_process);
  SHOW(close(again));
  in_child(after_close);
  SHOW(lseek(fd, 4, SEEK_SET));
  SHOW(lockf(fd, F_TLOCK, 4));
  SHOW(lockf(fd, F_TEST, 4));
  in_child(other_process);
  SHOW(lockf(fd, F_ULOCK, 0));
  SHOW(close(fd) + close(reader) + close(writer));
}

static void of_descriptions(void) {
  int fd = open("f", O_RDWR), other = open("f", O_RDWR), copy = dup(fd);
  SHOW(record(fd, F_OFD_SETLK, F_WRLCK, 0, 5));
  SHOW(record(copy, F_OFD_SETLK, F_WRLCK, 3, 5));
  SHOW(record(other, F_OFD_SETLK, F_WRLCK, 3, 5));
  SHOW(record(other, F_OFD_GETLK, F_WRLCK, 3, 5));
  SHOW(record(other, F_SETLK, F_WRLCK, 3, 5));
  SHOW(close(fd));
  SHOW(record(other, F_OFD_SETLK, F_WRLCK, 3, 5));
  SHOW(close(copy));
  SHOW(record(other, F_OFD_SETLK, F_WRLCK, 3, 5));
  SHOW(close(other));
}

static void of_flock(void) {
  int fd = open("f", O_RDONLY), other = open("f", O_RDWR), copy = dup(fd);
  SHOW(flock(fd, LOCK_EX));
  SHOW(flock(other, LOCK_SH | LOCK_NB));
  SHOW(flock(copy, LOCK_SH));
  SHOW(flock(other, LOCK_SH | LOCK_NB));
  SHOW(flock(other, LOCK_EX | LOCK_NB));
  SHOW(flock(other, 77));
  in_child(whole_file_taken);
  SHOW(flock(fd, LOCK_UN));
  SHOW(flock(other, LOCK_EX | LOCK_NB));
  SHOW(close(other));
  SHOW(flock(copy, LOCK_EX | LOCK_NB));
  SHOW(close(fd) + close(copy));
}

static void handed_over(void) {
  int ready[2];
  if (pipe(ready) != 0) exit(1);
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    int fd = open("f", O_RDWR);
    int locked = record(fd, F_SETLK, F_WRLCK, 0, 4);
    pwrite(fd, "data", 4, 0);
    write(ready[1], "", 1);
    usleep(300000);
    _exit(locked != 0 || record(fd, F_SETLK, F_UNLCK, 0, 4) != 0 || close(fd) != 0);
  }
  char byte;
  SHOW(read(ready[0], &byte, 1));
  waits();
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
}

static void cases(void) {
  put("f", "0123456789");
  of_processes();
  of_descriptions();
  of_flock();
  handed_over();
}
