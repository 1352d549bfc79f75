//! One call that reads several sources.

use std::time::Duration;

use dalsegno_core::{Class, Compression, Deadline};
use dalsegno_extent::format::RecordHeader;
use dalsegno_extent::{BlockRead, Cause, RecordRead, wait_for_all, wait_for_first};
use dalsegno_io::{Call, Cancel, Memory};

use crate::held_source::{LAYERS, Rig, SLICE, block_bytes, bytes_of, known, placed, until};

/// Two sources: a near one, and a far one that has one request in flight at a time.
struct TwoSources {
    near: Rig,
    far: Rig,
    near_header: RecordHeader,
    far_header: RecordHeader,
}

impl TwoSources {
    fn new() -> Self {
        let (near, far) = (Rig::new(8), Rig::new(1));
        let near_header = near.write(&[1, 2], Compression::PLAIN);
        let far_header = far.write(&[3, 4, 5], Compression::zstd(1).unwrap());
        Self { near, far, near_header, far_header }
    }

    fn near_read(&self) -> RecordRead {
        known(&self.near_header, &[0, 1])
    }

    fn far_read(&self) -> RecordRead {
        placed(&self.far_header, &[(0, 3), (2, 5)])
    }

    /// Reads both sources, and waits for the near one first.
    fn read(&self, call: &Call) -> [Vec<BlockRead>; 2] {
        self.read_with(self.near_read(), call)
    }

    fn read_with(&self, near: RecordRead, call: &Call) -> [Vec<BlockRead>; 2] {
        let mut near = self.near.reader.begin([near].into_iter(), call);
        let mut far = self.far.reader.begin([self.far_read()].into_iter(), call);
        wait_for_first(&mut [&mut near, &mut far]);
        let near = near.finish().remove(0);
        [near, far.finish().remove(0)]
    }
}

fn outcomes(blocks: &[BlockRead]) -> Vec<Result<(), Cause>> {
    blocks.iter().map(|block| block.outcome).collect()
}

#[test]
fn the_others_continue_while_a_call_waits_for_the_first() {
    let sources = TwoSources::new();
    sources.near.source.hold();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| sources.read(&Call::of(Class::Need)));
        // A header, and then the payload.
        until("the far record is read", || sources.far.source.seen() >= 2);
        sources.near.source.go_on();
        let [near, far] = read.join().unwrap();
        assert_eq!((outcomes(&near), outcomes(&far)), (vec![Ok(()); 2], vec![Ok(()); 2]));
        assert!(bytes_of(&near[1]) == block_bytes(2) && bytes_of(&far[1]) == block_bytes(5));
    });
}

#[test]
fn a_first_source_that_hangs_until_the_deadline_costs_its_own_blocks() {
    let sources = TwoSources::new();
    sources.near.source.hold();
    let end = sources.near.clock.now().after(Duration::from_millis(200));
    let [near, far] = sources.read(&Call::of(Class::Need).until(Deadline::At(end)));
    assert_eq!(outcomes(&near), [Err(Cause::Deadline); 2]);
    assert_eq!(outcomes(&far), [Ok(()); 2]);
}

#[test]
fn a_call_that_was_cancelled_waits_for_no_source() {
    let sources = TwoSources::new();
    sources.near.source.hold();
    sources.far.source.hold();
    let cancel = Cancel::default();
    let end = sources.near.clock.now().after(Duration::from_secs(60));
    let call = Call { cancel: Some(cancel.clone()), ..Call::of(Class::Need) };
    let call = call.until(Deadline::At(end));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| sources.read(&call));
        until("both are requested", || sources.near.source.seen() + sources.far.source.seen() > 1);
        cancel.cancel();
        for blocks in read.join().unwrap() {
            assert_eq!(outcomes(&blocks), [Err(Cause::Cancelled); 2]);
        }
    });
}

#[test]
fn a_source_without_staging_memory_waits_and_the_others_continue() {
    let sources = TwoSources::new();
    let pool = &sources.near.pool;
    let taken: Vec<Memory> = std::iter::from_fn(|| pool.try_take(1 << 20)).collect();
    let small: Vec<Memory> = std::iter::from_fn(|| pool.try_take(1)).collect();
    let mut read = sources.near_read();
    read.targets.iter_mut().for_each(|target| target.outlives_call = false);
    let end = sources.near.clock.now().after(Duration::from_secs(60));
    let call = Call::of(Class::Need).until(Deadline::At(end));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| sources.read_with(read, &call));
        until("the far record is read", || sources.far.source.seen() >= 2);
        assert_eq!(sources.near.source.seen(), 0);
        drop((taken, small));
        let [near, far] = read.join().unwrap();
        assert_eq!((outcomes(&near), outcomes(&far)), (vec![Ok(()); 2], vec![Ok(()); 2]));
    });
}

#[test]
fn a_wait_for_all_ends_when_the_last_source_has_responded() {
    let sources = TwoSources::new();
    sources.near.source.hold();
    sources.far.source.hold();
    let call = Call::of(Class::Need);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut near = sources.near.reader.begin([sources.near_read()].into_iter(), &call);
            let mut far = sources.far.reader.begin([sources.far_read()].into_iter(), &call);
            wait_for_all(&mut [&mut far, &mut near]);
            [far.finish().remove(0), near.finish().remove(0)]
        });
        until("the near extent is requested", || sources.near.source.waiting() > 0);
        sources.near.source.go_on();
        until("the far header is requested", || sources.far.source.waiting() > 0);
        assert!(sources.far.source.serve_newest());
        until("the far payload is requested", || sources.far.source.waiting() > 0);
        sources.far.source.go_on();
        for blocks in read.join().unwrap() {
            assert_eq!(outcomes(&blocks), [Ok(()); 2]);
            assert_eq!(bytes_of(&blocks[0]).len(), LAYERS as usize * SLICE);
        }
    });
}

#[test]
fn regression_the_others_continue_while_a_failed_request_of_the_first_is_sent_again() {
    let sources = TwoSources::new();
    let header = &sources.near_header;
    sources.near.source.break_sector(header.offset + u64::from(header.header_bytes()));
    sources.near.source.hold();
    let end = sources.near.clock.now().after(Duration::from_secs(2));
    let call = Call::of(Class::Need).until(Deadline::At(end));
    std::thread::scope(|scope| {
        sources.far.source.hold();
        let read = scope.spawn(|| sources.read(&call));
        until("the near extent is requested", || sources.near.source.waiting() == 1);
        // It fails. Then the first sector of the file is requested, and hangs.
        assert!(sources.near.source.serve_newest());
        until("the salvage began", || sources.near.source.waiting() == 1);
        // The far location responds now.
        sources.far.source.go_on();
        let [near, far] = read.join().unwrap();
        assert_eq!(outcomes(&near), [Err(Cause::Deadline); 2]);
        assert_eq!(outcomes(&far), [Ok(()); 2]);
    });
}
