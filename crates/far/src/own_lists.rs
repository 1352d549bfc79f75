//! The lists of removals that this writer publishes.
//!
//! 1. A list has all removals of the one before it, until that is full. So one fetch finds all new removals.
//! 2. A list that a newer one contains is removed later, so that a reader that has listed it can still fetch it.
//! 3. A removal that was not published is not in the next list, unless it is published again.
//! 4. A removal leaves the lists only if no pack is left that it covers.

use std::collections::VecDeque;
use std::time::Duration;

use dalsegno_core::{Deadline, Nanos};
use dalsegno_io::{IoError, Memory};

use crate::format::{FULL_LIST_BYTES, MAX_LIST_BYTES, MAX_LIST_HASHES, RemovalList};
use crate::index::SeenList;
use crate::leaving::Leaving;
use crate::member::{Member, PUBLISH_LIMIT};
use crate::names::Object;
use crate::removal::{Removal, RemovalId};

/// How old a list must be to expire, by the clock of the location. Stores that followed nothing for
/// [`KEEP_REMOVALS`] remove what they hold. The rest of the time lets them publish what they had begun.
pub const LIST_EXPIRES: Duration = Duration::from_secs(7 * 24 * 3600 + 2 * 3600);
/// How long a store may follow nothing and keep what it holds.
pub const KEEP_REMOVALS: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a list stays that a newer one contains.
const SUPERSEDED_FOR: Duration = Duration::from_secs(10);
/// Most lists that stay although a newer one contains them. Further ones are removed earlier: a reader that does not
/// find a list any more looks for the newer one.
const MOST_SUPERSEDED: usize = 32;

/// A removal that was published.
#[derive(Debug)]
struct PublishedRemoval {
    removal: Removal,
    since: Nanos,
}

/// The lists of this writer.
pub(crate) struct OwnLists {
    member: Member,
    /// The number of the next list.
    next: u64,
    /// The number of the newest list, if it was published.
    newest: Option<u64>,
    /// The removals of that list.
    published: Vec<PublishedRemoval>,
    /// Lists that are to be removed at a moment, the oldest first.
    superseded: VecDeque<(u64, Nanos)>,
    /// Lists that are to be removed.
    leaving: Leaving<u64>,
    /// Lists that may have been published, although that failed.
    uncertain: Vec<u64>,
}

impl OwnLists {
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            next: 1,
            newest: None,
            published: Vec::new(),
            superseded: VecDeque::new(),
            leaving: Leaving::default(),
            uncertain: Vec::new(),
        }
    }

    /// Stops finding here what these removals cover, and keeps them from being forgotten.
    pub(crate) fn apply(&self, removals: &[Removal]) {
        for removal in removals {
            self.member.index.remove_own(removal);
        }
    }

    /// Publishes those of the removals that were not, in the order of their numbers. Waits for the location.
    pub(crate) fn publish(&mut self, removals: &[Removal]) -> Result<(), IoError> {
        let mut left: VecDeque<Removal> =
            removals.iter().filter(|removal| !self.has(removal.id)).map(widened).collect();
        while !left.is_empty() {
            let begins = self.begins_list();
            let mut list: Vec<Removal> = Vec::new();
            if !begins {
                list.extend(self.published.iter().map(|one| one.removal.clone()));
            }
            let kept = list.len();
            let mut bytes: usize = list.iter().map(RemovalList::entry_bytes).sum();
            while let Some(next) = left.front() {
                bytes += RemovalList::entry_bytes(next);
                let is_full = bytes > list_space() && list.len() > kept;
                if is_full {
                    break;
                }
                list.extend(left.pop_front());
            }
            self.publish_list(list, kept, begins)?;
        }
        Ok(())
    }

    fn has(&self, id: RemovalId) -> bool {
        self.published.iter().any(|one| one.removal.id == id)
    }

    /// Whether the next list begins without the entries of the newest one, which stays. Entries that have expired leave
    /// before. If it is not known whether a pack needs them, the newest list stays with them: another store may have
    /// removed it, and published again they would be new to stores that have forgotten them.
    fn begins_list(&mut self) -> bool {
        let now = self.member.clock.now();
        let is_old = |one: &PublishedRemoval| now.since(one.since) >= LIST_EXPIRES;
        if self.published.iter().any(is_old) {
            let known = self.member.index.known();
            if !known.is_fresh(now, self.member.tier.facts().reopened) {
                return true;
            }
            self.published.retain(|one| !is_old(one) || known.needs(&[one.removal.id]));
        }
        let bytes: usize =
            self.published.iter().map(|one| RemovalList::entry_bytes(&one.removal)).sum();
        bytes >= FULL_LIST_BYTES
    }

    /// Publishes a list whose first `kept` removals are those of the newest one.
    fn publish_list(
        &mut self,
        removals: Vec<Removal>,
        kept: usize,
        begins: bool,
    ) -> Result<(), IoError> {
        let (writer, number) = (self.member.writer, self.next);
        self.next += 1;
        let list = RemovalList { writer, number, removals };
        let (name, bytes) = (writer.object(Object::Removals(number)), list.encode());
        let bytes = vec![Memory::owned(bytes, ())];
        if let Err(error) =
            self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.publish(name, bytes, ask))
        {
            // What appears of it nevertheless is contained in the next one.
            if self.uncertain.len() < MOST_SUPERSEDED {
                self.uncertain.push(number);
            }
            return Err(error);
        }
        self.member.index.known().lists.insert(name, SeenList::of(&list.removals));
        let due = self.member.clock.now().after(SUPERSEDED_FOR);
        let replaced = self.newest.filter(|_| !begins);
        let superseded = replaced.into_iter().chain(self.uncertain.drain(..));
        self.superseded.extend(superseded.map(|number| (number, due)));
        self.newest = Some(number);
        let since = self.member.clock.now();
        if begins {
            self.published.clear();
        }
        let new = list.removals.into_iter().skip(kept);
        self.published.extend(new.map(|removal| PublishedRemoval { removal, since }));
        Ok(())
    }

    /// Removes the lists that newer ones have contained for a while. Waits for the location.
    pub(crate) fn remove_superseded(&mut self) -> Result<(), IoError> {
        let now = self.member.clock.now();
        while let Some((number, due)) = self.superseded.front().copied()
            && (self.superseded.len() > MOST_SUPERSEDED || due <= now)
        {
            self.leaving.add(number, due.min(now));
            self.superseded.pop_front();
        }
        self.remove_leaving(Deadline::Never)
    }

    /// Removes the lists that newer ones have contained for a while, because the store is closed. What is left expires,
    /// and so do younger ones, which readers may be about to fetch.
    pub(crate) fn finish(&mut self, deadline: Deadline) {
        let now = self.member.clock.now();
        while let Some((number, due)) = self.superseded.front().copied()
            && due <= now
        {
            self.leaving.add(number, due);
            self.superseded.pop_front();
        }
        if let Err(error) = self.remove_leaving(deadline) {
            tracing::debug!(%error, "lists of removals that newer ones contain stay until they expire");
        }
    }

    fn remove_leaving(&mut self, deadline: Deadline) -> Result<(), IoError> {
        let Self { member, leaving, .. } = self;
        leaving.remove_due(member.clock.now(), |number, _| {
            let name = member.writer.object(Object::Removals(number));
            let left = deadline.remaining(member.clock.now()).unwrap_or(PUBLISH_LIMIT);
            member.ask(left.min(PUBLISH_LIMIT), |tier, ask| tier.remove(name, ask))
        })
    }
}

