//! Looks at a far location, checks it and cleans it up, while stores may use it.
//!
//! 1. Nothing is written, except by [`prune`] and [`examine`]. A tier may create files of a moment, to find out its
//!    time.
//! 2. No call waits for the location forever.
//! 3. What a writer removes or publishes meanwhile is no damage.

mod doctor;
mod inspect;
mod location;
mod prune;
mod read;
mod removals;
mod report;
mod survey;
mod verify;
mod verify_pack;

pub use doctor::{
    Advice, BandwidthRow, DoctorError, DoctorOptions, DoctorReport, LatencyRow, OpenTier,
    PromiseRow, Severity, Traces, Unreadable, UnreadableObjects, Verdict, examine,
};
pub use inspect::inspect;
pub use location::{Location, WriterState};
pub use prune::{PruneError, PruneReport, PrunedWriter, prune};
pub use removals::FarRemovalsRow;
pub use report::{CheckedContents, FarFinding, FarVerifyReport, MOST_FINDINGS, Unpublished};
pub use survey::{FarExtentRow, FarNamespaceRow, FarWriterRow, Survey, SurveyOptions, survey};
pub use verify::verify;
