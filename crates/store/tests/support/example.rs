// The store that the examples of the documentation use, in a temporary directory.
use dalsegno_store::{Config, KvLayout, Namespace, NamespaceId, RegisterOptions, Store};

pub fn store() -> (tempfile::TempDir, Store, NamespaceId) {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity: Some(64 << 20), dram: Some(1 << 20), ..Config::default() };
    let store = Store::open(dir.path(), &config).unwrap();
    let layout = KvLayout::new(2, 4096).unwrap();
    let namespace = Namespace::builder(layout).field("model", "example").build().unwrap();
    store.register(&namespace, RegisterOptions::default()).unwrap();
    (dir, store, namespace.id())
}
