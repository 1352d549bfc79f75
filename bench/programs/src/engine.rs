//! What a bench asks an index to do.

/// An index. Nothing is synced per put: the data is in a log that replays it.
pub trait Engine {
    /// Puts the blocks of one extent; waits for space if necessary.
    fn put(&mut self, first: u64);
    /// Whether a block is there.
    fn has(&mut self, block: u64) -> bool;
    /// How many blocks of a whole chain are found, from its first on.
    fn scan(&mut self, chain: u64) -> u64;
    /// Waits until nothing is left to do behind the caller's back.
    fn settle(&mut self);
    /// Seconds that opening took, and how many blocks were in tables then.
    fn opened(&self) -> (f64, u64) {
        (0.0, 0)
    }
}
