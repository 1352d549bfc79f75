//! An open store as a member of a location.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_io::IoError;

use crate::index::FarIndex;
use crate::names::WriterId;
use crate::replies::wait_for;
use crate::tier::{Ask, Tier};

/// How long one call of what a store publishes may take.
pub(crate) const PUBLISH_LIMIT: Duration = Duration::from_secs(60);
/// How long one call of following and collecting may take.
pub(crate) const FOLLOW_LIMIT: Duration = Duration::from_secs(30);

/// What publishing to a location and following it share.
#[derive(Clone, Debug)]
pub struct Member {
    /// The location.
    pub tier: Arc<dyn Tier>,
    /// What this store found there.
    pub index: Arc<FarIndex>,
    /// The time of this host.
    pub clock: Arc<dyn Clock>,
    /// The name under which this open of the store writes.
    pub writer: WriterId,
}

impl Member {
    /// Makes one call of the location, and waits for its reply.
    ///
    /// # Errors
    ///
    /// See [`wait_for`].
    pub fn ask<T>(
        &self,
        limit: Duration,
        call: impl FnOnce(&dyn Tier, Ask<T>),
    ) -> Result<T, IoError> {
        wait_for(&self.clock, limit, |ask| call(&*self.tier, ask))
    }
}
