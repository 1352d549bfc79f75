//! Removes lists of removals that have expired: docs/formats/pack.md, Expiry.
//!
//! 1. A list goes only if everything at the location was read recently, and no catalog is there whose writer had not
//!    applied all of its removals.
//! 2. Ages are those of the location's clock. A list is not asked for its age before it can be old enough.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Nanos};
use dalsegno_io::IoError;

use crate::index::{FarIndex, KnownObjects, SeenList};
use crate::names::ObjectName;
use crate::own_lists::LIST_EXPIRES;
use crate::removal::RemovalId;
use crate::replies::wait_for;
use crate::tier::{Ask, Tier};

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Lists that a step asks for their ages.
const AGES: usize = 8;

/// Finds and removes expired lists.
pub(crate) struct ExpiredLists {
    tier: Arc<dyn Tier>,
    index: Arc<FarIndex>,
    clock: Arc<dyn Clock>,
    /// Lists that were too young, and when they are asked again.
    young: BTreeMap<ObjectName, Nanos>,
}

impl ExpiredLists {
    pub(crate) fn new(tier: Arc<dyn Tier>, index: Arc<FarIndex>, clock: Arc<dyn Clock>) -> Self {
        Self { tier, index, clock, young: BTreeMap::new() }
    }

    /// Removes some lists that have expired, and returns how many.
    pub(crate) fn remove_some(&mut self, is_closing: &dyn Fn() -> bool) -> Result<u64, IoError> {
        let mut removed = 0;
        for name in self.candidates() {
            if is_closing() {
                break;
            }
            let age = match self.ask(|tier, ask| tier.age(name, ask)) {
                Ok(age) => age,
                // Another store was faster.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            if age < LIST_EXPIRES {
                self.young.insert(name, self.clock.now().after(LIST_EXPIRES.saturating_sub(age)));
                continue;
            }
            self.ask(|tier, ask| tier.remove(name, ask))?;
            removed += 1;
            tracing::info!(%name, "removed a list of removals that has expired");
        }
        Ok(removed)
    }

    /// Lists that no pack needs, and that may be old enough.
    fn candidates(&mut self) -> Vec<ObjectName> {
        let now = self.clock.now();
        let known = self.index.known();
        self.young.retain(|name, _| known.lists.contains_key(name));
        if !known.is_fresh(now) {
            return Vec::new();
        }
        let may_be_old = |name: &ObjectName| self.young.get(name).is_none_or(|due| *due <= now);
        let candidates = known.lists.iter().filter(|(name, _)| may_be_old(name));
        let unneeded = candidates.filter(|(_, list)| !is_needed(&known, list));
        unneeded.map(|(name, _)| *name).take(AGES).collect()
    }

    fn ask<T>(&self, call: impl FnOnce(&dyn Tier, Ask<T>)) -> Result<T, IoError> {
        wait_for(&self.clock, CALL_LIMIT, |ask| call(&*self.tier, ask))
    }
}

/// Whether the location may have a pack that a removal of a list covers, or the list may be of use to others.
fn is_needed(known: &KnownObjects, list: &SeenList) -> bool {
    match list {
        SeenList::Read(_) => known.needs(&list.newest().collect::<Vec<RemovalId>>()),
        SeenList::Useless => false,
        SeenList::Unread => true,
    }
}
