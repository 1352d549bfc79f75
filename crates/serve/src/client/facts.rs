//! What a client knows of the store of its server.

use dalsegno_core::{Limits, StoreId};

/// What a server says of its store.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) store: StoreId,
    /// As JSON.
    pub(super) limits: serde_json::Value,
}

impl Default for Facts {
    /// Nothing is known: zeros.
    fn default() -> Self {
        let limits = serde_json::to_value(Limits::default()).expect("plain fields");
        Self { store: StoreId::default(), limits }
    }
}
