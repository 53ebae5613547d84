/* Files that are opened after others were closed, which another process may still have open. */
#include "cases.h"
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { FILES = 40, STACK_BYTES = 1 << 16 };

static int ready[2];

/* Each descriptor begins at position 0, with the flags of its own open(2). */
static void in_turn(void) {
  static const int flags[] = {O_RDONLY, O_RDWR | O_CLOEXEC, O_WRONLY | O_APPEND, O_RDONLY | O_CLOEXEC};
  put("a", "content of a");
  put("b", "b");
  for (int i = 0; i < 8; i++) {
    const char *name = i % 3 ? "a" : "b";
    int fd = open(name, flags[i % 4]);
    char text[8] = "";
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(read(fd, text, 3));
    SHOW_TEXT(text);
    SHOW(write(fd, "+", 1));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(close(fd));
    SHOW(read(fd, text, 3));
  }
  SHOW_TEXT(content("a"));
  SHOW_TEXT(content("b"));
}

static void many(void) {
  int fds[FILES], sum = 0;
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < FILES; i++) {
      char name[20], text[20] = "";
      snprintf(name, sizeof name, "many%d", i);
      fds[i] = open(name, O_RDWR | O_CREAT, 0644);
      int length = read(fds[i], text, sizeof text);
      sum += length + lseek(fds[i], 0, SEEK_CUR);
      if (write(fds[i], name, i % 7) != i % 7) exit(1);
    }
    for (int i = 0; i < FILES; i++) sum += close(fds[(i * 7) % FILES]);
  }
  SHOW(sum);
  SHOW_TEXT(content("many20"));
}

/* A duplicate keeps the open file when the first descriptor is closed. */
static void duplicated(void) {
  put("kept", "0123456789");
  int fd = open("kept", O_RDONLY), copy = dup(fd);
  char text[4] = "";
  SHOW(lseek(fd, 2, SEEK_SET));
  SHOW(close(fd));
  int other = open("a", O_RDONLY);
  SHOW(lseek(other, 5, SEEK_SET));
  SHOW(read(copy, text, 3));
  SHOW_TEXT(text);
  SHOW(close(copy));
  SHOW(lseek(other, 0, SEEK_CUR));
  SHOW(close(other));
}

/* Waits until the parent has opened another file, and uses the one that it has inherited. */
static int in_child(void *argument) {
  int fd = *(int *)argument;
  char byte, text[4] = "";
  if (read(ready[0], &byte, 1) != 1) return 1;
  SHOW(read(fd, text, 3));
  SHOW_TEXT(text);
  SHOW(lseek(fd, 0, SEEK_CUR));
  fflush(results);
  return 0;
}

/* Closes a file that a child has open, and uses another one until the child has ended. */
static void replace_and_wait(pid_t child, int fd) {
  char text[4] = "";
  int status = -1;
  SHOW(close(fd));
  int other = open("a", O_RDONLY);
  SHOW(other == fd);
  SHOW(lseek(other, 9, SEEK_SET));
  if (write(ready[1], "x", 1) != 1) exit(1);
  waitpid(child, &status, __WALL);
  SHOW(status);
  SHOW(lseek(other, 0, SEEK_CUR));
  SHOW(read(other, text, 3));
  SHOW_TEXT(text);
  SHOW(close(other));
}

static int inherited(void) {
  int fd = open("kept", O_RDONLY);
  SHOW(lseek(fd, 4, SEEK_SET));
  fflush(results);
  return fd;
}

static void by_children(void) {
  static char stack[STACK_BYTES] __attribute__((aligned(16)));
  if (pipe(ready) != 0) exit(1);
  int fd = inherited();
  pid_t child = fork();
  if (child == 0) exit(in_child(&fd));
  replace_and_wait(child, fd);

  fd = inherited();
  child = _Fork();
  if (child == 0) _exit(in_child(&fd));
  replace_and_wait(child, fd);

  fd = inherited();
  child = clone(in_child, stack + sizeof stack, SIGCHLD, &fd);
  replace_and_wait(child, fd);

  fd = inherited();
  child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) _exit(in_child(&fd));
  replace_and_wait(child, fd);

  /* The child closes the file and uses another one, and the parent continues with the first. */
  fd = inherited();
  child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    close(fd);
    int own = open("b", O_RDONLY);
    _exit(own == fd && lseek(own, 1, SEEK_SET) == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  SHOW(status);
  SHOW(lseek(fd, 0, SEEK_CUR));
  SHOW(close(fd));

  fd = inherited();
  char command[200];
  snprintf(command, sizeof command, "head -c 1 <&%d >/dev/null && head -c 3 <&%d >spawned && cat <&%d >>spawned", ready[0], fd, fd);
  char *arguments[] = {"sh", "-c", command, NULL};
  SHOW(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ));
  replace_and_wait(child, fd);
  SHOW_TEXT(content("spawned"));

  /* The child has ended, but not the process that it has started. */
  fd = inherited();
  snprintf(command, sizeof command, "(head -c 1 <&%d >/dev/null && cat <&%d >later; echo done >end) &", ready[0], fd);
  SHOW(system(command));
  SHOW(close(fd));
  int other = open("a", O_RDONLY);
  SHOW(lseek(other, 9, SEEK_SET));
  if (write(ready[1], "x", 1) != 1) exit(1);
  while (access("end", F_OK) != 0) usleep(1000);
  SHOW(lseek(other, 0, SEEK_CUR));
  SHOW(close(other));
  SHOW_TEXT(content("later"));
}

/* A descriptor in a message is open until the message is received. */
static void in_message(void) {
  int sockets[2], fd = inherited();
  SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  char byte = 'x', text[4] = "";
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  SHOW(sendmsg(sockets[0], &message, 0));
  SHOW(close(fd));
  int other = open("a", O_RDONLY), received;
  SHOW(lseek(other, 9, SEEK_SET));
  SHOW(recvmsg(sockets[1], &message, 0));
  memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
  SHOW(read(received, text, 3));
  SHOW_TEXT(text);
  SHOW(lseek(other, 0, SEEK_CUR));
  SHOW(close(received) + close(other));
}

static void cases(void) {
  in_turn();
  many();
  duplicated();
  by_children();
  in_message();
}
