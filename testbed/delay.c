// Connects two new tap devices, and delivers each frame after a delay: the latency of a network,
// for kernels without the queueing discipline netem.
//
//   delay OUTER INNER MICROSECONDS
//
// Prints a line when both devices exist; they end with this process. Frames keep their order.
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 4096, FRAME_BYTES_MAX = 9216, NANOSECONDS = 1000000000 };

struct frame {
  struct timespec due;
  ssize_t bytes;
  char data[FRAME_BYTES_MAX];
};

// The frames of one direction.
struct direction {
  int from, to;
  sem_t empty, waiting;
  struct frame *frames;
};

static long delay_ns;

static void fail(const char *what) {
  fprintf(stderr, "delay: %s: %s\n", what, strerror(errno));
  exit(3);
}

static int tap(const char *name) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) fail(name);
  return device;
}

static void *receive(void *argument) {
  struct direction *direction = argument;
  for (unsigned next = 0;; next = (next + 1) % FRAMES) {
    while (sem_wait(&direction->empty) < 0) {
    }
    struct frame *frame = &direction->frames[next];
    // A device that is down, or is being moved to another network namespace, has no frames.
    while ((frame->bytes = read(direction->from, frame->data, FRAME_BYTES_MAX)) < 0) usleep(1000);
    clock_gettime(CLOCK_MONOTONIC, &frame->due);
    frame->due.tv_nsec += delay_ns;
    frame->due.tv_sec += frame->due.tv_nsec / NANOSECONDS;
    frame->due.tv_nsec %= NANOSECONDS;
    sem_post(&direction->waiting);
  }
  return NULL;
}

static void *deliver(void *argument) {
  struct direction *direction = argument;
  // Otherwise the kernel may wake this thread 50 microseconds late.
  prctl(PR_SET_TIMERSLACK, 1UL);
  for (unsigned next = 0;; next = (next + 1) % FRAMES) {
    while (sem_wait(&direction->waiting) < 0) {
    }
    struct frame *frame = &direction->frames[next];
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &frame->due, NULL) == EINTR) {
    }
    // A frame that the other device does not accept is lost, as on a network.
    if (write(direction->to, frame->data, (size_t)frame->bytes) < 0 && errno != EIO && errno != EINVAL) perror("delay: write");
    sem_post(&direction->empty);
  }
  return NULL;
}

int main(int count, char **words) {
  if (count != 4) {
    fprintf(stderr, "usage: delay OUTER INNER MICROSECONDS\n");
    return 2;
  }
  delay_ns = atol(words[3]) * 1000;
  if (delay_ns < 0 || delay_ns >= NANOSECONDS) {
    fprintf(stderr, "delay: the delay must be less than a second\n");
    return 2;
  }
  int outer = tap(words[1]), inner = tap(words[2]);
  struct direction directions[2] = {{.from = outer, .to = inner}, {.from = inner, .to = outer}};
  for (int i = 0; i < 2; i++) {
    directions[i].frames = calloc(FRAMES, sizeof(struct frame));
    if (!directions[i].frames) fail("memory");
    sem_init(&directions[i].empty, 0, FRAMES);
    sem_init(&directions[i].waiting, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, receive, &directions[i]) || pthread_create(&thread, NULL, deliver, &directions[i])) fail("thread");
  }
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
