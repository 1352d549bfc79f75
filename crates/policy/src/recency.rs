//! When extents were last used, and how a use of a chain reaches all that it depends on.
//!
//! 1. An ancestor is at least as recently used as its descendants: a use of an extent raises all of its ancestors that
//!    are there. Eviction goes by recency, so it never takes a prefix before what was stored behind it.
//! 2. Time is counted in *rounds*, each named by the sequence number of the log at its beginning. A round lasts as long
//!    as a segment takes writes. Uses of one extent in one round are one use: a request looks up, loads, stores and
//!    finishes, and is still one request.
//! 3. An extent that was raised in this round has ancestors that were raised in it, too. So a walk ends there, and most
//!    uses cost one look.
//! 4. An *orphan* lies behind an extent that was evicted. It can be read from the middle of a chain, and is the
//!    first to go until somebody uses it.
//! 5. Copying or merging an extent keeps when and how often it was used.

/// Uses that count: an extent that was used in another round than the one it was written in.
const REPEATED: u8 = 2;
/// Ancestors that one use raises at most. Chains of more extents exist only until they are merged.
pub const MOST_ANCESTORS: usize = 4096;

/// What orders extents by use: the round of the last one, and of a chain's extents its end before its beginning. An
/// orphan comes before everything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recency(u64, u32);

/// How an extent was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The round of its last use, or any other sequence number that orders it among those.
    last: u64,
    /// Position of its first block in the chain.
    depth: u32,
    /// Rounds in which it was used, the one it was written in included; saturating.
    uses: u8,
    /// Whether an ancestor was evicted and it was not used since.
    is_orphan: bool,
}

impl Use {
    /// Of an extent that is written in this round.
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

    /// What orders extents by use. A chain is as recent as its last use, and its end goes first.
    #[must_use]
    pub fn recency(self) -> Recency {
        if self.is_orphan { Recency::default() } else { Recency(self.last, u32::MAX - self.depth) }
    }

    /// Whether it was used in another round than the one it was written in.
    #[must_use]
    pub fn is_repeated(self) -> bool {
        self.uses >= REPEATED
    }

    /// Whether an ancestor was evicted and it was not used since.
    #[must_use]
    pub fn is_orphan(self) -> bool {
        self.is_orphan
    }

    /// Whether it was used in `round` or later.
    #[must_use]
    pub fn is_raised(self, round: u64) -> bool {
        self.last >= round && !self.is_orphan
    }

    /// A use in `round`. `false` if it was raised in this round before.
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

    /// Makes it at least as recently used as what depends on it, without a use. `false` if it is already.
    pub fn lift(&mut self, last: u64) -> bool {
        let is_older = self.last < last;
        self.last = self.last.max(last);
        is_older
    }

    /// An ancestor was evicted. `false` if it is an orphan already.
    pub fn orphan(&mut self) -> bool {
        !std::mem::replace(&mut self.is_orphan, true)
    }

    /// Of an extent made of this one and another one.
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

/// Extents and what they depend on.
pub trait Ancestry {
    /// An extent.
    type Extent;

    /// Raises an extent; `false` if it was raised before, so that its ancestors were, too.
    fn raise(&self, extent: &Self::Extent) -> bool;

    /// The extent that holds the block before its first one, if it is there.
    fn parent(&self, extent: &Self::Extent) -> Option<Self::Extent>;
}

/// Raises an extent and its ancestors, up to one that was raised before, one without a parent, or one whose parent is
/// missing.
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