/// Most bytes of the entries of a list.
fn list_space() -> usize {
    usize::try_from(MAX_LIST_BYTES).expect("64-bit addresses") - dalsegno_extent::format::SECTOR
}

/// A removal as it is published: of the whole namespace, if its blocks do not fit a list.
fn widened(removal: &Removal) -> Removal {
    if removal.hashes.len() <= MAX_LIST_HASHES {
        return removal.clone();
    }
    Removal { hashes: Vec::new(), ..*removal }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dalsegno_core::{ChainHash, Clock, ManualClock, NamespaceId, StoreId};

    use super::*;
    use crate::index::FarIndex;
    use crate::names::WriterId;
    use crate::replies::wait_for;
    use crate::tier::MemoryLocation;
    use crate::tier::Tier;

    #[test]
    fn regression_a_list_does_not_repeat_removals_that_may_have_expired() {
        let manual = Arc::new(ManualClock::default());
        let clock = Arc::clone(&manual) as Arc<dyn Clock>;
        let location = MemoryLocation::new(Arc::clone(&clock));
        let tier: Arc<dyn Tier> = Arc::new(location.mount());
        let by = WriterId { store: StoreId([1; 16]), open: 1 };
        let (index, of_clock) = (Arc::new(FarIndex::new(1 << 20)), Arc::clone(&clock));
        let of_tier = Arc::clone(&tier);
        let member = Member { tier: of_tier, index, clock: of_clock, writer: by };
        let mut lists = OwnLists::new(member);
        let removal = |number| {
            let (id, namespace) = (RemovalId { by, number }, NamespaceId([1; 16]));
            Removal { id, namespace, hashes: vec![ChainHash([2; 32])] }
        };
        lists.publish(&[removal(1)]).unwrap();
        manual.advance(LIST_EXPIRES);
        lists.publish(&[removal(2)]).unwrap();
        manual.advance(SUPERSEDED_FOR);
        lists.remove_superseded().unwrap();
        let ids = |number| {
            let name = by.object(Object::Removals(number));
            let bytes =
                wait_for(&clock, PUBLISH_LIMIT, |ask| tier.fetch(name, MAX_LIST_BYTES, ask));
            let list = RemovalList::decode(&bytes.unwrap()).unwrap();
            list.removals.iter().map(|one| one.id.number).collect::<Vec<u64>>()
        };
        assert_eq!(
            [ids(1), ids(2)],
            [vec![1], vec![2]],
            "the first list stays until it is collected"
        );
    }
}
