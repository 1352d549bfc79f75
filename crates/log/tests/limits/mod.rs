//! Limits for tests, which override those that they are about.

use dalsegno_core::{Config, Limits, SpaceFacts};

/// The limits of the default settings on a large disk.
pub(crate) fn limits() -> Limits {
    let space = SpaceFacts { free_bytes: 1 << 50, own_bytes: 0, existing_segment_bytes: None };
    Config::default().validate(space).expect("the default settings are valid")
}
