//! Which layers are ready while a call reads.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Compression, Deadline, Stopped};
use dalsegno_extent::format::RecordHeader;
use dalsegno_extent::{Cause, LayerOutcome, LayerProgress, RecordRead, wait_for_all};
use dalsegno_io::Call;

use crate::held_source::{LAYERS, Rig, SLICE, known, padding, placed};

const BLOCKS: usize = 4;
const ALL: [u32; BLOCKS] = [0, 1, 2, 3];
const NAMED: [(u32, u8); BLOCKS] = [(0, 1), (1, 2), (2, 3), (3, 4)];
const READY: Option<LayerOutcome> = Some(LayerOutcome::Ready);

fn all_lost(cause: Cause) -> [Option<LayerOutcome>; LAYERS as usize] {
    [Some(LayerOutcome::Lost(cause)); LAYERS as usize]
}

/// A source with an extent of four blocks, whose requests have a layer each.
fn rig(compression: Compression) -> (Rig, RecordHeader) {
    let rig = Rig::with_requests(16, BLOCKS * SLICE);
    let header = rig.write(&[1, 2, 3, 4], compression);
    (rig, header)
}

/// As [`rig`], of a plain extent whose header is cached.
fn rig_with_header() -> (Rig, RecordHeader) {
    let (rig, header) = rig(Compression::PLAIN);
    rig.read(vec![known(&header, &[0])]);
    (rig, header)
}

fn progress(blocks: usize) -> Arc<LayerProgress> {
    Arc::new(LayerProgress::new(0..LAYERS, blocks))
}

fn outcomes(progress: &LayerProgress) -> Vec<Option<LayerOutcome>> {
    (0..LAYERS).map(|layer| progress.outcome(layer)).collect()
}

/// Reads one record to the end.
fn read(rig: &Rig, read: RecordRead) -> Arc<LayerProgress> {
    let (call, progress) = (Call::foreground(), progress(read.targets.len()));
    let mut reading = rig.reader.begin([read].into_iter(), &call);
    reading.report_to(&progress);
    reading.finish();
    progress
}

#[test]
fn layers_become_ready_in_the_order_in_which_the_device_completes_them() {
    let (rig, header) = rig_with_header();
    let (call, progress) = (Call::foreground(), progress(BLOCKS));
    rig.source.hold();
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&progress);
    let mut expected = [None; LAYERS as usize];
    reading.advance();
    for layer in (0..LAYERS as usize).rev() {
        assert_eq!(outcomes(&progress), expected);
        assert!(rig.source.serve_newest());
        reading.advance();
        expected[layer] = READY;
    }
    assert_eq!(outcomes(&progress), expected);
    assert!(reading.finish()[0].iter().all(|block| block.outcome == Ok(())));
}

#[test]
fn a_bad_slice_makes_its_layer_lost_and_no_other_one() {
    for compression in [Compression::PLAIN, Compression::zstd(1).unwrap()] {
        let (rig, header) = rig(compression);
        let end = header.offset + u64::from(header.header_bytes()) + header.payload_bytes();
        // The last byte of the last block of a plain extent, or of its last unit.
        let padding = if compression.is_plain() { 1 } else { padding(&header) + 1 };
        rig.source.damage(end - padding);
        let cause = if compression.is_plain() { Cause::SliceChecksum } else { Cause::Codec };
        for record in [known(&header, &ALL), placed(&header, &NAMED)] {
            assert_eq!(outcomes(&read(&rig, record)), [READY, READY, all_lost(cause)[2]]);
        }
    }
}

#[test]
fn no_layer_is_ready_before_the_header_has_arrived() {
    let (rig, header) = rig(Compression::PLAIN);
    let (call, progress) = (Call::foreground(), progress(BLOCKS));
    rig.source.hold();
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&progress);
    reading.advance();
    while rig.source.waiting() > 1 {
        assert!(rig.source.serve_newest());
        reading.advance();
        assert_eq!(outcomes(&progress), [None; LAYERS as usize]);
    }
    rig.source.go_on();
    reading.advance();
    assert_eq!(outcomes(&progress), [READY; LAYERS as usize]);
}

