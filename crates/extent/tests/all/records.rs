//! Which headers a read accepts, and when it requests what.

use std::sync::Arc;

use dalsegno_core::{Class, Compression, Extent};
use dalsegno_extent::format::RecordHeader;
use dalsegno_extent::{Cause, HeaderName, PlacedRecord, RecordRead, VerifiedHeader, WantedRecord};
use dalsegno_io::Call;

use crate::held_source::{
    FILE, Rig, SLICE, SeenRequest, block_bytes, bytes_of, hash, known, placed,
};

fn compressions() -> [Compression; 2] {
    [Compression::PLAIN, Compression::zstd(1).unwrap()]
}

fn header_request(header: &RecordHeader) -> SeenRequest {
    SeenRequest { offset: header.offset, bytes: header.header_bytes().into() }
}

/// Changes what a read expects of the record at its place.
fn expect(mut read: RecordRead, change: impl FnOnce(&mut RecordRead)) -> RecordRead {
    change(&mut read);
    read
}

#[test]
fn the_payload_of_a_placed_record_is_requested_with_its_header_if_its_place_is_known() {
    for compression in compressions() {
        let rig = Rig::new(8);
        let headers = [rig.write(&[1, 2, 3], compression), rig.write(&[4, 5], compression)];
        assert_eq!(headers[0].units().is_some(), !compression.is_plain());
        let reads = || vec![placed(&headers[0], &[(0, 1), (2, 3)]), placed(&headers[1], &[(1, 5)])];
        for is_cached in [false, true] {
            let read = rig.read(reads());
            for (block, name) in read.iter().flatten().zip([1, 3, 5]) {
                assert_eq!(block.outcome, Ok(()));
                assert!(bytes_of(block) == block_bytes(name));
            }
            let seen = rig.source.take_seen();
            let first: Vec<SeenRequest> = headers.iter().map(header_request).collect();
            let has_header = |one: &&SeenRequest| first.iter().any(|of| of.offset == one.offset);
            assert_eq!(seen.iter().filter(has_header).count(), if is_cached { 0 } else { 2 });
            if is_cached {
                continue;
            }
            if compression.is_plain() {
                assert!(seen[0].bytes > first[0].bytes, "with a slice: {seen:?}");
            } else {
                assert_eq!(seen[..2], first, "headers come first: {seen:?}");
            }
        }
    }
}

#[test]
fn a_payload_waits_for_its_own_header_only() {
    let rig = Rig::new(8);
    let compression = Compression::zstd(1).unwrap();
    let headers = [rig.write(&[1], compression), rig.write(&[2], compression)];
    let call = Call::of(Class::Need);
    rig.source.hold();
    let reads = headers.iter().zip([1, 2]).map(|(header, name)| placed(header, &[(0, name)]));
    let mut reading = rig.reader.begin(reads.collect::<Vec<_>>().into_iter(), &call);
    reading.advance();
    assert_eq!(rig.source.waiting(), 2);
    assert!(rig.source.serve_newest());
    reading.advance();
    let payload = headers[1].offset + u64::from(headers[1].header_bytes());
    assert_eq!(rig.source.take_seen().last().unwrap().offset, payload);
    rig.source.go_on();
    let read = reading.finish();
    assert!(read.iter().flatten().all(|block| block.outcome == Ok(())));
}

#[test]
fn an_extent_that_is_known_is_read_with_its_header() {
    let rig = Rig::new(8);
    let header = rig.write(&[1, 2], Compression::PLAIN);
    for is_cached in [false, true] {
        let read = rig.read(vec![known(&header, &[0, 1])]);
        assert!(read[0].iter().all(|block| block.outcome == Ok(())));
        let payload = 6 * SLICE as u64;
        let SeenRequest { offset, bytes } = header_request(&header);
        let expected = if is_cached {
            SeenRequest { offset: offset + bytes, bytes: payload }
        } else {
            SeenRequest { offset, bytes: bytes + payload }
        };
        assert_eq!(rig.source.take_seen(), [expected]);
    }
}

