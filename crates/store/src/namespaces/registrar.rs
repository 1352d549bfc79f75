//! Making namespaces known.
//!
//! 1. The lane of records describes a namespace on disk. A device that hangs is waited for a bounded time: the
//!    description is written when the device goes on.
//! 2. A job holds the log while it is queued or runs, and with it the directory.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{
    Clock, Compression, Error, Limits, Namespace, Result, SECTOR_BYTES, format_bytes,
};
use dalsegno_io::JobLane;
use dalsegno_log::{Log, LogError};

use crate::error::to_error;
use crate::jobs::calls::run_blocking;
use crate::namespaces::table::NamespaceTable;
use crate::terms::Terms;

/// How long registering a namespace waits for the device.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// How a namespace is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// How new extents of the namespace are stored from now on, also those that merging and eviction write. The store
    /// remembers it as long as the namespace has blocks. With `None` nothing changes; a new namespace is stored plain.
    pub compression: Option<Compression>,
}

/// Makes namespaces known, and describes them on disk.
#[derive(Debug)]
pub(crate) struct Registrar {
    pub(crate) namespaces: Arc<NamespaceTable>,
    pub(crate) log: Log,
    /// The lane in which descriptions are written.
    pub(crate) records: Arc<JobLane>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Registrar {
    /// See [`Store::register`](crate::Store::register).
    pub(crate) fn register(&self, namespace: &Namespace, options: RegisterOptions) -> Result<bool> {
        if self.namespaces.is_known(namespace.id(), options.compression) {
            // It waits for no registration that writes.
            return Ok(false);
        }
        let registration = self.namespaces.begin_registration();
        let (found, count) = registration.find(namespace.id());
        let compression = options.compression.or(found).unwrap_or_default();
        if found == Some(compression) {
            return Ok(false);
        }
        if found.is_none() && count >= self.limits.namespace_count as usize {
            return Err(Error::invalid(format!(
                "the store has {count} namespaces, the most its setting \"namespaces\" allows; raise it, or open the \
                 store again, which forgets those without blocks",
            )));
        }
        self.check_block_fits(namespace)?;
        let namespace = Arc::new(namespace.clone());
        self.describe(Arc::clone(&namespace), compression)?;
        registration.insert(namespace, compression);
        Ok(found.is_none())
    }

    /// Writes the description of a namespace to disk.
    ///
    /// # Errors
    ///
    /// If the store could not be marked as one that may hold compressed extents, or not in time.
    fn describe(&self, namespace: Arc<Namespace>, compression: Compression) -> Result<()> {
        let clock = self.clock.as_ref();
        let call = Terms::within(REGISTER_TIMEOUT).call(clock);
        let log = self.log.clone();
        let described = run_blocking(&self.records, &call, clock, move || {
            if !compression.is_plain() {
                log.store_files().allow_compression()?;
            }
            if let Err(error) = log.store_files().write_namespace(&namespace, compression) {
                tracing::warn!(namespace = %namespace.id(), %error, "namespace description not stored");
            }
            Ok(())
        });
        match described {
            Err(LogError::Io(error)) if error.is_late() && compression.is_plain() => {
                tracing::warn!(
                    "the device does not respond; a namespace is not described on it yet"
                );
                Ok(())
            }
            described => described.map_err(to_error),
        }
    }

    fn check_block_fits(&self, namespace: &Namespace) -> Result<()> {
        let bytes = namespace.layout().payload_bytes(1);
        let segment_bytes = self.limits.segment_bytes;
        let space = segment_bytes - 2 * SECTOR_BYTES;
        // One block has at most MAX_LAYERS checksums, which fit into two sectors with the header's fields.
        if bytes + SECTOR_BYTES > space {
            return Err(Error::invalid(format!(
                "a block of {} does not fit into a segment of {}; give a larger \"segment\" (or capacity) when the \
                 store is created",
                format_bytes(bytes),
                format_bytes(segment_bytes)
            )));
        }
        Ok(())
    }
}
