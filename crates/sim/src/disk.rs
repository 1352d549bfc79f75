//! The content of the disk: what reads see now, and what a power cut would leave of it.
//!
//! 1. `durable` of a file changes only by a sync, by its creation, by rot, and by a power cut.
//! 2. `dirty` has, for each sector written since the last sync, every content since then. A power cut leaves one of
//!    them or the durable one.
//! 3. Data that a failed sync dropped is visible until the file is opened again past the cache, and never durable.
//! 4. The same holds for `durable_names` and `name_changes`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dalsegno_core::SECTOR_BYTES;

use crate::random::Random;

/// Bytes of a sector.
pub const SECTOR: usize = 4096;

/// `None` reads as zeros.
type Sector = Option<Arc<[u8; SECTOR]>>;

/// A sector that was not synced at a power cut, or the start and end of a file whose name was not synced. Its content
/// is random.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The file.
    pub file: String,
    /// Byte offset of the sector.
    pub offset: u64,
}

#[derive(Clone, Debug, Default)]
struct File {
    now: Vec<Sector>,
    durable: Vec<Sector>,
    dirty: BTreeMap<usize, Vec<Sector>>,
    /// Data that a failed sync dropped but the cache still has.
    dropped: BTreeSet<usize>,
}

/// Files by inode, and the names that point to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: BTreeMap<String, Vec<Option<u64>>>,
    next_inode: u64,
    pub(crate) total_bytes: u64,
}

fn index(offset: u64) -> usize {
    usize::try_from(offset / SECTOR_BYTES).expect("64-bit addresses")
}

impl File {
    fn new(bytes: u64) -> Self {
        let sectors = vec![None; index(bytes)];
        Self { now: sectors.clone(), durable: sectors, ..Self::default() }
    }

    fn bytes(&self) -> u64 {
        self.now.len() as u64 * SECTOR_BYTES
    }

    fn put(&mut self, at: usize, sector: Sector) {
        self.dirty.entry(at).or_default().push(sector.clone());
        self.dropped.remove(&at);
        self.now[at] = sector;
    }
}