#[test]
fn blocks_that_a_header_does_not_name_are_lost_alone() {
    for compression in compressions() {
        let rig = Rig::new(8);
        let header = rig.write(&[1, 2, 3], compression);
        for _ in 0..2 {
            let read = rig.read(vec![placed(&header, &[(0, 1), (1, 9), (2, 3), (7, 4)])]);
            let outcomes: Vec<_> = read[0].iter().map(|block| block.outcome).collect();
            let wrong = Err(Cause::WrongPlace);
            assert_eq!(outcomes, [Ok(()), wrong, Ok(()), wrong]);
            assert!(bytes_of(&read[0][2]) == block_bytes(3));
        }
    }
}

#[test]
fn another_record_than_the_wanted_one_is_a_miss_also_if_its_header_is_cached() {
    let rig = Rig::new(8);
    let header = rig.write(&[1, 2], Compression::PLAIN);
    let with = |change: &dyn Fn(&mut RecordRead)| expect(placed(&header, &[(0, 1)]), change);
    let of_place = |change: &dyn Fn(&mut PlacedRecord)| {
        with(&|read: &mut RecordRead| {
            let WantedRecord::Placed(placed) = &mut read.record else { unreachable!() };
            change(placed);
        })
    };
    let others = || {
        vec![
            with(&|read| read.store.0[0] ^= 1),
            of_place(&|placed| placed.place.segment += 1),
            of_place(&|placed| placed.place.epoch += 1),
            of_place(&|placed| placed.namespace.0[0] ^= 1),
            of_place(&|placed| placed.plain_blocks = Some(1)),
            of_place(&|placed| placed.plain_blocks = None),
        ]
    };
    for is_cached in [false, true] {
        // The place names the writer of a file, so a cached header is not compared with the store.
        for other in others().into_iter().skip(usize::from(is_cached)) {
            let read = rig.read(vec![other]);
            assert_eq!(read[0][0].outcome, Err(Cause::WrongPlace));
        }
        assert_eq!(rig.read(vec![placed(&header, &[(0, 1)])])[0][0].outcome, Ok(()));
    }
}

#[test]
fn a_cached_header_of_another_extent_is_not_used() {
    let rig = Rig::new(8);
    let header = rig.write(&[1, 2], Compression::PLAIN);
    let extent = header.extent().unwrap();
    let other = Extent { hashes: vec![hash(8), hash(9)], ..extent.clone() };
    let cached = VerifiedHeader { extent: Arc::new(other), crcs: vec![0; 6], units: None };
    let cached = Arc::new(cached);
    for name in [HeaderName::Extent(extent.id), HeaderName::Place(FILE, header.offset)] {
        rig.headers.insert(name, Arc::clone(&cached));
    }
    let read = rig.read(vec![known(&header, &[0, 1])]);
    assert!(read[0].iter().all(|block| block.outcome == Ok(())));
    let read = rig.read(vec![placed(&header, &[(0, 8), (1, 9)])]);
    assert!(read[0].iter().all(|block| block.outcome.is_err()), "the bytes are of other blocks");
}

#[test]
fn a_header_that_cannot_be_read_costs_its_record_only() {
    for compression in compressions() {
        let rig = Rig::new(8);
        let headers = [rig.write(&[1, 2], compression), rig.write(&[3, 4], compression)];
        rig.source.break_sector(headers[0].offset);
        let kinds: [fn(&RecordHeader, u8) -> RecordRead; 2] = [
            |header, first| placed(header, &[(0, first), (1, first + 1)]),
            |header, _| known(header, &[0, 1]),
        ];
        for kind in kinds {
            let read = rig.read(vec![kind(&headers[0], 1), kind(&headers[1], 3)]);
            assert!(read[0].iter().all(|block| block.outcome == Err(Cause::Header)));
            assert!(read[1].iter().all(|block| block.outcome == Ok(())));
        }
    }
}
