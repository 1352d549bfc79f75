//! Removes lists of removals that have expired: docs/formats/pack.md, Expiry.
//!
//! 1. A list goes only if it was read, everything at the location was read recently, and no catalog is there whose
//!    writer had not applied all of its removals.
//! 2. A list that cannot be looked at or removed keeps no other one. It is tried again later.
//! 3. Ages are those of the location's clock. A list is not asked for its age before it can be old enough.

use std::collections::BTreeMap;
use std::time::Duration;

use dalsegno_core::Nanos;
use dalsegno_io::IoError;

use crate::index::{KnownObjects, SeenList};
use crate::member::{FOLLOW_LIMIT, Member};
use crate::names::ObjectName;
use crate::own_lists::LIST_EXPIRES;
use crate::removal::RemovalId;

/// Lists that a step asks for their ages.
const AGES: usize = 8;
/// When a list that could not be looked at or removed is tried again.
const AGAIN: Duration = Duration::from_secs(3600);

/// Finds and removes expired lists.
pub(crate) struct ExpiredLists {
    member: Member,
    /// Lists that were too young, or failed, and when they are asked again.
    later: BTreeMap<ObjectName, Nanos>,
}

impl ExpiredLists {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, later: BTreeMap::new() }
    }

    /// Removes some lists that have expired, and returns how many.
    ///
    /// # Errors
    ///
    /// If the location does not respond.
    pub(crate) fn remove_some(&mut self, is_closing: &dyn Fn() -> bool) -> Result<u64, IoError> {
        let mut removed = 0;
        for name in self.candidates() {
            if is_closing() {
                break;
            }
            let again = match self.remove_if_old(name) {
                Ok(None) => {
                    removed += 1;
                    tracing::info!(%name, "removed a list of removals that has expired");
                    continue;
                }
                Ok(Some(again)) => again,
                // Another store was faster.
                Err(error) if error.is_not_found() => continue,
                Err(error) if error.is_late() => return Err(error),
                Err(error) => {
                    tracing::warn!(%name, %error, "a list that may have expired is tried again in an hour");
                    AGAIN
                }
            };
            self.later.insert(name, self.member.clock.now().after(again));
        }
        Ok(removed)
    }

    /// Removes a list if it is old enough. Otherwise returns how long that takes.
    fn remove_if_old(&self, name: ObjectName) -> Result<Option<Duration>, IoError> {
        let age = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.age(name, ask))?;
        if age < LIST_EXPIRES {
            return Ok(Some(LIST_EXPIRES.saturating_sub(age)));
        }
        if !self.is_fresh(&self.member.index.known()) {
            // The directory is another one than that of the catalogs.
            return Ok(Some(Duration::ZERO));
        }
        self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.remove(name, ask))?;
        Ok(None)
    }

    fn is_fresh(&self, known: &KnownObjects) -> bool {
        known.is_fresh(self.member.clock.now(), self.member.tier.facts().reopened)
    }

    /// Lists that no pack needs, and that may be old enough.
    fn candidates(&mut self) -> Vec<ObjectName> {
        let now = self.member.clock.now();
        let known = self.member.index.known();
        self.later.retain(|name, _| known.lists.contains_key(name));
        if !self.is_fresh(&known) {
            return Vec::new();
        }
        let may_be_old = |name: &ObjectName| self.later.get(name).is_none_or(|due| *due <= now);
        let candidates = known.lists.iter().filter(|(name, _)| may_be_old(name));
        let unneeded = candidates.filter(|(_, list)| !is_needed(&known, list));
        unneeded.map(|(name, _)| *name).take(AGES).collect()
    }
}

/// Whether the location may have a pack that a removal of a list covers, or the list may be of use to others.
fn is_needed(known: &KnownObjects, list: &SeenList) -> bool {
    match list {
        SeenList::Read(_) => known.needs(&list.newest().collect::<Vec<RemovalId>>()),
        SeenList::Unread => true,
    }
}
