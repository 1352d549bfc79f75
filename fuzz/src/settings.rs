//! Input from people and from Python: settings, sizes, the fields of a namespace.

use dalsegno_core::{Config, KvLayout, Namespace, SpaceFacts, format_bytes, parse_bytes};

/// Text as settings in JSON and as a size; bytes as a namespace.
pub(crate) fn settings(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        if let Ok(config) = Config::from_json(text) {
            let space =
                SpaceFacts { free_bytes: 1 << 40, own_bytes: 0, existing_segment_bytes: None };
            let _ = config.validate(space);
            let tight = SpaceFacts {
                free_bytes: 3 << 20,
                own_bytes: u64::MAX,
                existing_segment_bytes: Some(u64::MAX),
            };
            let _ = config.validate(tight);
        }
        if let Ok(bytes) = parse_bytes(text) {
            let _ = format_bytes(bytes);
        }
        let layout = KvLayout::new(1, 4096).expect("a layout");
        let fields = text.split('\n').filter_map(|line| line.split_once('='));
        let builder = fields
            .fold(Namespace::builder(layout), |builder, (tag, value)| builder.field(tag, value));
        if let Ok(namespace) = builder.build() {
            assert_eq!(Namespace::decode(&namespace.encode()).expect("its own form"), namespace);
        }
    }
    if let Ok(namespace) = Namespace::decode(input) {
        assert!(namespace.encode() == input, "it has two forms");
    }
}
