//! What names a block in a store.

use dalsegno_core::{ChainHash, NamespaceId};

/// A block: its namespace and its hash.
pub(crate) type BlockKey = (NamespaceId, ChainHash);
