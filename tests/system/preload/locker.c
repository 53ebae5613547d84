/* A statically linked program that locks its standard output and writes to it. */
#include <stdio.h>
#include <sys/file.h>

int main(void) {
  int locked = flock(1, LOCK_EX);
  printf("locked: %d\n", locked);
  return fflush(stdout) == 0 ? 3 : 1;
}
