/* Prints the results of calls, so that a run on a virtual directory can be compared with one on a
   real directory. The program's argument is the directory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Standard output and error belong to the cases. */
static FILE *results;

/* Prints an expression, its value and, if it is -1, the error. */
#define SHOW(expression)                                                                           \
  do {                                                                                             \
    errno = 0;                                                                                     \
    long shown = (long)(expression);                                                               \
    fprintf(results, "%d: %s = %ld%s%s\n", __LINE__, #expression, shown, shown == -1 ? " " : "",    \
            shown == -1 ? strerrorname_np(errno) ? strerrorname_np(errno) : "no error" : "");      \
    fflush(results);                                                                               \
  } while (0)

#define SHOW_TEXT(text) (fprintf(results, "%d: %s = %s\n", __LINE__, #text, (text)), fflush(results))

/* Writes a file. */
static inline void put(const char *name, const char *text) {
  int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  size_t length = strlen(text);
  if (fd < 0 || write(fd, text, length) != (ssize_t)length || close(fd) != 0) {
    perror(name);
    exit(1);
  }
}

/* Returns the content of a file, up to 4095 bytes. */
static inline const char *content(const char *name) {
  static char text[4096];
  int fd = open(name, O_RDONLY);
  if (fd < 0) return strerrorname_np(errno);
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length < 0) return strerrorname_np(errno);
  text[length] = 0;
  return text;
}

static void cases(void);

int main(int argc, char **argv) {
  int fd = fcntl(1, F_DUPFD_CLOEXEC, 100);
  results = argc == 2 && fd >= 0 ? fdopen(fd, "w") : NULL;
  if (results == NULL || chdir(argv[1]) != 0) {
    perror("usage: PROGRAM DIRECTORY");
    return 2;
  }
  umask(022);
  cases();
  return fclose(results) == 0 ? 0 : 1;
}
