// Moves the time of day of one process ahead, by the nanoseconds that stand in a file, while the process runs.
//
// `makegood-lab year` compiles and preloads this library, so that Makegood's processes follow the clock of the run. No
// program links the library. MAKEGOOD_TEST_CLOCK names the file: eight bytes, a signed number. Without the variable
// nothing changes.
//
// Only the time of day moves (CLOCK_REALTIME). Monotonic clocks go on, so timers and pauses keep their length. A wait
// until a time of day is given to the kernel in the kernel's own time. libfaketime 0.9.10 does not serve: it moves
// monotonic timers too, and more than the uptime of the machine ahead each such timer is refused (EINVAL).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
// Later than any monotonic clock: a time above it is a time of day.
#define DAY_FROM SECOND

static const volatile int64_t *ahead;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("MAKEGOOD_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) ahead = page;
}

static int64_t offset(void) { return ahead ? *ahead : 0; }

static bool is_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static void move(struct timespec *time, int64_t by) {
    int64_t nanoseconds = time->tv_nsec + by % SECOND;
    time->tv_sec += by / SECOND;
    if (nanoseconds >= SECOND) {
        nanoseconds -= SECOND;
        time->tv_sec += 1;
    } else if (nanoseconds < 0) {
        nanoseconds += SECOND;
        time->tv_sec -= 1;
    }
    time->tv_nsec = nanoseconds;
}

// The same moment in the kernel's time, if it is a time of day.
static struct timespec kernels(const struct timespec *moment) {
    struct timespec time = *moment;
    if (time.tv_sec > DAY_FROM) move(&time, -offset());
    return time;
}

#define LIBRARY(name) \
    static __typeof__(&name) library; \
    if (!library) library = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *now) {
    LIBRARY(clock_gettime);
    int status = library(clock, now);
    if (status == 0 && is_day(clock)) move(now, offset());
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    LIBRARY(pthread_cond_timedwait);
    struct timespec time = kernels(until);
    return library(condition, mutex, &time);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    LIBRARY(pthread_mutex_timedlock);
    struct timespec time = kernels(until);
    return library(mutex, &time);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    LIBRARY(sem_timedwait);
    struct timespec time = kernels(until);
    return library(semaphore, &time);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *length, struct timespec *rest) {
    LIBRARY(clock_nanosleep);
    struct timespec time = flags & TIMER_ABSTIME ? kernels(length) : *length;
    return library(clock, flags, &time, rest);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *new, struct itimerspec *old) {
    LIBRARY(timerfd_settime);
    struct itimerspec time = *new;
    if (flags & TFD_TIMER_ABSTIME) time.it_value = kernels(&new->it_value);
    return library(timer, flags, &time, old);
}
