//! Removes what dead writers left: docs/formats/pack.md, Collection.
//!
//! 1. A writer is silent for a day if its newest sign of life is [`DEAD_AFTER`] old by the clock of the location, and
//!    no newer one appeared while it was watched for [`WATCHED`]. No host's clock is compared with another one.
//! 2. Such a writer is dead if it has no packs, or if every writer of its store is silent for a day. So packs of a
//!    store that was closed and opened again stay.
//! 3. Packs go first, then catalogs, descriptions, beats, and the folder.
//! 4. A catalog with tombstones stays while the location has a pack that they name, so removed blocks do not come back.
//! 5. A step makes a bounded number of calls, each with a limit. A step that fails, or a crash between two calls,
//!    leaves the rest to any other collector. Several may work on one folder.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, NamespaceId, Nanos};
use dalsegno_extent::format::FormatError;
use dalsegno_io::IoError;

use crate::format::{Catalog, MAX_CATALOG_BYTES};
use crate::names::{Object, WriterId};
use crate::replies::wait_for;
use crate::signs::{DEAD_AFTER, Signs, WATCHED};
use crate::tier::{Ask, Listed, Tier};

/// How often a writer should be checked, because that costs a listing.
pub const CHECK_EVERY: Duration = Duration::from_secs(60);
/// When a folder is looked at again in which catalogs had to stay.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Objects that a step removes.
const REMOVALS: usize = 64;
/// Catalogs that a step reads.
const FETCHES: usize = 16;
/// Folders that a step lists to find the packs that tombstones name, or other writers of the store.
const LISTS: usize = 8;

/// What a collector removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorStats {
    /// Folders of writers.
    pub writers: u64,
    /// Packs.
    pub packs: u64,
}

/// A writer whose signs of life are old.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    signs: Signs,
    /// Until when it is watched. If there is no newer sign until then, it is silent for a day.
    due: Nanos,
    /// When its folder is looked at again, if catalogs had to stay in it.
    again: Nanos,
}

/// A folder that is being collected.
#[derive(Debug)]
struct DeadFolder {
    writer: WriterId,
    beat: Option<u64>,
    /// Other writers of the store that are looked at before packs are removed: one may have given a sign of life since
    /// it was checked.
    others_of_store: Vec<WriterId>,
    packs: VecDeque<Object>,
    catalogs: VecDeque<Object>,
    /// Descriptions, then beats.
    others: VecDeque<Object>,
    /// Catalogs that stay because of their tombstones.
    kept: u64,
    /// The smallest number of the packs of a writer. No smaller one appears later.
    oldest_packs: BTreeMap<WriterId, Option<u64>>,
}

/// What becomes of a catalog.
enum Fate {
    Remove,
    Keep,
    /// More folders must be listed to decide, in the next step.
    Undecided,
}

/// How far a step came.
enum Progress {
    More,
    Done,
    /// Catalogs had to stay.
    Kept,
}

/// Removes what dead writers left.
pub struct Collector {
    tier: Arc<dyn Tier>,
    clock: Arc<dyn Clock>,
    own: WriterId,
    /// The writer that was checked last.
    last: WriterId,
    suspects: BTreeMap<WriterId, Suspect>,
    work: Option<DeadFolder>,
    stats: CollectorStats,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { last, work, stats, .. } = self;
        f.debug_struct("Collector")
            .field("last", last)
            .field("work", work)
            .field("stats", stats)
            .finish_non_exhaustive()
    }
}

impl Collector {
    /// Collects all writers but `own`. `clock` is that of this host: it only measures how long a writer is watched.
    #[must_use]
    pub fn new(tier: Arc<dyn Tier>, clock: Arc<dyn Clock>, own: WriterId) -> Self {
        let (suspects, stats) = (BTreeMap::new(), CollectorStats::default());
        Self { tier, clock, own, last: own, suspects, work: None, stats }
    }

    /// What it removed so far.
    #[must_use]
    pub fn stats(&self) -> CollectorStats {
        self.stats
    }

    /// Whether it is removing a folder, so that the next step should follow soon. Otherwise the next step checks
    /// another writer.
    #[must_use]
    pub fn is_working(&self) -> bool {
        self.work.is_some()
    }

    /// Checks the next writer, or removes some more of a dead one. Waits for the location. Ends between two calls when
    /// `is_closing`.
    ///
    /// # Errors
    ///
    /// If the location fails or is too slow. The next step then checks another writer.
    pub fn step(&mut self, is_closing: &dyn Fn() -> bool) -> Result<(), IoError> {
        let Some(mut folder) = self.work.take() else {
            self.work = self.check_next()?;
            return Ok(());
        };
        if self.newest_beat(folder.writer)? != folder.beat || !self.is_still_dead(&mut folder)? {
            return Ok(());
        }
        if !folder.others_of_store.is_empty() {
            self.work = Some(folder);
            return Ok(());
        }
        match self.remove_some(&mut folder, is_closing)? {
            Progress::More => self.work = Some(folder),
            Progress::Done => {}
            Progress::Kept => {
                let again = self.clock.now().after(AGAIN_AFTER);
                self.suspects.entry(folder.writer).and_modify(|suspect| suspect.again = again);
            }
        }
        Ok(())
    }

