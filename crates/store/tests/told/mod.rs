//! What the children of one store told, and what must therefore be there after a cut.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use dalsegno_core::NamespaceId;
use dalsegno_store::{Finding, Terms, inspect};

use crate::support::{chain, get};
use crate::{BLOCKS, LATEST, MOST_LATE, Opened, Round, VICTIM, VICTIM_BLOCKS, hot};

/// Where a chain of victims stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Between two acknowledgements.
    Begun,
    Removed,
    Back,
}

/// What the children of one store told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) puts: Vec<u64>,
    /// So many of them came before the child that is at work.
    pub(crate) earlier_puts: usize,
    /// So many more came before it ended, too late to promise anything.
    pub(crate) late_puts: usize,
    pub(crate) grown: BTreeMap<u64, usize>,
    pub(crate) victims: BTreeMap<u64, Victim>,
    is_hot: bool,
    /// Findings of `verify`.
    pub(crate) torn: usize,
}

impl Told {
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
            // What the test harness says.
            _ => {}
        }
    }

    /// What is told once the power is cut promises nothing: XFS lets a sync that the cut meets end well although what
    /// it was to sync is lost, and on a machine without power nobody would be told. But what was begun may be done.
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
    /// the chain was no more recent than the rest and may have been evicted; and the next child may end before it
    /// says a word.
    pub(crate) fn look_at_hot(&mut self, opened: &Opened) {
        self.is_hot = opened.get(&hot()) == BLOCKS;
    }

    /// Checks an open store; returns what is lost of it, or said to be present and is not.
    pub(crate) fn check(&self, opened: &Opened, round: Round) -> Vec<String> {
        // On a busy machine the child may go on for so long that what it put before makes room.
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
            // What may be evicted may be gone, but not said to be there.
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

    /// What `verify` finds that cannot be of a put that the cut met: an extent of which a block was acknowledged. Only
    /// of names that are put once; and a copy that was not finished may be of any block. Victims have the same hashes
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
