//! Which slices a read reports while it reads, and in which order it reads them.

use std::sync::Arc;

use dalsegno_core::{Class, Compression};
use dalsegno_extent::format::RecordHeader;
use dalsegno_extent::{Cause, RecordRead, SliceSink, wait_for_all};
use dalsegno_io::{Call, Memory};
use parking_lot::Mutex;

use crate::held_source::{LAYERS, Rig, SLICE, block_bytes, known, padding, placed};

const BLOCKS: usize = 4;
const ALL: [u32; BLOCKS] = [0, 1, 2, 3];
const NAMED: [(u32, u8); BLOCKS] = [(0, 1), (1, 2), (2, 3), (3, 4)];

/// A slice as it was reported: number, layer, bytes.
type Slice = (u32, u32, Vec<u8>);

/// Keeps what is reported.
#[derive(Debug, Default)]
struct Recorder {
    slices: Mutex<Vec<Slice>>,
    /// Whether it takes the memory.
    takes: bool,
}

impl SliceSink for Recorder {
    fn verified(&self, number: u32, layer: u32, memory: &mut Vec<Memory>) {
        let bytes = memory.iter().flat_map(|memory| memory.as_slice().to_vec()).collect();
        self.slices.lock().push((number, layer, bytes));
        if self.takes {
            memory.clear();
        }
    }

    fn flush(&self) {}
}

impl Recorder {
    /// How many slices of each layer were reported.
    fn layers(&self) -> [usize; LAYERS as usize] {
        let mut counts = [0; LAYERS as usize];
        self.slices.lock().iter().for_each(|(_, layer, _)| counts[*layer as usize] += 1);
        counts
    }
}

