//! The folders that earlier opens of this store left: what is in them, and what leaves them.
//!
//! 1. They are looked for after the open and then each hour, some in each step, while nothing of the store is held.
//!    Nothing is written to them.
//! 2. One is taken over if its newest sign of life is [`SILENT_AFTER`] old by the clock of the location. A younger one
//!    may be that of a living store with the same id, whose directory was copied.
//! 3. The oldest folder is emptied first, its packs by number, and each catalog after the last of its packs. A pack
//!    that could not be removed keeps its catalog and no other pack. Both are found again by the next search. A
//!    catalog without packs leaves with the folder. Others may remove the same packs.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use dalsegno_core::Nanos;
use dalsegno_io::IoError;

use crate::format::catalog_of;
use crate::member::{Member, PUBLISH_LIMIT};
use crate::names::{Object, WriterId};
use crate::signs::{SILENT_AFTER, Signs, is_gone};
use crate::tier::Listed;

/// From the end of a search to the next one.
const SEARCH_EVERY: Duration = Duration::from_secs(3600);
/// The same if a search or a removal failed.
const SEARCH_AGAIN: Duration = Duration::from_secs(60);
/// Folders that a step lists.
const LISTS: usize = 8;
/// Packs that a step removes.
const REMOVALS: usize = 8;

/// A folder that was taken over.
#[derive(Debug)]
struct EarlierFolder {
    writer: WriterId,
    /// The age of its newest sign of life, when the search began.
    age: Duration,
    /// Its newest beat: if that is gone, the folder is in use.
    beat: Option<u64>,
    /// Numbers and bytes, the oldest first.
    packs: VecDeque<(u64, u64)>,
}

/// What a search found.
#[derive(Debug)]
pub struct EarlierFolders {
    /// Those to be taken over, the oldest first.
    folders: VecDeque<EarlierFolder>,
    /// All that have packs, those of others with the same id included.
    seen: usize,
}

/// A search under way.
#[derive(Debug)]
struct FolderSearch {
    began: Nanos,
    /// Writers whose folders are to be listed.
    wanted: Vec<WriterId>,
    found: Vec<EarlierFolder>,
    seen: usize,
    /// From its end to the next search.
    next: Duration,
}

#[derive(Debug)]
enum SearchState {
    Waiting { until: Nanos },
    UnderWay(FolderSearch),
}

/// Looks for the folders that earlier opens of a store left.
pub struct EarlierSearch {
    member: Member,
    state: SearchState,
}

impl std::fmt::Debug for EarlierSearch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlierSearch").field("state", &self.state).finish_non_exhaustive()
    }
}

impl EarlierSearch {
    /// A search for folders that earlier opens of the store left, which begins with the first step.
    #[must_use]
    pub fn new(member: Member) -> Self {
        let state = SearchState::Waiting { until: member.clock.now() };
        Self { member, state }
    }

    /// Makes the next search begin at this moment, if it would begin later.
    pub fn hasten(&mut self, due: Option<Nanos>) {
        if let (SearchState::Waiting { until }, Some(due)) = (&mut self.state, due) {
            *until = due.min(*until);
        }
    }

    /// Lists some folders, if it is time. Returns what was found when all are listed. Waits for the location.
    ///
    /// # Errors
    ///
    /// That of the location. The search begins again a minute later, and what was found before counts until then.
    pub fn step(&mut self) -> Result<Option<EarlierFolders>, IoError> {
        let now = self.member.clock.now();
        let again = SearchState::Waiting { until: now.after(SEARCH_AGAIN) };
        let mut search = match std::mem::replace(&mut self.state, again) {
            SearchState::Waiting { until } if now < until => {
                self.state = SearchState::Waiting { until };
                return Ok(None);
            }
            SearchState::Waiting { .. } => self.begin(now)?,
            SearchState::UnderWay(search) => search,
        };
        for _ in 0..LISTS {
            let Some(writer) = search.wanted.pop() else { break };
            self.look_at(writer, &mut search)?;
        }
        if !search.wanted.is_empty() {
            self.state = SearchState::UnderWay(search);
            return Ok(None);
        }
        let FolderSearch { mut found, seen, next, .. } = search;
        found.sort_by_key(|folder| (Reverse(folder.age), folder.writer));
        self.state = SearchState::Waiting { until: self.member.clock.now().after(next) };
        Ok(Some(EarlierFolders { folders: found.into(), seen }))
    }

    fn begin(&self, began: Nanos) -> Result<FolderSearch, IoError> {
        let mut wanted = self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.writers(ask))?;
        wanted.retain(|writer| writer.is_other_open_of(self.member.writer));
        Ok(FolderSearch { began, wanted, found: Vec::new(), seen: 0, next: SEARCH_EVERY })
    }

    /// Adds a folder to those that were found, if it has packs and is old enough.
    fn look_at(&self, writer: WriterId, search: &mut FolderSearch) -> Result<(), IoError> {
        let listed = self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.list(writer, None, ask))?;
        let packs: VecDeque<(u64, u64)> = listed.iter().filter_map(pack_in).collect();
        if packs.is_empty() {
            return Ok(());
        }
        search.seen += 1;
        let signs = Signs::of(&listed);
        let mut age = Duration::MAX;
        for object in signs.objects(&listed) {
            let name = writer.object(object);
            match self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.age(name, ask)) {
                Ok(of_object) => age = age.min(of_object),
                // It was removed meanwhile, so the folder is in use.
                Err(error) if error.is_not_found() => age = Duration::ZERO,
                Err(error) => return Err(error),
            }
        }
        if age < SILENT_AFTER {
            search.next = SILENT_AFTER;
            return Ok(());
        }
        let age = age.saturating_sub(self.member.clock.now().since(search.began));
        search.found.push(EarlierFolder { writer, age, beat: signs.beat, packs });
        Ok(())
    }
}