impl Disk {
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self { total_bytes, ..Self::default() }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.names.values().map(|inode| self.files[inode].bytes()).sum()
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.used_bytes())
    }

    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(crate) fn bytes(&self, inode: u64) -> u64 {
        self.files[&inode].bytes()
    }

    pub(crate) fn list(&self) -> impl Iterator<Item = (&String, u64)> {
        self.names.iter().map(|(name, inode)| (name, self.files[inode].bytes()))
    }

    /// Creates a file of zeros. All but its name is durable.
    pub(crate) fn create(&mut self, name: &str, bytes: u64) -> u64 {
        self.next_inode += 1;
        self.files.insert(self.next_inode, File::new(bytes));
        self.rename(name, Some(self.next_inode));
        self.next_inode
    }

    /// Cuts the power while a file is created. If its name survives, the file has any size up to the wanted one, which
    /// is returned.
    pub(crate) fn create_in_part(&mut self, name: &str, bytes: u64, random: &mut Random) -> u64 {
        let part = match random.below(3) {
            0 => 0,
            1 => bytes,
            _ => random.below(index(bytes) + 1) as u64 * SECTOR_BYTES,
        };
        self.create(name, part);
        part
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.rename(name, None);
    }

    fn rename(&mut self, name: &str, inode: Option<u64>) {
        self.name_changes.entry(name.to_owned()).or_default().push(inode);
        match inode {
            Some(inode) => self.names.insert(name.to_owned(), inode),
            None => self.names.remove(name),
        };
    }

    pub(crate) fn sync_names(&mut self) {
        for name in std::mem::take(&mut self.name_changes).into_keys() {
            self.settle_name(name);
        }
    }

    /// Like [`Self::fail_sync`], for names.
    pub(crate) fn fail_sync_names(&mut self, random: &mut Random) {
        for name in std::mem::take(&mut self.name_changes).into_keys() {
            if random.percent(50) {
                self.settle_name(name);
            }
        }
    }

    fn settle_name(&mut self, name: String) {
        match self.names.get(&name) {
            Some(inode) => self.durable_names.insert(name, *inode),
            None => self.durable_names.remove(&name),
        };
    }

    /// Reads sectors at `offset`. Returns the bytes that the file has there, at most `len`.
    pub(crate) fn read(&self, inode: u64, offset: u64, len: usize) -> Vec<u8> {
        let file = &self.files[&inode];
        let first = index(offset).min(file.now.len());
        let end = (first + len / SECTOR).min(file.now.len());
        let mut bytes = Vec::with_capacity(len);
        for sector in &file.now[first..end] {
            match sector {
                Some(sector) => bytes.extend_from_slice(&sector[..]),
                // Not `resize`, which is a loop over bytes unless it is optimized.
                None => bytes.extend_from_slice(&[0; SECTOR]),
            }
        }
        bytes
    }

    /// Writes the sectors for which `arrives` is true. Returns the number of bytes within the file.
    pub(crate) fn write(
        &mut self,
        inode: u64,
        offset: u64,
        bytes: &[u8],
        mut arrives: impl FnMut(usize) -> bool,
    ) -> usize {
        let file = self.files.get_mut(&inode).expect("an open file exists");
        let first = index(offset);
        let mut within = 0;
        for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            if first + number >= file.now.len() {
                break;
            }
            within += SECTOR;
            let at = first + number;
            if arrives(number) {
                let content: [u8; SECTOR] = sector.try_into().expect("an exact chunk");
                file.put(at, Some(Arc::new(content)));
            } else {
                // Dirty, as if it had been written with its present content.
                file.put(at, file.now[at].clone());
            }
        }
        within
    }

    pub(crate) fn sync(&mut self, inode: u64) {
        let file = self.files.get_mut(&inode).expect("an open file exists");
        for at in std::mem::take(&mut file.dirty).into_keys() {
            file.durable[at].clone_from(&file.now[at]);
        }
    }

    /// A sync that fails. Part of the dirty data becomes durable, the rest never will, and nothing is dirty any more.
    pub(crate) fn fail_sync(&mut self, inode: u64, random: &mut Random) {
        let file = self.files.get_mut(&inode).expect("an open file exists");
        for at in std::mem::take(&mut file.dirty).into_keys() {
            if random.percent(50) {
                file.durable[at].clone_from(&file.now[at]);
            } else {
                file.dropped.insert(at);
            }
        }
    }

    /// Drops from the cache what need not be written back.
    pub(crate) fn forget_cached(&mut self, inode: u64) {
        let file = self.files.get_mut(&inode).expect("an open file exists");
        for at in std::mem::take(&mut file.dropped) {
            file.now[at].clone_from(&file.durable[at]);
        }
    }

    /// Flips one stored bit in any file whose name starts with `prefix`. Returns where.
    pub(crate) fn rot(&mut self, prefix: &str, random: &mut Random) -> Option<(String, u64)> {
        let stored: Vec<(&String, u64, usize)> = self
            .names
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .flat_map(|(name, inode)| {
                let sectors = self.files[inode].now.iter().enumerate();
                sectors
                    .filter(|(_, sector)| sector.is_some())
                    .map(move |(at, _)| (name, *inode, at))
            })
            .collect();
        if stored.is_empty() {
            return None;
        }
        let (name, inode, at) = *random.pick(&stored);
        let (name, bit) = (name.clone(), random.below(SECTOR * 8));
        let file = self.files.get_mut(&inode).expect("listed");
        for sector in [&mut file.now[at], &mut file.durable[at]].into_iter().flatten() {
            Arc::make_mut(sector)[bit / 8] ^= 1 << (bit % 8);
        }
        Some((name, at as u64 * SECTOR_BYTES + bit as u64 / 8))
    }

    /// Applies a power cut. The device writes `atom_bytes` completely or not at all: 4096, or 512 for a device that may
    /// tear sectors.
    pub(crate) fn power_cut(&self, atom_bytes: usize, random: &mut Random) -> Self {
        let mut left =
            Self { next_inode: self.next_inode, total_bytes: self.total_bytes, ..Self::default() };
        left.names.clone_from(&self.durable_names);
        for (name, changes) in &self.name_changes {
            let chosen = random.below(changes.len() + 1);
            let inode = match chosen.checked_sub(1) {
                None => self.durable_names.get(name).copied(),
                Some(change) => changes[change],
            };
            match inode {
                Some(inode) => left.names.insert(name.clone(), inode),
                None => left.names.remove(name),
            };
        }
        for inode in left.names.values() {
            left.files.insert(*inode, survivor(&self.files[inode], atom_bytes, random));
        }
        left.durable_names.clone_from(&left.names);
        left
    }

    /// Sectors whose content after a power cut is random.
    pub(crate) fn unsettled(&self) -> Vec<Torn> {
        let mut torn = Vec::new();
        for (name, inode) in self.names.iter().chain(&self.durable_names) {
            let file = &self.files[inode];
            let dirty = file.dirty.keys().map(|at| *at as u64 * SECTOR_BYTES);
            torn.extend(dirty.map(|offset| Torn { file: name.clone(), offset }));
            if self.name_changes.contains_key(name) {
                torn.extend([0, file.bytes()].map(|offset| Torn { file: name.clone(), offset }));
            }
        }
        torn
    }
}

