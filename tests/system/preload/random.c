// Random calls of libc below the directory argv[1], with the seeds argv[2] to argv[3] - 1. Each
// call and its result is one line, so that the output on a virtual directory can be compared with
// that on a real one. Each seed has a directory and a process of its own.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 150, FILES = 8, BYTES = 1 << 16 };

// An open file and the name by which it was opened, which renames follow.
static struct { int fd; char path[32]; int removed, is_dir; } open_files[FILES];
static unsigned long long state;
static unsigned char data[BYTES];

static unsigned below(unsigned bound) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (unsigned)(state >> 33) % bound;
}

static const char *names[] = {"a", "b", "c", "d", "d/a", "d/b", "e", "e/a", "d/e", "l"};
static const char *name(void) { return names[below(sizeof names / sizeof *names)]; }

static unsigned sum(const unsigned char *bytes, long length) {
  unsigned hash = 2166136261u;
  for (long i = 0; i < length; i++) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

static long say(const char *call, long result) {
  int number = errno;
  if (result < 0) printf("%s: error %d\n", call, number);
  else printf("%s: %ld\n", call, result);
  return result;
}

static int any_file(void) {
  for (int tries = 0; tries < 20; tries++) {
    int i = below(FILES);
    if (open_files[i].fd >= 0) return i;
  }
  return -1;
}

static size_t fill(void) {
  size_t length = below(4) ? below(200) : below(BYTES);
  unsigned value = below(255) + 1;
  for (size_t i = 0; i < length; i++) data[i] = (unsigned char)(value + i * 7);
  return length;
}

static off_t offset(void) { return below(4) ? below(500) : below(200000); }

// Follows a removal or a rename of `from` to `to`, or NULL.
static void follow(const char *from, const char *to) {
  size_t length = strlen(from);
  for (int i = 0; i < FILES; i++) {
    char *path = open_files[i].path;
    if (open_files[i].fd < 0 || open_files[i].removed || strncmp(path, from, length) != 0) continue;
    if (path[length] != 0 && path[length] != '/') continue;
    if (!to) { open_files[i].removed = 1; continue; }
    char rest[32];
    strcpy(rest, path + length);
    snprintf(path, sizeof open_files[i].path, "%.8s%.8s", to, rest);
  }
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(const char *path) {
  DIR *dir = opendir(path);
  if (!dir) { say("opendir", -1); return; }
  char *found[64];
  int count = 0;
  for (struct dirent *entry; count < 64 && (entry = readdir(dir));) found[count++] = strdup(entry->d_name);
  closedir(dir);
  qsort(found, count, sizeof *found, by_name);
  printf("list %s:", path);
  for (int i = 0; i < count; i++) { printf(" %s", found[i]); free(found[i]); }
  printf("\n");
}

static void status(const struct stat *st) {
  printf("  mode %o size %lld\n", st->st_mode, S_ISREG(st->st_mode) ? (long long)st->st_size : 0);
}

static void call_on_file(int i, int in_child) {
  int fd = open_files[i].fd;
  char call[64];
  // A directory that was removed cannot be used through its descriptor: ESTALE.
  if (open_files[i].is_dir && open_files[i].removed) return;
  printf("fd %d: ", i);
  switch (below(15)) {
  case 0: case 1: { size_t n = fill(); say("write", write(fd, data, n)); break; }
  case 2: { size_t n = fill(); off_t at = offset(); say("pwrite", pwrite(fd, data, n, at)); break; }
  case 3: case 4: {
    memset(data, 0, sizeof data);
    long n = say("read", read(fd, data, below(3) ? below(300) : BYTES));
    if (n > 0) printf("  sum %u\n", sum(data, n));
    break;
  }
  case 5: {
    size_t wanted = below(BYTES);
    long n = say("pread", pread(fd, data, wanted, offset()));
    if (n > 0) printf("  sum %u\n", sum(data, n));
    break;
  }
  case 6: {
    int whence = below(3);
    off_t to = offset() - (whence ? 300 : 0);
    if (open_files[i].is_dir) to = whence = 0; // positions of directories have no meaning
    snprintf(call, sizeof call, "lseek %lld %d", (long long)to, whence);
    say(call, lseek(fd, to, whence));
    break;
  }
  case 7: { off_t size = offset(); snprintf(call, sizeof call, "ftruncate %lld", (long long)size); say(call, ftruncate(fd, size)); break; }
  case 8: { struct stat st; if (say("fstat", fstat(fd, &st)) == 0) status(&st); break; }
  case 9: say("fsync", fsync(fd)); break;
  case 10: {
    size_t n = fill();
    struct iovec parts[3] = {{data, n / 3}, {data + n / 3, 0}, {data + n / 3, n - n / 3}};
    say("writev", writev(fd, parts, 3));
    break;
  }
  case 11: {
    struct iovec parts[2] = {{data, below(100)}, {data + 100, below(100)}};
    memset(data, 0, 200);
    if (say("readv", readv(fd, parts, 2)) > 0) printf("  sum %u\n", sum(data, 200));
    break;
  }
  case 12: {
    int flags = fcntl(fd, F_GETFL);
    printf("flags %o\n", flags & (O_ACCMODE | O_APPEND));
    if (below(2) && !in_child && !open_files[i].is_dir) say("append", fcntl(fd, F_SETFL, flags ^ O_APPEND));
    break;
  }
  // The owner keeps all permissions: a child opens the file again by its path.
  case 13: say("fchmod", fchmod(fd, 0700 | below(0100))); break;
  case 14: {
    int to = below(FILES);
    if (to == i) break;
    int new = open_files[to].fd >= 0 ? dup2(fd, open_files[to].fd) : dup(fd);
    say("dup", new < 0 ? -1 : to);
    if (new >= 0) { open_files[to] = open_files[i]; open_files[to].fd = new; }
    break;
  }
  }
}

// A child uses the inherited files. The parent sees its data after it has waited for it.
static void call_in_child(void) {
  int i = any_file();
  if (i < 0 || open_files[i].removed || open_files[i].is_dir) return;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    printf("child ");
    call_on_file(i, 1);
    fflush(stdout);
    if (below(2)) _exit(3);
    exit(3);
  }
  int result;
  waitpid(child, &result, 0);
  printf("child ended %d\n", result);
}

static void call_on_name(void) {
  const char *a = name(), *b = name();
  char call[64];
  switch (below(12)) {
  case 0: case 1: case 2: {
    static const int flags[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_APPEND, O_WRONLY | O_APPEND, O_RDWR};
    int i = below(FILES), flag = flags[below(6)] | (below(3) ? O_CREAT : 0);
    if (!below(5)) flag |= O_TRUNC;
    if (!below(6)) flag |= O_EXCL;
    if (!below(12)) flag |= O_DIRECTORY;
    if (!below(12)) flag |= O_NOFOLLOW;
    if ((flag & O_EXCL) && !(flag & O_CREAT)) flag &= ~O_EXCL; // undefined
    if ((flag & O_DIRECTORY) && (flag & O_CREAT)) flag &= ~O_CREAT; // differs between versions of Linux
    if (open_files[i].fd >= 0) { say("close", close(open_files[i].fd)); open_files[i].fd = -1; }
    snprintf(call, sizeof call, "open %s %o", a, flag);
    int fd = open(a, flag, 0666);
    say(call, fd < 0 ? -1 : fd);
    if (fd >= 0) {
      struct stat st;
      fstat(fd, &st);
      open_files[i].fd = fd;
      open_files[i].removed = 0;
      open_files[i].is_dir = S_ISDIR(st.st_mode);
      // The only symbolic link leads to `a`.
      int is_link = lstat(a, &st) == 0 && S_ISLNK(st.st_mode);
      snprintf(open_files[i].path, sizeof open_files[i].path, "%.8s", is_link ? "a" : a);
    }
    break;
  }
  case 3: snprintf(call, sizeof call, "unlink %s", a); if (say(call, unlink(a)) == 0) follow(a, NULL); break;
  case 4: {
    snprintf(call, sizeof call, "rename %s %s", a, b);
    if (say(call, rename(a, b)) == 0 && strcmp(a, b)) { follow(b, NULL); follow(a, b); }
    break;
  }
  case 5: snprintf(call, sizeof call, "mkdir %s", a); say(call, mkdir(a, 0777)); break;
  case 6: snprintf(call, sizeof call, "rmdir %s", a); if (say(call, rmdir(a)) == 0) follow(a, NULL); break;
  case 7: {
    struct stat st;
    snprintf(call, sizeof call, "stat %s", a);
    if (say(call, below(2) ? stat(a, &st) : lstat(a, &st)) == 0) status(&st);
    break;
  }
  case 8: list(below(2) ? "." : a); break;
  case 9: { off_t size = offset(); snprintf(call, sizeof call, "truncate %s", a); say(call, truncate(a, size)); break; }
  case 10: say("symlink", symlink("a", "l")); break;
  case 11: {
    char target[16] = "";
    say("readlink", readlink(a, target, sizeof target));
    say("access", access(b, below(8)));
    break;
  }
  }
}

static int run(unsigned seed) {
  state = seed * 2654435761ULL + 1;
  char dir[32];
  snprintf(dir, sizeof dir, "%u", seed);
  if (mkdir(dir, 0755) != 0 || chdir(dir) != 0) return 1;
  umask(022);
  for (int i = 0; i < FILES; i++) open_files[i].fd = -1;
  for (int number = 0; number < CALLS; number++) {
    printf("%u.%d ", seed, number);
    int kind = below(20);
    if (kind == 0) {
      call_in_child();
    } else if (kind < 12) {
      int i = any_file();
      if (i < 0) call_on_name();
      else call_on_file(i, 0);
    } else {
      call_on_name();
    }
    printf("\n");
    fflush(stdout);
  }
  for (int i = 0; i < FILES; i++)
    if (open_files[i].fd >= 0) say("close", close(open_files[i].fd));
  static const char *dirs[] = {".", "d", "e", "d/e"};
  for (int i = 0; i < 4; i++) list(dirs[i]);
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    struct stat st;
    if (stat(names[i], &st) != 0 || !S_ISREG(st.st_mode)) continue;
    int fd = open(names[i], O_RDONLY);
    unsigned total = 0;
    for (long n; (n = read(fd, data, BYTES)) > 0;) total = total * 31 + sum(data, n);
    printf("end %s size %lld sum %u\n", names[i], (long long)st.st_size, total);
    close(fd);
  }
  fflush(stdout);
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 4 || chdir(argv[1]) != 0) return 2;
  for (unsigned seed = atoi(argv[2]); seed < (unsigned)atoi(argv[3]); seed++) {
    pid_t child = fork();
    if (child == 0) exit(run(seed));
    int result;
    waitpid(child, &result, 0);
    printf("seed %u: status %d\n", seed, result);
    fflush(stdout);
    if (result != 0) return 1;
  }
  return 0;
}
