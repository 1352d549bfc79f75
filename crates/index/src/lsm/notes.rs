//! A file beside the index's own in which its owner keeps a few lines for people: why the shape is what it is.
//!
//! 1. Nothing depends on it: it is never synced, and what cannot be read is not there.

use std::sync::Arc;

use dalsegno_io::{Device, IoError, WaitLimit};

use super::block::SECTOR;
use super::device_files::DeviceFiles;
use super::file::TableFiles;
use super::index::LsmIndex;

/// Its name.
pub const NOTES_FILE: &str = "index.notes";
/// More is not read.
const MOST_BYTES: u64 = 64 << 10;

impl LsmIndex {
    /// Replaces the notes. Best effort.
    pub fn note(&self, text: &str) {
        if self.tree.has_failed() {
            return;
        }
        if let Err(error) = write(self.tree.files.as_ref(), text) {
            tracing::debug!("{NOTES_FILE} was not written: {error}");
        }
    }
}

/// The notes of the index on a device, if there are any.
#[must_use]
pub fn read_notes(device: Arc<dyn Device>) -> Option<String> {
    let files = DeviceFiles::new(device, true);
    let entries = files.list().ok()?;
    entries.iter().find(|entry| entry.name == NOTES_FILE)?;
    let opened = files.open(NOTES_FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(opened.bytes.min(MOST_BYTES)).ok()?];
    let read = files.read_at(opened.file, 0, &mut bytes, WaitLimit::Unlimited);
    files.close(opened.file);
    read.ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.trim_end_matches(['\0', '\n']).to_owned())
}

/// Files have a fixed size of whole sectors; what is left of the last is filled with line ends.
fn write(files: &dyn TableFiles, text: &str) -> Result<(), IoError> {
    if files.list()?.iter().any(|entry| entry.name == NOTES_FILE) {
        files.remove(NOTES_FILE)?;
    }
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(SECTOR).max(SECTOR), b'\n');
    let file = files.create(NOTES_FILE, bytes.len() as u64)?;
    let written = files.write_at(file, 0, &bytes);
    files.close(file);
    written
}
