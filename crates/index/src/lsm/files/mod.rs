//! How the index reaches its files.

pub(crate) mod device_files;
pub(crate) mod notes;
pub(crate) mod table_files;
