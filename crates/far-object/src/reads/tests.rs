//! Reads over a store in memory that breaks off, is slow, or sends something else.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use crossbeam_channel::{Receiver, unbounded};
use dalsegno_core::{Class, Clock, Deadline, StoreId};
use dalsegno_far::{Object, WriterId};
use dalsegno_io::{Completion, FileId, IoError, Memory, Operation, Purpose, SystemClock};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    Attributes, CopyOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::*;
use crate::location::Client;
use crate::network::Network;
use crate::traffic::Traffic;

type Result<T> = object_store::Result<T>;

const SECTOR: u64 = 4096;
const PIECE: usize = 4096;

/// What happens to the body of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Whole,
    /// It ends after so many bytes, as if it were complete.
    EndsAfter(usize),
    /// The connection breaks after so many bytes.
    BreaksAfter(usize),
    /// Nothing more comes after so many bytes.
    StopsAfter(usize),
}

/// A store in memory, with what happens to the bodies of its next requests.
#[derive(Debug)]
struct Shelf {
    objects: InMemory,
    bodies: Mutex<VecDeque<Body>>,
    gets: AtomicUsize,
    ranges: Mutex<Vec<std::ops::Range<u64>>>,
}

impl std::fmt::Display for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a shelf")
    }
}

fn broken() -> object_store::Error {
    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let source = HttpError::new(HttpErrorKind::Interrupted, reset);
    object_store::Error::Generic { store: "shelf", source: Box::new(source) }
}

fn changed(bytes: &Bytes, body: Body) -> BoxStream<'static, Result<Bytes>> {
    let (sent, end) = match body {
        Body::Whole => (bytes.clone(), None),
        Body::EndsAfter(count) => (bytes.slice(..count.min(bytes.len())), None),
        Body::BreaksAfter(count) => (bytes.slice(..count.min(bytes.len())), Some(true)),
        Body::StopsAfter(count) => (bytes.slice(..count.min(bytes.len())), Some(false)),
    };
    let pieces: Vec<Result<Bytes>> =
        sent.chunks(PIECE).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let sent = stream::iter(pieces);
    match end {
        None => sent.boxed(),
        Some(true) => sent.chain(stream::once(async { Err(broken()) })).boxed(),
        Some(false) => sent.chain(stream::pending()).boxed(),
    }
}

#[async_trait::async_trait]
impl ObjectStore for Shelf {
    async fn put_opts(
        &self,
        key: &Key,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.objects.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let got = self.objects.get_opts(key, options).await?;
        self.ranges.lock().push(got.range.clone());
        let body = self.bodies.lock().pop_front().unwrap_or(Body::Whole);
        let (meta, range, attributes) =
            (got.meta.clone(), got.range.clone(), got.attributes.clone());
        let extensions = got.extensions.clone();
        let bytes = got.bytes().await?;
        let payload = GetResultPayload::Stream(changed(&bytes, body));
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, Result<Key>>,
    ) -> BoxStream<'static, Result<Key>> {
        self.objects.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// Reads of one object of a shelf.
struct Rig {
    network: Network,
    shelf: Arc<Shelf>,
    reads: Arc<Reads>,
    clock: Arc<dyn Clock>,
    bytes: Vec<u8>,
}

fn name() -> ObjectName {
    WriterId { store: StoreId([1; 16]), open: 1 }.object(Object::Pack(1))
}

impl Rig {
    /// An object of so many sectors, and what happens to the bodies of its first requests.
    fn new(sectors: usize, bodies: &[Body]) -> Self {
        let shelf = Arc::new(Shelf {
            objects: InMemory::new(),
            bodies: Mutex::new(bodies.iter().copied().collect()),
            gets: AtomicUsize::new(0),
            ranges: Mutex::default(),
        });
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let store = Arc::clone(&shelf) as Arc<dyn ObjectStore>;
        let client = Client { store, prefix: Key::from("kv"), attributes: Attributes::new() };
        let bucket = Arc::new(Bucket::new(
            client,
            "s3://b/kv".to_owned(),
            Traffic::new(Arc::clone(&clock), "b"),
            Arc::clone(&clock),
        ));
        let network = Network::start(64).unwrap();
        let bytes: Vec<u8> =
            (0..sectors * PIECE).map(|at| u8::try_from(at / 7 % 251).unwrap()).collect();
        let (reply, put) = crossbeam_channel::bounded(1);
        let (of_put, key) = (Arc::clone(&shelf), bucket.key(&name().to_string()));
        let payload = PutPayload::from(bytes.clone());
        network.run(async move {
            let put = of_put.objects.put(&key, payload).await;
            reply.send(put.is_ok()).unwrap();
        });
        assert!(put.recv().unwrap());
        let reads = Arc::new(Reads::new(bucket, 4));
        network.run(Arc::clone(&reads).serve());
        Self { network, shelf, reads, clock, bytes }
    }