    /// Checks the writer that comes after the last one. Returns its folder if it is dead.
    fn check_next(&mut self) -> Result<Option<DeadFolder>, IoError> {
        let mut writers = self.ask(|tier, ask| tier.writers(ask))?;
        writers.retain(|writer| *writer != self.own);
        self.suspects.retain(|writer, _| writers.binary_search(writer).is_ok());
        let next = writers.partition_point(|writer| *writer <= self.last);
        let Some(writer) = writers.get(next).or(writers.first()).copied() else { return Ok(None) };
        self.last = writer;
        let listed = self.ask(|tier, ask| tier.list(writer, None, ask))?;
        let signs = Signs::of(&listed);
        if !self.is_old(writer, &listed, signs)? {
            self.suspects.remove(&writer);
            return Ok(None);
        }
        let now = self.clock.now();
        match self.suspects.get(&writer) {
            Some(suspect) if !signs.are_newer_than(suspect.signs) => {
                if suspect.due > now || suspect.again > now {
                    return Ok(None);
                }
                let has_packs = signs.pack.is_some();
                if has_packs && !self.is_store_silent(writer, &writers) {
                    return Ok(None);
                }
                let mut folder = DeadFolder::new(writer, &listed, signs.beat);
                if has_packs {
                    folder.others_of_store = others_of_store(writer, &writers).collect();
                }
                Ok(Some(folder))
            }
            _ => {
                let due = now.after(WATCHED);
                self.suspects.insert(writer, Suspect { signs, due, again: due });
                Ok(None)
            }
        }
    }

    /// Whether all other writers of a store were silent for a day when they were checked. The own store lives.
    fn is_store_silent(&self, writer: WriterId, writers: &[WriterId]) -> bool {
        let now = self.clock.now();
        let is_silent = |other| self.suspects.get(&other).is_some_and(|one| one.due <= now);
        writer.store != self.own.store && others_of_store(writer, writers).all(is_silent)
    }

