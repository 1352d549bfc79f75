//! What the offline checks of a log and of a far location have in common.

mod fields;
mod shown;
mod units;

pub use fields::{ShownField, raw_field, sector_crc, shown_fields};
pub use shown::{
    Inspection, PartPlace, ShownPart, ShownRecord, kind_name, parts_of, show_header, show_namespace,
};
pub use units::check_units;
