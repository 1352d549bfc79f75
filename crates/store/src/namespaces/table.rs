//! The namespaces that a store knows.

use std::collections::HashMap;
use std::sync::Arc;

use dalsegno_core::{Compression, Error, Namespace, NamespaceId, Result};
use parking_lot::{Mutex, MutexGuard, RwLock};

/// Which namespaces there are, and how new extents of theirs are stored.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    known: RwLock<HashMap<NamespaceId, (Arc<Namespace>, Compression)>>,
    /// Held while a namespace is registered. Calls that look a namespace up do not wait for that.
    registering: Mutex<()>,
}

/// The right to add namespaces.
pub(crate) struct Registration<'a> {
    table: &'a NamespaceTable,
    _held: MutexGuard<'a, ()>,
}

impl NamespaceTable {
    pub(crate) fn new(namespaces: impl IntoIterator<Item = (Namespace, Compression)>) -> Self {
        let entry = |(namespace, compression): (Namespace, Compression)| {
            (namespace.id(), (Arc::new(namespace), compression))
        };
        let known = namespaces.into_iter().map(entry).collect();
        Self { known: RwLock::new(known), registering: Mutex::default() }
    }

    /// A registered namespace.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not registered.
    pub(crate) fn get(&self, id: NamespaceId) -> Result<Arc<Namespace>> {
        let found = self.known.read().get(&id).map(|(namespace, _)| Arc::clone(namespace));
        found.ok_or_else(|| {
            Error::invalid(format!(
                "namespace {id} is not registered with this store; register it first"
            ))
        })
    }

    /// How new extents of a namespace are stored.
    pub(crate) fn compression(&self, id: NamespaceId) -> Compression {
        self.known.read().get(&id).map(|(_, compression)| *compression).unwrap_or_default()
    }

    /// Whether a namespace is registered, and new extents of it are stored as `wanted` says. Without `wanted`, any way
    /// counts.
    pub(crate) fn is_known(&self, id: NamespaceId, wanted: Option<Compression>) -> bool {
        let known = self.known.read();
        known.get(&id).is_some_and(|(_, now)| wanted.is_none_or(|wanted| wanted == *now))
    }

    /// All of them, by id.
    pub(crate) fn list(&self) -> Vec<Namespace> {
        let known = self.known.read();
        let mut all: Vec<Namespace> =
            known.values().map(|(namespace, _)| Namespace::clone(namespace)).collect();
        all.sort_by_key(Namespace::id);
        all
    }

    /// Waits until no other call registers a namespace.
    pub(crate) fn begin_registration(&self) -> Registration<'_> {
        Registration { table: self, _held: self.registering.lock() }
    }
}

impl Registration<'_> {
    /// How a namespace is stored now, if it is known, and how many are known.
    pub(crate) fn find(&self, id: NamespaceId) -> (Option<Compression>, usize) {
        let known = self.table.known.read();
        (known.get(&id).map(|(_, compression)| *compression), known.len())
    }

    pub(crate) fn insert(self, namespace: Arc<Namespace>, compression: Compression) {
        self.table.known.write().insert(namespace.id(), (namespace, compression));
    }
}
