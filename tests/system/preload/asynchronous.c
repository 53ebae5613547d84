/* Asynchronous I/O. */
#include "cases.h"
#include <aio.h>
#include <semaphore.h>

static sem_t notified;
static volatile int received;

static void by_thread(union sigval value) {
  received = value.sival_int;
  sem_post(&notified);
}

static void by_signal(int signal, siginfo_t *info, void *context) {
  (void)signal;
  (void)context;
  received = info->si_value.sival_int * 1000 + (info->si_code == SI_ASYNCIO);
  sem_post(&notified);
}

static long finished(struct aiocb *operation) {
  const struct aiocb *list[] = {operation};
  while (aio_error(operation) == EINPROGRESS) aio_suspend(list, 1, NULL);
  int error = aio_error(operation);
  long result = aio_return(operation);
  return error ? -error : result;
}

static void cases(void) {
  sem_init(&notified, 0, 0);
  int fd = open("f", O_RDWR | O_CREAT, 0644), reader = open("f", O_RDONLY), native = open("/dev/null", O_RDWR);
  char text[20] = "";
  struct aiocb write = {.aio_fildes = fd, .aio_buf = "0123456789", .aio_nbytes = 10, .aio_offset = 3};
  SHOW(aio_write(&write));
  SHOW(finished(&write));
  struct aiocb sync = {.aio_fildes = fd};
  SHOW(aio_fsync(O_SYNC, &sync));
  SHOW(finished(&sync));
  struct aiocb read = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 5, .aio_offset = 5};
  read.aio_sigevent.sigev_notify = SIGEV_THREAD;
  read.aio_sigevent.sigev_notify_function = by_thread;
  read.aio_sigevent.sigev_value.sival_int = 42;
  SHOW(aio_read(&read));
  SHOW(finished(&read));
  SHOW(sem_wait(&notified));
  SHOW(received);
  SHOW_TEXT(text);
  struct sigaction action = {.sa_sigaction = by_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGUSR1, &action, NULL);
  read.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
  read.aio_sigevent.sigev_signo = SIGUSR1;
  read.aio_offset = 100;
  SHOW(aio_read(&read));
  SHOW(finished(&read));
  while (sem_wait(&notified) != 0) continue;
  SHOW(received);
  write.aio_fildes = reader;
  SHOW(aio_write(&write));
  SHOW(finished(&write));
  SHOW(aio_cancel(fd, NULL) == AIO_ALLDONE);
  SHOW(lseek(fd, 0, SEEK_CUR));

  char more[3][8] = {"", "", ""};
  struct aiocb first = {.aio_fildes = fd, .aio_buf = more[0], .aio_nbytes = 2, .aio_offset = 3, .aio_lio_opcode = LIO_READ};
  struct aiocb second = {.aio_fildes = native, .aio_buf = more[1], .aio_nbytes = 2, .aio_lio_opcode = LIO_READ};
  struct aiocb third = {.aio_fildes = fd, .aio_buf = "ab", .aio_nbytes = 2, .aio_offset = 0, .aio_lio_opcode = LIO_WRITE};
  struct aiocb none = {.aio_fildes = fd, .aio_lio_opcode = LIO_NOP};
  struct aiocb *list[] = {&first, NULL, &second, &third, &none};
  SHOW(lio_listio(LIO_WAIT, list, 5, NULL));
  SHOW(finished(&first) * 100 + finished(&second) * 10 + finished(&third));
  SHOW_TEXT(more[0]);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = by_thread, .sigev_value.sival_int = 7};
  SHOW(lio_listio(LIO_NOWAIT, list, 2, &event));
  SHOW(sem_wait(&notified));
  SHOW(received);
  SHOW(finished(&first));
  third.aio_fildes = reader;
  SHOW(lio_listio(LIO_WAIT, &list[3], 1, NULL));
  SHOW(finished(&third));
  SHOW(lio_listio(99, list, 1, NULL));
  SHOW(close(fd) + close(reader) + close(native));
  SHOW(content("f")[0]);
}
