//! Follows what all writers publish.
//!
//! 1. A poll fetches the catalogs behind the newest known one of each writer: one lookup if there is none. Every
//!    [`LIST_EVERY`] polls it lists the folders, finds packs that are gone, and catalogs that appeared out of order.
//! 2. A catalog that is damaged or newer is counted and not fetched again.
//! 3. A writer without a new beat, pack or catalog in [`QUIET_LISTS`] listings is looked at only by listings: it ended,
//!    or is suspended. A writer that runs has a new beat each minute.
//! 4. A failure of the location ends the poll. What is indexed stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Deadline};
use dalsegno_io::IoError;

use crate::format::{Catalog, KnownWriter, MAX_CATALOG_BYTES, Tombstone};
use crate::index::FarIndex;
use crate::names::{Object, WriterId};
use crate::replies::{Replies, wait_for};
use crate::signs::Signs;
use crate::tier::{Listed, Tier};

/// Polls from one listing to the next.
pub const LIST_EVERY: u64 = 30;
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Catalogs that are fetched at a time.
const FETCHES: usize = 16;
/// Listings in a row without a sign of life after which a writer is quiet.
const QUIET_LISTS: u32 = 4;
/// Catalogs behind the newest known one that a poll looks for in the first place.
const AHEAD: u64 = 2;

/// What a poll found.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// Blocks that can be read now and could not before.
    pub new_blocks: u64,
    /// Catalogs that were indexed.
    pub catalogs: u64,
    /// Packs that are gone.
    pub gone_packs: u64,
    /// Catalogs that are damaged, or that a newer Dalsegno wrote.
    pub bad_catalogs: u64,
    /// Tombstones that were not known before, with the catalog that has them.
    pub tombstones: Vec<(WriterId, u64, Tombstone)>,
}

/// What is known of a writer.
#[derive(Debug, Default)]
struct Followed {
    /// The newest catalog that was seen; 0 for none.
    newest: u64,
    /// Catalogs that were indexed, or that cannot be.
    seen: BTreeSet<u64>,
    /// What the last listing showed.
    signs: Signs,
    /// Listings in a row that showed no newer sign of life.
    quiet_lists: u32,
}

impl Followed {
    fn note(&mut self, listed: &[Listed]) {
        let signs = Signs::of(listed);
        self.quiet_lists =
            if signs.are_newer_than(self.signs) { 0 } else { self.quiet_lists.saturating_add(1) };
        self.signs = signs;
    }

    fn is_quiet(&self) -> bool {
        self.quiet_lists >= QUIET_LISTS
    }
}

/// Follows the writers of a location.
#[derive(Debug)]
pub struct Follower {
    tier: Arc<dyn Tier>,
    index: Arc<FarIndex>,
    clock: Arc<dyn Clock>,
    /// Its packs are indexed by who publishes them.
    own: WriterId,
    writers: BTreeMap<WriterId, Followed>,
    polls: u64,
}

impl Follower {
    /// Follows all writers but `own`.
    #[must_use]
    pub fn new(
        tier: Arc<dyn Tier>,
        index: Arc<FarIndex>,
        clock: Arc<dyn Clock>,
        own: WriterId,
    ) -> Self {
        Self { tier, index, clock, own, writers: BTreeMap::new(), polls: 0 }
    }

    /// The newest catalogs that are known, for a tombstone.
    #[must_use]
    pub fn known(&self) -> Vec<KnownWriter> {
        let known = self.writers.iter().filter(|(_, followed)| followed.newest > 0);
        known
            .map(|(writer, followed)| KnownWriter { writer: *writer, number: followed.newest })
            .collect()
    }

