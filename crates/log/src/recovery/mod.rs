//! Opening: what the headers on disk say.

mod open_segment;
mod recover;
mod segment_header;
mod store_files;
mod store_header;

pub use open_segment::SegmentFault;
pub(crate) use open_segment::SegmentOpener;
pub(crate) use recover::recover;
pub use recover::{Recovered, Removal};
pub(crate) use segment_header::{SegmentIdentity, read_segment_header};
pub use store_files::StoreFiles;
pub use store_header::store_header;
pub(crate) use store_header::{decode_store_header, header_of_segments, open_store};
