/* Copies between descriptors: sendfile(2), copy_file_range(2), splice(2) and tee(2). */
#include "cases.h"
#include <sys/sendfile.h>
#include <sys/socket.h>

static void sent(void) {
  put("from", "0123456789");
  int from = open("from", O_RDONLY), to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0644);
  int native = open("/dev/null", O_RDWR), dir = open(".", O_RDONLY);
  off_t offset = 2;
  SHOW(sendfile(to, from, &offset, 3));
  SHOW(offset);
  SHOW(lseek(from, 0, SEEK_CUR));
  SHOW(lseek(to, 0, SEEK_CUR));
  SHOW(sendfile(to, from, NULL, 100));
  SHOW(lseek(from, 0, SEEK_CUR));
  SHOW(sendfile(to, from, NULL, 100));
  SHOW_TEXT(content("to"));
  SHOW(sendfile(from, to, NULL, 1));
  offset = -1;
  SHOW(sendfile(to, from, &offset, 1));
  SHOW(sendfile(to, dir, NULL, 1));
  SHOW(lseek(from, 0, SEEK_SET));
  SHOW(sendfile(native, from, NULL, 4));
  int sockets[2];
  char text[20] = "";
  SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  SHOW(sendfile(sockets[0], from, NULL, 4));
  SHOW(read(sockets[1], text, sizeof text));
  SHOW_TEXT(text);
  SHOW(fcntl(to, F_SETFL, O_APPEND));
  SHOW(lseek(from, 0, SEEK_SET));
  SHOW(sendfile(to, from, NULL, 4));
  SHOW(close(from) + close(to) + close(native) + close(dir));
}

static void copied(void) {
  put("from", "0123456789");
  int from = open("from", O_RDWR), to = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0644), dir = open(".", O_RDONLY);
  off_t a = 1, b = 5;
  SHOW(copy_file_range(from, &a, to, &b, 4, 0));
  SHOW(a * 100 + b);
  SHOW(copy_file_range(from, NULL, to, NULL, 2, 0));
  SHOW(lseek(from, 0, SEEK_CUR) * 100 + lseek(to, 0, SEEK_CUR));
  SHOW(copy_file_range(from, NULL, to, NULL, 100, 0));
  SHOW(copy_file_range(from, NULL, to, NULL, 100, 0));
  SHOW_TEXT(content("copy"));
  SHOW(copy_file_range(from, NULL, to, NULL, 1, 7));
  SHOW(copy_file_range(from, NULL, dir, NULL, 1, 0));
  a = 0, b = 2;
  SHOW(copy_file_range(from, &a, from, &b, 4, 0));
  a = 0, b = 10;
  SHOW(copy_file_range(from, &a, from, &b, 4, 0));
  SHOW_TEXT(content("from"));
  int appends = open("copy", O_WRONLY | O_APPEND), reader = open("copy", O_RDONLY);
  SHOW(copy_file_range(from, NULL, appends, NULL, 1, 0));
  SHOW(copy_file_range(appends, NULL, from, NULL, 1, 0));
  SHOW(copy_file_range(from, NULL, reader, NULL, 1, 0));
  SHOW(close(from) + close(to) + close(dir) + close(appends) + close(reader));
}

static void spliced(void) {
  put("from", "0123456789");
  int from = open("from", O_RDWR), to = open("spliced", O_RDWR | O_CREAT | O_TRUNC, 0644), ends[2];
  char text[20] = "";
  SHOW(pipe(ends));
  off_t offset = 3;
  SHOW(splice(from, &offset, ends[1], NULL, 4, 0));
  SHOW(offset);
  SHOW(splice(from, NULL, ends[1], NULL, 2, 0));
  SHOW(lseek(from, 0, SEEK_CUR));
  SHOW(splice(ends[0], NULL, to, NULL, 100, 0));
  SHOW(lseek(to, 0, SEEK_CUR));
  SHOW_TEXT(content("spliced"));
  SHOW(splice(ends[0], NULL, to, NULL, 100, SPLICE_F_NONBLOCK));
  SHOW(write(ends[1], "abc", 3));
  offset = 1;
  SHOW(splice(ends[0], NULL, to, &offset, 2, 0));
  SHOW(offset);
  SHOW_TEXT(content("spliced"));
  SHOW(splice(from, &offset, ends[1], &offset, 1, 0));
  SHOW(splice(from, NULL, to, NULL, 1, 0));
  SHOW(tee(from, ends[1], 1, 0));
  struct iovec vector = {text, 1};
  SHOW(vmsplice(from, &vector, 1, 0));
  SHOW(read(ends[0], text, sizeof text));
  SHOW_TEXT(text);
  SHOW(close(ends[1]));
  SHOW(splice(ends[0], NULL, to, NULL, 1, 0));
  SHOW(close(from) + close(to) + close(ends[0]));
}

static void cases(void) {
  sent();
  copied();
  spliced();
}
