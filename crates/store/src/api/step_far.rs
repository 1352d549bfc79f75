//! Steps of the far tier in a simulation, where the caller does the work of its threads, and what they led to.

use dalsegno_core::Result;
use dalsegno_far::Applied;

use crate::api::store::Store;
use crate::far_work::lanes::FarStep;

/// Does one step of the far tier on the caller's thread. Does nothing without a far tier, or if threads do the work.
///
/// # Errors
///
/// `Closed`.
pub fn step_far(store: &Store, step: FarStep) -> Result<()> {
    if let Some(far) = &store.door.enter()?.far {
        far.step_inline(step);
    }
    Ok(())
}

/// The removals that a store has applied; none without a far tier.
///
/// # Errors
///
/// `Closed`.
pub fn applied(store: &Store) -> Result<Applied> {
    let store = store.door.enter()?;
    Ok(store
        .engine
        .far
        .as_ref()
        .map(|far| far.publisher.lock().applied().clone())
        .unwrap_or_default())
}
