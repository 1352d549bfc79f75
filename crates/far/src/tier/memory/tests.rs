use crossbeam_channel::unbounded;
use dalsegno_core::{ManualClock, Stopped, StoreId};

use super::*;

fn call<T>(act: impl FnOnce(Ask<T>)) -> Result<T, IoError> {
    let (reply, replies) = unbounded();
    act(Ask { tag: 0, deadline: Deadline::Never, reply });
    replies.try_recv().expect("answered before the call returned").result
}

fn name(number: u64) -> ObjectName {
    WriterId { store: StoreId([7; 16]), open: 1 }.object(Object::Pack(number))
}

fn publish(tier: &MemoryTier, number: u64) -> Result<(), IoError> {
    let bytes = vec![Memory::owned(vec![1; 4096], ())];
    call(|ask| tier.publish(name(number), bytes, ask))
}

fn location() -> (MemoryLocation, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (MemoryLocation::new(Arc::clone(&clock) as Arc<dyn Clock>), clock)
}

#[test]
fn a_mount_stops_before_or_after_its_last_change_and_the_other_continues() {
    for (mode, left) in [(StopMode::NotDone, 2), (StopMode::DoneUnanswered, 3)] {
        let (location, _) = location();
        let (stopping, other) = (location.mount(), location.mount());
        stopping.stop_after(2, mode);
        for number in 0..2 {
            publish(&stopping, number).unwrap();
        }
        assert!(!stopping.is_stopped());
        for number in 2..4 {
            assert!(matches!(publish(&stopping, number), Err(IoError::Closed)));
        }
        assert!(stopping.is_stopped());
        assert!(matches!(call(|ask| stopping.writers(ask)), Err(IoError::Closed)));
        let listed = call(|ask| other.list(name(0).writer, None, ask)).unwrap();
        assert_eq!((listed.len(), stopping.changes(), other.changes()), (left, 3, 0));
    }
}

#[test]
fn a_full_location_publishes_nothing_and_reads_on() {
    let (location, _) = location();
    let tier = location.mount();
    publish(&tier, 0).unwrap();
    location.set_full(true);
    assert!(publish(&tier, 1).unwrap_err().is_no_space());
    assert_eq!(call(|ask| tier.space(ask)).unwrap().free_bytes, 0);
    assert_eq!(call(|ask| tier.fetch(name(0), 4096, ask)).unwrap().len(), 4096);
    location.set_full(false);
    publish(&tier, 1).unwrap();
}

#[test]
fn damage_and_truncation_change_what_is_read() {
    let (location, _) = location();
    let tier = location.mount();
    publish(&tier, 0).unwrap();
    assert!(location.damage(name(0), 7) && !location.damage(name(0), 4096));
    assert!(!location.damage(name(1), 0) && !location.truncate(name(1), 0));
    let bytes = call(|ask| tier.fetch(name(0), 4096, ask)).unwrap();
    assert_eq!((bytes[6], bytes[7]), (1, 0xfe));
    assert!(location.truncate(name(0), 10));
    assert_eq!(location.objects(), [(name(0), 10)]);
}

#[test]
fn ages_and_deadlines_follow_the_clock_of_the_location() {
    let (location, clock) = location();
    let tier = location.mount();
    publish(&tier, 0).unwrap();
    clock.advance(Duration::from_secs(3));
    assert_eq!(call(|ask| tier.age(name(0), ask)).unwrap(), Duration::from_secs(3));
    let (reply, replies) = unbounded();
    tier.space(Ask { tag: 9, deadline: Deadline::At(clock.now()), reply });
    let late = replies.try_recv().unwrap();
    assert!(late.tag == 9 && matches!(late.result, Err(IoError::Stopped(Stopped::Deadline))));
}

#[test]
fn a_bucket_has_no_empty_folders_and_writes_over() {
    let clock = Arc::new(ManualClock::default());
    let tier = MemoryLocation::bucket(Arc::clone(&clock) as Arc<dyn Clock>).mount();
    publish(&tier, 0).unwrap();
    publish(&tier, 0).unwrap();
    let writer = name(0).writer;
    assert_eq!(call(|ask| tier.writers(ask)).unwrap(), [writer]);
    clock.advance(Duration::from_secs(9));
    publish(&tier, 1).unwrap();
    call(|ask| tier.remove(name(1), ask)).unwrap();
    assert_eq!(call(|ask| tier.writer_age(writer, ask)).unwrap(), Duration::from_secs(9));
    assert_eq!(call(|ask| tier.removals_changed(ask)).unwrap(), Duration::from_secs(9));
    call(|ask| tier.remove(name(0), ask)).unwrap();
    assert_eq!(call(|ask| tier.writers(ask)).unwrap(), []);
    assert!(call(|ask| tier.writer_age(writer, ask)).unwrap_err().is_not_found());
}
