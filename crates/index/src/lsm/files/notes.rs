//! A file in which the owner of an index keeps a few lines for people: why the shape is what it is.
//!
//! 1. Nothing depends on it. It is never synced, and a file that cannot be read counts as absent.

use std::sync::Arc;

use dalsegno_core::Deadline;
use dalsegno_io::{Device, IoError};

use crate::lsm::files::device_files::DeviceFiles;
use crate::lsm::files::table_files::{SECTOR, TableFiles};

/// Its name.
pub const NOTES_FILE: &str = "index.notes";
/// Readers read at most so many bytes.
const MOST_BYTES: u64 = 64 << 10;

/// The notes of the index on a device, if there are any.
#[must_use]
pub fn read_notes(device: Arc<dyn Device>) -> Option<String> {
    let files = DeviceFiles::closed(device);
    let entries = files.list().ok()?;
    entries.iter().find(|entry| entry.name == NOTES_FILE)?;
    let opened = files.open(NOTES_FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(opened.bytes.min(MOST_BYTES)).ok()?];
    let read = files.read_at(opened.file, 0, &mut bytes, Deadline::Never);
    files.close(opened.file);
    read.ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.trim_end_matches(['\0', '\n']).to_owned())
}

/// Replaces the notes. Files consist of whole sectors, so line ends fill the last one.
pub(crate) fn write_notes(files: &dyn TableFiles, text: &str) -> Result<(), IoError> {
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
