/* Descriptors with other calls: poll(2), epoll(7), sockets, syscall(2), dlopen(3), execveat(2). */
#include "cases.h"
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static void waited_for(void) {
  put("f", "0123456789");
  int fd = open("f", O_RDWR);
  struct pollfd waiting = {fd, POLLIN | POLLOUT, 0};
  SHOW(poll(&waiting, 1, 0));
  SHOW(waiting.revents);
  fd_set readable, writable;
  FD_ZERO(&readable);
  FD_ZERO(&writable);
  FD_SET(fd, &readable);
  FD_SET(fd, &writable);
  struct timeval none = {0, 0};
  SHOW(select(fd + 1, &readable, &writable, NULL, &none));
  int events = epoll_create1(0);
  struct epoll_event event = {EPOLLIN, {.fd = fd}};
  SHOW(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event));
  char text[8];
  SHOW(ioctl(fd, TCGETS, text));
  int left;
  SHOW(lseek(fd, 3, SEEK_SET));
  SHOW(ioctl(fd, FIONREAD, &left));
  SHOW(left);
  SHOW(ioctl(fd, 0x12345678, text));
  SHOW(isatty(fd));
  SHOW(fcntl(fd, 9999, 0));
  SHOW(close(events) + close(fd));
}

/* Sends a descriptor to another process, which uses it. */
static void sent(void) {
  int sockets[2], fd = open("sent", O_RDWR | O_CREAT, 0644);
  SHOW(write(fd, "first", 5));
  SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  fflush(results);
  pid_t child = fork();
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  char byte = 'x';
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (child == 0) {
    close(fd);
    SHOW(recvmsg(sockets[1], &message, 0));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int received;
    memcpy(&received, CMSG_DATA(header), sizeof received);
    char text[20] = "";
    SHOW(pread(received, text, sizeof text, 0));
    SHOW_TEXT(text);
    SHOW(lseek(received, 0, SEEK_CUR));
    SHOW(write(received, "second", 6));
    SHOW(close(received));
    exit(0);
  }
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(sockets[0], &message, 0) != 1) exit(1);
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
  SHOW(lseek(fd, 0, SEEK_CUR));
  SHOW(close(fd));
  SHOW_TEXT(content("sent"));
}

static void by_number(void) {
  char text[PATH_MAX] = "";
  struct stat found;
  int fd = syscall(SYS_openat, AT_FDCWD, "numbered", O_RDWR | O_CREAT | O_EXCL, 0644);
  SHOW(fd >= 0);
  SHOW(syscall(SYS_openat, AT_FDCWD, "numbered", O_RDWR | O_CREAT | O_EXCL, 0644));
  SHOW(syscall(SYS_write, fd, "hello", 5));
  SHOW(syscall(SYS_pwrite64, fd, "J", 1, 0L));
  SHOW(syscall(SYS_lseek, fd, 1, SEEK_SET));
  SHOW(syscall(SYS_read, fd, text, 10));
  SHOW_TEXT(text);
  SHOW(syscall(SYS_fstat, fd, &found));
  SHOW(found.st_size);
  SHOW(syscall(SYS_newfstatat, AT_FDCWD, "missing", &found, 0));
  SHOW(syscall(SYS_ftruncate, fd, 2));
  SHOW(syscall(SYS_close, fd));
  SHOW(syscall(SYS_renameat2, AT_FDCWD, "numbered", AT_FDCWD, "renamed", 1));
  SHOW(syscall(SYS_mkdirat, AT_FDCWD, "numbers", 0755));
  SHOW(syscall(SYS_chdir, "numbers"));
  memset(text, 0, sizeof text);
  SHOW(syscall(SYS_getcwd, text, sizeof text) == (long)strlen(text) + 1);
  SHOW(strcmp(text + strlen(text) - 8, "/numbers"));
  SHOW(syscall(SYS_getcwd, text, 3));
  SHOW(syscall(SYS_chdir, ".."));
  SHOW(syscall(SYS_unlinkat, AT_FDCWD, "numbers", AT_REMOVEDIR));
  SHOW_TEXT(content("renamed"));
  struct {
    unsigned long flags, mode, resolve;
  } how = {O_RDONLY, 0, 0};
  fd = syscall(SYS_openat2, AT_FDCWD, "renamed", &how, sizeof how);
  SHOW(syscall(SYS_read, fd, text, 10));
  SHOW(syscall(SYS_close, fd));
  SHOW(syscall(SYS_getpid) == getpid());
  SHOW(syscall(99999));
  fflush(results);
  pid_t child = syscall(SYS_vfork);
  if (child == 0) _exit(7);
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(WEXITSTATUS(status));
}

/* Copies a file with read(2) and write(2). */
static void copy(const char *from, const char *to) {
  char buffer[65536];
  int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
  ssize_t length;
  while ((length = read(in, buffer, sizeof buffer)) > 0) {
    if (write(out, buffer, length) != length) exit(1);
  }
  close(in), close(out);
}

static void loaded(void) {
  char build[PATH_MAX];
  const char *temporary = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
  snprintf(build, sizeof build, "%s/quell-plus-%d.so", temporary, getpid());
  char command[2 * PATH_MAX];
  snprintf(command, sizeof command, "echo 'int open(const char *, int, ...); int plus(int a, int b) { return open(\"f\", 0) < 0 ? -1 : a + b; }' | cc -shared -fPIC -x c -o %s -", build);
  SHOW(system(command));
  copy(build, "plus.so");
  unlink(build);
  void *library = dlopen("./plus.so", RTLD_NOW | RTLD_DEEPBIND);
  SHOW(library != NULL);
  int (*plus)(int, int) = library ? (int (*)(int, int))dlsym(library, "plus") : NULL;
  SHOW(plus ? plus(2, 3) : -2);
  SHOW(dlopen("./plus.so", RTLD_NOW) == library);
  SHOW(dlopen("./missing.so", RTLD_NOW) != NULL);
  SHOW(dlopen("libm.so.6", RTLD_NOW) != NULL);
  copy("/bin/true", "true");
  fflush(results);
  pid_t child = fork();
  if (child == 0) {
    char *arguments[] = {"true", NULL};
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    execveat(dir, "true", arguments, environ, 0);
    _exit(9);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
}

static void cases(void) {
  waited_for();
  sent();
  by_number();
  loaded();
}
