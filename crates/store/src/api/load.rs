//! A load in the background, as callers hold it.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{ChainHash, KvLayout, Result};
use dalsegno_io::{Memory, PagedBlocks, Process};

use crate::jobs::transfers::Transfer;
use crate::load::progress::{LayerOrder, LayerOutcome, LoadProgress};
use crate::read::outcome::GetReport;
use crate::sizes::{check_get, check_layer, check_pages};

/// Where a load puts blocks.
#[derive(Debug)]
pub enum LoadTarget {
    /// Memory of the caller, for each block its layers one after the other.
    Blocks(Vec<Vec<Memory>>),
    /// Pages of the KV cache of an engine. The blocks pass through places of the DRAM tier, and stay there.
    Pages(PagedBlocks),
}

/// A load in the background. Its layers become ready while it runs. Dropping it does not stop it.
#[derive(Debug)]
pub struct Load {
    /// The transfer of all layers.
    pub transfer: Transfer<GetReport>,
    /// Its layers.
    pub layers: LoadLayers,
}

/// The layers of a load, as its caller waits for them.
#[derive(Debug)]
pub struct LoadLayers {
    progress: Arc<LoadProgress>,
    count: u32,
    process: Process,
}

impl LoadTarget {
    /// Checks that it has memory for blocks of this layout, one for each hash. Fails with `Invalid`.
    pub fn check(&self, layout: KvLayout, chain: &[ChainHash]) -> Result<()> {
        match self {
            Self::Blocks(out) => check_get(layout, chain, out),
            Self::Pages(pages) => check_pages(layout, chain.len(), pages),
        }
    }
}

impl Load {
    /// A load of blocks with `layers` layers.
    #[must_use]
    pub fn new(transfer: Transfer<GetReport>, progress: Arc<LoadProgress>, layers: u32) -> Self {
        let layers = LoadLayers { progress, count: layers, process: Process::this() };
        Self { transfer, layers }
    }
}

impl LoadLayers {
    /// How a layer ended; `None` if slices of it may still come. Never waits. In a forked child it is lost.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no such layer.
    pub fn outcome(&self, layer: u32) -> Result<Option<LayerOutcome>> {
        self.wait(layer, Some(Duration::ZERO))
    }

    /// Whether all layers have ended: the load is about to end as well. Never waits.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        (0..self.count).all(|layer| matches!(self.outcome(layer), Ok(Some(_))))
    }

    /// Waits until a layer has ended, at most `timeout`; `None` if it has not. In a forked child it is lost.
    ///
    /// # Errors
    ///
    /// As [`LoadLayers::outcome`].
    pub fn wait(&self, layer: u32, timeout: Option<Duration>) -> Result<Option<LayerOutcome>> {
        check_layer(layer, self.count)?;
        if !self.process.is_this() {
            return Ok(Some(LayerOutcome::Lost));
        }
        Ok(self.progress.wait_layer(layer, timeout))
    }

    /// Waits until the work of a device can be ordered behind a layer, at most `timeout`; `None` if that is not known
    /// yet. Only for loads to pages of a device. In a forked child the layer is lost.
    ///
    /// # Errors
    ///
    /// As [`LoadLayers::outcome`].
    pub fn wait_order(&self, layer: u32, timeout: Option<Duration>) -> Result<Option<LayerOrder>> {
        check_layer(layer, self.count)?;
        if !self.process.is_this() {
            return Ok(Some(LayerOrder::Never));
        }
        Ok(self.progress.wait_order(layer, timeout))
    }
}