/// The folders of earlier opens of this store that were taken over.
pub(crate) struct EarlierOpens {
    member: Member,
    /// Those that have packs, the oldest first.
    folders: VecDeque<EarlierFolder>,
    /// The sum of the bytes of their packs.
    bytes: u64,
    /// Folders with packs but the own one that the last search saw, those that were not taken over included.
    seen: usize,
    /// When the next search is to begin, because a folder was given up.
    search_due: Option<Nanos>,
    /// The catalog of the last pack that could not be removed.
    kept: Option<(WriterId, u64)>,
    /// Packs that were removed.
    evicted: u64,
}

impl EarlierOpens {
    pub(crate) fn new(member: Member) -> Self {
        let folders = VecDeque::new();
        Self { member, folders, bytes: 0, seen: 0, search_due: None, kept: None, evicted: 0 }
    }

    /// Bytes of the packs that were taken over.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Packs that were removed so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether the location has packs of this store in other folders than the own one.
    pub(crate) fn exist(&self) -> bool {
        self.seen > 0
    }

    pub(crate) fn take_search_due(&mut self) -> Option<Nanos> {
        self.search_due.take()
    }

    /// Takes over what a search found, in place of what one found before.
    pub(crate) fn take_over(&mut self, found: EarlierFolders) {
        let EarlierFolders { folders, seen } = found;
        self.bytes = folders.iter().flat_map(|folder| &folder.packs).map(|(_, bytes)| bytes).sum();
        (self.folders, self.seen, self.kept) = (folders, seen, None);
    }

    /// Removes the oldest packs until at most `bound` bytes are left, or as many as a step may.
    ///
    /// # Errors
    ///
    /// If the location does not respond. What cannot be removed does not count until the next search.
    pub(crate) fn evict(&mut self, bound: u64) -> Result<(), IoError> {
        let mut checked = None;
        for _ in 0..REMOVALS {
            let Some(folder) = self.folders.front().filter(|_| self.bytes > bound) else { break };
            let writer = folder.writer;
            if checked == Some(writer) {
                self.remove_oldest()?;
            } else {
                checked = Some(writer);
                self.check_front()?;
            }
        }
        Ok(())
    }

    /// Gives up the oldest folder if it is in use: its writer, or somebody who collects it, removed its beat.
    fn check_front(&mut self) -> Result<(), IoError> {
        let Some(folder) = self.folders.front() else { return Ok(()) };
        let Some(beat) = folder.beat else { return Ok(()) };
        let name = folder.writer.object(Object::Beat(beat));
        match is_gone(self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.fetch(name, 0, ask))) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.give_up_front(SILENT_AFTER);
                Ok(())
            }
            Err(error) => {
                self.give_up_front(SEARCH_AGAIN);
                unless_it_hangs(error)
            }
        }
    }

    /// Stops counting the oldest folder until the next search.
    fn give_up_front(&mut self, search_after: Duration) {
        if let Some(folder) = self.folders.pop_front() {
            self.bytes -= folder.packs.iter().map(|(_, bytes)| bytes).sum::<u64>();
            self.search_after(search_after);
        }
    }

    fn search_after(&mut self, time: Duration) {
        let due = self.member.clock.now().after(time);
        self.search_due = Some(self.search_due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Removes the oldest pack, and its catalog if that has no other pack. If that fails, goes on with the next one.
    fn remove_oldest(&mut self) -> Result<(), IoError> {
        let Some(folder) = self.folders.front_mut() else { return Ok(()) };
        let writer = folder.writer;
        let (number, bytes) = folder.packs.pop_front().expect("an empty folder does not count");
        self.bytes -= bytes;
        let catalog = catalog_of(number);
        let is_last = folder.packs.front().is_none_or(|(next, _)| catalog_of(*next) != catalog)
            && self.kept != Some((writer, catalog));
        if folder.packs.is_empty() {
            self.folders.pop_front();
        }
        if let Some(file) = self.member.index.remove_pack(writer, number) {
            self.member.tier.forget(file);
        }
        let with_catalog = is_last.then_some(Object::Catalog(catalog));
        for object in [Some(Object::Pack(number)), with_catalog].into_iter().flatten() {
            let name = writer.object(object);
            if let Err(error) = self.member.ask(PUBLISH_LIMIT, |tier, ask| tier.remove(name, ask)) {
                tracing::warn!(%name, %error, "not removed from the folder of an earlier open");
                self.kept = Some((writer, catalog));
                self.search_after(SEARCH_AGAIN);
                return unless_it_hangs(error);
            }
        }
        if is_last {
            self.member.index.known().remove_catalog(writer, catalog);
        }
        self.evicted += 1;
        Ok(())
    }
}

/// Whether a location goes on with other names after this error.
fn unless_it_hangs(error: IoError) -> Result<(), IoError> {
    if error.is_late() { Err(error) } else { Ok(()) }
}

fn pack_in(listed: &Listed) -> Option<(u64, u64)> {
    match listed.object {
        Object::Pack(number) => Some((number, listed.bytes)),
        _ => None,
    }
}
