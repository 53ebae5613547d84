/* Creates and closes empty files in one directory, as mdtest does.
 *
 *   creates DIR COUNT [NAME]     prints creates for each second
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: creates DIR COUNT [NAME]\n");
    return 2;
  }
  long files = atol(arguments[2]);
  const char *name = count > 3 ? arguments[3] : "file";
  mkdir(arguments[1], 0755);
  double start = now();
  for (long number = 0; number < files; number++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%ld", arguments[1], name, number);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd < 0 || close(fd) < 0) {
      perror(path);
      return 1;
    }
  }
  printf("%.0f\n", files / (now() - start));
  return 0;
}
