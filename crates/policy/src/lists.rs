//! Several FIFO lists that share one slab. Every operation is O(1), including removal from the middle.
//!
//! 1. An item is on exactly one list: its node has one pair of links and the number of its list.
//! 2. A slot is either on one list or on the free list. Slots are reused, so the slab never outgrows the largest number
//!    of items at one time.

/// Identifies an item until it is removed. Small, because millions of them are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// No slot.
const NONE: Slot = Slot(u32::MAX);

#[derive(Debug)]
struct Node<T> {
    older: Slot,
    newer: Slot,
    list: u8,
    item: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: Slot,
    newest: Slot,
    len: usize,
}

impl Slot {
    /// A slot that no item has.
    pub(crate) const NONE: Self = NONE;

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// `N` lists over one slab, numbered from 0.
#[derive(Debug)]
pub(crate) struct Lists<T, const N: usize> {
    nodes: Vec<Node<T>>,
    /// First free slot. The others follow through `newer`.
    free: Slot,
    ends: [Ends; N],
}

impl<T, const N: usize> Lists<T, N> {
    /// Empty lists.
    pub(crate) fn new() -> Self {
        let empty = Ends { oldest: NONE, newest: NONE, len: 0 };
        Self { nodes: Vec::new(), free: NONE, ends: [empty; N] }
    }

    /// Number of items on a list.
    pub(crate) fn len(&self, list: usize) -> usize {
        self.ends[list].len
    }

    /// The oldest item of a list.
    pub(crate) fn oldest(&self, list: usize) -> Option<Slot> {
        Some(self.ends[list].oldest).filter(|slot| *slot != NONE)
    }

    /// The list that an item is on.
    pub(crate) fn list_of(&self, slot: Slot) -> usize {
        usize::from(self.nodes[slot.index()].list)
    }

    /// The item in a slot, and its list; `None` if the slot is free.
    pub(crate) fn occupant(&self, slot: Slot) -> Option<(usize, &T)> {
        let node = self.nodes.get(slot.index())?;
        Some((usize::from(node.list), node.item.as_ref()?))
    }

    /// An item.
    pub(crate) fn item(&self, slot: Slot) -> &T {
        self.nodes[slot.index()].item.as_ref().expect("the slot is taken")
    }

    /// An item, mutable.
    pub(crate) fn item_mut(&mut self, slot: Slot) -> &mut T {
        self.nodes[slot.index()].item.as_mut().expect("the slot is taken")
    }

    /// Adds an item at the newest end of a list.
    pub(crate) fn push(&mut self, list: usize, item: T) -> Slot {
        let slot = if self.free == NONE {
            let slot = u32::try_from(self.nodes.len()).ok().map(Slot).filter(|slot| *slot != NONE);
            self.nodes.push(Node { older: NONE, newer: NONE, list: 0, item: Some(item) });
            slot.expect("fewer items than 2^32")
        } else {
            let slot = self.free;
            self.free = self.nodes[slot.index()].newer;
            self.nodes[slot.index()].item = Some(item);
            slot
        };
        self.link(list, slot);
        slot
    }

    /// Removes an item.
    pub(crate) fn take(&mut self, slot: Slot) -> T {
        self.unlink(slot);
        let item = self.nodes[slot.index()].item.take().expect("the slot is taken");
        self.nodes[slot.index()].newer = self.free;
        self.free = slot;
        item
    }

    /// Moves an item to the newest end of its own or another list.
    pub(crate) fn relink(&mut self, slot: Slot, list: usize) {
        self.unlink(slot);
        self.link(list, slot);
    }

    fn link(&mut self, list: usize, slot: Slot) {
        let before = self.ends[list].newest;
        let node = &mut self.nodes[slot.index()];
        (node.older, node.newer) = (before, NONE);
        node.list = u8::try_from(list).expect("few lists");
        if before == NONE {
            self.ends[list].oldest = slot;
        } else {
            self.nodes[before.index()].newer = slot;
        }
        self.ends[list].newest = slot;
        self.ends[list].len += 1;
    }

    fn unlink(&mut self, slot: Slot) {
        let Node { older, newer, list, .. } = self.nodes[slot.index()];
        let list = usize::from(list);
        if older == NONE {
            self.ends[list].oldest = newer;
        } else {
            self.nodes[older.index()].newer = newer;
        }
        if newer == NONE {
            self.ends[list].newest = older;
        } else {
            self.nodes[newer.index()].older = older;
        }
        self.ends[list].len -= 1;
    }

    /// The items of a list, oldest first.
    #[cfg(test)]
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = &T> {
        let mut next = self.oldest(list);
        std::iter::from_fn(move || {
            let slot = next?;
            next = Some(self.nodes[slot.index()].newer).filter(|slot| *slot != NONE);
            Some(self.item(slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_from_the_middle_and_slots_are_reused() {
        let mut lists: Lists<u32, 2> = Lists::new();
        let slots: Vec<Slot> = (0..4).map(|i| lists.push(0, i)).collect();
        assert_eq!(lists.take(slots[1]), 1);
        lists.relink(slots[0], 1);
        lists.relink(slots[2], 0);
        assert_eq!(lists.iter(0).copied().collect::<Vec<_>>(), [3, 2]);
        assert_eq!(lists.iter(1).copied().collect::<Vec<_>>(), [0]);
        assert_eq!(lists.push(1, 9), slots[1]);
        assert_eq!((lists.len(0), lists.len(1), lists.nodes.len()), (2, 2, 4));
        assert_eq!(lists.occupant(slots[0]), Some((1, &0)));
        lists.take(slots[0]);
        assert_eq!((lists.occupant(slots[0]), lists.occupant(Slot::NONE)), (None, None));
    }
}