    /// Indexes what was published since the last poll; the first one indexes everything.
    ///
    /// # Errors
    ///
    /// If the location fails or is too slow.
    pub fn poll(&mut self) -> Result<Polled, IoError> {
        let lists = self.polls.is_multiple_of(LIST_EVERY);
        self.polls += 1;
        let mut polled = Polled::default();
        let mut present = wait_for(&self.clock, CALL_LIMIT, |ask| self.tier.writers(ask))?;
        present.retain(|writer| *writer != self.own);
        self.forget_writers(&present, &mut polled);
        let mut wanted = Vec::new();
        for writer in present {
            let is_new = !self.writers.contains_key(&writer);
            let followed = self.writers.entry(writer).or_default();
            if lists || is_new {
                let listed =
                    wait_for(&self.clock, CALL_LIMIT, |ask| self.tier.list(writer, None, ask))?;
                let numbers = catalogs_in(&listed);
                followed.note(&listed);
                let new = numbers.iter().filter(|number| !followed.seen.contains(number));
                wanted.extend(new.map(|number| (writer, *number)));
                self.forget_packs(writer, &numbers, &mut polled);
            } else if !followed.is_quiet() {
                let next = followed.newest + 1;
                wanted.extend((next..next + AHEAD).map(|number| (writer, number)));
            }
        }
        wanted.extend(self.index.to_index_again());
        self.fetch(wanted, &mut polled)?;
        Ok(polled)
    }

    /// Forgets the writers that are gone.
    fn forget_writers(&mut self, present: &[WriterId], polled: &mut Polled) {
        let gone: Vec<WriterId> = self
            .writers
            .keys()
            .filter(|writer| present.binary_search(writer).is_err())
            .copied()
            .collect();
        for writer in gone {
            self.forget_packs(writer, &BTreeSet::new(), polled);
            self.writers.remove(&writer);
        }
    }

    /// Forgets the packs of a writer whose catalogs are gone.
    fn forget_packs(&mut self, writer: WriterId, present: &BTreeSet<u64>, polled: &mut Polled) {
        if let Some(followed) = self.writers.get_mut(&writer) {
            followed.seen.retain(|number| present.contains(number));
        }
        for number in
            self.index.numbers(writer).into_iter().filter(|number| !present.contains(number))
        {
            if let Some(file) = self.index.remove_pack(writer, number) {
                self.tier.forget(file);
                polled.gone_packs += 1;
            }
        }
    }

