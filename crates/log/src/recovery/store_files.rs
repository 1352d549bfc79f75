//! The store's header and its namespace descriptors, while the store is open.

use std::sync::Arc;

use dalsegno_core::{Compression, Namespace, StoreId};
use dalsegno_extent::format::{
    NamespaceSector, SECTOR, STORE_FILE, StoreHeader, namespace_file, namespace_of_file,
};
use dalsegno_extent::{Compressor, read_first_sector, write_at};
use dalsegno_io::OpenMode;

use super::store_header::create_sector_file;
use crate::device::LogDevice;
use crate::error::LogError;
use crate::segment::{read_file, replace_file};

/// The files that say how far the store is with removals at a far location. They are written in turns, so that one is
/// whole at every moment.
const REMOVAL_FILES: [&str; 2] = ["far-0.meta", "far-1.meta"];

/// The files that describe a store.
#[derive(Debug)]
pub struct StoreFiles {
    device: LogDevice,
    compressor: Arc<Compressor>,
    store: StoreId,
    segment_bytes: u64,
}

impl StoreFiles {
    pub(crate) fn new(
        device: LogDevice,
        compressor: Arc<Compressor>,
        store: StoreId,
        segment_bytes: u64,
    ) -> Self {
        Self { device, compressor, store, segment_bytes }
    }

    /// Lets the store hold compressed extents. From then on, a Dalsegno that cannot read them refuses to open it. One
    /// thread may call this at a time.
    ///
    /// # Errors
    ///
    /// The device's error; extents stay plain then.
    pub fn allow_compression(&self) -> Result<(), LogError> {
        if self.compressor.is_allowed() {
            return Ok(());
        }
        self.device.syncer.check_writable()?;
        let (store, segment_bytes) = (self.store, self.segment_bytes);
        let mut sector = [0; SECTOR];
        StoreHeader { store, segment_bytes, is_compressed: true }.encode(&mut sector);
        let opened = self.device.io.device.open(STORE_FILE, OpenMode::ReadWrite)?;
        let written =
            write_at(&self.device.io, opened.file, 0, &sector, &self.device.io.own_call())
                .and_then(|()| self.device.syncer.sync_file(opened.file));
        self.device.io.device.close(opened.file);
        written?;
        self.compressor.allow();
        Ok(())
    }

    /// Stores the description of a namespace and how its new extents are stored, unless the file says so already.
    /// Returns `false` if the description is too long to store.
    ///
    /// # Errors
    ///
    /// The device's error. Blocks of the namespace can be stored and read all the same.
    pub fn write_namespace(
        &self,
        namespace: &Namespace,
        compression: Compression,
    ) -> Result<bool, LogError> {
        self.device.syncer.check_writable()?;
        let name = namespace_file(namespace.id());
        let wanted = NamespaceSector(namespace.clone(), compression);
        // The directory is not listed: with thousands of files that costs more than the file itself.
        match read_first_sector(&self.device.io, &name)
            .map(|sector| NamespaceSector::decode(&sector))
        {
            Ok(Ok(found)) if found == wanted => return Ok(true),
            Err(error) if error.is_not_found() => {}
            _ => self.device.io.device.remove(&name)?,
        }
        let mut sector = [0; SECTOR];
        if !wanted.encode(&mut sector) {
            return Ok(false);
        }
        create_sector_file(&self.device.io, &self.device.syncer, &name, &sector)?;
        Ok(true)
    }

    /// Replaces the file that says how far the store is with removals at a far location: of two files the one with the
    /// number `generation` modulo 2. The other one stays. A crash may leave none in its place, or one whose first
    /// sector is zero.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn write_removals(&self, generation: u64, record: &[u8]) -> Result<(), LogError> {
        self.device.syncer.check_writable()?;
        let file = REMOVAL_FILES[usize::from(!generation.is_multiple_of(2))];
        replace_file(&self.device.io, &self.device.syncer, file, record)
    }

    /// Reads both files, at most `limit` bytes of each; `None` for one that does not exist.
    pub fn read_removals(&self, limit: u64) -> [Option<Result<Vec<u8>, LogError>>; 2] {
        REMOVAL_FILES.map(|file| {
            let bytes = read_file(&self.device.io, file, limit).transpose()?;
            let named = |source| LogError::Format { file: file.to_owned(), source };
            Some(bytes.and_then(|bytes| bytes.map_err(named)))
        })
    }

    /// Reads the namespace descriptors, with how new extents are stored. Damaged ones are left out.
    ///
    /// # Errors
    ///
    /// If the directory cannot be listed.
    pub fn read_namespaces(&self) -> Result<Vec<(Namespace, Compression)>, LogError> {
        let mut namespaces = Vec::new();
        for entry in self.device.io.device.list()? {
            let Some(id) = namespace_of_file(&entry.name) else { continue };
            let sector = read_first_sector(&self.device.io, &entry.name);
            match sector.map(|sector| NamespaceSector::decode(&sector)) {
                Ok(Ok(NamespaceSector(namespace, compression))) if namespace.id() == id => {
                    namespaces.push((namespace, compression));
                }
                _ => tracing::warn!(
                    file = entry.name,
                    "namespace descriptor is damaged; it is rewritten when the namespace is used"
                ),
            }
        }
        Ok(namespaces)
    }
}
