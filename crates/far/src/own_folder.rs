//! The folder of this writer: what is in it, and what leaves it.
//!
//! 1. All packs of a catalog leave together, the oldest first, and then the catalog: a reader finds all of its packs,
//!    but for a moment. What could not be removed is tried again, and keeps no other catalog. What is known of a
//!    catalog stays until it is removed.
//! 2. A pack that could not be written is in no catalog, and leaves without one. The catalog that its number belongs to
//!    may still be written, for other packs.
//! 3. If other stores collected the folder, because this host was suspended for more than a day, the packs that are
//!    gone are forgotten, and descriptions are published again.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_core::NamespaceId;
use dalsegno_io::{IoError, Memory};

use crate::format::{Catalog, catalog_of, packs_of};
use crate::leaving::Leaving;
use crate::member::{Member, PUBLISH_LIMIT};
use crate::names::Object;
use crate::signs::is_gone;

/// Packs whose publication failed that are remembered until they are removed.
const MOST_FAILED: usize = 4096;
/// Beats that are remembered until they are removed.
const MOST_BEATS: usize = 64;

/// Packs that are to be removed.
#[derive(Debug, Default)]
struct LeavingPacks {
    /// Those of catalogs.
    named: Leaving<u64>,
    /// Those that could not be written: no catalog names them.
    unwritten: Leaving<u64>,
}

/// The folder of this writer.
pub(crate) struct OwnFolder {
    member: Member,
    /// Packs that were published, with their bytes.
    packs: BTreeMap<u64, u64>,
    /// The sum of these bytes: it is read at every step, and there may be 100,000 packs.
    bytes: u64,
    leaving: LeavingPacks,
    /// The descriptions that were published, to publish them in another directory, too.
    described: BTreeMap<NamespaceId, Vec<u8>>,
    /// The number of the last beat.
    beat: u64,
    /// Beats that may be there.
    beats: BTreeSet<u64>,
    /// The newest beat that certainly was there.
    shown: Option<u64>,
    /// How often the location was another directory when it was looked at last.
    reopened: u64,
    /// Whether a pack or a description may have been on its way to a directory that is not there any more.
    may_have_lost: bool,
}

impl OwnFolder {
    /// A folder that does not exist yet.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            packs: BTreeMap::new(),
            bytes: 0,
            leaving: LeavingPacks::default(),
            described: BTreeMap::new(),
            beat: 0,
            beats: BTreeSet::new(),
            shown: None,
            reopened: 0,
            may_have_lost: false,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the packs of a catalog.
    pub(crate) fn add(&mut self, catalog: &Catalog) {
        for pack in &catalog.packs {
            let before = self.packs.insert(pack.number, pack.bytes);
            self.bytes = self.bytes - before.unwrap_or(0) + pack.bytes;
        }
    }

    /// Notes a pack that could not be written, or is not wanted any more before its catalog is written.
    pub(crate) fn add_failed_pack(&mut self, number: u64) {
        if self.leaving.unwritten.len() < MOST_FAILED {
            self.leaving.unwritten.add(number, self.member.clock.now());
        }
    }

    /// Notes that publishing a catalog failed. What is there of it and of its packs is of no use.
    pub(crate) fn add_failed(&mut self, catalog: &Catalog) {
        if self.leaving.named.len() < MOST_FAILED {
            let now = self.member.clock.now();
            catalog.packs.iter().for_each(|pack| self.leaving.named.add(pack.number, now));
        }
    }

    pub(crate) fn is_described(&self, namespace: NamespaceId) -> bool {
        self.described.contains_key(&namespace)
    }

    pub(crate) fn has_descriptions(&self) -> bool {
        !self.described.is_empty()
    }

    /// Publishes the description of a namespace, unless that was done.
    pub(crate) fn describe(
        &mut self,
        namespace: NamespaceId,
        sector: &[u8],
    ) -> Result<(), IoError> {
        self.follow_location()?;
        if !self.described.contains_key(&namespace) {
            self.publish_description(namespace, sector)?;
            self.described.insert(namespace, sector.to_vec());
        }
        Ok(())
    }

    fn publish_description(&self, namespace: NamespaceId, sector: &[u8]) -> Result<(), IoError> {
        let bytes = vec![Memory::owned(sector.to_vec(), ())];
        match self.publish(Object::Namespace(namespace), bytes) {
            // An earlier call took too long, and completed.
            Err(error) if error.is_exists() => Ok(()),
            published => published,
        }
    }

    /// Finds out what is in the folder if the location is another directory than before, and describes the namespaces
    /// there. Their packs may be on their way.
    fn follow_location(&mut self) -> Result<(), IoError> {
        let reopened = self.member.tier.facts().reopened;
        if reopened == self.reopened {
            return Ok(());
        }
        let described = self.described.clone();
        let forgotten = self.forget_gone()?;
        let published = described
            .iter()
            .try_for_each(|(namespace, sector)| self.publish_description(*namespace, sector));
        self.described = described;
        published?;
        // Beats that are there are removed with the next one.
        self.shown = None;
        self.reopened = reopened;
        self.may_have_lost = true;
        tracing::warn!(
            writer = %self.member.writer,
            forgotten,
            "the far location lacks packs of this store, or is another one; those that it lacks are forgotten"
        );
        Ok(())
    }

