//! Flushes and merges: what keeps memory bounded and reads cheap, behind everybody's back.
//!
//! 1. One of them at a time.
//! 2. What was removed goes when nothing older can be under it: in a merge that takes the oldest run. A point in a past
//!    epoch of its segment is as good as removed: another place of the block may be under it. An extent in a past
//!    epoch goes in any merge, for whatever is under its key lies there too. Past, that is, as the manifest's sums
//!    know it, so that tables hold what they cover and whatever is taken in again finds what it found.
//! 3. After a failed sync nothing is written any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::NamespaceId;
use dalsegno_io::PageBuffer;
use dalsegno_policy::fluid::{Step, filter_bits, next_step};

use super::keys::{ForkKey, KIND_FORK, KIND_ORDER, KIND_POINT, Point, Record};
use super::merge::{Merge, RunSource, Source, Tables};
use super::table::{Reading, Table, TableError, TableOptions, TableWriter, table_file};
use super::tree::{Frozen, State, Tree};
use super::version::{Run, Version};

/// Bytes that a merge reads of a table at a time.
const MERGE_AHEAD_BYTES: usize = 256 << 10;
/// A fork without its lineage is harmless and to look for the lineage takes a scan, so each merge looks for so many
/// times fewer.
const FORK_TURNS: u64 = 16;

/// What maintenance asks the index for.
pub(crate) trait Living {
    /// Whether a lineage has any extent.
    fn has_lineage(&self, namespace: NamespaceId, lineage: [u8; 16]) -> Result<bool, TableError>;
}

impl Tree {
    /// Does one thing that is due; `false` if nothing is.
    pub(crate) fn step(&self, living: &dyn Living) -> Result<bool, TableError> {
        let _one_at_a_time = self.maintaining.lock();
        if self.has_failed() {
            return Ok(false);
        }
        let state = self.state();
        let done = if let Some((smaller, forgotten)) = self.without_oldest(&state.version) {
            // Counted when they are gone: who sees the number looks at an index without them.
            self.install(smaller, false).inspect(|()| {
                self.counters.forgotten_tables.fetch_add(forgotten, Ordering::Relaxed);
            })
        } else if let Some(step) = self.due(&state.version) {
            // First, or runs would pile up as long as memtables come in. A merge lets those go before its writes.
            self.carry_out(&state.version, &step, living).inspect_err(|_| {
                // It is due again after the next flush, which must not wait for what fails.
                self.is_flushed.store(false, Ordering::Release);
            })
        } else if let Some(frozen) = state.frozen.back() {
            self.flush(&state, frozen)
        } else {
            return Ok(false);
        };
        if let Err(error) = &done {
            self.note(error);
        }
        done.map(|()| true)
    }

    /// What the last flush makes necessary; nothing until the next one when it is done.
    fn due(&self, version: &Version) -> Option<Step> {
        if !self.is_flushed.load(Ordering::Acquire) {
            return None;
        }
        let step = next_step(self.shape(), self.buffer_bytes(), &version.sizes());
        self.is_flushed.store(step.is_some(), Ordering::Release);
        step
    }

    /// Bits of filter per key for a table of a level; `bytes` are those of all tables together.
    fn filter_bits(&self, level: usize, bytes: u64) -> f64 {
        let buffer = self.buffer_bytes();
        #[expect(clippy::cast_precision_loss, reason = "a ratio that need not be exact")]
        let memtables = bytes.max(buffer) as f64 / buffer as f64;
        filter_bits(self.shape(), memtables, level, self.options.filter_bits)
    }

    /// Writes the manifest anew: what a killed process wrote last may not be durable, so nothing is removed on its
    /// word. Without tables there is nothing to say.
    pub(crate) fn renew(&self) -> Result<(), TableError> {
        let _one_at_a_time = self.maintaining.lock();
        let before = self.state().version.clone();
        if before.number == 0 {
            return Ok(());
        }
        self.install(before.with_levels(before.levels.clone()), false)
    }

