//! Objects and folders that cannot be used. Each is counted once, and tried again at later listings.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use crate::names::{ObjectName, REMOVALS_FOLDER, WriterId};
use crate::polled::{BadObject, Polled};

/// What cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BadName {
    RemovalsFolder,
    Folder(WriterId),
    Object(ObjectName),
}

/// Everything that cannot be used, with the reason.
#[derive(Debug, Default)]
pub(super) struct BadObjects {
    reasons: BTreeMap<BadName, String>,
    newest: Option<BadName>,
    /// The object that was tried again last.
    last: Option<BadName>,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemovalsFolder => f.write_str(REMOVALS_FOLDER),
            Self::Folder(writer) => writer.fmt(f),
            Self::Object(name) => name.fmt(f),
        }
    }
}

impl BadObjects {
    pub(super) fn note(&mut self, name: BadName, reason: &str, polled: &mut Polled) {
        if self.reasons.insert(name, reason.to_owned()).is_none() {
            polled.bad.new += 1;
            self.newest = Some(name);
            tracing::warn!(%name, reason, "not used; its blocks are misses, and everything else is followed");
        }
    }

    pub(super) fn forget(&mut self, name: BadName) {
        self.reasons.remove(&name);
    }

    pub(super) fn contains(&self, name: BadName) -> bool {
        self.reasons.contains_key(&name)
    }

    /// Forgets everything of a writer that is gone.
    pub(super) fn forget_writer(&mut self, writer: WriterId) {
        self.reasons.retain(|name, _| match name {
            BadName::RemovalsFolder => true,
            BadName::Folder(of) => *of != writer,
            BadName::Object(name) => name.writer != writer || name.is_removals(),
        });
    }

    /// The next objects that are to be tried again, in turn.
    pub(super) fn next(&mut self, most: usize) -> Vec<ObjectName> {
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.reasons.range((behind, Bound::Unbounded)).map(|(name, _)| *name);
        let chosen: Vec<BadName> = names.take(most).collect();
        // Begins again after the last one.
        self.last = chosen.last().copied().filter(|_| chosen.len() == most);
        let object = |name| if let BadName::Object(name) = name { Some(name) } else { None };
        chosen.into_iter().filter_map(object).collect()
    }

    /// Reports what cannot be used now.
    pub(super) fn report(&self, polled: &mut Polled) {
        let is_catalog =
            |name: &&BadName| matches!(name, BadName::Object(name) if !name.is_removals());
        let catalogs = self.reasons.keys().filter(is_catalog).count();
        (polled.bad.now, polled.bad.catalogs) = (self.reasons.len() as u64, catalogs as u64);
        let newest = self.newest.filter(|name| self.contains(*name));
        let newest = newest.or_else(|| self.reasons.keys().next_back().copied());
        polled.bad.newest = newest
            .map(|name| BadObject { name: name.to_string(), reason: self.reasons[&name].clone() });
    }
}
