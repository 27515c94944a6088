// Preloaded, it shifts the wall clock by the seconds in the file $WALLSHIFT_FILE, read anew each time. The monotonic
// clock stays as it is. (libfaketime stops the sleeps of Python 3.11 and later.)
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
  const char *path = getenv("WALLSHIFT_FILE");
  char text[32];
  if (!path) return 0;
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  long got = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  if (got <= 0) return 0;
  text[got] = 0;
  return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  int rc = syscall(SYS_clock_gettime, clock, t);
  if (!rc && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += shift();
  return rc;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
  struct timespec t;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &t);
  out->tv_sec = t.tv_sec;
  out->tv_usec = t.tv_nsec / 1000;
  return 0;
}