    /// Writes a manifest of no tables, unless that was done; `false` if it cannot be done.
    pub(crate) fn begin_anew(&self) -> bool {
        let _one_at_a_time = self.maintaining.lock();
        if self.has_failed() {
            return self.is_given_up.load(Ordering::Acquire);
        }
        self.install(self.without_tables(0), false).is_ok()
    }

    /// Gives the tables up: the next open finds none.
    pub(crate) fn condemn(&self) {
        self.is_hurried.store(true, Ordering::Release);
        let _one_at_a_time = self.maintaining.lock();
        self.forget_tables();
    }

    /// As [`Self::condemn`]; and from now on nothing of the tables is found.
    pub(crate) fn empty(&self) {
        self.is_hurried.store(true, Ordering::Release);
        let _one_at_a_time = self.maintaining.lock();
        self.forget_tables();
        let mut state = self.state.write();
        // What memtables show may have led there from tables.
        let version = Arc::new(Version { is_partial: true, ..Version::default() });
        *state = Arc::new(State { version, ..State::clone(&state) });
    }

    /// A version that fits the room on disk, if this one does not: without tables of the oldest run, those with the
    /// largest keys, which are points. A block without its point is a miss; what a newer run says of it stays. Its
    /// record is not told, so from now on none is believed without the point. Also returns how many tables it lacks.
    fn without_oldest(&self, version: &Version) -> Option<(Version, u64)> {
        let mut bytes = version.bytes();
        let most = self.options.disk_bytes / 2;
        if bytes <= most {
            return None;
        }
        let mut levels = version.levels.clone();
        let oldest = levels.iter_mut().rev().find_map(|runs| runs.last_mut())?;
        let mut tables = oldest.tables().to_vec();
        let mut forgotten = 0;
        while bytes > most
            && let Some(table) = tables.pop()
        {
            bytes -= table.file_bytes();
            forgotten += 1;
        }
        tracing::warn!("the index outgrows its {most} bytes on disk and forgets its oldest blocks");
        *oldest = Arc::new(Run::new(tables));
        drop_empty(&mut levels);
        Some((Version { is_partial: true, ..version.with_levels(levels) }, forgotten))
    }

    fn flush(&self, state: &State, frozen: &Arc<Frozen>) -> Result<(), TableError> {
        let mut levels = state.version.levels.clone();
        if levels.is_empty() {
            levels.push(Vec::new());
        }
        let bits = self.filter_bits(0, state.version.bytes());
        let mut output = Output::new(self, bits, false);
        let mut written = Ok(());
        frozen.memtable.drain_sorted(|key, value| {
            if written.is_ok() {
                written = output.add(key, value);
            }
        });
        let run = written.and_then(|()| output.finish())?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(run.bytes(), Ordering::Relaxed);
        if !run.tables().is_empty() {
            levels[0].insert(0, Arc::new(run));
            self.is_flushed.store(true, Ordering::Release);
        }
        let (sums, checkpoint) = (frozen.sums.clone(), frozen.checkpoint.clone());
        self.install(Version { sums, checkpoint, ..state.version.with_levels(levels) }, true)
    }

