//! Checks and shows a store that nobody has open. Nothing is written.

mod inspect;
mod offline_store;
mod report;
mod verify;
mod verify_list;

pub use inspect::inspect;
pub use report::{Finding, VerifyReport};
pub use verify::verify;
