//! Runs each target over its corpus, then over random changes of it for a moment. `make fuzz` runs longer, and guided.
#![expect(clippy::disallowed_methods, reason = "a test reads its corpus and the clock")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "reports what the test ran")]

#[path = "../../crates/io/tests/common/dose.rs"]
mod dose;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use dalsegno_fuzz::{Random, TARGETS, mutate};
use dose::dose;

/// For each target, in the small dose and the full one.
const TIME: Duration = Duration::from_millis(250);
const FULL_TIME: Duration = Duration::from_secs(20);
/// Longer inputs find nothing that shorter ones do not.
const MOST_BYTES: usize = 64 << 10;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// One test, for memory is measured for the whole process.
#[test]
fn no_target_finds_a_bug_in_its_corpus_or_near_it() {
    let mut random = Random::new(0x5eed);
    let time = dose(TIME, FULL_TIME);
    for target in TARGETS {
        let seeds = corpus(target.name);
        assert!(!seeds.is_empty(), "{} has no corpus", target.name);
        for seed in &seeds {
            target.check(seed);
        }
        let (started, mut runs) = (Instant::now(), 0_u64);
        while started.elapsed() < time {
            let [one, other] = [(); 2].map(|()| &seeds[random.below(seeds.len())]);
            let mut input = mutate(one, other, &mut random);
            input.truncate(MOST_BYTES);
            let kept = Kept(target.name, &input);
            target.check(&input);
            std::mem::forget(kept);
            runs += 1;
        }
        println!("{}: {runs} inputs", target.name);
    }
}

/// Keeps the input when the target panics.
struct Kept<'a>(&'a str, &'a [u8]);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-input", self.0));
        fs::write(&path, self.1).unwrap();
        println!("{} fails with {}", self.0, path.display());
    }
}
