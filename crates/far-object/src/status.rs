//! The status of the newest response to a task: the client's errors do not always say it.

use std::cell::Cell;

tokio::task_local! {
    static LAST_STATUS: Cell<Option<u16>>;
}

/// Runs a request, so that [`last_status`] knows its response.
pub(crate) async fn noting_status<T>(request: impl Future<Output = T>) -> T {
    LAST_STATUS.scope(Cell::new(None), request).await
}

/// Notes the status of a response, if this task asks for it.
pub(crate) fn note_status(status: u16) {
    let _ = LAST_STATUS.try_with(|last| last.set(Some(status)));
}

/// The status of the newest response within [`noting_status`].
pub(crate) fn last_status() -> Option<u16> {
    LAST_STATUS.try_with(Cell::get).ok().flatten()
}
