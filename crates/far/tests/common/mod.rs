//! Locations that the tests of tiers run on.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod mooncake;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use dalsegno_core::{Class, Clock, Deadline, FarOptions, ManualClock, StoreId};
use dalsegno_far::{
    Ask, DirectoryTier, DirectoryTierOptions, MemoryLocation, Object, ObjectName, Reply, Tier,
    WriterId,
};
use dalsegno_far_object::{ObjectLocation, ObjectTier};
use dalsegno_io::{
    Completion, FileId, IoError, Memory, Operation, Purpose, Request, SystemClock, random_bytes,
};

pub const SECTOR: usize = 4096;
/// Longer than the slowest location needs. A test that waits this long has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a change on one mount may be invisible on the other.
pub const VISIBLE_WITHIN: Duration = Duration::from_secs(60);

/// Pairs of mounts, `A:B,C:D`: two directories where the same file system is mounted.
const MOUNTS: &str = "DALSEGNO_FAR_MOUNTS";
/// URLs of object stores, `s3://a/b,s3://c`. The environment has their endpoint and the credentials.
const URLS: &str = "DALSEGNO_FAR_URLS";

/// How Mooncake's client is started, as a command whose last word is the address of the master.
const MOONCAKE: &str = "DALSEGNO_FAR_MOONCAKE";

/// Two mounts of one location, in a part of it that is empty at first.
pub struct Pair {
    pub label: String,
    pub near: Arc<dyn Tier>,
    pub other: Arc<dyn Tier>,
    /// Makes time pass at the location.
    pub pass: Box<dyn Fn(Duration) + Send + Sync>,
    /// The part's folder on the first mount.
    pub folder: Option<PathBuf>,
    /// Whether a folder is there after its last object was removed.
    pub keeps_folders: bool,
    _home: Option<tempfile::TempDir>,
}

impl Pair {
    fn in_memory() -> Self {
        let clock = Arc::new(ManualClock::default());
        let location = MemoryLocation::new(Arc::clone(&clock) as Arc<dyn Clock>);
        Self {
            label: "memory".to_owned(),
            near: Arc::new(location.mount()),
            other: Arc::new(location.mount()),
            pass: Box::new(move |time| clock.advance(time)),
            folder: None,
            keeps_folders: true,
            _home: None,
        }
    }

    fn on_mounts(near: &Path, other: &Path) -> Self {
        let home = tempfile::Builder::new().prefix("conformance-").tempdir_in(near).unwrap();
        let name = home.path().file_name().unwrap();
        let other_home = other.join(name);
        let other_tier = eventually("the folder", || {
            let opened = open(&other_home, DirectoryTierOptions::default());
            opened.ok().map(|tier| Arc::new(tier) as Arc<dyn Tier>)
        });
        Self {
            label: near.display().to_string(),
            near: Arc::new(open(home.path(), DirectoryTierOptions::default()).unwrap()),
            other: other_tier,
            pass: Box::new(std::thread::sleep),
            folder: Some(home.path().to_owned()),
            keeps_folders: true,
            _home: Some(home),
        }
    }

    /// Two hosts at one bucket. The environment has the endpoint and the credentials.
    fn in_bucket(url: &str) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let random = random_bytes::<8>().unwrap();
        let part = format!("conformance-{:016x}", u64::from_le_bytes(random));
        let location = ObjectLocation::parse(url, FarOptions::default()).unwrap().within(&part);
        let open = || Arc::new(ObjectTier::open(&location, 16, &clock).unwrap()) as Arc<dyn Tier>;
        Self {
            label: location.url(),
            near: open(),
            other: open(),
            pass: Box::new(std::thread::sleep),
            folder: None,
            keeps_folders: false,
            _home: None,
        }
    }

    /// Two hosts at a cluster that is a model, with other objects in memory.
    fn in_model_cluster() -> Self {
        let (memory, cluster) = (Self::in_memory(), mooncake::ModelCluster::default());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let tier = |catalogs: &Arc<dyn Tier>| {
            mooncake::tier("p", "model", Arc::clone(catalogs), cluster.connect(), &clock)
        };
        let (near, other) = (tier(&memory.near), tier(&memory.other));
        Self { label: "model of Mooncake".to_owned(), near, other, ..memory }
    }

    /// Two hosts at a real cluster, with other objects in a local directory.
    fn in_cluster(command: &str) -> Self {
        let catalogs = Self::on_mounts(&std::env::temp_dir(), &std::env::temp_dir());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let random = u64::from_le_bytes(random_bytes::<8>().unwrap());
        let (prefix, master) = (format!("conformance-{random:016x}"), command.rsplit(' ').next());
        let tier = |catalogs: &Arc<dyn Tier>| {
            let connect = mooncake::Bridge::connect(command);
            mooncake::tier(&prefix, master.unwrap(), Arc::clone(catalogs), connect, &clock)
        };
        let (near, other) = (tier(&catalogs.near), tier(&catalogs.other));
        Self { label: "Mooncake".to_owned(), near, other, folder: None, ..catalogs }
    }

    /// A file on the first mount, next to the objects.
    pub fn path(&self, writer: WriterId, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(writer.to_string()).join(name))
    }
}

pub fn open(path: &Path, options: DirectoryTierOptions) -> Result<DirectoryTier, IoError> {
    DirectoryTier::open(path, options, Arc::new(SystemClock::new()))
}

