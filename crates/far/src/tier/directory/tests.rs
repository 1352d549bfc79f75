use super::*;
use crossbeam_channel::{Receiver, bounded};
use dalsegno_io::SystemClock;

use crate::replies::wait_for;
use crate::tier::TierState;

const LIMIT: Duration = Duration::from_secs(60);

/// A tier whose directory is opened when the test drops the other end of `held`.
fn held_tier(path: &Path, held: Receiver<()>) -> Result<DirectoryTier, IoError> {
    let of_opener = path.to_owned();
    let open = move || {
        assert!(held.recv().is_err());
        SharedDirectory::open(&of_opener)
    };
    let directory = LateDirectory::with(LocationPath::of(path), Box::new(open));
    let options = DirectoryTierOptions { workers: 4, queue: 64 };
    DirectoryTier::open_late(directory, options, Arc::new(SystemClock::new()))
}

#[test]
fn a_file_system_that_hangs_delays_an_open_for_a_second_and_is_used_when_it_responds() {
    let dir = tempfile::tempdir().unwrap();
    let (release, held) = bounded(0);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let began = clock.now();
    let tier = held_tier(dir.path(), held).unwrap();
    let took = clock.now().since(began);
    assert!((OPEN_TIMEOUT..LIMIT).contains(&took), "{took:?}");
    assert_eq!(tier.facts().state, TierState::Opening);
    let error = wait_for(&clock, LIMIT, |ask| tier.space(ask)).unwrap_err();
    assert!(error.to_string().contains("does not respond"), "{error}");
    drop(release);
    let until = Deadline::At(clock.now().after(LIMIT));
    while wait_for(&clock, LIMIT, |ask| tier.space(ask)).is_err() {
        assert!(!until.expired(clock.now()), "the directory is never opened");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(tier.facts().state, TierState::Open);
}

#[test]
fn a_directory_that_is_missing_is_an_error_of_the_open() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let options = DirectoryTierOptions::default();
    let error = DirectoryTier::open(&missing, options, Arc::new(SystemClock::new()));
    assert!(error.unwrap_err().is_not_found());
}
