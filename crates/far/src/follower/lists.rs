//! Follows the lists of removals.
//!
//! 1. One listing finds the new lists of all writers, also of those that are silent.
//! 2. What was read is applied, whatever fails afterwards. Only a poll that has read everything says what is at the
//!    location.
//! 3. A list that cannot be used keeps later removals of its store from counting as applied, until it is read or gone.
//!    Removals of its store that earlier opens applied are not known here until then. Packs whose writers had not
//!    applied all of them are set aside.
//! 4. Removals that no list has any more are kept for an hour: the lists may have expired, or a listing did not show
//!    them. They count as applied for as long as the index has them. All are kept while a list cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_core::{Deadline, Nanos, Stopped, StoreId};
use dalsegno_io::IoError;

use super::bad::{BadName, BadObjects};
use crate::format::{MAX_LIST_BYTES, RemovalList};
use crate::index::{ListSpan, SeenList};
use crate::member::{FOLLOW_LIMIT, Member};
use crate::names::{Object, ObjectName, WriterId};
use crate::polled::Polled;
use crate::removal::{Applied, RemovalId};
use crate::replies::Replies;

/// Lists that are fetched at a time.
const FETCHES: usize = 16;
/// In how many polls one list may fail, before it costs only itself.
const MOST_FAILURES: u32 = 5;
/// How often a poll lists the folder again because a list was gone.
const TRIES: usize = 4;
/// How long removals that no list has any more are kept, and reported as being at the location: the packs of other
/// writers may be read by hosts that have not forgotten them yet, and a list may return.
pub(super) const GONE_FOR: Duration = Duration::from_secs(3600);

/// Follows the lists of removals.
#[derive(Debug)]
pub(super) struct ListFollower {
    member: Member,
    /// What earlier opens of the store had applied, of stores with lists that this open has not read yet.
    earlier: Applied,
    /// The removals in the list of a writer that was read last. The next one repeats most of them.
    last: BTreeMap<WriterId, BTreeSet<RemovalId>>,
    /// Removals that no list has any more, and since when.
    gone: Vec<(ListSpan, Nanos)>,
    /// How often lists that are there could not be fetched.
    failures: BTreeMap<ObjectName, u32>,
}

/// How fetching lists ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    All,
    /// A list was gone: a newer one has its entries.
    SomeGone,
    Failed,
}

impl ListFollower {
    pub(super) fn new(member: Member) -> Self {
        let (earlier, gone) = (Applied::default(), Vec::new());
        let (last, failures) = (BTreeMap::new(), BTreeMap::new());
        Self { member, earlier, last, gone, failures }
    }

    pub(super) fn set_earlier(&mut self, applied: Applied) {
        self.earlier = applied;
    }

    /// How many writers have issued removals that earlier opens applied and this one has not read.
    pub(super) fn unproven(&self) -> usize {
        self.earlier.iter().len()
    }

    /// Whether a removal that this open has not read may cover a pack of a writer that had applied `applied`.
    pub(super) fn may_cover(&self, applied: &Applied) -> bool {
        self.earlier.iter().any(|id| !applied.contains(id))
    }

