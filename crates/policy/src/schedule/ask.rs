//! A request that waits for its turn.

use dalsegno_core::{Class, Nanos};

/// Which direction bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// A request that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Names it until it is done.
    pub id: u64,
    /// Which direction its bytes go.
    pub direction: Direction,
    /// Who waits for it.
    pub class: Class,
    /// Its bytes.
    pub bytes: u64,
    /// When an engine needs it; `None` for as soon as possible. Only for [`Class::Need`].
    pub due: Option<Nanos>,
}
