//! The connections of a client's watches of removals.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::attachment::Attachment;
use super::connection::Connection;

/// The connection of a watch; `None` while it has none.
pub(super) type SharedLine = Arc<Mutex<Option<Line>>>;

/// A connection that the server notes removals for.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) server: Arc<Attachment>,
    pub(super) connection: Connection,
}

/// Those of all watches.
#[derive(Debug, Default)]
pub(super) struct WatchLines(Mutex<Vec<Weak<Mutex<Option<Line>>>>>);

impl WatchLines {
    /// Remembers the line of a new watch.
    pub(super) fn add(&self, line: &SharedLine) {
        let mut lines = self.0.lock();
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    /// Ends the connections. The client is closed, so no watch opens another one.
    pub(super) fn close(&self) {
        let lines = std::mem::take(&mut *self.0.lock());
        for line in lines.iter().filter_map(Weak::upgrade) {
            *line.lock() = None;
        }
    }
}
