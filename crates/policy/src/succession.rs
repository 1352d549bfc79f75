//! Which extent holds a block after an open, if two extents in the log have it.
//!
//! An extent that is indexed is the newcomer; an extent that holds some of its blocks in the index is a holder. The
//! older one may be the remainder of a put that a crash tore, or it was quarantined and the block was put again. A
//! newcomer that was made of its holders replaces them, but only if all of it is on disk.
//!
//! | holder | newcomer | the newcomer's bytes | the holder |
//! |---|---|---|---|
//! | newer, moved | any | any | keeps its blocks |
//! | newer, put | any | any | gives its bad blocks |
//! | older | put | any | gives its bad blocks |
//! | older | moved | durable, or readable | gives all its blocks |
//! | older | moved | torn | gives its bad blocks |

/// How an extent came into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A put wrote it.
    Put,
    /// It was made of one or several other extents.
    Moved,
}

/// Which of two extents was written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// The holder was written before the newcomer.
    Older,
    /// The holder was written after the newcomer.
    Newer,
}

/// What a holder does with the blocks that the newcomer has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It keeps them.
    KeepsAll,
    /// It gives those up whose bytes are bad.
    GivesBad,
    /// It gives all of them up.
    GivesAll,
}

/// An extent that is indexed when a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// How it came into the log.
    pub origin: Origin,
    /// How many older extents hold blocks of it.
    pub older_holders: usize,
    /// Whether every merge up to it is known to be durable. Only an extent made of several others is.
    pub is_settled: bool,
}

impl Newcomer {
    /// Whether it replaces the older extents that hold its blocks. `is_readable` reads all of it, only if needed.
    pub fn replaces_older(&self, is_readable: impl FnOnce() -> bool) -> bool {
        let is_durable = self.is_settled && self.older_holders > 1;
        self.origin == Origin::Moved && self.older_holders > 0 && (is_durable || is_readable())
    }

    /// Whether it may be a torn merge, so that a later open must not trust it either. If none of its parts is indexed,
    /// it is doubtful if the open could not read something: its parts may be there.
    pub fn is_doubtful(&self, is_readable: impl FnOnce() -> bool, has_faults: bool) -> bool {
        if self.origin == Origin::Put || self.is_settled {
            return false;
        }
        if self.older_holders > 0 { !is_readable() } else { has_faults }
    }
}

/// What one holder does; `replaces_older` is [`Newcomer::replaces_older`].
#[must_use]
pub fn ruling(age: Age, holder: Origin, replaces_older: bool) -> Ruling {
    match (age, holder, replaces_older) {
        // An on-disk index refers to a moved extent only once that is durable.
        (Age::Newer, Origin::Moved, _) => Ruling::KeepsAll,
        (Age::Newer, Origin::Put, _) | (Age::Older, _, false) => Ruling::GivesBad,
        (Age::Older, _, true) => Ruling::GivesAll,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Age::{Newer, Older};
    use Origin::{Moved, Put};
    use Ruling::{GivesAll, GivesBad, KeepsAll};

    #[test]
    fn each_row_of_the_table_has_its_ruling() {
        let rows = [
            (Newer, Moved, false, KeepsAll),
            (Newer, Moved, true, KeepsAll),
            (Newer, Put, false, GivesBad),
            (Newer, Put, true, GivesBad),
            (Older, Put, false, GivesBad),
            (Older, Moved, false, GivesBad),
            (Older, Put, true, GivesAll),
            (Older, Moved, true, GivesAll),
        ];
        for (age, holder, replaces_older, expected) in rows {
            assert_eq!(ruling(age, holder, replaces_older), expected, "{age:?} {holder:?}");
        }
    }

    #[test]
    fn a_newcomer_replaces_older_extents_if_it_was_made_of_them_and_is_whole() {
        // (origin, older holders, settled, readable, replaces)
        let rows = [
            (Put, 0, false, true, false),
            (Put, 1, false, true, false),
            (Put, 2, true, true, false),
            (Moved, 0, false, true, false),
            (Moved, 0, true, true, false),
            (Moved, 1, false, true, true),
            (Moved, 1, false, false, false),
            // A single extent that moved need not be durable.
            (Moved, 1, true, false, false),
            (Moved, 1, true, true, true),
            (Moved, 2, false, true, true),
            (Moved, 2, false, false, false),
            (Moved, 2, true, false, true),
            (Moved, 2, true, true, true),
        ];
        for (origin, older_holders, is_settled, is_readable, expected) in rows {
            let newcomer = Newcomer { origin, older_holders, is_settled };
            assert_eq!(newcomer.replaces_older(|| is_readable), expected, "{newcomer:?}");
        }
    }

    #[test]
    fn a_merge_is_doubtful_until_it_is_settled_or_read() {
        // (origin, older holders, settled, readable, faults, doubtful)
        let rows = [
            (Put, 1, false, false, true, false),
            (Moved, 1, true, false, true, false),
            (Moved, 0, true, false, true, false),
            (Moved, 1, false, true, true, false),
            (Moved, 1, false, false, false, true),
            (Moved, 2, false, false, false, true),
            (Moved, 0, false, false, false, false),
            (Moved, 0, false, true, true, true),
        ];
        for (origin, older_holders, is_settled, is_readable, has_faults, expected) in rows {
            let newcomer = Newcomer { origin, older_holders, is_settled };
            assert_eq!(newcomer.is_doubtful(|| is_readable, has_faults), expected, "{newcomer:?}");
        }
    }

    #[test]
    fn a_settled_merge_of_several_extents_is_not_read() {
        let newcomer = Newcomer { origin: Moved, older_holders: 2, is_settled: true };
        let must_not_read = || panic!("read for nothing");
        assert!(newcomer.replaces_older(must_not_read));
    }
}
