//! The namespaces of a store: which there are, and making one known.

pub(crate) mod registrar;
pub(crate) mod table;
