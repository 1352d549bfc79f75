//! The name of a writer in the bytes of objects.

use dalsegno_core::StoreId;
use dalsegno_extent::format::{FieldReader, FieldWriter, FormatError};

use crate::names::WriterId;

pub(super) fn write_writer(writer: &mut FieldWriter<'_>, id: WriterId) {
    writer.put(&id.store.0);
    writer.put(&id.open.to_le_bytes());
}

pub(super) fn read_writer(reader: &mut FieldReader<'_>) -> Result<WriterId, FormatError> {
    Ok(WriterId { store: StoreId(reader.array()?), open: reader.u64()? })
}
