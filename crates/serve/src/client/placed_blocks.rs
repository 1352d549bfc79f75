//! Blocks in the pool of a server, as a load copies them layer by layer.

use std::sync::Arc;

use dalsegno_io::CopySource;
use dalsegno_store::PlacedSource;

use super::attachment::Attachment;
use crate::wire::PlaceRow;

/// Blocks of a server that this process copies layer by layer.
pub(super) struct ServedPlaces {
    server: Arc<Attachment>,
    numbers: Vec<u32>,
    rows: Vec<PlaceRow>,
    block_bytes: usize,
}

impl ServedPlaces {
    /// Blocks with these numbers in their load. Each has a row.
    pub(super) fn new(
        server: &Arc<Attachment>,
        numbers: &[usize],
        rows: Vec<PlaceRow>,
        block_bytes: usize,
    ) -> Self {
        let number = |at: &usize| u32::try_from(*at).expect("a load has fewer blocks");
        let numbers = numbers.iter().map(number).collect();
        Self { server: Arc::clone(server), numbers, rows, block_bytes }
    }
}

impl PlacedSource for ServedPlaces {
    fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    fn source(&self, at: usize, offset: usize, bytes: usize) -> CopySource {
        self.server.arena().source(self.rows[at], offset, bytes)
    }

    fn is_current(&self, at: usize) -> bool {
        self.server.arena().is_current(self.rows[at], self.block_bytes)
    }
}
