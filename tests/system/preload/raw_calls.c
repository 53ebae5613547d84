/* System calls that the program makes with its own instructions, without libc. */
#include "cases.h"
#include <linux/stat.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>

static inline long raw6(long number, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

#define RAW(name, ...) RAW_(SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(number, a, b, c, d, e, f, ...)                                                        \
  returned(raw6(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f)))

/* The result as a function of libc returns it. */
static long returned(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = -result;
  return -1;
}

enum { TEXT_BYTES = 256 };

static const char *raw_content_in(char *text, const char *name) {
  long fd = RAW(open, name, O_RDONLY);
  if (fd < 0) return strerrorname_np(errno);
  long length = RAW(read, fd, text, TEXT_BYTES - 1);
  RAW(close, fd);
  text[length < 0 ? 0 : length] = 0;
  return text;
}

static const char *raw_content(const char *name) {
  static __thread char text[TEXT_BYTES];
  return raw_content_in(text, name);
}

static long raw_put(const char *name, const char *text) {
  long fd = RAW(openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return fd;
  long length = RAW(write, fd, text, strlen(text));
  return RAW(close, fd) < 0 ? -1 : length;
}

static long count_entries(const char *name) {
  char block[4096];
  long fd = RAW(open, name, O_RDONLY | O_DIRECTORY), length, count = 0;
  while ((length = RAW(getdents64, fd, block, sizeof block)) > 0)
    for (long at = 0; at < length; at += *(unsigned short *)(block + at + 16)) count++;
  RAW(close, fd);
  return length < 0 ? length : count;
}

static void files(void) {
  struct stat found;
  struct statx extended;
  char text[256];
  double preserved = 1.5;
  SHOW(raw_put("a", "hello raw world"));
  SHOW_TEXT(raw_content("a"));
  SHOW(preserved * 2 == 3.0);
  SHOW(RAW(stat, "a", &found));
  SHOW(found.st_size);
  SHOW(RAW(stat, "missing", &found));
  SHOW(RAW(newfstatat, AT_FDCWD, "a", &found, AT_SYMLINK_NOFOLLOW));
  SHOW(RAW(statx, AT_FDCWD, "a", 0, STATX_BASIC_STATS, &extended));
  SHOW(extended.stx_size);
  SHOW(RAW(access, "a", R_OK));
  SHOW(RAW(mkdir, "d", 0755));
  SHOW(raw_put("d/b", "b"));
  SHOW(RAW(symlink, "b", "d/l"));
  SHOW(RAW(readlink, "d/l", text, sizeof text));
  SHOW(count_entries("d"));
  long fd = RAW(open, "d/b", O_RDWR);
  SHOW(fd >= 0);
  SHOW(RAW(pwrite64, fd, "xyz", 3, 5));
  SHOW(RAW(lseek, fd, 0, SEEK_END));
  SHOW(RAW(fstat, fd, &found));
  SHOW(found.st_size);
  SHOW(RAW(ftruncate, fd, 6));
  SHOW(RAW(pread64, fd, text, sizeof text, 4));
  long mapped = RAW(mmap, 0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
  SHOW(((char *)mapped)[5]);
  SHOW(RAW(munmap, mapped, 4096));
  SHOW(RAW(dup2, fd, 90));
  SHOW(RAW(fcntl, 90, F_GETFL) & O_ACCMODE);
  SHOW(RAW(close, fd));
  SHOW(RAW(read, fd, text, 1));
  SHOW(RAW(close, 90));
  SHOW(RAW(rename, "d/b", "d/c"));
  SHOW_TEXT(raw_content("d/l"));
  SHOW(RAW(unlink, "d/l"));
  SHOW(RAW(rmdir, "d"));
  SHOW(RAW(chdir, "d"));
  SHOW_TEXT(raw_content("c") + 4);
  SHOW(RAW(getcwd, text, sizeof text) > 2 && text[strlen(text) - 1] == 'd');
  SHOW(RAW(chdir, ".."));
  SHOW(RAW(fsync, -1));
  SHOW(RAW(getpid) == getpid());
  SHOW(errno);
}

static void *write_in_thread(void *name) {
  for (int i = 0; i < 50; i++)
    if (raw_put(name, name) < 0 || strcmp(raw_content(name), name) != 0) return (void *)1;
  if (*(char *)name == '3') pthread_exit(NULL);
  return NULL;
}

static int write_in_c11_thread(void *name) { return write_in_thread(name) == NULL ? 7 : 8; }

static void threads(void) {
  pthread_t created[4];
  char names[4][2] = {"0", "1", "2", "3"};
  for (int i = 0; i < 4; i++) SHOW(pthread_create(&created[i], NULL, write_in_thread, names[i]));
  for (int i = 0; i < 4; i++) {
    void *result = (void *)2;
    SHOW(pthread_join(created[i], &result));
    SHOW(result);
  }
  thrd_t other;
  int result;
  SHOW(thrd_create(&other, write_in_c11_thread, "c11"));
  SHOW(thrd_join(other, &result));
  SHOW(result);
}

static long status_of(long child) {
  int status = -1;
  RAW(wait4, child, &status, 0, NULL);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* The status of a child. */
static int in_child(const char *name) {
  return raw_put(name, name) == (long)strlen(name) && strcmp(raw_content(name), name) == 0 ? 3 : 4;
}

static void processes(void) {
  long child = RAW(fork);
  if (child == 0) RAW(exit_group, in_child("forked"));
  SHOW(status_of(child));
  SHOW_TEXT(raw_content("forked"));
  child = RAW(clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) RAW(exit_group, in_child("cloned"));
  SHOW(status_of(child));
  SHOW_TEXT(raw_content("cloned"));
  child = fork();
  if (child == 0) _exit(in_child("libc"));
  SHOW(status_of(child));
  SHOW_TEXT(raw_content("libc"));
  child = vfork();
  if (child == 0) _exit(in_child("vforked") == 3 ? 5 : 6);
  SHOW(status_of(child));
  child = RAW(fork);
  if (child == 0) {
    char *command[] = {"/bin/sh", "-c", "cat forked; exit 9", NULL};
    RAW(dup2, fileno(results), 1);
    RAW(execve, command[0], command, environ);
    RAW(exit_group, 10);
  }
  SHOW(status_of(child));
  SHOW(system("exit 11") >> 8);
}

static volatile int handled;
static sigjmp_buf out;

static void handle(int signal) {
  char text[TEXT_BYTES];
  (void)signal;
  if (strcmp(raw_content_in(text, "a"), "hello raw world") == 0) handled++;
}

static void jump(int signal) { siglongjmp(out, signal); }

/* The return of a handler that is installed without libc: rt_sigreturn(2). */
struct kernel_action {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)(void);
  unsigned long mask;
};

__attribute__((naked)) static void restore(void) { __asm__("mov $15, %eax\n\tsyscall"); }

enum { SIGNALS = 100 };

/* Sends the next signal when the one before has been handled. */
static void *send_signals(void *thread) {
  for (int i = 0; i < SIGNALS; i++) {
    int before = handled;
    pthread_kill(*(pthread_t *)thread, SIGALRM);
    while (handled == before) sched_yield();
  }
  return NULL;
}

#define SA_RESTORER_FLAG 0x04000000

static void signals(void) {
  struct kernel_action action = {handle, SA_RESTORER_FLAG, restore, ~0ul}, old;
  SHOW(RAW(rt_sigaction, SIGUSR1, &action, NULL, 8));
  SHOW(RAW(rt_sigaction, SIGUSR1, NULL, &old, 8));
  SHOW(old.handler == handle);
  SHOW(RAW(kill, getpid(), SIGUSR1));
  SHOW(handled);
  /* All signals are blocked. */
  unsigned long all = ~0ul, before = 1, now = 0;
  SHOW(RAW(rt_sigprocmask, SIG_SETMASK, &all, &before, 8));
  SHOW(before);
  SHOW_TEXT(raw_content("a"));
  SHOW(RAW(kill, getpid(), SIGUSR1));
  SHOW(handled);
  SHOW(RAW(rt_sigprocmask, SIG_SETMASK, NULL, &now, 8));
  SHOW((now & 1ul << (SIGUSR1 - 1)) != 0);
  SHOW(RAW(rt_sigprocmask, SIG_SETMASK, &before, NULL, 8));
  SHOW(handled);
  sigset_t full;
  sigfillset(&full);
  SHOW(sigprocmask(SIG_BLOCK, &full, NULL));
  SHOW_TEXT(raw_content("a"));
  SHOW(sigprocmask(SIG_UNBLOCK, &full, NULL));
  /* A handler on an alternate stack. */
  static char space[1 << 16];
  stack_t stack = {.ss_sp = space, .ss_size = sizeof space}, known = {0};
  SHOW(RAW(sigaltstack, &stack, NULL));
  SHOW(RAW(sigaltstack, NULL, &known));
  SHOW(known.ss_sp == space);
  struct sigaction on_stack = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
  sigfillset(&on_stack.sa_mask);
  SHOW(sigaction(SIGUSR2, &on_stack, NULL));
  SHOW(raise(SIGUSR2));
  SHOW(handled);
  /* A signal while a call waits. */
  int ends[2];
  char byte;
  SHOW(pipe(ends));
  struct sigaction interrupting = {.sa_handler = handle};
  SHOW(sigaction(SIGALRM, &interrupting, NULL));
  struct itimerval soon = {.it_value.tv_usec = 20000};
  SHOW(setitimer(ITIMER_REAL, &soon, NULL));
  SHOW(RAW(read, ends[0], &byte, 1));
  SHOW(handled);
  interrupting.sa_handler = jump;
  SHOW(sigaction(SIGALRM, &interrupting, NULL));
  int signal = sigsetjmp(out, 1);
  if (signal == 0) {
    setitimer(ITIMER_REAL, &soon, NULL);
    RAW(read, ends[0], &byte, 1);
  }
  SHOW(signal);
  SHOW_TEXT(raw_content("a"));
  /* Many signals between calls. */
  interrupting.sa_handler = handle;
  interrupting.sa_flags = SA_RESTART;
  SHOW(sigaction(SIGALRM, &interrupting, NULL));
  pthread_t main_thread = pthread_self(), sender;
  int start = handled, failed = 0;
  SHOW(pthread_create(&sender, NULL, send_signals, &main_thread));
  while (handled < start + SIGNALS) failed += strcmp(raw_content("forked"), "forked") != 0 || raw_put("e", "e") != 1;
  SHOW(pthread_join(sender, NULL));
  SHOW(failed);
  /* SIGSYS of the program itself. */
  struct sigaction own = {.sa_handler = handle}, previous;
  handled = 0;
  SHOW(sigaction(SIGSYS, &own, &previous));
  SHOW(previous.sa_handler == SIG_DFL);
  SHOW(raise(SIGSYS));
  SHOW(handled);
  SHOW(RAW(rt_sigaction, SIGSYS, NULL, &old, 8));
  SHOW(old.handler == handle);
  SHOW_TEXT(raw_content("a"));
  long child = RAW(fork);
  if (child == 0) {
    struct kernel_action by_default = {0};
    RAW(rt_sigaction, SIGSYS, &by_default, NULL, 8);
    raise(SIGSYS);
    _exit(1);
  }
  int status;
  SHOW(waitpid(child, &status, 0) == child);
  SHOW(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static void cases(void) {
  files();
  threads();
  processes();
  signals();
}
