//! The client of a tier. Its cluster may not respond when the tier is opened.
//!
//! 1. The client is made by the first call that needs it. While one call does that, others wait, each for a bounded
//!    time.
//! 2. After a failure the next try is made by the first call that comes [`RETRY_AFTER`] later.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Clock, Nanos};
use parking_lot::{Condvar, Mutex};

use crate::client::{Client, ClientError, Connect};
use crate::location::MooncakeLocation;

/// How long no try is made after one failed.
const RETRY_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct LateClient {
    location: MooncakeLocation,
    connect: Arc<Connect>,
    clock: Arc<dyn Clock>,
    state: Mutex<ClientState>,
    ended: Condvar,
}

#[derive(Clone)]
enum ClientState {
    /// There is none: nobody tried, or the last try failed.
    Absent(Option<(Nanos, ClientError)>),
    /// A call makes it.
    Connecting,
    Connected(Arc<dyn Client>),
}

impl LateClient {
    pub(crate) fn new(
        location: MooncakeLocation,
        connect: Arc<Connect>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = Mutex::new(ClientState::Absent(None));
        Self { location, connect, clock, state, ended: Condvar::new() }
    }

    /// Whether there is a client.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(*self.state.lock(), ClientState::Connected(_))
    }

    /// The client. Makes it if there is none yet, which may take minutes. Waits at most `limit` for another call that
    /// does.
    pub(crate) fn get(&self, limit: Duration) -> Result<Arc<dyn Client>, ClientError> {
        let mut state = self.state.lock();
        let is_connecting = |state: &mut ClientState| matches!(state, ClientState::Connecting);
        self.ended.wait_while_for(&mut state, is_connecting, limit);
        match &*state {
            ClientState::Connected(client) => return Ok(Arc::clone(client)),
            ClientState::Connecting => {
                return Err(ClientError::NoClient("Mooncake's client is connecting".to_owned()));
            }
            ClientState::Absent(Some((failed, error)))
                if self.clock.now() < failed.after(RETRY_AFTER) =>
            {
                return Err(error.clone());
            }
            ClientState::Absent(_) => {}
        }
        *state = ClientState::Connecting;
        drop(state);
        let made = (self.connect)(&self.location);
        let mut state = self.state.lock();
        match &made {
            Ok(client) => {
                tracing::info!(location = %self.location, "connected to the Mooncake cluster");
                *state = ClientState::Connected(Arc::clone(client));
            }
            Err(error) => {
                tracing::warn!(location = %self.location, %error, "no connection to the Mooncake cluster");
                *state = ClientState::Absent(Some((self.clock.now(), error.clone())));
            }
        }
        self.ended.notify_all();
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use dalsegno_core::{FarOptions, ManualClock};

    use super::*;

    #[test]
    fn a_failed_try_is_repeated_after_a_while_and_not_before() {
        let (tries, clock) = (Arc::new(AtomicU32::new(0)), Arc::new(ManualClock::default()));
        let counted = Arc::clone(&tries);
        let connect: Arc<Connect> = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(ClientError::Code(-900))
        });
        let options = FarOptions { catalogs: Some("/mnt/kv".to_owned()), ..FarOptions::default() };
        let location = MooncakeLocation::parse("mooncake://master", &options).unwrap();
        let client = LateClient::new(location, connect, Arc::clone(&clock) as Arc<dyn Clock>);
        for _ in 0..3 {
            assert_eq!(client.get(Duration::ZERO).err(), Some(ClientError::Code(-900)));
        }
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        clock.advance(RETRY_AFTER);
        assert!(client.get(Duration::ZERO).is_err() && !client.is_connected());
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }
}