#[test]
fn a_layer_is_ready_when_all_sources_have_it() {
    let (near, far) = (rig_with_header(), rig(Compression::zstd(1).unwrap()));
    let (call, progress) = (Call::foreground(), progress(2 * BLOCKS + 1));
    near.0.source.hold();
    far.0.source.hold();
    std::thread::scope(|scope| {
        let waits = (0..LAYERS).map(|layer| {
            let (progress, clock) = (Arc::clone(&progress), Arc::clone(&near.0.clock));
            scope.spawn(move || progress.wait_layer(layer, &Call::foreground(), clock.as_ref()))
        });
        let waits: Vec<_> = waits.collect();
        let mut near_read = near.0.reader.begin([known(&near.1, &ALL)].into_iter(), &call);
        let mut far_read = far.0.reader.begin([placed(&far.1, &NAMED)].into_iter(), &call);
        near_read.report_to(&progress);
        far_read.report_to(&progress);
        near_read.advance();
        near.0.source.go_on();
        near_read.advance();
        assert_eq!(outcomes(&progress), [None; LAYERS as usize]);
        far_read.advance();
        far.0.source.go_on();
        wait_for_all(&mut [&mut near_read, &mut far_read]);
        assert_eq!(outcomes(&progress), [None; LAYERS as usize], "a block is in memory");
        progress.note_block(Ok(()));
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Ok(LayerOutcome::Ready));
        }
    });
}

#[test]
fn blocks_that_are_never_requested_are_reported_when_the_read_begins() {
    let (rig, header) = rig_with_header();
    rig.read(vec![placed(&header, &[(0, 1)])]);
    let recycled = RecordRead { pinned: None, ..known(&header, &ALL) };
    let misnamed = placed(&header, &[(0, 9)]);
    for (record, cause) in [(recycled, Cause::Recycled), (misnamed, Cause::WrongPlace)] {
        let (call, progress) = (Call::foreground(), progress(record.targets.len()));
        let mut reading = rig.reader.begin([record].into_iter(), &call);
        reading.report_to(&progress);
        assert_eq!(outcomes(&progress), all_lost(cause));
        assert!(reading.finish()[0].iter().all(|block| block.outcome == Err(cause)));
    }
}

#[test]
fn a_wait_ends_with_its_call_and_a_layer_with_the_call_that_reads_it() {
    let (rig, header) = rig_with_header();
    let clock = rig.clock.as_ref();
    let within = |ms| {
        let end = clock.now().after(Duration::from_millis(ms));
        Call::foreground().until(Deadline::At(end))
    };
    let (call, progress) = (within(100), progress(BLOCKS));
    rig.source.hold();
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&progress);
    reading.advance();
    assert_eq!(progress.wait_layer(0, &within(1), clock), Err(Stopped::Deadline));
    reading.finish();
    for layer in 0..LAYERS {
        let ended = progress.wait_layer(layer, &within(0), clock);
        assert_eq!(ended, Ok(LayerOutcome::Lost(Cause::Deadline)));
    }
}

#[test]
fn memory_of_a_part_that_was_not_read_is_not_taken_for_damage() {
    // A slice of two requests: the second one is refused, and then the first one arrives.
    let rig = Rig::with_requests(2, SLICE / 2);
    let header = rig.write(&[1], Compression::PLAIN);
    rig.read(vec![known(&header, &[0])]);
    let payload = header.offset + u64::from(header.header_bytes());
    rig.source.refuse(payload + SLICE as u64 / 2);
    rig.source.hold();
    let call = Call::foreground();
    let mut reading = rig.reader.begin([known(&header, &[0])].into_iter(), &call);
    reading.advance();
    assert!(rig.source.serve_newest());
    reading.advance();
    rig.source.go_on();
    assert_eq!(reading.finish()[0][0].outcome, Err(Cause::Suspended));
}

#[test]
fn regression_a_read_that_is_dropped_ends_its_layers() {
    let (rig, header) = rig_with_header();
    let (call, progress) = (Call::foreground(), progress(BLOCKS));
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&progress);
    drop(reading);
    assert!(outcomes(&progress).iter().all(Option::is_some), "{:?}", outcomes(&progress));
}

#[test]
fn regression_a_call_sends_at_most_64_requests_beyond_the_planned_ones() {
    let rig = Rig::with_requests(64, 64 << 10);
    let headers: Vec<_> = (0..60_u8).map(|b| rig.write(&[b], Compression::PLAIN)).collect();
    let first_layer = |header: &RecordHeader| {
        let mut read = known(header, &[0]);
        read.layers = 0..1;
        read.targets[0].memory = vec![dalsegno_io::Memory::zeroed(SLICE)];
        read
    };
    for header in &headers {
        rig.source.break_sector(header.offset + u64::from(header.header_bytes()));
    }
    let call = Call::foreground();
    let reads: Vec<_> = headers.iter().map(first_layer).collect();
    rig.reader.begin(reads.into_iter(), &call).finish();
    let beyond = rig.source.seen() - 60;
    assert!(beyond <= 64, "{beyond} requests beyond the planned ones");
}

#[test]
#[should_panic(expected = "a read reports to one progress")]
fn a_read_does_not_report_twice() {
    let (rig, header) = rig_with_header();
    let (call, progress) = (Call::foreground(), progress(2 * BLOCKS));
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&progress);
    reading.report_to(&progress);
}
