//! A port's memory and faults: read and built with the feature `impair`, and refused without the feature.

#[cfg(feature = "impair")]
mod card;
#[cfg(not(feature = "impair"))]
mod none;

#[cfg(feature = "impair")]
pub use card::{FaultConfig, MemoryConfig, host, wire};
#[cfg(not(feature = "impair"))]
pub use none::{FaultConfig, MemoryConfig, host, wire};