    /// Asks for ranges in sectors, together.
    fn ask(&self, ranges: &[(u64, u64)], deadline: Deadline) -> Vec<Receiver<Completion>> {
        let mut asked = Vec::new();
        let requests = ranges.iter().map(|(first, count)| {
            let (reply, completions) = unbounded();
            asked.push(completions);
            let memory = (0..*count).map(|_| Memory::zeroed(PIECE)).collect();
            let request = Request {
                operation: Operation::Read,
                purpose: Purpose::of(Class::Need),
                file: FileId(1),
                offset: first * SECTOR,
                memory,
                tag: 5,
                deadline,
                guard: None,
                watch: None,
                reply,
            };
            (name(), request, self.network.keep_place().unwrap())
        });
        self.reads.add(requests.collect());
        asked
    }

    /// Waits for a request; compares its bytes if it succeeded.
    fn end(
        &self,
        (first, count): (u64, u64),
        asked: &Receiver<Completion>,
    ) -> std::result::Result<(), IoError> {
        let completion =
            asked.recv_timeout(Duration::from_secs(30)).expect("every request completes");
        completion.result?;
        let found: Vec<u8> =
            completion.memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
        let start = usize::try_from(first * SECTOR).unwrap();
        assert_eq!(found, self.bytes[start..][..usize::try_from(count * SECTOR).unwrap()]);
        Ok(())
    }

    fn gets(&self) -> usize {
        self.shelf.gets.load(Ordering::Relaxed)
    }

