//! Removes what dead writers left: docs/formats/pack.md, Collection.
//!
//! 1. A writer is silent for a day if its newest sign of life is [`DEAD_AFTER`] old by the clock of the location, and
//!    no newer one appeared while it was watched for [`WATCHED`]. No host's clock is compared with another one.
//! 2. Such a writer is dead if it has no packs, or if every writer of its store is silent for a day. So packs of a
//!    store that was closed and opened again stay.
//! 3. Packs go first, then catalogs, descriptions, beats, and the folder.
//! 4. A list of removals is removed when it has expired: it is old, and no pack is left that its removals cover.
//! 5. A step makes a bounded number of calls, each with a limit. A step that fails, or a crash between two calls,
//!    leaves the rest to any other collector. Several may work on one folder.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dalsegno_core::{NamespaceId, Nanos};
use dalsegno_io::IoError;

use crate::expired_lists::ExpiredLists;
use crate::member::{FOLLOW_LIMIT, Member};
use crate::names::{Object, WriterId};
use crate::signs::{DEAD_AFTER, Signs, WATCHED};
use crate::tier::{Ask, Listed, Tier};

/// How often a writer should be checked, because that costs a listing.
pub const CHECK_EVERY: Duration = Duration::from_secs(60);
/// Objects that a step removes.
const REMOVALS: usize = 64;
/// Folders of other writers of the store that a step lists.
const LISTS: usize = 8;

/// What a collector removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorStats {
    /// Folders of writers.
    pub writers: u64,
    /// Packs.
    pub packs: u64,
    /// Lists of removals that had expired.
    pub lists: u64,
}

/// A writer whose signs of life are old.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    signs: Signs,
    /// Until when it is watched. If there is no newer sign until then, it is silent for a day.
    due: Nanos,
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
    /// Catalogs, then descriptions, then beats.
    others: VecDeque<Object>,
}

/// How far a step came.
enum Progress {
    More,
    Done,
}

/// Removes what dead writers left.
pub struct Collector {
    member: Member,
    lists: ExpiredLists,
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
    /// Collects all writers but `member` itself, and the lists that have expired by what its index knows. The clock of
    /// this host only measures how long a writer is watched.
    #[must_use]
    pub fn new(member: Member) -> Self {
        let (suspects, stats) = (BTreeMap::new(), CollectorStats::default());
        let lists = ExpiredLists::new(member.clone());
        Self { last: member.writer, member, lists, suspects, work: None, stats }
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

    /// Checks the next writer and some lists of removals, or removes some more of a dead writer. Waits for the
    /// location. Ends between two calls when `is_closing`.
    ///
    /// # Errors
    ///
    /// If the location fails or is too slow. The next step then checks another writer.
    pub fn step(&mut self, is_closing: &dyn Fn() -> bool) -> Result<(), IoError> {
        let Some(mut folder) = self.work.take() else {
            let next = self.check_next();
            // A writer that cannot be looked at keeps no list.
            let hangs = next.as_ref().is_err_and(IoError::is_late);
            let removed = if hangs { Ok(0) } else { self.lists.remove_some(is_closing) };
            self.work = next?;
            self.stats.lists += removed?;
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
        }
        Ok(())
    }

    /// Checks the writer that comes after the last one. Returns its folder if it is dead.
    fn check_next(&mut self) -> Result<Option<DeadFolder>, IoError> {
        let mut writers = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.writers(ask))?;
        writers.retain(|writer| *writer != self.member.writer);
        self.suspects.retain(|writer, _| writers.binary_search(writer).is_ok());
        let next = writers.partition_point(|writer| *writer <= self.last);
        let Some(writer) = writers.get(next).or(writers.first()).copied() else { return Ok(None) };
        self.last = writer;
        // Most writers run. Where a listing of packs costs something, theirs are not listed.
        let beat = self.newest_beat(writer)?.map(|beat| writer.object(Object::Beat(beat)));
        if let Some(beat) = beat
            && !self.is_age_of_dead(|tier, ask| tier.age(beat, ask))?
        {
            self.suspects.remove(&writer);
            return Ok(None);
        }
        let listed = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.list(writer, None, ask))?;
        let signs = Signs::of(&listed);
        if !self.is_old(writer, &listed, signs)? {
            self.suspects.remove(&writer);
            return Ok(None);
        }
        let now = self.member.clock.now();
        match self.suspects.get(&writer) {
            Some(suspect) if !signs.are_newer_than(suspect.signs) => {
                if suspect.due > now {
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
                self.suspects.insert(writer, Suspect { signs, due });
                Ok(None)
            }
        }
    }

    /// Whether all other writers of a store were silent for a day when they were checked. The own store lives.
    fn is_store_silent(&self, writer: WriterId, writers: &[WriterId]) -> bool {
        let now = self.member.clock.now();
        let is_silent = |other| self.suspects.get(&other).is_some_and(|one| one.due <= now);
        writer.store != self.member.writer.store && others_of_store(writer, writers).all(is_silent)
    }

    /// Whether the store of a folder that has packs is still dead: it was not opened again, and none of its writers
    /// continues. Looks at some of them in each step.
    fn is_still_dead(&mut self, folder: &mut DeadFolder) -> Result<bool, IoError> {
        if folder.packs.is_empty() {
            return Ok(true);
        }
        let writers = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.writers(ask))?;
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
        match self.member.ask(FOLLOW_LIMIT, age) {
            Ok(age) => Ok(age >= DEAD_AFTER),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn newest_beat(&self, writer: WriterId) -> Result<Option<u64>, IoError> {
        // Beats come behind all other objects.
        let after = Object::Namespace(NamespaceId([0xff; NamespaceId::BYTES]));
        let listed =
            self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.list(writer, Some(after), ask))?;
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
        for _ in (0..REMOVALS).take_while(|_| !is_closing()) {
            let Some(object) = folder.others.front() else { break };
            self.remove(writer, *object)?;
            folder.others.pop_front();
        }
        if !folder.others.is_empty() {
            return Ok(Progress::More);
        }
        self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.remove_writer(writer, ask))?;
        let left = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.writers(ask))?;
        if left.binary_search(&writer).is_err() {
            self.stats.writers += 1;
            tracing::info!(%writer, "removed what a store left that gave no sign of life for a day");
        }
        Ok(Progress::Done)
    }

    fn remove(&self, writer: WriterId, object: Object) -> Result<(), IoError> {
        self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.remove(writer.object(object), ask))
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
            packs: of(Object::is_pack),
            // In the order of a listing: catalogs, descriptions, beats.
            others: of(|object| !object.is_pack()),
        }
    }
}

/// The other writers of a writer's store.
fn others_of_store(writer: WriterId, writers: &[WriterId]) -> impl Iterator<Item = WriterId> {
    writers.iter().copied().filter(move |one| one.is_other_open_of(writer))
}
