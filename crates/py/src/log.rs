//! The log: events of the store and text of Python, through queues that no reader can hold up.

use std::io;
use std::panic::PanicHookInfo;

use dalsegno_store::{LineQueue, flush_lines};
use pyo3::prelude::*;
use tracing_subscriber::filter::LevelFilter;

use crate::errors::InvalidError;

/// Writes the core's events to standard error if `DALSEGNO_LOG` names a level.
///
/// An invalid level must not fail an engine's start: it is logged, and warnings are shown.
pub(crate) fn log_events() {
    if let Some(setting) = std::env::var_os("DALSEGNO_LOG") {
        log_events_from(&setting.to_string_lossy());
    }
}

/// Writes events of the store to standard error.
///
/// It does nothing if the environment variable ``DALSEGNO_LOG`` names a level, which then counts.
///
/// Args:
///     level: ``"error"``, ``"warn"``, ``"info"``, ``"debug"`` or ``"trace"``.
#[pyfunction]
pub(crate) fn show_events(level: &str) {
    if std::env::var_os("DALSEGNO_LOG").is_none() {
        log_events_from(level);
    }
}

/// Writes text to standard output or standard error without waiting for its reader.
///
/// A thread writes it. If the reader stops or goes away, text is lost and counted. When the process
/// exits, it waits about a second for the reader.
///
/// Args:
///     stream: 1 for standard output, 2 for standard error.
///     text: Text with its line break; the part behind 4,096 bytes is cut off.
///
/// Raises:
///     InvalidError: The stream is another one.
#[pyfunction]
pub(crate) fn write_queued(stream: u32, text: &str) -> PyResult<()> {
    match stream {
        1 => LineQueue::output().add(text),
        2 => LineQueue::error().add(text),
        _ => return Err(InvalidError::new_err(format!("stream must be 1 or 2, got {stream}"))),
    }
    Ok(())
}

/// Waits for the readers of the log, about a second.
pub(crate) fn flush() {
    flush_lines();
}

/// Log lines that were lost so far.
pub(crate) fn lost_lines() -> u64 {
    LineQueue::error().lost()
}

fn log_events_from(setting: &str) {
    let level = setting.parse::<LevelFilter>();
    let shown = *level.as_ref().unwrap_or(&LevelFilter::WARN);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(shown)
        .log_internal_errors(false)
        .with_writer(|| QueueWriter);
    // A program that embeds this module may have a subscriber already.
    drop(subscriber.try_init());
    // A thread that panics must not wait for the reader either.
    std::panic::set_hook(Box::new(log_panic));
    if level.is_err() {
        tracing::warn!(
            "DALSEGNO_LOG is {setting:?}; expected error, warn, info, debug, trace or off; showing warnings"
        );
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    LineQueue::error().add(&format!("dalsegno: thread {name}: {panic}\n"));
}

/// Each write is one event.
struct QueueWriter;

impl io::Write for QueueWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        LineQueue::error().add(&String::from_utf8_lossy(event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