    fn carry_out(
        &self,
        version: &Version,
        step: &Step,
        living: &dyn Living,
    ) -> Result<(), TableError> {
        let mut levels = version.levels.clone();
        let (inputs, level) = take_out(step, &mut levels);
        let mut merged = None;
        if !inputs.is_empty() {
            let is_oldest = levels[level..].iter().all(Vec::is_empty);
            let bits = self.filter_bits(level, version.bytes());
            let turn = self.counters.merges.load(Ordering::Relaxed);
            let rule = Rule { is_oldest, epochs: epochs_of(version), living, turn };
            let run = self.merge(&inputs, bits, &rule)?;
            self.counters.merges.fetch_add(1, Ordering::Relaxed);
            self.counters.merged_bytes.fetch_add(run.bytes(), Ordering::Relaxed);
            let read = inputs.iter().map(|run| run.bytes()).sum();
            self.counters.merge_read_bytes.fetch_add(read, Ordering::Relaxed);
            merged = Some(run).filter(|run| !run.tables().is_empty());
        }
        // Meanwhile memtables may have been flushed: their runs are the newest ones.
        let now = Arc::clone(&self.state().version);
        let mut levels = now.levels.clone();
        let flushed = now.levels[0].len() - version.levels[0].len();
        let newest: Vec<_> = levels[0].drain(..flushed).collect();
        take_out(step, &mut levels);
        levels[level].splice(0..0, merged.map(Arc::new));
        levels[0].splice(0..0, newest);
        drop_empty(&mut levels);
        self.install(now.with_levels(levels), false)
    }

    /// Lets a memtable go first if one waits. Not more than one for each table that a merge writes: whoever writes
    /// faster than runs are merged has to wait for merges in the end. Fails where the merge must not go on.
    fn give_way(&self) -> Result<(), TableError> {
        let state = self.state();
        let Some(frozen) = state.frozen.back() else { return Ok(()) };
        match self.flush(&state, frozen) {
            Err(error) if !self.has_failed() => {
                // The next step tries it again.
                self.note(&error);
                Ok(())
            }
            flushed => flushed,
        }
    }

    /// Merges runs, newest first, into one.
    fn merge(
        &self,
        inputs: &[Arc<Run>],
        filter_bits: f64,
        rule: &Rule<'_>,
    ) -> Result<Run, TableError> {
        let ahead = Reading::Ahead(MERGE_AHEAD_BYTES);
        let sources: Result<Vec<_>, _> =
            inputs.iter().map(|run| RunSource::new(Arc::clone(run), &[], ahead.clone())).collect();
        let mut merge = Merge::new(sources?);
        let mut output = Output::new(self, filter_bits, true);
        while let Some(key) = merge.key() {
            match rule.fate(key, merge.value())? {
                Fate::Stays => output.add(key, merge.value())?,
                Fate::StaysRemoved => output.add(key, &[])?,
                Fate::Goes => {}
            }
            merge.advance()?;
        }
        output.finish()
    }
}

/// Takes the runs that a step merges out of the levels, the newest first, and says of which level what they become is
/// to be the newest run. Where it merges none it is done.
fn take_out(step: &Step, levels: &mut Vec<Vec<Arc<Run>>>) -> (Vec<Arc<Run>>, usize) {
    match step.clone() {
        Step::Move { from, runs, to } => {
            levels.resize(levels.len().max(to + 1), Vec::new());
            let moved: Vec<_> = levels[from].drain(runs).collect();
            let at = if to > from { 0 } else { levels[to].len() };
            levels[to].splice(at..at, moved);
            (Vec::new(), to)
        }
        Step::Join { runs } => (levels[0].drain(..runs).collect(), 0),
        Step::Down { level, joined } => {
            let mut inputs: Vec<_> = levels[..level].iter_mut().flat_map(std::mem::take).collect();
            inputs.extend(levels[level].drain(..joined));
            (inputs, level)
        }
    }
}

/// Drops runs without tables, and levels without runs at the end.
fn drop_empty(levels: &mut Vec<Vec<Arc<Run>>>) {
    for runs in levels.iter_mut() {
        runs.retain(|run| !run.tables().is_empty());
    }
    while levels.len() > 1 && levels.last().is_some_and(Vec::is_empty) {
        levels.pop();
    }
}

/// What a merge keeps.
struct Rule<'a> {
    /// Whether nothing older is under the merged runs.
    is_oldest: bool,
    epochs: HashMap<u64, u64>,
    living: &'a dyn Living,
    /// Which forks are looked after this time.
    turn: u64,
}

fn epochs_of(version: &Version) -> HashMap<u64, u64> {
    version.sums.iter().map(|sum| (sum.segment, sum.epoch)).collect()
}

