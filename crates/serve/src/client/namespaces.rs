//! The namespaces that a client uses, for all servers that it meets.
//!
//! Nobody holds the lock during a call, so no call waits for what another one does with a namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use dalsegno_core::{Error, Namespace, NamespaceId, Result};
use dalsegno_store::RegisterOptions;
use parking_lot::Mutex;

/// Namespaces, and how they are registered.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Mutex<BTreeMap<NamespaceId, Known>>);

/// A namespace.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) namespace: Arc<Namespace>,
    pub(super) options: RegisterOptions,
}

impl Namespaces {
    /// Adds a namespace, or changes how it is registered. What `options` leave open stays as it is.
    pub(super) fn add(&self, namespace: &Namespace, options: RegisterOptions) {
        let mut known = self.0.lock();
        let before = known.get(&namespace.id()).and_then(|known| known.options.compression);
        let options = RegisterOptions { compression: options.compression.or(before) };
        let one = Known { namespace: Arc::new(namespace.clone()), options };
        known.insert(namespace.id(), one);
    }

    /// Adds a namespace that the server knows.
    pub(super) fn learn(&self, namespace: &Namespace) {
        let options = RegisterOptions::default();
        let one = || Known { namespace: Arc::new(namespace.clone()), options };
        self.0.lock().entry(namespace.id()).or_insert_with(one);
    }

    /// A namespace, if it was added.
    pub(super) fn find(&self, id: NamespaceId) -> Option<Known> {
        self.0.lock().get(&id).cloned()
    }

    /// A namespace.
    ///
    /// # Errors
    ///
    /// `Invalid` if it was not registered.
    pub(super) fn get(&self, id: NamespaceId) -> Result<Arc<Namespace>> {
        let unknown = || Error::invalid(format!("namespace {id} is unknown; register it first"));
        Ok(self.find(id).ok_or_else(unknown)?.namespace)
    }

    /// All.
    pub(super) fn all(&self) -> Vec<Namespace> {
        self.0.lock().values().map(|known| Namespace::clone(&known.namespace)).collect()
    }
}
