//! Publishes packs of this store.
//!
//! 1. Memory is bounded: one pack is filled while at most [`IN_FLIGHT`] are written, and a full one waits for its turn.
//!    Adding extents never waits for the location.
//! 2. A catalog is written after its packs are durable, and their blocks are found here after the catalog is durable.
//! 3. A pack that cannot be written is dropped and counted. Its number is not used again, and what is there of it is
//!    removed.
//! 4. A pack says which removals were applied when it was begun. So a removal that is applied later covers it, although
//!    it is published afterwards.
//! 5. The packs of all opens of this store stay within a bound on their bytes, and give way when the location has no
//!    space. Those of earlier opens go first, and then the oldest of this one, pack before catalog.

use std::time::Duration;

use dalsegno_core::{Deadline, Extent, NamespaceId, Nanos, StoreId};
use dalsegno_extent::{PinnedFile, SourceIo};
use dalsegno_io::{IoError, Memory};

use crate::earlier::{EarlierFolders, EarlierOpens};
use crate::filling::{Filling, PacksInWork, WritingCatalog, WritingPack};
use crate::format::{Catalog, CatalogPack, MAX_PACK_BYTES};
use crate::member::{Member, PUBLISH_LIMIT};
use crate::names::Object;
use crate::own_folder::OwnFolder;
use crate::own_lists::OwnLists;
use crate::publishing::{PublisherOptions, PublisherStats, Refused};
use crate::removal::{Applied, Removal};
use crate::replies::Replies;

/// A pack is closed when its catalog has this size.
const CATALOG_BYTES: usize = 1 << 20;
/// A pack that was begun earlier is not published any more: the list of a removal that covers it may have expired.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(3600);
/// How often a list is tried again after packs made space for it.
const LIST_TRIES: usize = 8;

