/* A library whose constructor loads another one and starts a thread. Compiled with NAME. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int needed(void);

static void *read_file(void *path) {
  char text[16] = "";
  int fd = open(path, O_RDONLY);
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  return (void *)(long)(length == 5);
}

__attribute__((constructor)) static void construct(void) {
  pthread_t thread;
  void *result = NULL;
  void *inner = dlopen("libinner.so", RTLD_NOW);
  pthread_create(&thread, NULL, read_file, getenv("TREE_FILE"));
  pthread_join(thread, &result);
  printf("constructor of " NAME ": inner %d, thread %ld\n", inner != NULL, (long)result);
}

void describe(void) {
  Dl_info found;
  dladdr(describe, &found);
  printf(NAME " is %s, needs %d\n", found.dli_fname, needed());
}