/// A file after a power cut.
fn survivor(file: &File, atom_bytes: usize, random: &mut Random) -> File {
    let mut sectors = file.durable.clone();
    // Sometimes a whole file survives or nothing of it, because caches are written back file by file.
    let stays_percent = *random.pick(&[0, 100, 50, 80]);
    for (at, versions) in &file.dirty {
        let mut content = sectors[*at].as_ref().map_or([0; SECTOR], |sector| **sector);
        let whole = random.percent(stays_percent).then(|| random.below(versions.len()));
        for atom in (0..SECTOR).step_by(atom_bytes) {
            let version = if atom_bytes == SECTOR {
                whole
            } else {
                random.percent(stays_percent).then(|| versions.len() - 1)
            };
            if let Some(version) = version {
                let range = atom..atom + atom_bytes;
                match &versions[version] {
                    Some(sector) => content[range.clone()].copy_from_slice(&sector[range]),
                    None => content[range].fill(0),
                }
            }
        }
        sectors[*at] = Some(Arc::new(content));
    }
    File { now: sectors.clone(), durable: sectors, ..File::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_with(content: u8) -> (Disk, u64) {
        let mut disk = Disk::new(1 << 30);
        let inode = disk.create("f", 8 * SECTOR_BYTES);
        disk.sync_names();
        disk.write(inode, 0, &[content; 2 * SECTOR], |_| true);
        disk.sync(inode);
        (disk, inode)
    }

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_any_state_of_what_was_not() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (mut disk, inode) = disk_with(1);
            disk.write(inode, SECTOR_BYTES, &[2; SECTOR], |_| true);
            disk.write(inode, SECTOR_BYTES, &[3; SECTOR], |_| true);
            let left = disk.power_cut(SECTOR, &mut Random::new(seed));
            assert_eq!(left.read(inode, 0, SECTOR), [1; SECTOR]);
            let content = left.read(inode, SECTOR_BYTES, SECTOR);
            assert!(content.iter().all(|byte| *byte == content[0]), "a sector is an atom");
            seen.insert(content[0]);
        }
        assert_eq!(seen, [1, 2, 3].into());
    }

    #[test]
    fn a_name_that_was_not_synced_may_have_any_state_it_had() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let (mut disk, old) = disk_with(1);
            disk.remove("f");
            let new = disk.create("f", SECTOR_BYTES);
            assert_ne!(old, new);
            seen.insert(disk.power_cut(SECTOR, &mut Random::new(seed)).find("f"));
        }
        assert_eq!(seen.len(), 3, "old, gone, new");
    }

    #[test]
    fn what_a_failed_sync_dropped_is_never_made_durable_by_a_later_one() {
        let lost = (0..50).filter(|seed| {
            let (mut disk, inode) = disk_with(1);
            disk.write(inode, 0, &[9; SECTOR], |_| true);
            disk.fail_sync(inode, &mut Random::new(*seed));
            disk.sync(inode);
            assert_eq!(disk.read(inode, 0, SECTOR), [9; SECTOR], "still in the cache");
            disk.power_cut(SECTOR, &mut Random::new(1)).read(inode, 0, SECTOR) == [1; SECTOR]
        });
        assert!((10..40).contains(&lost.count()));
    }
}
