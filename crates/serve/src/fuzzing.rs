//! Entry points for fuzzing what arrives over a socket, without a feature: see those of the index.

use std::sync::Arc;

use dalsegno_core::Clock;
use dalsegno_store::{Namespace, Pool};

use crate::account::{Accounts, Bounds, ClientId, LeaseShare, SessionSlot};
use crate::session::{Answer, Session};
use crate::wire::{self, Look, Reply, Request, VERSION};

/// A client without a socket.
#[derive(Debug)]
pub struct Talk(Session);

impl Talk {
    /// Connects to a pool.
    ///
    /// # Panics
    ///
    /// Never: it is the first connection.
    #[must_use]
    pub fn open(pool: Pool, clock: Arc<dyn Clock>) -> Self {
        let capacity = pool.usage().map_or(0, |usage| usage.capacity_bytes);
        let bounds = Bounds::of_pool(capacity, LeaseShare::default(), 16, Bounds::SESSIONS);
        let accounts = Accounts::new(bounds, 0, Arc::clone(&clock), Arc::default());
        let slot = SessionSlot::open(&accounts, ClientId { process: 1, user: 1 });
        Self(Session::new(pool, clock, slot.expect("the first connection")).impatient())
    }

    /// Sends a message. Returns whether the connection goes on.
    ///
    /// # Panics
    ///
    /// If the answer is too long, or does not decode.
    pub fn send(&mut self, message: &[u8]) -> bool {
        let answer = self.0.handle(message, Vec::new());
        self.0.slot().rest();
        match answer {
            Answer::Nothing => true,
            Answer::End(_) | Answer::TakenOver => false,
            Answer::Send { bytes, .. } => {
                assert!(
                    bytes.len() <= wire::MOST_FRAME_BYTES,
                    "an answer of {} bytes",
                    bytes.len()
                );
                assert!(wire::decode::<Reply>(&bytes).is_ok(), "an answer that does not decode");
                true
            }
        }
    }
}

/// One message of each kind about a namespace, as a client that behaves sends them.
#[must_use]
pub fn messages(namespace: &Namespace) -> Vec<Vec<u8>> {
    let id = namespace.id().0;
    let timeout_ns = Some(1_000_000);
    let requests = [
        Request::Hello { version: VERSION },
        Request::Register { encoding: namespace.encode(), codec: Some(("zstd".to_owned(), 2)) },
        Request::Namespaces { skip: 0 },
        Request::Look { namespace: id, how: Look::Contains },
        Request::Look { namespace: id, how: Look::Locate },
        Request::Look { namespace: id, how: Look::Stored },
        Request::Acquire { namespace: id, each: true, timeout_ns },
        Request::Lease { namespace: id, timeout_ns },
        Request::Release { leases: vec![1, 2] },
        Request::Stats,
        Request::Watch { capacity: 8 },
        Request::Remove { namespace: id, all: false, timeout_ns },
        Request::Take { limit: 9 },
        Request::Waiting,
        Request::Window,
        Request::Phase { engine: 1, phase: 0, slack_ns: 5_000_000, steps: vec![1_000, 1_050] },
        Request::Put {
            namespace: id,
            first: 0,
            count: 1,
            offset: 4096,
            ticket: 0,
            timeout_ns,
            pool_only: true,
        },
    ];
    requests.iter().map(wire::encode).collect()
}

/// Decodes an answer and its tail in every way that a client does.
pub fn answer(bytes: &[u8]) {
    if let Ok((reply, tail)) = wire::decode::<Reply>(bytes) {
        let again = [wire::encode(&reply), tail.to_vec()].concat();
        assert_eq!(wire::decode::<Reply>(&again).map(|(reply, _)| reply), Ok(reply));
        drop((wire::rows_of(tail), wire::removals_of(tail), wire::located_of(tail)));
    }
    crate::client::understand(bytes);
}
