//! Writes the seeds of the corpus from a small store: `make fuzz-seeds`.

#![expect(clippy::disallowed_methods, reason = "a tool of the tests, outside of any store")]

use std::fs;
use std::path::Path;

use dalsegno_fuzz::{
    TARGETS, applied_seed, catalog_seeds, removal_seeds, seed_files, session_seeds,
};

const SECTOR: usize = 4096;

/// The bytes without trailing zeros, which every target adds again.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    assert!(TARGETS.iter().any(|known| known.name == target), "{target} is no target");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder).expect("a folder of the repository");
    fs::write(folder.join(name), bytes).expect("a file of the repository");
}

/// Records of a segment: one of each kind and codec.
fn records(segment: &[u8]) {
    let mut seen = std::collections::BTreeSet::new();
    for sector in (SECTOR..segment.len()).step_by(SECTOR) {
        let record = &segment[sector..];
        if record.starts_with(b"DSGNRECD") {
            let (kind, codec) = (record[72], record[192]);
            if seen.insert((kind, codec)) {
                let header = trimmed(&record[..SECTOR]);
                write("record", &format!("kind-{kind}-codec-{codec}"), &header[8..]);
            }
        }
    }
}

/// A table: the whole file, its footer, its filter and a block.
fn table(name: &str, bytes: &[u8]) {
    let footer_at = bytes.len() - SECTOR;
    let field = |at: usize| {
        let bytes = bytes[footer_at + at..].first_chunk().expect("8 bytes");
        usize::try_from(u64::from_le_bytes(*bytes)).expect("inside of the file")
    };
    let (filter, index) = (field(64), field(72));
    write("filter", name, trimmed(&bytes[filter + 8..index]));
    for (part, block) in [("data", &bytes[..SECTOR]), ("index", &bytes[index..footer_at])] {
        // Its trailer follows its entries: the target moves it to the end of the block.
        let entries = trimmed(&block[..SECTOR - 64]);
        let wanted = b"p";
        let mut seed = vec![u8::try_from(wanted.len()).expect("short")];
        seed.extend_from_slice(wanted);
        seed.extend_from_slice(entries);
        seed.extend_from_slice(&block[SECTOR - 68..SECTOR - 4]);
        write("block", &format!("{name}-{part}"), &seed);
    }
    if bytes.len() <= 6 * SECTOR {
        write("table", name, trimmed(bytes));
    }
}

fn main() {
    for (name, bytes) in seed_files() {
        match name.rsplit_once('.') {
            Some((_, "log")) => {
                write("sector", &name, trimmed(&bytes[..SECTOR - 4]));
                records(&bytes);
            }
            Some((_, "manifest")) => manifest(&name, &bytes),
            Some((_, "table")) => table(&name, &bytes),
            _ if name == "segments.meta" => write("list", &name, trimmed(&bytes)),
            _ if name == "store.meta" => write("sector", &name, trimmed(&bytes[..SECTOR - 4])),
            _ => write("namespace", &name, trimmed(&bytes[..SECTOR - 4])),
        }
    }
    others();
}

/// A manifest, and the checkpoint in it.
fn manifest(name: &str, bytes: &[u8]) {
    write("manifest", name, trimmed(bytes));
    let length = |at: usize| {
        let bytes = bytes[at..].first_chunk().expect("8 bytes");
        usize::try_from(u64::from_le_bytes(*bytes)).expect("inside of the file")
    };
    let (body, checkpoint) = (length(48), length(80));
    write("checkpoint", name, &bytes[SECTOR + body - checkpoint..SECTOR + body]);
}

/// Seeds that no single file of a store holds.
fn others() {
    let mut shrunk = vec![1, 0x40, 0, 0];
    shrunk.extend((0_u8..64).flat_map(|at| [at, 0x3f]));
    write("unit", "numbers", &shrunk);
    write("unit", "zeros", &[0; 400]);
    write("key", "order", &[&b"o"[..], &[3; 44], &[9, 1, 1, 2, 1, 2, 8], &[7; 90]].concat());
    write("key", "fork", &[&b"f"[..], &[3; 52]].concat());
    write("key", "point", &[&[3; 16][..], &[0, 5, 1, 1, 1]].concat());
    write("settings", "some", br#"{"capacity": "2GiB", "dram": 0, "index": "lsm"}"#);
    write("settings", "shape", br#"{"index_tuning": "T=4,K=2", "segment": 1048576}"#);
    write("settings", "fields", b"model=m\nsalt=s\n12.5 MiB");
    for (name, bytes) in catalog_seeds() {
        write("catalog", name, trimmed(&bytes));
    }
    for (name, bytes) in removal_seeds() {
        write("removals", name, trimmed(&bytes));
    }
    write("applied", "far.meta", trimmed(&applied_seed()));
    for (number, seed) in session_seeds().iter().enumerate() {
        write("session", &format!("talk-{number:02}"), seed);
    }
    write("reply", "acquired", &[5, 7, 2, 0, 2, 2, 1, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    write("reply", "failed", b"\x0a\x02\x03why");
    write("reply", "removals", &[&[9, 1][..], &[4; 96]].concat());
    write("store", "untouched", &[0]);
    write("store", "untouched-memory", &[2]);
    for file in 0_u8..8 {
        write("store", &format!("change-{file}"), &[file & 3, file, 80, 0, 0, 2, 1, 1]);
        write("store", &format!("cut-{file}"), &[file & 2, file, 0, 16, 0, 0]);
    }
}
