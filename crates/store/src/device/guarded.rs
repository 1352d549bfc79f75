//! What decides whether requests may go to a device.

use std::fmt;

use dalsegno_io::{Request, Source};

/// How a request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It waits for its turn.
    Regular,
    /// It shows whether the device works again. It is watched already, and starts at once.
    Trial,
}

/// What decides whether requests may go to a device.
pub(crate) trait Guarded: fmt::Debug + Send + Sync + 'static {
    /// Whether a request may go to the device, and how; if not, it is completed with an error.
    fn admit(&self, request: Request) -> Option<(Request, Admission)>;

    /// Watches a request from now on: it goes to the device.
    fn begin(&self, request: &mut Request);

    /// Where requests go.
    fn source(&self) -> &dyn Source;
}
