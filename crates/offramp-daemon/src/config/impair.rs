//! The simulated packet memory and the injected faults of a port's adapter (`port.memory`, `port.faults`). A build
//! without the feature `impair` refuses these keys.

#[cfg(feature = "impair")]
mod card;
#[cfg(not(feature = "impair"))]
mod none;

#[cfg(feature = "impair")]
pub use card::{FaultConfig, MemoryConfig, host, wire};
#[cfg(not(feature = "impair"))]
pub use none::{FaultConfig, MemoryConfig, host, wire};
