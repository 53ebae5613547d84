/* Mappings of files. */
#include "cases.h"
#include <setjmp.h>
#include <sys/mman.h>

static sigjmp_buf back;

static void jump(int signal) { siglongjmp(back, signal); }

/* Returns whether the byte can be read. */
static int readable(const char *address) {
  struct sigaction action = {.sa_handler = jump};
  sigaction(SIGBUS, &action, NULL);
  sigaction(SIGSEGV, &action, NULL);
  int signal = sigsetjmp(back, 1);
  if (signal != 0) return -signal;
  return *(const volatile char *)address;
}

static void cases(void) {
  long page = sysconf(_SC_PAGESIZE);
  int fd = open("f", O_RDWR | O_CREAT, 0644);
  for (int i = 0; i < 3 * page + 10; i++) {
    char byte = 'a' + i / page;
    pwrite(fd, &byte, 1, i);
  }
  char *all = mmap(NULL, 5 * page, PROT_READ, MAP_PRIVATE, fd, 0);
  SHOW(all != MAP_FAILED);
  SHOW(readable(all));
  SHOW(readable(all + 3 * page + 9));
  SHOW(readable(all + 3 * page + 10));
  SHOW(readable(all + 4 * page));
  SHOW(munmap(all, 5 * page));
  char *part = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 2 * page);
  SHOW(readable(part));
  part[0] = 'X';
  SHOW(readable(part));
  SHOW(msync(part, page, MS_SYNC));
  char byte;
  SHOW(pread(fd, &byte, 1, 2 * page));
  SHOW(byte);
  char *fixed = mmap(part, page, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, page);
  SHOW(fixed == part);
  SHOW(readable(part));
  SHOW(munmap(part, page));
  SHOW(mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 1) == MAP_FAILED ? -1 : 0);
  SHOW(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
  SHOW(mmap(NULL, page, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
  int reader = open("f", O_RDONLY), writer = open("f", O_WRONLY), dir = open(".", O_RDONLY);
  SHOW(mmap(NULL, page, PROT_READ, MAP_PRIVATE, writer, 0) == MAP_FAILED ? -1 : 0);
  SHOW(mmap(NULL, page, PROT_READ, MAP_PRIVATE, dir, 0) == MAP_FAILED ? -1 : 0);
  SHOW(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED ? -1 : 0);
  char *shared = mmap(NULL, page, PROT_READ, MAP_SHARED, reader, 0);
  SHOW(close(reader));
  SHOW(readable(shared));
  SHOW(mprotect(shared, page, PROT_READ | PROT_WRITE));
  char *moved = mremap(shared, page, 2 * page, MREMAP_MAYMOVE);
  SHOW(moved != MAP_FAILED);
  SHOW(readable(moved));
  SHOW(munmap(moved, 2 * page));
  char *code = mmap(NULL, page, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  SHOW(readable(code));
  char *anonymous = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  SHOW(readable(anonymous));
  put("empty", "");
  int empty = open("empty", O_RDONLY);
  char *nothing = mmap(NULL, page, PROT_READ, MAP_PRIVATE, empty, 0);
  SHOW(nothing != MAP_FAILED);
  SHOW(readable(nothing));
  SHOW(close(fd) + close(writer) + close(dir) + close(empty));
}
