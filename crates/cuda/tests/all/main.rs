//! The copier on a GPU that does not exist: `FakeCuda` takes the place of the driver.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the crate")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod capture;
mod copies;
mod fake;
mod histories;
mod order;
mod registration;

// Builds the library next to this program.
use fake_cuda as _;
