//! What the children of one store reported, and what must therefore be there after a power cut.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use dalsegno_core::NamespaceId;
use dalsegno_store::{Finding, Terms, inspect};

use crate::support::{chain, get};
use crate::{BLOCKS, LATEST, MOST_LATE, Opened, Round, VICTIM, VICTIM_BLOCKS, hot};

/// The state of a chain of victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Between two acknowledgements.
    Begun,
    Removed,
    Back,
}

/// The reports of the children of one store.
#[derive(Default)]
pub(crate) struct ChildReports {
    pub(crate) puts: Vec<u64>,
    /// How many of them came before the current child.
    pub(crate) earlier_puts: usize,
    /// How many more came before it ended, too late to promise anything.
    pub(crate) late_puts: usize,
    pub(crate) grown: BTreeMap<u64, usize>,
    pub(crate) victims: BTreeMap<u64, Victim>,
    is_hot: bool,
    /// Findings of `verify`.
    pub(crate) torn: usize,
}

impl ChildReports {
    pub(crate) fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().unwrap();
        match words[..] {
            ["put", name] => self.puts.push(number(name)),
            ["grown", name, blocks] => {
                let most = self.grown.entry(number(name)).or_default();
                *most = blocks.parse::<usize>().unwrap().max(*most);
            }
            ["begun", name] => drop(self.victims.insert(number(name), Victim::Begun)),
            ["removed", name] => drop(self.victims.insert(number(name), Victim::Removed)),
            ["back", name] => drop(self.victims.insert(number(name), Victim::Back)),
            ["hot" | "cold"] => self.is_hot = line == "hot",
            // Output of the test harness.
            _ => {}
        }
    }

    /// A report after the power is cut promises nothing. On XFS a sync that the cut meets succeeds although its data is
    /// lost, and without power no report would leave the machine. But an operation that was started may be complete.
    pub(crate) fn take_late(&mut self, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["begun" | "removed" | "back", name] => {
                self.victims.insert(name.parse().unwrap(), Victim::Begun);
            }
            ["put", _] => self.late_puts += 1,
            _ => {}
        }
    }

    /// Notes whether the hot chain is still there after a put of the parent. The check before it read everything, so
    /// the chain was no more recent than the rest and may have been evicted. The next child may end before it reports.
    pub(crate) fn look_at_hot(&mut self, opened: &Opened) {
        self.is_hot = opened.get(&hot()) == BLOCKS;
    }

    /// Checks an open store; returns the blocks that are lost, or that the store calls present and are not.
    pub(crate) fn check(&self, opened: &Opened, round: Round) -> Vec<String> {
        // On a busy machine the child may run for so long that its own earlier blocks are evicted.
        let latest = if self.late_puts > MOST_LATE { 0 } else { LATEST };
        let evicted = self.puts.len().saturating_sub(latest).max(self.earlier_puts);
        let mut lost = Vec::new();
        let mut expect = |what: &dyn std::fmt::Display, blocks: usize, hits: usize| {
            if hits < blocks {
                lost.push(format!("{what}: {hits} of {blocks} blocks"));
            }
        };
        for (at, name) in self.puts.iter().enumerate() {
            let chain = chain(*name, BLOCKS);
            let present = opened.store.probe(opened.blocks, &chain).unwrap();
            let hits = opened.get(&chain);
            // A block that may be evicted may be gone, but then it must not count as present.
            expect(name, if round.is_tight && at < evicted { present } else { BLOCKS }, hits);
        }
        for (name, blocks) in &self.grown {
            expect(name, *blocks, opened.get(&chain(*name, *blocks)));
        }
        if self.is_hot {
            expect(&"hot", BLOCKS, opened.get(&hot()));
        }
        let Opened { store, victims, .. } = opened;
        for (name, victim) in &self.victims {
            let chain = chain(*name, VICTIM_BLOCKS);
            let hits = get(store, *victims, &chain, VICTIM, &Terms::default());
            let present = store.contains(*victims, &chain).unwrap();
            match victim {
                Victim::Begun => {}
                Victim::Removed => assert!(!present.contains(&true), "{name} came back"),
                Victim::Back => expect(name, VICTIM_BLOCKS, hits),
            }
        }
        lost
    }

    /// The findings of `verify` that a put interrupted by the cut does not explain: extents with an acknowledged block.
    /// This holds only for names that are put once. An unfinished copy may hold any block. Victims have the same hashes
    /// in a namespace of their own.
    pub(crate) fn unexplained(
        &self,
        store_dir: &Path,
        namespace: NamespaceId,
        findings: &[Finding],
    ) -> Vec<String> {
        let puts = self.puts.iter().map(|name| (*name, BLOCKS));
        let grown = self.grown.iter().map(|(name, blocks)| (*name, *blocks));
        let blocks = puts.chain(grown).flat_map(|(name, blocks)| chain(name, blocks));
        let acknowledged: HashSet<Vec<u8>> = blocks.map(|hash| hash.0.to_vec()).collect();
        let is_explained = |finding: &&Finding| {
            let Ok(shown) = inspect(store_dir, &finding.file, Some(finding.offset)) else {
                return false;
            };
            let mut hashes = shown.fields.iter().filter(|field| field.name.starts_with("hashes["));
            let field = |name: &str| shown.fields.iter().find(|field| field.name == name);
            let says = |name: &str| field(name).map(|field| &field.says);
            says("born") != says("sequence")
                || field("namespace").is_some_and(|field| field.bytes != namespace.0)
                || !hashes.any(|field| acknowledged.contains(&field.bytes))
        };
        let unexplained = findings.iter().filter(|finding| !is_explained(finding));
        unexplained.map(|finding| format!("{finding:?}")).collect()
    }
}
