//! Care of the on-disk index: when it is written, and which shape it has.

pub(crate) mod index_care;
pub(crate) mod tuner;
