/* The flags of open files (fcntl(2)), and those of faccessat(2). */
#include "cases.h"
#include <sys/syscall.h>

#define CHANGEABLE (O_APPEND | O_NONBLOCK | O_NOATIME)

static void opened(const char *name, int flags) {
  int fd = open(name, flags | O_CLOEXEC, 0600);
  SHOW(flags);
  if (fd < 0) {
    SHOW(fd);
    return;
  }
  SHOW(fcntl(fd, F_GETFL));
  SHOW(fcntl(fd, F_SETFL, CHANGEABLE));
  SHOW(fcntl(fd, F_GETFL));
  SHOW(fcntl(fd, F_SETFL, O_RDWR | O_TRUNC | O_CREAT | O_SYNC));
  SHOW(fcntl(fd, F_GETFL));
  SHOW(fcntl(fd, F_GETFD));
  SHOW(close(fd));
}

static void cases(void) {
  static const int files[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_CREAT | O_TRUNC, O_WRONLY | O_APPEND,
                              O_RDWR | O_SYNC, O_RDWR | O_DSYNC, O_RDONLY | O_NONBLOCK, O_RDONLY | O_NOFOLLOW,
                              O_RDONLY | O_NOATIME, O_RDWR | O_NOCTTY, O_PATH, O_PATH | O_NOFOLLOW,
                              O_RDONLY | O_ASYNC, O_RDWR | O_APPEND | O_NONBLOCK | O_SYNC};
  static const int dirs[] = {O_RDONLY, O_RDONLY | O_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK,
                             O_PATH, O_PATH | O_DIRECTORY, O_RDONLY | O_NOATIME, O_RDONLY | O_SYNC};
  if (access("f", F_OK) != 0) put("f", "text"), mkdir("d", 0755), symlink("f", "l"), symlink("missing", "dangling");
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) opened("f", files[i]);
  for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) opened("d", dirs[i]);
  opened("l", O_PATH | O_NOFOLLOW);
  static const char *const names[] = {"f", "d", "l", "dangling", "missing", "f/x", ""};
  static const int flags[] = {0, AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EACCESS | AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, 0x4};
  int dir = open(".", O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 7; i++)
    for (int j = 0; j < 6; j++)
      for (int mode = 0; mode < 9; mode += 2) {
        SHOW(faccessat(dir, names[i], mode, flags[j]));
        SHOW(syscall(SYS_faccessat2, dir, names[i], mode, flags[j]));
      }
  SHOW(syscall(SYS_faccessat, dir, "l", R_OK));
  SHOW(close(dir));
}
