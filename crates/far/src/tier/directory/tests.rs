use super::*;
use crossbeam_channel::{Receiver, bounded};
use dalsegno_core::{Nanos, Stopped};
use dalsegno_io::{SystemClock, Workers};

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

/// Queues a call that hangs until the test drops the other end of `held`; waits until it runs.
fn hang(tier: &DirectoryTier, lane: &JobLane, held: &Receiver<()>) {
    let (held, (start, started)) = (held.clone(), bounded(1));
    tier.queue(lane, Deadline::Never, move |permission| {
        start.send(permission.is_ok()).unwrap();
        assert!(held.recv().is_err());
    });
    assert!(started.recv_timeout(LIMIT).unwrap());
}

/// Queues a call that reports whether it may run.
fn report(
    tier: &DirectoryTier,
    lane: &JobLane,
    deadline: Deadline,
) -> Receiver<Result<(), IoError>> {
    let (reply, result) = bounded(1);
    tier.queue(lane, deadline, move |permission| reply.send(permission).unwrap());
    result
}

fn small_tier(path: &Path) -> DirectoryTier {
    let options = DirectoryTierOptions { workers: 2, queue: 2 };
    DirectoryTier::open(path, options, Arc::new(SystemClock::new())).unwrap()
}

#[test]
fn writes_that_hang_leave_all_threads_to_reads_and_reads_to_writes() {
    let dir = tempfile::tempdir().unwrap();
    let tier = small_tier(dir.path());
    for (hanging, other) in [(&tier.others, &tier.reads), (&tier.reads, &tier.others)] {
        let (release, held) = bounded(0);
        for lane in [hanging, hanging, other] {
            hang(&tier, lane, &held);
        }
        let queued = report(&tier, hanging, Deadline::Never);
        let result = report(&tier, other, Deadline::Never);
        assert!(result.recv_timeout(LIMIT).unwrap().is_ok());
        assert!(queued.try_recv().is_err());
        drop(release);
        assert!(queued.recv_timeout(LIMIT).unwrap().is_ok());
    }
}

#[test]
fn a_call_that_is_late_or_refused_or_queued_at_the_end_gets_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let tier = small_tier(dir.path());
    let late = report(&tier, &tier.reads, Deadline::At(Nanos::default()));
    assert!(matches!(late.recv_timeout(LIMIT).unwrap(), Err(IoError::Stopped(Stopped::Deadline))));
    let (release, held) = bounded(0);
    (0..2).for_each(|_| hang(&tier, &tier.others, &held));
    let queued = [(); 2].map(|()| report(&tier, &tier.others, Deadline::Never));
    let refused = report(&tier, &tier.others, Deadline::Never);
    assert!(matches!(refused.try_recv().unwrap(), Err(IoError::Stopped(Stopped::Busy))));
    let mut workers = Workers::new();
    workers.start("drops", move || drop(tier)).unwrap();
    for result in queued {
        assert!(matches!(result.recv_timeout(LIMIT).unwrap(), Err(IoError::Closed)));
    }
    drop(release);
    workers.join(LIMIT);
}

#[test]
fn a_directory_that_is_missing_is_an_error_of_the_open() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let options = DirectoryTierOptions::default();
    let error = DirectoryTier::open(&missing, options, Arc::new(SystemClock::new()));
    assert!(error.unwrap_err().is_not_found());
}
