//! Removes the objects of writers that do not run any more.
//!
//! 1. A writer that gave a sign of life within [`crate::SILENT_AFTER`] is never removed, named or not.
//! 2. An earlier open of a store that lives is only removed if it is named, or has no packs.
//! 3. Packs go first and catalogs last, so a catalog that stays for a while names packs that are gone: misses.
//! 4. It may stop anywhere, and be started again.

use std::time::Duration;

use dalsegno_core::{Deadline, Stopped};
use dalsegno_io::IoError;
use serde::Serialize;
use thiserror::Error;

use super::location::{Location, WriterState};
use crate::names::{Object, ObjectName, WriterId};
use crate::replies::Replies;
use crate::tier::Listed;

/// Removals under way.
const REMOVALS: usize = 8;
/// Longest wait for one of them.
const LIMIT: Duration = Duration::from_secs(30);
/// Digits of a folder's name that must be given at least.
const LEAST_DIGITS: usize = 4;

/// Why nothing was removed.
#[derive(Debug, Error)]
pub enum PruneError {
    /// The location cannot be listed, or an object cannot be removed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// No folder has the name.
    #[error(
        "no writer's folder begins with {0:?}; `dalsegno info` lists all, and {LEAST_DIGITS} digits are enough"
    )]
    NoWriter(String),
    /// A named writer runs, or may.
    #[error(
        "{writer} gave a sign of life {silent_s:.0} s ago, so its store is open; close the store first, and wait ten \
         minutes"
    )]
    Live {
        /// Its folder.
        writer: String,
        /// Seconds since its last sign of life.
        silent_s: f64,
    },
    /// The age of a named writer cannot be found out.
    #[error(
        "the last sign of life of {0} cannot be found out; the location must be writable for that"
    )]
    UnknownAge(String),
}

/// A writer whose objects were removed, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct PrunedWriter {
    /// Its folder.
    pub writer: String,
    /// Whether it is silent, of an earlier open, or dead.
    pub state: WriterState,
    /// Seconds since its last sign of life; `None` for an empty folder.
    pub silent_s: Option<f64>,
    /// Its packs.
    pub packs: u64,
    /// Bytes of its objects.
    pub bytes: u64,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PruneReport {
    /// The writers.
    pub writers: Vec<PrunedWriter>,
    /// Writers that stay.
    pub kept: u64,
    /// Whether they were removed.
    pub is_removed: bool,
}

/// Finds the writers that are dead, or not live and `named` by the first digits of their folders, and removes their
/// objects if `remove` is set. `progress` gets the objects removed so far and in all.
///
/// # Errors
///
/// [`PruneError`]. With [`PruneError::Io`], a part may have been removed.
pub fn prune(
    location: &Location,
    named: &[String],
    remove: bool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<PruneReport, PruneError> {
    let seen = location.look(None)?;
    for name in named {
        let is_known = seen.iter().any(|one| is_named(one.writer, name));
        if name.len() < LEAST_DIGITS || !is_known {
            return Err(PruneError::NoWriter(name.clone()));
        }
    }
    let mut report = PruneReport { is_removed: remove, ..PruneReport::default() };
    let mut chosen = Vec::new();
    for one in seen {
        let (writer, state, age) = (one.writer, one.state, one.age);
        let is_named = named.iter().any(|name| is_named(writer, name));
        match (state, is_named) {
            (WriterState::Live, true) => {
                let silent_s = age.unwrap_or_default().as_secs_f64();
                return Err(PruneError::Live { writer: writer.to_string(), silent_s });
            }
            (WriterState::Unknown, true) if !one.objects.is_empty() || one.refused.is_some() => {
                return Err(PruneError::UnknownAge(writer.to_string()));
            }
            _ if may_remove(state, is_named) => {}
            _ => {
                report.kept += 1;
                continue;
            }
        }
        report.writers.push(PrunedWriter {
            writer: writer.to_string(),
            state,
            silent_s: age.map(|age| age.as_secs_f64()),
            packs: one.packs(),
            bytes: one.objects.iter().map(|listed| listed.bytes).sum(),
        });
        chosen.push(ChosenWriter { writer, is_named, objects: one.objects.len() });
    }
    if remove {
        remove_chosen(location, &chosen, &mut report, progress)?;
    }
    Ok(report)
}

/// Whether a writer may be removed. A folder without objects is what an interrupted removal left, or a writer that has
/// just opened: it stays unless it is named, and nothing in it can be lost.
fn may_remove(state: WriterState, is_named: bool) -> bool {
    match state {
        WriterState::Dead => true,
        WriterState::Silent | WriterState::Earlier | WriterState::Unknown => is_named,
        WriterState::Live => false,
    }
}

/// A writer to be removed.
struct ChosenWriter {
    writer: WriterId,
    is_named: bool,
    /// How many it had.
    objects: usize,
}

/// Removes the objects of writers, unless one or its store gave a sign of life since it was chosen.
fn remove_chosen(
    location: &Location,
    chosen: &[ChosenWriter],
    report: &mut PruneReport,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(), PruneError> {
    let total: usize = chosen.iter().map(|one| one.objects).sum();
    let mut done = 0;
    for ChosenWriter { writer, is_named, .. } in chosen {
        let of_store = location.look(Some(writer.store))?;
        // Otherwise somebody else has removed it.
        let Some(now) = of_store.iter().find(|one| one.writer == *writer) else { continue };
        if !may_remove(now.state, *is_named) {
            report.writers.retain(|row| row.writer != writer.to_string());
            report.kept += 1;
            continue;
        }
        remove_all(location, *writer, &now.objects, &mut || {
            done += 1;
            progress(done.min(total as u64), total as u64);
        })?;
    }
    Ok(())
}

fn is_named(writer: WriterId, name: &str) -> bool {
    writer.to_string().starts_with(&name.to_lowercase())
}

/// Removes the objects of a writer, kind after kind, and its folder.
pub(super) fn remove_all(
    location: &Location,
    writer: WriterId,
    objects: &[Listed],
    removed: &mut dyn FnMut(),
) -> Result<(), IoError> {
    let kinds: [fn(&Object) -> bool; 4] = [
        Object::is_pack,
        |object| matches!(object, Object::Catalog(_)),
        |object| matches!(object, Object::Namespace(_)),
        // Last: it shows how long the writer has been silent.
        |object| matches!(object, Object::Beat(_)),
    ];
    for is_kind in kinds {
        let of_kind = objects.iter().filter(|listed| is_kind(&listed.object));
        let names: Vec<ObjectName> = of_kind.map(|listed| writer.object(listed.object)).collect();
        for names in names.chunks(REMOVALS) {
            let replies = Replies::new(&location.clock);
            for name in names {
                location.tier.remove(*name, replies.ask(0, LIMIT));
            }
            for _ in names {
                let reply = replies.next(Deadline::At(location.clock.now().after(LIMIT)));
                reply.map_or(Err(IoError::Stopped(Stopped::Deadline)), |reply| reply.result)?;
                removed();
            }
        }
    }
    location.call(|tier, ask| tier.remove_writer(writer, ask))
}