    /// Reads the lists that are new. Tries those again that could not be used, if `retries`.
    pub(super) fn follow(&mut self, retries: bool, bad: &mut BadObjects, polled: &mut Polled) {
        for _ in 0..TRIES {
            let listed = match self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.removals(ask)) {
                Ok(listed) => listed,
                Err(error) if error.is_of_object() => {
                    bad.note(BadName::RemovalsFolder, &error.to_string(), polled);
                    return;
                }
                Err(error) => return polled.fail(error),
            };
            bad.forget(BadName::RemovalsFolder);
            let names: BTreeSet<ObjectName> = listed.into_iter().map(|(name, _)| name).collect();
            let is_wanted = |name: &&ObjectName| match self.member.index.known().lists.get(name) {
                None => true,
                Some(SeenList::Read(_)) => false,
                Some(SeenList::Unread) => retries,
            };
            let wanted = names.iter().filter(is_wanted).copied().collect();
            match self.fetch(wanted, bad, polled) {
                Fetched::All => {
                    self.forget_gone(&names, bad);
                    let unread = self.unread();
                    let earlier = self.earlier.iter();
                    self.earlier = earlier.filter(|id| unread.contains(&id.by.store)).collect();
                    return polled.read_all(self.at_location(), unread);
                }
                Fetched::SomeGone => {}
                Fetched::Failed => return,
            }
        }
        tracing::debug!("lists of removals change too fast; the next poll reads them");
    }

    fn fetch(
        &mut self,
        mut wanted: Vec<ObjectName>,
        bad: &mut BadObjects,
        polled: &mut Polled,
    ) -> Fetched {
        wanted.reverse();
        let replies: Replies<Vec<u8>> = Replies::new(&self.member.clock);
        let mut under_way: BTreeMap<u64, ObjectName> = BTreeMap::new();
        let (mut tag, mut fetched) = (0, Fetched::All);
        loop {
            while under_way.len() < FETCHES
                && let Some(name) = wanted.pop()
            {
                tag += 1;
                under_way.insert(tag, name);
                self.member.tier.fetch(name, MAX_LIST_BYTES, replies.ask(tag, FOLLOW_LIMIT));
            }
            if under_way.is_empty() {
                return fetched;
            }
            let deadline = Deadline::At(self.member.clock.now().after(FOLLOW_LIMIT));
            let Some(reply) = replies.next(deadline) else {
                polled.fail(IoError::Stopped(Stopped::Deadline));
                return Fetched::Failed;
            };
            let name = under_way.remove(&reply.tag).expect("each call has one reply");
            match reply.result {
                Ok(bytes) => self.apply(name, &bytes, bad, polled),
                Err(error) if error.is_not_found() => {
                    self.member.index.known().lists.remove(&name);
                    bad.forget(BadName::Object(name));
                    if fetched == Fetched::All {
                        fetched = Fetched::SomeGone;
                    }
                }
                Err(error) if error.is_of_object() || self.fails_for_good(name, &error) => {
                    self.refuse(name, &error.to_string(), bad, polled);
                }
                Err(error) => {
                    polled.fail(error);
                    fetched = Fetched::Failed;
                }
            }
        }
    }

    /// Counts a failure of one list. A few polls of failures are a fault of this list, not one of the moment.
    fn fails_for_good(&mut self, name: ObjectName, error: &IoError) -> bool {
        if error.is_late() {
            return false;
        }
        let failures = self.failures.entry(name).or_default();
        *failures += 1;
        *failures >= MOST_FAILURES
    }

    fn apply(&mut self, name: ObjectName, bytes: &[u8], bad: &mut BadObjects, polled: &mut Polled) {
        let list = match RemovalList::decode(bytes) {
            Ok(list) if list.writer.object(Object::Removals(list.number)) == name => list,
            Ok(_) => {
                let reason = "it belongs to another writer or number than its name says";
                return self.refuse(name, reason, bad, polled);
            }
            Err(error) => return self.refuse(name, &error.to_string(), bad, polled),
        };
        bad.forget(BadName::Object(name));
        self.failures.remove(&name);
        let seen = SeenList::of(&list.removals);
        let ids = list.removals.iter().map(|removal| removal.id).collect();
        let before = self.last.insert(list.writer, ids).unwrap_or_default();
        for removal in list.removals.into_iter().filter(|removal| !before.contains(&removal.id)) {
            self.member.index.remove(&removal);
            if removal.id.by != self.member.writer {
                polled.removals.push(removal);
            }
        }
        self.member.index.known().lists.insert(name, seen);
    }

    fn refuse(&self, name: ObjectName, reason: &str, bad: &mut BadObjects, polled: &mut Polled) {
        self.member.index.known().lists.insert(name, SeenList::Unread);
        bad.note(BadName::Object(name), reason, polled);
    }

    /// Forgets the lists that are not at the location any more, and after an hour the removals that no list has.
    fn forget_gone(&mut self, present: &BTreeSet<ObjectName>, bad: &mut BadObjects) {
        let now = self.member.clock.now();
        self.failures.retain(|name, _| present.contains(name));
        let mut known = self.member.index.known();
        let gone: Vec<ObjectName> =
            known.lists.keys().filter(|name| !present.contains(name)).copied().collect();
        let mut spans = Vec::new();
        for name in &gone {
            bad.forget(BadName::Object(*name));
            let list = known.lists.remove(name).expect("it is one of them");
            spans.extend_from_slice(list.spans());
        }
        let listed = known.present(&[]);
        spans.retain(|span| span.by != self.member.writer && !listed.contain_all(span));
        if !spans.is_empty() {
            // A list that returns is read as a new one.
            self.last.clear();
        }
        self.gone.extend(spans.into_iter().map(|span| (span, now)));
        self.last.retain(|writer, _| known.lists.keys().any(|name| name.writer == *writer));
        let is_old = |(_, since): &(ListSpan, Nanos)| now.since(*since) >= GONE_FOR;
        if known.lists.values().all(SeenList::is_read) && self.gone.iter().any(is_old) {
            self.gone.retain(|gone| !is_old(gone));
            self.member.index.retain_removals(&known.present(&self.gone));
        }
    }

    /// The stores with a list that cannot be used: it may have removals that come before those of later lists.
    fn unread(&self) -> BTreeSet<StoreId> {
        let known = self.member.index.known();
        let unread = known.lists.iter().filter(|(_, list)| !list.is_read());
        unread.map(|(name, _)| name.writer.store).collect()
    }

    /// The newest removal of each other writer that is at the location, or was until recently, or is published here.
    fn at_location(&self) -> Applied {
        let known = self.member.index.known();
        let listed = known.lists.values().flat_map(SeenList::newest);
        let gone = self.gone.iter().map(|(span, _)| span.newest());
        listed
            .chain(gone)
            .chain(known.own().iter())
            .filter(|id| id.by != self.member.writer)
            .collect()
    }
}
