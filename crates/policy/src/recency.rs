//! When extents were last used, and how the use of a chain reaches all extents that it depends on.
//!
//! 1. An ancestor is at least as recently used as its descendants: a use of an extent raises all of its present
//!    ancestors. Eviction goes by recency, so it never takes a prefix before its suffix.
//! 2. Time is counted in *rounds*, each identified by the log's sequence number at its start. A round lasts as long as
//!    a segment takes writes. Several uses of one extent in one round count once: the lookup, load, store and end of a
//!    request are one use.
//! 3. If an extent was raised in this round, its ancestors were as well. So a walk ends there, and most uses cost one
//!    step.
//! 4. An *orphan* is an extent behind an evicted one. It can be read from the middle of a chain, and is the first to be
//!    evicted until it is used.
//! 5. Copying or merging an extent preserves when and how often it was used.

/// Uses from which an extent counts as repeatedly used: one in another round than the one it was written in.
const REPEATED: u8 = 2;
/// Most ancestors that one use raises. Longer chains of extents exist only until they are merged.
pub const MOST_ANCESTORS: usize = 4096;

/// Orders extents by use: by the round of the last use, and within one chain and round its end before its start. An
/// orphan is older than everything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recency(u64, u32);

/// How an extent was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The round of its last use, or another sequence number that orders it among rounds.
    last: u64,
    /// Position of its first block in the chain.
    depth: u32,
    /// Rounds in which it was used, including the one it was written in; saturating.
    uses: u8,
    /// Whether an ancestor was evicted since its last use.
    is_orphan: bool,
}

impl Use {
    /// The use of an extent that is written in this round.
    #[must_use]
    pub fn written(round: u64) -> Self {
        Self { last: round, depth: 0, uses: 1, is_orphan: false }
    }

    /// The same use of an extent whose first block has this position in its chain.
    #[must_use]
    pub fn at_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// The round of the last use.
    #[must_use]
    pub fn last(self) -> u64 {
        self.last
    }

    /// The order by use. A chain is as recent as its last use, and its end is evicted first.
    #[must_use]
    pub fn recency(self) -> Recency {
        if self.is_orphan { Recency::default() } else { Recency(self.last, u32::MAX - self.depth) }
    }

    /// Whether it was used in another round than the one it was written in.
    #[must_use]
    pub fn is_repeated(self) -> bool {
        self.uses >= REPEATED
    }

    /// Whether an ancestor was evicted since its last use.
    #[must_use]
    pub fn is_orphan(self) -> bool {
        self.is_orphan
    }

    /// Whether it was used in `round` or later.
    #[must_use]
    pub fn is_raised(self, round: u64) -> bool {
        self.last >= round && !self.is_orphan
    }

    /// Notes a use in `round`. Returns `false` if it was raised in this round before.
    pub fn raise(&mut self, round: u64) -> bool {
        if self.is_raised(round) {
            return false;
        }
        if self.last < round {
            self.last = round;
            self.uses = self.uses.saturating_add(1);
        }
        self.is_orphan = false;
        true
    }

    /// Makes it at least as recent as its dependents, without a use. Returns `false` if it already is.
    pub fn lift(&mut self, last: u64) -> bool {
        let is_older = self.last < last;
        self.last = self.last.max(last);
        is_older
    }

    /// Notes that an ancestor was evicted. Returns `false` if it is an orphan already.
    pub fn orphan(&mut self) -> bool {
        !std::mem::replace(&mut self.is_orphan, true)
    }

    /// The use of an extent merged from this one and another.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            last: self.last.max(other.last),
            depth: self.depth.min(other.depth),
            uses: self.uses.max(other.uses),
            is_orphan: self.is_orphan && other.is_orphan,
        }
    }
}

/// Extents and their ancestors.
pub trait Ancestry {
    /// An extent.
    type Extent;

    /// Raises an extent. Returns `false` if it was raised before, and so were its ancestors.
    fn raise(&self, extent: &Self::Extent) -> bool;

    /// The present extent that contains the block before its first one, if any.
    fn parent(&self, extent: &Self::Extent) -> Option<Self::Extent>;
}

/// Raises an extent and its ancestors, up to one that was raised before, has no parent, or whose parent is missing.
pub fn raise_chain<A: Ancestry>(tree: &A, last: &A::Extent) {
    if !tree.raise(last) {
        return;
    }
    let mut next = tree.parent(last);
    for _ in 0..MOST_ANCESTORS {
        match next {
            Some(extent) if tree.raise(&extent) => next = tree.parent(&extent),
            _ => return,
        }
    }
}
