// Tells the thread sanitizer what Swift's Mutex does when it is contended.
//
// The uncontended half of Synchronization.Mutex is inlined into our code, where the sanitizer sees its atomics. The
// other half hands the lock over in the kernel (FUTEX_LOCK_PI), from a library that is not instrumented: a thread that
// had to wait seems never to have acquired the lock, and whatever is under it looks like a race. So that half's entry
// points are called through here. Preloaded by `deploy/test --sanitize thread`, never linked.
//
// Names and calling convention are those of Swift 6 on Linux; where they change, the false reports come back.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

#define LOCK "$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF"
#define TRY_LOCK "$s15Synchronization12_MutexHandleV12_tryLockSlowSbyF"
#define UNLOCK "$s15Synchronization12_MutexHandleV11_unlockSlowyyF"
#define SWIFT __attribute__((swiftcall))
#define SELF __attribute__((swift_context)) void *self

// The sanitizer's own; missing in processes that are not instrumented. The first word of the mutex stands for it, as in
// the half that is inlined.
__attribute__((weak)) void __tsan_acquire(void *address);
__attribute__((weak)) void __tsan_release(void *address);

SWIFT void lock_slow(uint32_t seen, SELF) __asm__(LOCK);
SWIFT bool try_lock_slow(SELF) __asm__(TRY_LOCK);
SWIFT void unlock_slow(SELF) __asm__(UNLOCK);

SWIFT void lock_slow(uint32_t seen, SELF) {
    SWIFT void (*library)(uint32_t, SELF) = dlsym(RTLD_NEXT, LOCK);
    library(seen, self);
    if (__tsan_acquire) __tsan_acquire(self);
}

SWIFT bool try_lock_slow(SELF) {
    SWIFT bool (*library)(SELF) = dlsym(RTLD_NEXT, TRY_LOCK);
    bool locked = library(self);
    if (locked && __tsan_acquire) __tsan_acquire(self);
    return locked;
}

SWIFT void unlock_slow(SELF) {
    SWIFT void (*library)(SELF) = dlsym(RTLD_NEXT, UNLOCK);
    if (__tsan_release) __tsan_release(self);
    library(self);
}
