/* The time of single calls on one file: open(2) with close(2), stat(2), and pread(2) of 4 KiB; and
 * of system calls without libc (x86-64): getppid(2), and stat(2) of the file.
 *
 *   calls FILE [COUNT]      prints nanoseconds for each call, the least of ten rounds
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 10 };

static const char *path;
static int opened;

static void open_and_close(void) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || close(fd) < 0) {
    perror(path);
    exit(1);
  }
}

static void status(void) {
  struct stat found;
  if (stat(path, &found) < 0) {
    perror(path);
    exit(1);
  }
}

static void read_block(void) {
  char block[4096];
  if (pread(opened, block, sizeof block, 0) < 0) {
    perror(path);
    exit(1);
  }
}

#ifdef __x86_64__
static long raw(long number, long first, long second) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
  return result;
}

static void raw_parent(void) { raw(SYS_getppid, 0, 0); }

static void raw_status(void) {
  struct stat found;
  if (raw(SYS_stat, (long)path, (long)&found) != 0) {
    fprintf(stderr, "%s: stat failed\n", path);
    exit(1);
  }
}
#endif

static double least_ns(void (*call)(void), long count) {
  double least = 1e18;
  for (int round = 0; round < ROUNDS; round++) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < count; i++) call();
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count;
    if (ns < least) least = ns;
  }
  return least;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: calls FILE [COUNT]\n");
    return 2;
  }
  path = argv[1];
  long count = argc > 2 ? atol(argv[2]) : 20000;
  opened = open(path, O_RDONLY | O_CLOEXEC);
  if (opened < 0) {
    perror(path);
    return 1;
  }
  printf("open=%.0f stat=%.0f pread=%.0f", least_ns(open_and_close, count), least_ns(status, count),
         least_ns(read_block, count));
#ifdef __x86_64__
  printf(" raw_getppid=%.0f raw_stat=%.0f", least_ns(raw_parent, count), least_ns(raw_status, count));
#endif
  printf("\n");
  return 0;
}
