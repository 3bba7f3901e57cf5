//! Mutexes that stay usable after a panic of another thread.
//!
//! On the frame path, data shared by threads is stored in a [`Mutex`] or in a type of [`atomic`]. With the feature
//! `loom`, used only in tests, these types are loom's. `loom` repeats a test for each order of the threads' steps, and
//! for each value that the memory model permits a load to return.

#[cfg(feature = "loom")]
use loom::sync as imp;
#[cfg(not(feature = "loom"))]
use std::sync as imp;
use std::sync::PoisonError;

pub use imp::{MutexGuard, atomic};

/// A mutex for values that are valid at every step, because each change replaces or resets the whole value.
#[derive(Debug)]
pub struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    /// Locks the mutex, even if another thread panicked while holding the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks a mutex of the standard library, even if another thread panicked while holding the lock.
pub fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