    fn within(&self, time: Duration) -> Deadline {
        Deadline::At(self.clock.now().after(time))
    }
}

#[test]
fn ranges_that_wait_together_become_one_request() {
    let rig = Rig::new(64, &[]);
    let ranges = [(0, 2), (10, 1), (3, 4), (20, 8), (40, 1)];
    let asked = rig.ask(&ranges, Deadline::Never);
    for (range, asked) in ranges.into_iter().zip(&asked) {
        rig.end(range, asked).unwrap();
    }
    assert_eq!(rig.gets(), 1);
    assert_eq!(rig.shelf.ranges.lock()[0], 0..41 * SECTOR);
}

#[test]
fn what_overlaps_is_read_once_and_arrives_everywhere() {
    let rig = Rig::new(32, &[]);
    let ranges = [(4, 8), (4, 8), (6, 1), (0, 32), (11, 9)];
    let asked = rig.ask(&ranges, Deadline::Never);
    for (range, asked) in ranges.into_iter().zip(&asked) {
        rig.end(range, asked).unwrap();
    }
    assert_eq!(rig.gets(), 1);
}

#[test]
fn what_breaks_off_goes_on_behind_the_last_byte_that_arrived() {
    let rig = Rig::new(64, &[Body::BreaksAfter(9 * PIECE), Body::EndsAfter(PIECE), Body::Whole]);
    let ranges = [(0, 4), (8, 8), (30, 2)];
    let asked = rig.ask(&ranges, Deadline::Never);
    for (range, asked) in ranges.into_iter().zip(&asked) {
        rig.end(range, asked).unwrap();
    }
    let ranges = rig.shelf.ranges.lock().clone();
    assert_eq!(ranges, [0..32 * SECTOR, 9 * SECTOR..32 * SECTOR, 10 * SECTOR..32 * SECTOR]);
}

#[test]
fn a_body_that_stops_costs_the_deadline_and_what_arrived_is_complete() {
    let rig = Rig::new(64, &[Body::StopsAfter(5 * PIECE); 8]);
    let deadline = rig.within(Duration::from_millis(300));
    let ranges = [(0, 4), (5, 4)];
    let asked = rig.ask(&ranges, deadline);
    rig.end(ranges[0], &asked[0]).unwrap();
    let late = rig.end(ranges[1], &asked[1]);
    assert!(matches!(late, Err(IoError::Stopped(Stopped::Deadline))), "{late:?}");
}

#[test]
fn a_range_beyond_the_end_is_short_and_its_neighbour_is_read() {
    let rig = Rig::new(16, &[]);
    let ranges = [(12, 4), (14, 8)];
    let asked = rig.ask(&ranges, Deadline::Never);
    rig.end(ranges[0], &asked[0]).unwrap();
    let short = rig.end(ranges[1], &asked[1]);
    assert!(matches!(short, Err(IoError::Short { .. })), "{short:?}");
}

#[test]
fn dropping_everything_completes_what_is_under_way() {
    let rig = Rig::new(64, &[Body::StopsAfter(0); 8]);
    let asked = rig.ask(&[(0, 4), (8, 4)], Deadline::Never);
    let Rig { network, reads, .. } = rig;
    drop((network, reads));
    for asked in asked {
        let completion =
            asked.recv_timeout(Duration::from_secs(30)).expect("every request completes");
        assert!(matches!(completion.result, Err(IoError::Closed)));
    }
}

#[test]
fn a_request_that_waits_for_a_connection_ends_with_its_deadline() {
    let rig = Rig::new(64, &[Body::StopsAfter(0); 64]);
    // Each takes a connection: they do not wait together.
    let mut taken = Vec::new();
    for at in 0..4 {
        taken.push(rig.ask(&[(16 * at, 1)], rig.within(Duration::from_secs(3))));
        while rig.gets() <= usize::try_from(at).unwrap() {
            std::thread::yield_now();
        }
    }
    let began = rig.clock.now();
    let asked = rig.ask(&[(5, 1)], rig.within(Duration::from_millis(100)));
    let late = rig.end((5, 1), &asked[0]);
    assert!(matches!(late, Err(IoError::Stopped(Stopped::Deadline))), "{late:?}");
    assert!(rig.clock.now().since(began) < Duration::from_secs(2));
}

#[test]
fn an_early_deadline_is_kept_beside_a_late_one() {
    let rig = Rig::new(64, &[Body::StopsAfter(0), Body::Whole]);
    let early = rig.within(Duration::from_millis(100));
    let mut requests = rig.ask(&[(0, 1)], early);
    requests.extend(rig.ask(&[(4, 1)], Deadline::Never));
    let began = rig.clock.now();
    assert!(matches!(rig.end((0, 1), &requests[0]), Err(IoError::Stopped(Stopped::Deadline))));
    assert!(rig.clock.now().since(began) < Duration::from_secs(5));
    rig.end((4, 1), &requests[1]).unwrap();
}

#[test]
fn an_object_that_breaks_off_each_time_is_a_miss_after_some_tries() {
    let rig = Rig::new(64, &[Body::BreaksAfter(0); 64]);
    let asked = rig.ask(&[(0, 4)], Deadline::Never);
    assert!(rig.end((0, 4), &asked[0]).is_err());
    assert_eq!(rig.gets(), 5);
}