/// Runs a test on every location: in memory, a local directory, and each pair of mounts.
pub fn on_every_location(test: impl Fn(&Pair)) {
    let local = std::env::temp_dir();
    let mounts = std::env::var(MOUNTS).unwrap_or_default();
    let pairs = mounts.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (near, other) = pair.split_once(':').expect("a pair of mounts");
        Pair::on_mounts(Path::new(near), Path::new(other))
    });
    let urls = std::env::var(URLS).unwrap_or_default();
    let buckets = urls.split(',').filter(|url| !url.is_empty()).map(Pair::in_bucket);
    let cluster = std::env::var(MOONCAKE).ok().map(|command| Pair::in_cluster(&command));
    let all = [Pair::in_memory(), Pair::on_mounts(&local, &local), Pair::in_model_cluster()];
    let all = all.into_iter().chain(pairs).chain(buckets).chain(cluster);
    for pair in all {
        test(&pair);
    }
}

/// Repeats `attempt` until it returns something.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "waits for a real file system")]
    let start = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(start.elapsed() < VISIBLE_WITHIN, "{what} is not visible");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a call, and waits for its only reply.
pub fn call<T>(act: impl FnOnce(Ask<T>)) -> Result<T, IoError> {
    call_until(Deadline::Never, act)
}

pub fn call_until<T>(deadline: Deadline, act: impl FnOnce(Ask<T>)) -> Result<T, IoError> {
    let replies = start(deadline, act);
    let reply = replies.recv_timeout(TEST_TIMEOUT).expect("every call is answered");
    assert_eq!(reply.tag, 77);
    assert!(replies.recv_timeout(TEST_TIMEOUT).is_err(), "a second reply");
    reply.result
}

/// Makes a call. Its reply has the tag 77.
pub fn start<T>(deadline: Deadline, act: impl FnOnce(Ask<T>)) -> Receiver<Reply<T>> {
    let (reply, replies) = bounded(1);
    act(Ask { tag: 77, deadline, reply });
    replies
}

pub fn writer(number: u64) -> WriterId {
    WriterId { store: StoreId([9; 16]), open: number }
}

pub fn pack(number: u64) -> ObjectName {
    writer(1).object(Object::Pack(number))
}

/// Deterministic bytes of an object, different in every sector.
pub fn bytes_of(name: ObjectName, sectors: usize) -> Vec<u8> {
    let Object::Pack(number) = name.object else { panic!("{name} is no pack") };
    let mut state = ((name.writer.open << 32) | number) ^ 0x9E37_79B9_7F4A_7C15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(sectors * SECTOR).collect()
}

/// The bytes in pieces of one to three sectors.
pub fn pieces(bytes: &[u8]) -> Vec<Memory> {
    let mut rest = Memory::owned(bytes.to_vec(), ());
    let mut pieces = Vec::new();
    for sectors in (1..=3).cycle() {
        if rest.is_empty() {
            break;
        }
        pieces.push(rest.split_to((sectors * SECTOR).min(rest.len())));
    }
    pieces
}

pub fn publish(tier: &dyn Tier, name: ObjectName, bytes: &[u8]) -> Result<(), IoError> {
    call(|ask| tier.publish(name, pieces(bytes), ask))
}

pub fn fetch(tier: &dyn Tier, name: ObjectName) -> Result<Vec<u8>, IoError> {
    call(|ask| tier.fetch(name, 1 << 30, ask))
}

pub fn read_request(
    file: FileId,
    offset: usize,
    memory: Vec<Memory>,
) -> (Request, Receiver<Completion>) {
    let (reply, completions) = unbounded();
    let request = Request {
        operation: Operation::Read,
        purpose: Purpose::of(Class::Need),
        file,
        offset: offset as u64,
        memory,
        tag: 5,
        deadline: Deadline::Never,
        guard: None,
        watch: None,
        reply,
    };
    (request, completions)
}

/// Reads whole sectors with one request.
pub fn read_file(
    tier: &dyn Tier,
    file: FileId,
    offset: usize,
    len: usize,
) -> Result<Vec<u8>, IoError> {
    let (request, completions) = read_request(file, offset, vec![Memory::zeroed(len)]);
    tier.submit(vec![request]);
    complete(&completions)
}

/// Waits for the only completion, and returns its bytes.
pub fn complete(completions: &Receiver<Completion>) -> Result<Vec<u8>, IoError> {
    let completion = completions.recv_timeout(TEST_TIMEOUT).expect("every request completes");
    assert_eq!(completion.tag, 5);
    assert!(completions.recv_timeout(TEST_TIMEOUT).is_err(), "a second completion");
    completion
        .result
        .map(|()| completion.memory.iter().flat_map(|piece| piece.as_slice().to_vec()).collect())
}

pub fn read(
    tier: &dyn Tier,
    name: ObjectName,
    offset: usize,
    len: usize,
) -> Result<Vec<u8>, IoError> {
    let file = tier.file(name);
    let result = read_file(tier, file, offset, len);
    tier.forget(file);
    result
}

/// Waits until an object that another mount published can be read.
pub fn fetch_visible(tier: &dyn Tier, name: ObjectName) -> Vec<u8> {
    eventually("an object", || match fetch(tier, name) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            assert!(error.is_not_found(), "{error}");
            None
        }
    })
}