    /// Fetches and indexes catalogs, and those behind them.
    fn fetch(
        &mut self,
        mut wanted: Vec<(WriterId, u64)>,
        polled: &mut Polled,
    ) -> Result<(), IoError> {
        let mut last: BTreeMap<WriterId, u64> = BTreeMap::new();
        for (writer, number) in &wanted {
            let last = last.entry(*writer).or_default();
            *last = (*last).max(*number);
        }
        wanted.reverse();
        let replies: Replies<Vec<u8>> = Replies::new(&self.clock);
        let mut under_way: BTreeMap<u64, (WriterId, u64)> = BTreeMap::new();
        let mut tag = 0;
        loop {
            while under_way.len() < FETCHES
                && let Some((writer, number)) = wanted.pop()
            {
                tag += 1;
                under_way.insert(tag, (writer, number));
                let name = writer.object(Object::Catalog(number));
                self.tier.fetch(name, MAX_CATALOG_BYTES, replies.ask(tag, CALL_LIMIT));
            }
            if under_way.is_empty() {
                return Ok(());
            }
            let deadline = Deadline::At(self.clock.now().after(CALL_LIMIT));
            let reply = replies.next(deadline).ok_or(IoError::Deadline)?;
            let (writer, number) = under_way.remove(&reply.tag).expect("each call has one reply");
            match reply.result {
                Ok(bytes) => {
                    self.apply(writer, number, &bytes, polled);
                    // More may have appeared behind the last one that was looked for.
                    let last = last.get_mut(&writer).expect("it was looked for");
                    if number == *last {
                        wanted.extend((number + 1..=number + AHEAD).map(|number| (writer, number)));
                        *last += AHEAD;
                    }
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn apply(&mut self, writer: WriterId, number: u64, bytes: &[u8], polled: &mut Polled) {
        let Some(followed) = self.writers.get_mut(&writer) else { return };
        let is_new = followed.seen.insert(number);
        followed.newest = followed.newest.max(number);
        let decoded = Catalog::decode(bytes);
        let catalog = match decoded {
            Ok(catalog) if (catalog.writer, catalog.number) == (writer, number) => catalog,
            Ok(_) => return Self::refuse(writer, number, "it names another pack", polled),
            Err(error) => return Self::refuse(writer, number, &error.to_string(), polled),
        };
        let file = || self.tier.file(writer.object(Object::Pack(number)));
        let indexed = self.index.insert(&catalog, file);
        indexed.forgotten.into_iter().for_each(|file| self.tier.forget(file));
        polled.new_blocks += indexed.new_blocks;
        polled.catalogs += 1;
        if is_new {
            let tombstones = catalog.tombstones().map(|one| (writer, number, one.clone()));
            polled.tombstones.extend(tombstones);
        }
    }

    fn refuse(writer: WriterId, number: u64, why: &str, polled: &mut Polled) {
        polled.bad_catalogs += 1;
        tracing::warn!(%writer, number, why, "catalog not used; the blocks of its pack are misses");
    }
}

fn catalogs_in(listed: &[Listed]) -> BTreeSet<u64> {
    let numbers = listed.iter().filter_map(|one| match one.object {
        Object::Catalog(number) => Some(number),
        _ => None,
    });
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use dalsegno_core::{ManualClock, StoreId};
    use dalsegno_io::Memory;

    use super::*;
    use crate::tier::MemoryLocation;

    const WRITER: WriterId = WriterId { store: StoreId([1; 16]), open: 1 };
    const OWN: WriterId = WriterId { store: StoreId([2; 16]), open: 1 };

    struct Setup {
        writer: Arc<dyn Tier>,
        clock: Arc<dyn Clock>,
        follower: Follower,
    }

    impl Setup {
        fn new() -> Self {
            let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
            let location = MemoryLocation::new(Arc::clone(&clock));
            let (index, reader) = (Arc::new(FarIndex::new(1 << 20)), Arc::new(location.mount()));
            let follower = Follower::new(reader, index, Arc::clone(&clock), OWN);
            Self { writer: Arc::new(location.mount()), clock, follower }
        }

        fn publish(&self, object: Object, bytes: Vec<u8>) {
            let (name, bytes) = (WRITER.object(object), vec![Memory::owned(bytes, ())]);
            wait_for(&self.clock, CALL_LIMIT, |ask| self.writer.publish(name, bytes, ask)).unwrap();
        }

        fn publish_catalog(&self, number: u64) {
            let (entries, known) = (Vec::new(), Vec::new());
            let catalog = Catalog { writer: WRITER, number, pack_bytes: 0, entries, known };
            self.publish(Object::Catalog(number), catalog.encode());
        }

        /// Polls so often; returns how many catalogs were found.
        fn poll(&mut self, times: u64) -> u64 {
            (0..times).map(|_| self.follower.poll().unwrap().catalogs).sum()
        }
    }

    #[test]
    fn a_writer_without_signs_of_life_is_looked_at_only_by_listings() {
        let mut setup = Setup::new();
        setup.publish_catalog(1);
        assert_eq!(setup.poll(1 + u64::from(QUIET_LISTS) * LIST_EVERY), 1);
        setup.publish_catalog(2);
        assert_eq!([setup.poll(LIST_EVERY - 1), setup.poll(1)], [0, 1]);
        setup.publish_catalog(3);
        assert_eq!(setup.poll(1), 1, "it has shown that it runs");
    }

    #[test]
    fn a_writer_that_only_beats_is_looked_at_by_every_poll() {
        let mut setup = Setup::new();
        setup.publish_catalog(1);
        for beat in 1..=3 * u64::from(QUIET_LISTS) {
            setup.publish(Object::Beat(beat), Vec::new());
            setup.poll(LIST_EVERY);
        }
        setup.publish_catalog(2);
        setup.poll(1);
        setup.publish_catalog(3);
        assert_eq!(setup.poll(1), 1);
    }
}
