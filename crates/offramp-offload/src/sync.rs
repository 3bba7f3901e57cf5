//! Locking that survives a panic elsewhere.
//!
//! Threads share [`Mutex`] and [`atomic`] on the way of a frame. With the feature `loom`, for tests alone, they are
//! those of `loom`: it runs the threads of a test in every order, and lets a load return every permitted value.

#[cfg(feature = "loom")]
use loom::sync as imp;
#[cfg(not(feature = "loom"))]
use std::sync as imp;
use std::sync::PoisonError;

pub use imp::{MutexGuard, atomic};

/// A mutex whose value is whole at every step: replaced at once, or reset.
#[derive(Debug)]
pub struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    /// Locks it, also after another thread panicked while it held the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks a mutex of the standard library as [`Mutex::lock`] does.
pub fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