/// What becomes of an entry in a merge.
enum Fate {
    Stays,
    /// Without its value: what is older and under it must not come back.
    StaysRemoved,
    Goes,
}

impl Rule<'_> {
    fn fate(&self, key: &[u8], value: &[u8]) -> Result<Fate, TableError> {
        let damaged = TableError::Malformed("an entry");
        let is_past =
            |segment: u64, epoch: u64| self.epochs.get(&segment).is_none_or(|now| *now != epoch);
        let removed = if self.is_oldest { Fate::Goes } else { Fate::StaysRemoved };
        Ok(match key.first() {
            Some(&(KIND_POINT | KIND_ORDER)) if value.is_empty() => removed,
            Some(&KIND_POINT) => {
                let (segment, epoch) = Point::place(value).ok_or(damaged)?;
                if is_past(segment, epoch) { removed } else { Fate::Stays }
            }
            Some(&KIND_ORDER) => {
                let (segment, epoch) = Record::place(value).ok_or(damaged)?;
                if is_past(segment, epoch) { Fate::Goes } else { Fate::Stays }
            }
            Some(&KIND_FORK) if self.is_oldest => {
                let fork = ForkKey::decode(key).ok_or(damaged)?;
                let is_turn = u64::from(fork.child[0]) % FORK_TURNS == self.turn % FORK_TURNS;
                let is_dead = is_turn && !self.living.has_lineage(fork.namespace, fork.child)?;
                if is_dead { Fate::Goes } else { Fate::Stays }
            }
            _ => Fate::Stays,
        })
    }
}

/// A run while it is written, table by table.
struct Output<'a> {
    tree: &'a Tree,
    options: TableOptions,
    is_merge: bool,
    /// Memory for the next table.
    spare: PageBuffer,
    writer: Option<TableWriter<'a>>,
    numbers: Vec<u64>,
    tables: Vec<Arc<Table>>,
    done: bool,
}

impl<'a> Output<'a> {
    fn new(tree: &'a Tree, filter_bits: f64, is_merge: bool) -> Self {
        let options = TableOptions { filter_bits, request_bytes: tree.options.request_bytes };
        let (spare, numbers, tables) = (PageBuffer::default(), Vec::new(), Vec::new());
        Self { tree, options, is_merge, spare, writer: None, numbers, tables, done: false }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        if self.writer.is_none() {
            let number = self.tree.next_number.fetch_add(1, Ordering::Relaxed);
            self.numbers.push(number);
            let files = self.tree.files.as_ref();
            let spare = std::mem::take(&mut self.spare);
            let (store, options) = (self.tree.store, self.options);
            self.writer = Some(TableWriter::new(files, store, number, options).with_memory(spare));
        }
        let writer = self.writer.as_mut().expect("just made");
        writer.add(key, value);
        if writer.estimated_bytes() >= self.tree.options.table_bytes {
            self.close_table()?;
        }
        Ok(())
    }

    fn close_table(&mut self) -> Result<(), TableError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let pace = self.tree.pace.get().filter(|_| self.is_merge);
        (_, self.spare) = writer.finish(&|bytes| {
            if let Some(pace) = pace {
                pace.wait(bytes);
            }
        })?;
        if self.is_merge {
            self.tree.give_way()?;
        }
        let number = *self.numbers.last().expect("a table that is written has a number");
        let table = Table::open(&self.tree.files, self.tree.store, number)?;
        self.tables.push(Arc::new(table));
        Ok(())
    }

    fn finish(mut self) -> Result<Run, TableError> {
        self.close_table()?;
        self.done = true;
        Ok(Run::new(std::mem::take(&mut self.tables)))
    }
}

impl Drop for Output<'_> {
    /// What was not finished helps nobody.
    fn drop(&mut self) {
        if !self.done {
            for number in &self.numbers {
                drop(self.tree.files.remove(&table_file(*number)));
            }
        }
    }
}
