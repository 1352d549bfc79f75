//! Checks and shows a store that nobody has open. Nothing is written.

mod inspect;
mod inspect_fields;
mod offline_store;
mod report;
mod verify;
mod verify_list;
mod verify_units;

pub use inspect::{Inspection, ShownPart, ShownRecord, inspect};
pub use inspect_fields::ShownField;
pub use report::{Finding, VerifyReport};
pub use verify::verify;
