//! What tests and simulations see and do inside a store: steps of the far tier, where the caller does the work of its
//! threads; what they led to; and space of the log that is taken.

use std::sync::{Arc, Weak};

use dalsegno_core::{Class, Result};
use dalsegno_far::Applied;
use dalsegno_io::Call;
use dalsegno_log::{Reservation, Writer};

use crate::api::store::Store;
use crate::error::to_error;
use crate::far_work::lanes::FarStep;

/// Space of the log that a put under way has reserved, until it is dropped. Then it becomes a void if the log is open.
#[derive(Debug)]
pub struct HeldSpace {
    place: Reservation,
    writer: Weak<Writer>,
}

impl Drop for HeldSpace {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.upgrade() {
            writer.give_up(&self.place);
        }
    }
}

/// Reserves space as a put does.
///
/// # Errors
///
/// `Full`, `Poisoned`, `Unavailable`, `Closed`.
pub fn hold_space(store: &Store, bytes: u64) -> Result<HeldSpace> {
    let store = store.door.enter()?;
    let place = store.workers.space.reserve(bytes, &Call::of(Class::Need)).map_err(to_error)?;
    Ok(HeldSpace { place, writer: Arc::downgrade(store.workers.stored.log.writer()) })
}

/// Does one step of the far tier on the caller's thread. Does nothing without a far tier, or if threads do the work.
///
/// # Errors
///
/// `Closed`.
pub fn step_far(store: &Store, step: FarStep) -> Result<()> {
    if let Some(far) = &store.door.enter()?.workers.far {
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
    let far = store.meters.far.as_ref();
    Ok(far.map(|far| far.outbox.publisher.lock().applied().clone()).unwrap_or_default())
}