/// Publishes packs of this store.
pub struct Publisher {
    member: Member,
    options: PublisherOptions,
    packs: PacksInWork,
    replies: Replies<()>,
    folder: OwnFolder,
    earlier: EarlierOpens,
    lists: OwnLists,
    /// The removals that are applied here.
    applied: Applied,
    /// Whether the location had no space since packs were last evicted.
    is_full: bool,
    stats: PublisherStats,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("writer", &self.member.writer)
            .field("writing", &self.packs.writing.len())
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// A publisher whose folder does not exist yet.
    #[must_use]
    pub fn new(member: Member, options: PublisherOptions) -> Self {
        let replies = Replies::new(&member.clock);
        let mut packs = PacksInWork::new(member.writer);
        packs.bound_groups(options.capacity_bytes / options.pack_bytes);
        let folder = OwnFolder::new(member.clone());
        let earlier = EarlierOpens::new(member.clone());
        let lists = OwnLists::new(member.clone());
        Self {
            member,
            options,
            packs,
            replies,
            folder,
            earlier,
            lists,
            applied: Applied::default(),
            is_full: false,
            stats: PublisherStats::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> PublisherStats {
        let evicted_packs = self.stats.evicted_packs + self.earlier.evicted();
        PublisherStats { own_bytes: self.own_bytes(), evicted_packs, ..self.stats }
    }

    fn own_bytes(&self) -> u64 {
        self.folder.bytes() + self.earlier.bytes()
    }

    /// Whether a namespace was described.
    #[must_use]
    pub fn is_described(&self, namespace: NamespaceId) -> bool {
        self.folder.is_described(namespace)
    }

    /// Whether the location has anything of this store, of this open or of an earlier one. Then it must
    /// [beat](Self::beat), so that nobody collects that.
    #[must_use]
    pub fn is_at_location(&self) -> bool {
        self.folder.has_descriptions() || self.packs.has_packs() || self.earlier.exist()
    }

    /// Publishes the description of a namespace, one sector, unless that was done. Waits for the location.
    ///
    /// # Errors
    ///
    /// That of the location. Then no block of the namespace may be added.
    pub fn describe(&mut self, namespace: NamespaceId, sector: &[u8]) -> Result<(), IoError> {
        self.folder.describe(namespace, sector)
    }

    /// Whether a full pack waits for its turn, so that nothing can be added.
    #[must_use]
    pub fn waits_for_turn(&self) -> bool {
        self.packs.filling.as_ref().is_some_and(|filling| self.is_full(filling))
    }

    /// Copies an extent of the store's log to the pack that is being filled. Waits only for the store's own device.
    ///
    /// # Errors
    ///
    /// Why the extent is not in the pack.
    pub fn add(
        &mut self,
        io: &SourceIo,
        pinned: &PinnedFile,
        store: StoreId,
        extent: &Extent,
    ) -> Result<(), Refused> {
        assert!(self.folder.is_described(extent.namespace), "its namespace is described first");
        let bytes = usize::try_from(extent.total_bytes()).expect("64-bit addresses");
        if bytes as u64 > MAX_PACK_BYTES {
            return Err(Refused::TooLarge);
        }
        if !self.has_space(bytes) {
            return Err(Refused::Busy);
        }
        let mut filling = if let Some(filling) = self.packs.filling.take() {
            filling
        } else {
            let (now, flush) = (self.member.clock.now(), self.options.flush);
            self.packs.begin(now, flush, &self.applied).ok_or(Refused::Busy)?
        };
        match filling.memory.read(io, pinned, store, extent, filling.bytes) {
            Ok(header) => filling.add(header, bytes),
            Err(cause) => {
                if filling.memory.is_usable() {
                    self.packs.filling = Some(filling);
                } else {
                    // The device may write to it at any time: what it holds is lost.
                    self.stats.failed_blocks += filling.blocks();
                }
                return Err(Refused::Unread(cause));
            }
        }
        self.packs.filling = Some(filling);
        self.close_if_due();
        Ok(())
    }

    /// Whether so many bytes can be added now. Closes the pack that has no space for them if another one can be
    /// written.
    fn has_space(&mut self, bytes: usize) -> bool {
        self.close_if_due();
        let most = usize::try_from(MAX_PACK_BYTES).expect("64-bit addresses");
        let fits = |filling: &Filling| !self.is_full(filling) && filling.bytes + bytes <= most;
        if self.packs.filling.as_ref().is_none_or(fits) {
            return true;
        }
        let can_write = self.packs.can_write();
        if can_write {
            self.close_pack();
        }
        can_write
    }

    fn is_full(&self, filling: &Filling) -> bool {
        filling.bytes as u64 >= self.options.pack_bytes || filling.catalog_bytes >= CATALOG_BYTES
    }

    /// Publishes the pack that is being filled if it is full or has waited long enough, and it is its turn.
    fn close_if_due(&mut self) {
        let now = self.member.clock.now();
        let is_due = |filling: &Filling| self.is_full(filling) || filling.due.expired(now);
        if self.packs.filling.as_ref().is_some_and(is_due) && self.packs.can_write() {
            self.close_pack();
        }
    }

    /// Publishes the pack that is being filled.
    fn close_pack(&mut self) {
        let Some(mut filling) = self.packs.filling.take() else { return };
        if self.is_late(filling.begun) {
            self.stats.failed_blocks += filling.blocks();
            return self.packs.keep_memory(filling.memory);
        }
        let number = self.packs.next_number();
        let extents = filling.encode_headers(self.member.writer, number);
        let Filling { mut memory, bytes, applied, begun, .. } = filling;
        let payload = memory.memory().split_to(bytes);
        let name = self.member.writer.object(Object::Pack(number));
        self.member.tier.publish(
            name,
            vec![payload],
            self.replies.ask(tag_of(name.object), PUBLISH_LIMIT),
        );
        let pack = CatalogPack { number, bytes: bytes as u64, extents };
        self.packs
            .writing
            .insert(number, WritingPack { pack, memory, applied, begun: Some(begun) });
    }

    fn is_late(&self, begun: Nanos) -> bool {
        self.member.clock.now().since(begun) > PUBLISHED_WITHIN
    }

    /// Handles what the location has answered, and publishes a pack that is due, and catalogs of complete ones. Returns
    /// how many are being written, or wait for their catalog.
    pub fn advance(&mut self) -> usize {
        while let Some(reply) = self.replies.arrived() {
            self.handle(reply.tag, reply.result);
        }
        self.close_if_due();
        self.publish_catalogs();
        self.packs.under_way()
    }

    fn publish_catalogs(&mut self) {
        for writing in self.packs.take_catalogs(self.member.clock.now()) {
            let number = writing.catalog.number;
            let name = self.member.writer.object(Object::Catalog(number));
            // It may appear although that fails.
            self.member.index.known().add_catalog(&writing.catalog);
            let bytes = vec![Memory::owned(writing.catalog.encode(), ())];
            let ask = self.replies.ask(tag_of(name.object), PUBLISH_LIMIT);
            self.member.tier.publish(name, bytes, ask);
            self.packs.catalogs.insert(number, writing);
        }
    }

    fn handle(&mut self, tag: u64, result: Result<(), IoError>) {
        let number = tag / 2;
        if tag.is_multiple_of(2) {
            self.handle_pack(number, result);
        } else {
            self.handle_catalog(number, result);
        }
    }

    fn handle_pack(&mut self, number: u64, result: Result<(), IoError>) {
        let Some(writing) = self.packs.writing.remove(&number) else { return };
        let WritingPack { pack, memory, applied, begun } = writing;
        self.packs.keep_memory(memory);
        match (result, begun.filter(|begun| !self.is_late(*begun))) {
            (Ok(()), Some(begun)) => {
                self.packs.add_complete(pack, applied, begun, self.member.clock.now());
            }
            (Ok(()), None) => self.drop_pack(&pack),
            (Err(error), _) => {
                self.note_failure(number, &error);
                self.drop_pack(&pack);
            }
        }
    }

    fn handle_catalog(&mut self, number: u64, result: Result<(), IoError>) {
        let Some(WritingCatalog { catalog, begun }) = self.packs.catalogs.remove(&number) else {
            return;
        };
        let is_wanted = begun.is_some_and(|begun| !self.is_late(begun));
        match result {
            Ok(()) if is_wanted => self.publish_index(&catalog),
            ended => {
                if let Err(error) = ended {
                    self.note_failure(number, &error);
                }
                self.stats.failed_blocks += catalog.blocks();
                self.folder.add_failed(&catalog);
            }
        }
    }

    fn note_failure(&mut self, number: u64, error: &IoError) {
        let writer = self.member.writer;
        tracing::warn!(%writer, number, %error, "not published; the blocks are only stored here");
        self.is_full |= error.is_no_space();
        self.stats.full += u64::from(error.is_no_space());
    }

    /// Counts a pack that is not published, and removes what is there of it later.
    fn drop_pack(&mut self, pack: &CatalogPack) {
        self.stats.failed_blocks += pack.blocks();
        self.folder.add_failed_pack(pack.number);
    }

    fn publish_index(&mut self, catalog: &Catalog) {
        for pack in &catalog.packs {
            self.stats.packs += 1;
            self.stats.bytes += pack.bytes;
        }
        self.stats.blocks += catalog.blocks();
        self.folder.add(catalog);
        self.index_own(catalog);
    }

    fn index_own(&self, catalog: &Catalog) {
        let file = |pack| self.member.tier.file(self.member.writer.object(Object::Pack(pack)));
        let indexed = self.member.index.insert(catalog, file);
        indexed.forgotten.into_iter().for_each(|file| self.member.tier.forget(file));
    }

    /// The removals that are applied in this store, as they were set last.
    #[must_use]
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Sets the removals that are applied in this store. Packs that are begun from now on are not covered by them. The
    /// pack that is being filled is closed, because its blocks may have been put before.
    pub fn set_applied(&mut self, applied: Applied) {
        if self.applied != applied {
            self.close_pack();
            self.packs.begin_next_catalog();
            self.applied = applied;
        }
    }

    /// Publishes removals for all hosts, and stops finding here what they cover. Removals that are published already
    /// are left out. A location without space loses packs of this store for them. Waits for the location.
    ///
    /// # Errors
    ///
    /// That of the location. Then some are not published. The blocks are gone from the index even so.
    pub fn publish_removals(&mut self, removals: &[Removal]) -> Result<(), IoError> {
        self.lists.apply(removals);
        for _ in 1..LIST_TRIES {
            match self.lists.publish(removals) {
                Err(error) if error.is_no_space() && self.own_bytes() > 0 => {
                    self.stats.full += 1;
                    self.is_full = true;
                    self.evict_packs()?;
                }
                published => return published,
            }
        }
        self.lists.publish(removals)
    }

    /// Drops everything that is not published yet: it may have been removed by hosts that this one did not follow for
    /// too long.
    pub fn drop_unpublished(&mut self) {
        if let Some(filling) = self.packs.filling.take() {
            self.stats.failed_blocks += filling.blocks();
            self.packs.keep_memory(filling.memory);
        }
        self.packs.writing.values_mut().for_each(|writing| writing.begun = None);
        self.packs.catalogs.values_mut().for_each(|writing| writing.begun = None);
        for pack in self.packs.take_complete() {
            self.drop_pack(&pack);
        }
    }

    /// Shows that this writer runs. If others collected its folder, forgets the packs that are gone. Waits for the
    /// location.
    ///
    /// # Errors
    ///
    /// That of the location.
    pub fn beat(&mut self) -> Result<(), IoError> {
        self.folder.beat()
    }

    /// Counts the folders of earlier opens, and evicts from them first.
    pub fn take_over(&mut self, found: EarlierFolders) {
        self.earlier.take_over(found);
    }

    /// When the next search for such folders is to begin, if one was given up since the last call.
    pub fn take_search_due(&mut self) -> Option<Nanos> {
        self.earlier.take_search_due()
    }

    /// Sets the bound on the bytes of this store's packs.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.options.capacity_bytes = bytes;
        self.packs.bound_groups(bytes / self.options.pack_bytes);
    }

    /// Removes the oldest packs of this store beyond the bound, one more if the location had no space, what is left
    /// of packs that could not be published, and lists of removals that newer ones contain. Of what earlier opens left,
    /// some is removed in each call. Waits for the location.
    pub fn evict(&mut self) -> Result<(), IoError> {
        match self.lists.remove_superseded() {
            Err(error) if error.is_late() => Err(error),
            lists => self.evict_packs().and(lists),
        }
    }

    fn evict_packs(&mut self) -> Result<(), IoError> {
        let mut bound = self.options.capacity_bytes;
        if self.is_full {
            bound = bound.min(self.own_bytes().saturating_sub(self.options.pack_bytes));
        }
        self.earlier.evict(bound.saturating_sub(self.folder.bytes()))?;
        if self.earlier.bytes() == 0 {
            self.stats.evicted_packs += self.folder.evict(bound);
        }
        self.is_full = false;
        self.folder.remove_leaving()
    }

    /// Publishes what is being filled, and waits for everything that is being written.
    pub fn finish(&mut self, deadline: Deadline) {
        self.close_pack();
        self.packs.begin_next_catalog();
        self.publish_catalogs();
        while !self.packs.is_idle()
            && let Some(reply) = self.replies.next(deadline)
        {
            self.handle(reply.tag, reply.result);
            self.publish_catalogs();
        }
        self.stats.failed_blocks += self.packs.blocks();
        self.lists.finish(deadline);
    }
}

/// The tag of a call that publishes an object.
fn tag_of(object: Object) -> u64 {
    match object {
        Object::Pack(number) => 2 * number,
        Object::Catalog(number) => 2 * number + 1,
        _ => unreachable!("only packs and catalogs are published without waiting"),
    }
}
