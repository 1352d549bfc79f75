//! Making namespaces known.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Compression, Error, Namespace, Result};
use dalsegno_log::LogError;

use crate::store::{Inner, Store, to_error};
use crate::terms::Terms;

/// How long registering a namespace waits for the device.
const REGISTER_PATIENCE: Duration = Duration::from_secs(5);

impl Store {
    /// Makes a namespace known, and notes on disk what it stands for. It is stored as it was until now, plain if it is
    /// new.
    ///
    /// # Errors
    ///
    /// `Invalid` if its blocks do not fit into a segment or there are too many namespaces; `Closed`.
    pub fn register(&self, namespace: &Namespace) -> Result<()> {
        self.register_as(namespace, None)
    }

    /// As [`Store::register`]; from now on new extents of the namespace are stored like this, also those that merging
    /// and making room write. It is remembered as long as the namespace has blocks.
    ///
    /// # Errors
    ///
    /// As [`Store::register`]; `Unavailable` if the store could not be marked as one that may hold compressed extents.
    pub fn register_compressed(
        &self,
        namespace: &Namespace,
        compression: Compression,
    ) -> Result<()> {
        self.register_as(namespace, Some(compression))
    }

    fn register_as(&self, namespace: &Namespace, compression: Option<Compression>) -> Result<()> {
        let inner = self.enter()?;
        // Calls that look a namespace up do not wait for this.
        let _one_at_a_time = inner.registering.lock();
        let (found, count) = {
            let known = inner.namespaces.read();
            (known.get(&namespace.id()).map(|(_, compression)| *compression), known.len())
        };
        let compression = compression.or(found).unwrap_or_default();
        if found == Some(compression) {
            return Ok(());
        }
        if found.is_none() && count >= inner.limits.namespace_count as usize {
            return Err(Error::invalid(format!(
                "the store has {count} namespaces, the most its setting \"namespaces\" allows; raise it, or open the \
                 store again, which forgets those without blocks",
            )));
        }
        inner.check_block_fits(namespace)?;
        let namespace = Arc::new(namespace.clone());
        inner.describe(Arc::clone(&namespace), compression)?;
        inner.namespaces.write().insert(namespace.id(), (namespace, compression));
        Ok(())
    }
}

impl Inner {
    /// Notes on disk what a namespace stands for. A device that hangs is not waited for: it is noted when it goes on.
    ///
    /// # Errors
    ///
    /// If the store could not be marked as one that may hold compressed extents, or not in time.
    fn describe(
        self: &Arc<Self>,
        namespace: Arc<Namespace>,
        compression: Compression,
    ) -> Result<()> {
        let call = Terms::within(REGISTER_PATIENCE).call(self.clock.as_ref());
        let described = self.have_recorded(&call, move |inner, _| {
            if !compression.is_plain() {
                inner.log.store_files().allow_compression()?;
            }
            if let Err(error) = inner.log.store_files().write_namespace(&namespace, compression) {
                let id = namespace.id();
                tracing::warn!("the description of namespace {id} was not stored: {error}");
            }
            Ok(())
        });
        match described {
            Err(LogError::Deadline) if compression.is_plain() => {
                tracing::warn!(
                    "the device does not answer; a namespace is not described on it yet"
                );
                Ok(())
            }
            described => described.map_err(to_error),
        }
    }

    fn check_block_fits(&self, namespace: &Namespace) -> Result<()> {
        let layout = namespace.layout();
        let bytes = layout.payload_bytes(1);
        let room = self.limits.segment_bytes - 2 * dalsegno_core::SECTOR_BYTES;
        // One block has at most MAX_LAYERS checksums, which fit into two sectors with the header's fields.
        if bytes + dalsegno_core::SECTOR_BYTES > room {
            return Err(Error::invalid(format!(
                "a block of {} does not fit into a segment of {}; give a larger \"segment\" (or capacity) when \
                 the store is created",
                dalsegno_core::format_bytes(bytes),
                dalsegno_core::format_bytes(self.limits.segment_bytes)
            )));
        }
        Ok(())
    }
}
