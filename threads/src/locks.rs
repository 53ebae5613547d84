//! Locks that stay usable after a panic of another thread.
//!
//! A lock is poisoned if a thread panics while it holds the lock. The panic itself is reported
//! where the thread is joined. The data that these locks protect is valid between any two
//! statements, so the other threads continue to use it.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// Locks a mutex, even if it is poisoned.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex, even if it is poisoned. Returns `None` if another thread holds it.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading, even if the lock is poisoned.
pub fn read_lock<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, even if the lock is poisoned.
pub fn write_lock<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value of a mutex, even if it is poisoned.
pub fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification, and returns the guard even if the mutex is poisoned.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits while `condition` returns true, and returns the guard even if the mutex is poisoned.
pub fn wait_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}

/// Waits as [`wait_while`] does, but at most for `timeout`; the condition may still be true
/// afterwards.
pub fn wait_timeout_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout_while(guard, timeout, condition).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poisoned_lock_is_locked_with_its_present_value() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = std::panic::catch_unwind(|| {
            let (mut value, mut other) = (lock(&mutex), write_lock(&shared));
            (*value, *other) = (2, 2);
            panic!("as the test wants");
        });
        assert!(panicked.is_err() && mutex.is_poisoned() && shared.is_poisoned());
        // One statement each, because a guard lives until the end of its statement.
        assert_eq!(*lock(&mutex), 2);
        assert_eq!(*read_lock(&shared), 2);
        assert_eq!(*write_lock(&shared), 2);
        let condvar = Condvar::new();
        assert_eq!(*wait_while(&condvar, lock(&mutex), |value| *value != 2), 2);
        assert_eq!(*wait_timeout_while(&condvar, lock(&mutex), Duration::ZERO, |_| true), 2);
        assert_eq!(into_inner(mutex), 2);
    }
}