fn as_sink(recorder: &Arc<Recorder>) -> Arc<dyn SliceSink> {
    Arc::clone(recorder) as _
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

/// Reads one record to the end.
fn read(rig: &Rig, read: RecordRead) -> Arc<Recorder> {
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    let mut reading = rig.reader.begin([read].into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    reading.finish();
    recorder
}

#[test]
fn slices_are_reported_with_their_bytes_in_the_order_in_which_the_device_completes_them() {
    let (rig, header) = rig_with_header();
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    rig.source.hold();
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    let mut expected = [0; LAYERS as usize];
    reading.advance();
    for layer in (0..LAYERS as usize).rev() {
        assert_eq!(recorder.layers(), expected);
        assert!(rig.source.serve_newest());
        reading.advance();
        expected[layer] = BLOCKS;
    }
    assert!(reading.finish()[0].iter().all(|block| block.outcome == Ok(())));
    for (number, layer, bytes) in &*recorder.slices.lock() {
        let block = block_bytes(u8::try_from(*number).unwrap() + 1);
        assert_eq!(*bytes, block[*layer as usize * SLICE..][..SLICE]);
    }
}

/// Two records, of which a request has one layer.
#[test]
fn a_read_that_reports_reads_all_records_layer_by_layer() {
    let (rig, first) = rig_with_header();
    let second = rig.write(&[5, 6, 7, 8], Compression::PLAIN);
    rig.read(vec![known(&second, &[0])]);
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    rig.source.hold();
    let reads = [known(&first, &ALL), known(&second, &ALL)];
    let mut reading = rig.reader.begin(reads.into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    reading.advance();
    while rig.source.serve_oldest() {
        reading.advance();
    }
    let layers: Vec<u32> = recorder.slices.lock().iter().map(|(_, layer, _)| *layer).collect();
    assert!(layers.is_sorted(), "{layers:?}");
    assert_eq!(recorder.layers(), [2 * BLOCKS; LAYERS as usize]);
}

#[test]
fn a_bad_slice_is_not_reported_and_all_others_are() {
    for compression in [Compression::PLAIN, Compression::zstd(1).unwrap()] {
        let (rig, header) = rig(compression);
        let end = header.offset + u64::from(header.header_bytes()) + header.payload_bytes();
        // The last byte of the last block of a plain extent, or of its last unit.
        let padding = if compression.is_plain() { 1 } else { padding(&header) + 1 };
        rig.source.damage(end - padding);
        for record in [known(&header, &ALL), placed(&header, &NAMED)] {
            let [first, second, last] = read(&rig, record).layers();
            assert_eq!([first, second], [BLOCKS; 2]);
            assert!(last < BLOCKS, "{last}");
        }
    }
}

#[test]
fn nothing_is_reported_before_the_header_has_arrived() {
    let (rig, header) = rig(Compression::PLAIN);
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    rig.source.hold();
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    reading.advance();
    while rig.source.waiting() > 1 {
        assert!(rig.source.serve_newest());
        reading.advance();
        assert_eq!(recorder.layers(), [0; LAYERS as usize]);
    }
    rig.source.go_on();
    reading.advance();
    assert_eq!(recorder.layers(), [BLOCKS; LAYERS as usize]);
}

#[test]
fn several_sources_report_to_one_sink() {
    let (near, far) = (rig_with_header(), rig(Compression::zstd(1).unwrap()));
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    let mut near_read = near.0.reader.begin([known(&near.1, &ALL)].into_iter(), &call);
    let mut far_read = far.0.reader.begin([placed(&far.1, &NAMED)].into_iter(), &call);
    near_read.report_to(&as_sink(&recorder));
    far_read.report_to(&as_sink(&recorder));
    wait_for_all(&mut [&mut near_read, &mut far_read]);
    assert_eq!(recorder.layers(), [2 * BLOCKS; LAYERS as usize]);
}

#[test]
fn a_sink_may_keep_the_memory_of_slices() {
    let (rig, header) = rig_with_header();
    let call = Call::of(Class::Need);
    let recorder = Arc::new(Recorder { takes: true, ..Recorder::default() });
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    for block in &reading.finish()[0] {
        assert_eq!((block.outcome, block.verified_slices), (Ok(()), LAYERS));
        assert!(block.memory.is_empty(), "the sink has it");
    }
}

#[test]
fn slices_of_lost_blocks_are_not_reported() {
    let (rig, header) = rig_with_header();
    rig.read(vec![placed(&header, &[(0, 1)])]);
    let recycled = RecordRead { pinned: None, ..known(&header, &ALL) };
    let misnamed = placed(&header, &[(0, 9)]);
    for (record, cause) in [(recycled, Cause::Recycled), (misnamed, Cause::WrongPlace)] {
        let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
        let mut reading = rig.reader.begin([record].into_iter(), &call);
        reading.report_to(&as_sink(&recorder));
        let blocks = reading.finish().remove(0);
        assert!(blocks.iter().all(|block| block.outcome == Err(cause)));
        assert!(blocks.iter().all(|block| block.verified_slices == 0));
        assert_eq!(recorder.layers(), [0; LAYERS as usize]);
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
    let call = Call::of(Class::Need);
    let mut reading = rig.reader.begin([known(&header, &[0])].into_iter(), &call);
    reading.advance();
    assert!(rig.source.serve_newest());
    reading.advance();
    rig.source.go_on();
    assert_eq!(reading.finish()[0][0].outcome, Err(Cause::Suspended));
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
    let call = Call::of(Class::Need);
    let reads: Vec<_> = headers.iter().map(first_layer).collect();
    rig.reader.begin(reads.into_iter(), &call).finish();
    let beyond = rig.source.seen() - 60;
    assert!(beyond <= 64, "{beyond} requests beyond the planned ones");
}

#[test]
#[should_panic(expected = "a read reports to one sink")]
fn a_read_does_not_report_twice() {
    let (rig, header) = rig_with_header();
    let (call, recorder) = (Call::of(Class::Need), Arc::new(Recorder::default()));
    let mut reading = rig.reader.begin([known(&header, &ALL)].into_iter(), &call);
    reading.report_to(&as_sink(&recorder));
    reading.report_to(&as_sink(&recorder));
}