    /// Shows that this writer runs, and looks whether the sign before is still there.
    pub(crate) fn beat(&mut self) -> Result<(), IoError> {
        self.follow_location()?;
        if self.may_have_lost {
            self.forget_gone()?;
            self.may_have_lost = false;
        }
        if let Some(shown) = self.shown.take() {
            if self.is_gone(Object::Beat(shown))? {
                self.forget_collected()?;
            }
            self.shown = Some(shown);
        }
        self.beat += 1;
        self.beats.insert(self.beat);
        if self.beats.len() > MOST_BEATS {
            self.beats.pop_first();
        }
        self.publish(Object::Beat(self.beat), Vec::new())?;
        self.shown = Some(self.beat);
        let old: Vec<u64> = self.beats.range(..self.beat).copied().collect();
        for beat in old {
            match self.remove(Object::Beat(beat)) {
                Ok(()) => drop(self.beats.remove(&beat)),
                Err(error) if error.is_late() => return Err(error),
                // The newest one counts.
                Err(error) => tracing::warn!(%error, beat, "an old sign of life is not removed"),
            }
        }
        Ok(())
    }

    /// Marks the packs of the oldest catalogs to be removed until at most `bound` bytes are left. Returns how many
    /// packs there were.
    pub(crate) fn evict(&mut self, bound: u64) -> u64 {
        let mut evicted = 0;
        while self.bytes > bound
            && let Some(oldest) = self.packs.first_key_value().map(|(number, _)| *number)
        {
            let with_it = self.packs.range(packs_of(catalog_of(oldest)));
            for number in with_it.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.forget(number);
                self.leaving.named.add(number, self.member.clock.now());
                evicted += 1;
            }
        }
        evicted
    }

    /// Removes the packs that are to leave, each catalog after the last of its packs.
    pub(crate) fn remove_leaving(&mut self) -> Result<(), IoError> {
        self.follow_location()?;
        let LeavingPacks { mut named, mut unwritten } = std::mem::take(&mut self.leaving);
        let now = self.member.clock.now();
        let removed = named.remove_due(now, |number, left| {
            self.remove(Object::Pack(number))?;
            let catalog = catalog_of(number);
            let is_last = left.range(packs_of(catalog)).all(|other| other == number);
            if !is_last || self.packs.range(packs_of(catalog)).next().is_some() {
                return Ok(());
            }
            self.remove(Object::Catalog(catalog))?;
            self.member.index.known().remove_catalog(self.member.writer, catalog);
            Ok(())
        });
        let result = removed.and_then(|()| {
            unwritten.remove_due(now, |number, _| self.remove(Object::Pack(number)))
        });
        self.leaving = LeavingPacks { named, unwritten };
        result
    }

    /// Forgets what others removed from the folder.
    fn forget_collected(&mut self) -> Result<(), IoError> {
        let packs = self.forget_gone()?;
        tracing::warn!(
            writer = %self.member.writer,
            packs,
            "other stores removed packs of this one, because it gave no sign of life for a day"
        );
        Ok(())
    }

    /// Forgets the packs and descriptions that are not in the folder. Returns how many packs.
    fn forget_gone(&mut self) -> Result<usize, IoError> {
        let listed =
            self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.list(self.member.writer, None, ask))?;
        let is_there = |object| listed.binary_search_by_key(&object, |one| one.object).is_ok();
        let gone: Vec<u64> =
            self.packs.keys().copied().filter(|number| !is_there(Object::Pack(*number))).collect();
        self.described.retain(|namespace, _| is_there(Object::Namespace(*namespace)));
        for number in &gone {
            self.forget(*number);
        }
        let now = self.member.clock.now();
        let of_gone: BTreeSet<u64> = gone.iter().map(|number| catalog_of(*number)).collect();
        let (there, collected): (BTreeSet<u64>, BTreeSet<u64>) =
            of_gone.into_iter().partition(|catalog| is_there(Object::Catalog(*catalog)));
        // What a location still has of such a pack leaves, and a catalog with its last pack. Until then its removals
        // are needed.
        for number in gone.iter().filter(|number| there.contains(&catalog_of(**number))) {
            self.leaving.named.add(*number, now);
        }
        let mut known = self.member.index.known();
        for catalog in collected {
            if self.packs.range(packs_of(catalog)).next().is_none() {
                known.remove_catalog(self.member.writer, catalog);
            }
        }
        let all_known: BTreeSet<u64> = known.numbers(self.member.writer).into_iter().collect();
        let unknown = listed.iter().filter_map(|one| match one.object {
            Object::Catalog(number) => Some(number).filter(|number| !all_known.contains(number)),
            _ => None,
        });
        // Its first pack may never have been there: removing it does nothing, and the catalog follows.
        unknown.for_each(|catalog| self.leaving.named.add(packs_of(catalog).start, now));
        Ok(gone.len())
    }

    /// Forgets a pack, so that no block is found in it.
    fn forget(&mut self, number: u64) {
        self.bytes -= self.packs.remove(&number).unwrap_or(0);
        debug_assert_eq!(self.bytes, self.packs.values().sum::<u64>());
        if let Some(file) = self.member.index.remove_pack(self.member.writer, number) {
            self.member.tier.forget(file);
        }
    }

    fn is_gone(&self, object: Object) -> Result<bool, IoError> {
        let name = self.member.writer.object(object);
        is_gone(self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.fetch(name, 0, ask)))
    }

    /// Publishes an object, and waits for that.
    pub(crate) fn publish(&self, object: Object, bytes: Vec<Memory>) -> Result<(), IoError> {
        let name = self.member.writer.object(object);
        self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.publish(name, bytes, ask))
    }

    fn remove(&self, object: Object) -> Result<(), IoError> {
        let name = self.member.writer.object(object);
        self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.remove(name, ask))
    }
}
