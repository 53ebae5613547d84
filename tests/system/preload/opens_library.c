/* Loads a library and calls its function: PROGRAM blocked|unblocked LIBRARY... */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  sigset_t all, mask;
  sigfillset(&all);
  if (strcmp(argv[1], "blocked") == 0) sigprocmask(SIG_BLOCK, &all, NULL);
  for (int i = 2; i < argc; i++) {
    void *library = dlopen(argv[i], RTLD_NOW);
    if (library == NULL) {
      printf("%s\n", dlerror());
      continue;
    }
    void (*describe)(void) = (void (*)(void))dlsym(library, "describe");
    describe();
    dlclose(library);
  }
  struct sigaction action;
  sigaction(SIGSYS, NULL, &action);
  sigprocmask(SIG_BLOCK, NULL, &mask);
  printf("action %d, mask %d\n", action.sa_handler == SIG_DFL, sigismember(&mask, SIGSYS));
  return 0;
}