    /// Whether the store of a folder that has packs is still dead: it was not opened again, and none of its writers
    /// continues. Looks at some of them in each step.
    fn is_still_dead(&mut self, folder: &mut DeadFolder) -> Result<bool, IoError> {
        if folder.packs.is_empty() {
            return Ok(true);
        }
        let writers = self.ask(|tier, ask| tier.writers(ask))?;
        if !self.is_store_silent(folder.writer, &writers) {
            return Ok(false);
        }
        for _ in 0..LISTS {
            let Some(other) = folder.others_of_store.pop() else { break };
            let beat = self.newest_beat(other)?;
            if self.suspects.get(&other).is_some_and(|suspect| beat > suspect.signs.beat) {
                self.suspects.remove(&other);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all signs of life of a writer are old by the clock of the location.
    fn is_old(&self, writer: WriterId, listed: &[Listed], signs: Signs) -> Result<bool, IoError> {
        if listed.is_empty() {
            return self.is_age_of_dead(|tier, ask| tier.writer_age(writer, ask));
        }
        for object in signs.objects(listed) {
            if !self.is_age_of_dead(|tier, ask| tier.age(writer.object(object), ask))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether an age is that of a dead writer. What is gone meanwhile was removed by somebody who is at work there.
    fn is_age_of_dead(&self, age: impl FnOnce(&dyn Tier, Ask<Duration>)) -> Result<bool, IoError> {
        match self.ask(age) {
            Ok(age) => Ok(age >= DEAD_AFTER),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn newest_beat(&self, writer: WriterId) -> Result<Option<u64>, IoError> {
        // Beats come behind all other objects.
        let after = Object::Namespace(NamespaceId([0xff; NamespaceId::BYTES]));
        let listed = self.ask(|tier, ask| tier.list(writer, Some(after), ask))?;
        Ok(Signs::of(&listed).beat)
    }

    fn remove_some(
        &mut self,
        folder: &mut DeadFolder,
        is_closing: &dyn Fn() -> bool,
    ) -> Result<Progress, IoError> {
        let writer = folder.writer;
        for _ in (0..REMOVALS).take_while(|_| !is_closing()) {
            let Some(pack) = folder.packs.front() else { break };
            self.remove(writer, *pack)?;
            self.stats.packs += 1;
            folder.packs.pop_front();
        }
        if !folder.packs.is_empty() {
            return Ok(Progress::More);
        }
        if !folder.catalogs.is_empty() {
            self.remove_catalogs(folder, is_closing)?;
            return Ok(Progress::More);
        }
        if folder.kept > 0 {
            return Ok(Progress::Kept);
        }
        for _ in (0..REMOVALS).take_while(|_| !is_closing()) {
            let Some(object) = folder.others.front() else { break };
            self.remove(writer, *object)?;
            folder.others.pop_front();
        }
        if !folder.others.is_empty() {
            return Ok(Progress::More);
        }
        self.ask(|tier, ask| tier.remove_writer(writer, ask))?;
        let left = self.ask(|tier, ask| tier.writers(ask))?;
        if left.binary_search(&writer).is_err() {
            self.stats.writers += 1;
            tracing::info!(%writer, "removed what a store left that gave no sign of life for a day");
        }
        Ok(Progress::Done)
    }

    fn remove_catalogs(
        &self,
        folder: &mut DeadFolder,
        is_closing: &dyn Fn() -> bool,
    ) -> Result<(), IoError> {
        let mut lists = LISTS;
        for _ in (0..FETCHES).take_while(|_| !is_closing()) {
            let Some(Object::Catalog(number)) = folder.catalogs.front().copied() else { break };
            match self.judge(folder, number, &mut lists)? {
                Fate::Remove => self.remove(folder.writer, Object::Catalog(number))?,
                Fate::Keep => folder.kept += 1,
                Fate::Undecided => break,
            }
            folder.catalogs.pop_front();
        }
        Ok(())
    }

    /// Decides about a catalog whose packs are gone.
    fn judge(
        &self,
        folder: &mut DeadFolder,
        number: u64,
        lists: &mut usize,
    ) -> Result<Fate, IoError> {
        let name = folder.writer.object(Object::Catalog(number));
        let bytes = match self.ask(|tier, ask| tier.fetch(name, MAX_CATALOG_BYTES, ask)) {
            Ok(bytes) => bytes,
            // Another collector was faster, or nobody can use it.
            Err(error) if error.is_not_found() || error.is_too_large() => {
                return Ok(Fate::Remove);
            }
            Err(error) => return Err(error),
        };
        let catalog = match Catalog::decode(&bytes) {
            Ok(catalog) if (catalog.writer, catalog.number) == (folder.writer, number) => catalog,
            Err(FormatError::Newer(_)) => return Ok(Fate::Keep),
            Ok(_) | Err(_) => return Ok(Fate::Remove),
        };
        // Without a tombstone there are no known writers.
        for known in &catalog.known {
            let oldest = match folder.oldest_packs.get(&known.writer) {
                Some(oldest) => *oldest,
                None if *lists == 0 => return Ok(Fate::Undecided),
                None => {
                    *lists -= 1;
                    let oldest = self.oldest_pack(known.writer)?;
                    folder.oldest_packs.insert(known.writer, oldest);
                    oldest
                }
            };
            if oldest.is_some_and(|oldest| oldest <= known.number) {
                return Ok(Fate::Keep);
            }
        }
        Ok(Fate::Remove)
    }

    fn oldest_pack(&self, writer: WriterId) -> Result<Option<u64>, IoError> {
        let listed = self.ask(|tier, ask| tier.list(writer, None, ask))?;
        Ok(listed.first().and_then(|first| number_of_pack(first.object)))
    }

    fn remove(&self, writer: WriterId, object: Object) -> Result<(), IoError> {
        self.ask(|tier, ask| tier.remove(writer.object(object), ask))
    }

    fn ask<T>(&self, call: impl FnOnce(&dyn Tier, Ask<T>)) -> Result<T, IoError> {
        wait_for(&self.clock, CALL_LIMIT, |ask| call(&*self.tier, ask))
    }
}

impl DeadFolder {
    fn new(writer: WriterId, listed: &[Listed], beat: Option<u64>) -> Self {
        let of = |wanted: fn(&Object) -> bool| {
            listed.iter().map(|one| one.object).filter(wanted).collect::<VecDeque<_>>()
        };
        Self {
            writer,
            beat,
            others_of_store: Vec::new(),
            packs: of(|object| matches!(object, Object::Pack(_))),
            catalogs: of(|object| matches!(object, Object::Catalog(_))),
            others: of(|object| matches!(object, Object::Namespace(_) | Object::Beat(_))),
            kept: 0,
            oldest_packs: BTreeMap::new(),
        }
    }
}

/// The other writers of a writer's store.
fn others_of_store(writer: WriterId, writers: &[WriterId]) -> impl Iterator<Item = WriterId> {
    writers.iter().copied().filter(move |one| one.is_other_open_of(writer))
}

/// The number of a pack. Packs come before all other objects in a listing.
fn number_of_pack(object: Object) -> Option<u64> {
    if let Object::Pack(number) = object { Some(number) } else { None }
}
