//! Random histories: an engine computes, saves and loads pages, in the order of its stream, while copies are late.
//!
//! The model is what a machine would have that does one thing after the other. Pages are free for the next use when the
//! copier says so, not before: what is missing in its waits shows as other bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use dalsegno_cuda::GpuCopier;
use dalsegno_io::{
    Access, Backing, Claim, Copier, CopyBatch, CopyMark, CopySource, Memory, PageSlice, Region,
    SliceCopy,
};

use crate::fake::{Cache, EngineStream, Fake, LIMIT, eventually, keys_and_values, noise};

const PAGES: u32 = 6;
const LAYERS: u32 = 2;
const BYTES: usize = 9_000;
const SLICE: usize = 2 * BYTES;
/// Slices that the store has.
const PLACES: usize = 8;
const STEPS: usize = 40;

/// Numbers that depend on a seed alone.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// Slices in a region that this process may write, and as another process sees it.
struct Store {
    own: Arc<Region>,
    seen: Arc<Region>,
    content: Vec<Vec<u8>>,
}

impl Store {
    fn new() -> Self {
        let bytes = (PLACES * SLICE).next_multiple_of(64 << 10);
        let own = Arc::new(Region::shared(&Backing::MemoryFile, bytes, "a test").unwrap());
        let file = own.reader_file().unwrap();
        let seen = Arc::new(Region::map(file, bytes, Access::Read, "a test").unwrap());
        let mut store = Self { own, seen, content: Vec::new() };
        for place in 0..PLACES {
            let content = noise(1_000 + place as u64, SLICE);
            store.claim(place).memory().as_mut_slice().copy_from_slice(&content);
            store.content.push(content);
        }
        store
    }

    fn claim(&self, place: usize) -> Claim {
        Claim::of(&self.own, place * SLICE, SLICE, ())
    }
}

/// A copy under way.
struct Running {
    page: u32,
    ended: Receiver<bool>,
    mark: Option<CopyMark>,
    /// The claim of what is saved, and what it must be.
    saved: Option<(Claim, Vec<u8>)>,
}

struct Engine<'a> {
    copier: Arc<GpuCopier>,
    cache: Cache<'a>,
    stream: EngineStream<'a>,
    /// What each page has, as the stream sees it: of layer 0, then of layer 1.
    pages: BTreeMap<(u32, u32), Vec<u8>>,
    running: Vec<Running>,
}

impl Engine<'_> {
    fn is_free(&self, page: u32) -> bool {
        self.running.iter().all(|running| running.page != page)
    }

    /// The stream writes a page.
    fn compute(&mut self, page: u32, layer: u32, seed: u64) {
        let content = noise(seed, SLICE);
        for ((at, bytes), part) in
            self.cache.pieces(layer as usize, &[page]).into_iter().zip(content.chunks(BYTES))
        {
            assert_eq!(bytes, part.len());
            self.stream.write(at, part);
        }
        self.pages.insert((page, layer), content);
    }

    /// The stream reads a page.
    fn check(&self, page: u32, layer: u32, what: &str) {
        let pieces = self.cache.pieces(layer as usize, &[page]);
        let read: Vec<u8> =
            pieces.into_iter().flat_map(|(at, bytes)| self.stream.read(at, bytes)).collect();
        assert!(read == self.pages[&(page, layer)], "page {page}, layer {layer}: {what}");
    }

    fn start(&mut self, page: u32, copy: SliceCopy, saved: Option<(Claim, Vec<u8>)>) {
        let after = Some(self.copier.point(self.stream.handle()).unwrap());
        let (sender, ended) = bounded(1);
        let done = move |is_copied| sender.send(is_copied).unwrap();
        let batch = CopyBatch { copies: vec![copy], after };
        let mark = self.copier.copy(batch, Box::new(done));
        self.running.push(Running { page, ended, mark, saved });
    }

    /// Fills a page from a place.
    fn load(&mut self, store: &Store, page: u32, layer: u32, place: usize, way: usize) {
        let from = match way {
            0 => CopySource::Racing(Arc::clone(&store.seen), place * SLICE),
            1 => {
                let filled = store.claim(place).fill().expect("nobody writes it");
                CopySource::Memory(vec![filled.memory()])
            }
            _ => CopySource::Memory(vec![Memory::owned(store.content[place].clone(), ())]),
        };
        let slice = self.cache.memory.blocks(vec![page]).unwrap().take_slice(0, layer).unwrap();
        self.start(page, SliceCopy::new(from, slice), None);
        self.pages.insert((page, layer), store.content[place].clone());
        // The stream uses the page next, without waiting for the host.
        if let Some(mark) = self.running.last().unwrap().mark {
            self.copier.order(self.stream.handle(), mark).unwrap();
            self.check(page, layer, "after a load, in the order of the stream");
        }
    }

    /// Saves a page to a place.
    fn save(&mut self, store: &mut Store, page: u32, layer: u32, place: usize, is_plain: bool) {
        let content = self.pages[&(page, layer)].clone();
        let from = self.cache.memory.blocks(vec![page]).unwrap().read_slice(0, layer).unwrap();
        let mut claim = store.claim(place);
        let to: PageSlice = if is_plain { Memory::zeroed(SLICE) } else { claim.memory() }.into();
        if is_plain {
            self.start(page, SliceCopy::new(from.into(), to), None);
            return;
        }
        store.content[place].clone_from(&content);
        self.start(page, SliceCopy::new(from.into(), to), Some((claim, content)));
    }

    /// Waits for the end of a copy; its page and place are free then.
    fn end(&mut self, at: usize, what: &str) {
        let Running { ended, saved, .. } = self.running.swap_remove(at);
        assert!(ended.recv_timeout(LIMIT).expect("it ends"), "{what}");
        if let Some((claim, content)) = saved {
            let filled = claim.fill().expect("no copy has its memory");
            assert!(filled.as_slice() == content, "a save: {what}");
        }
    }
}

fn history(seed: u64) {
    let mut choices = Choices(seed);
    let fake = Fake::new(seed, 150);
    let (version, has_kernel) = ([11_080, 12_080, 13_000][choices.below(3)], choices.below(2) == 0);
    fake.set_version(version);
    if !has_kernel {
        fake.set_ptx(7, 0);
    }
    let copier = Arc::new(fake.open_with(Some(32 << 10)).unwrap());
    let mut store = Store::new();
    // Registered at some time during the history, or never.
    let [registers_own, registers_seen] = [(); 2].map(|()| choices.below(STEPS * 3 / 2));
    let cache = Cache::new(
        &fake,
        &copier,
        LAYERS as usize,
        PAGES as usize,
        keys_and_values(PAGES as usize, BYTES),
    );
    let every = (0..PAGES).flat_map(|page| (0..LAYERS).map(move |layer| (page, layer)));
    let pages = every.map(|key| (key, vec![0; SLICE])).collect();
    let (stream, running) = (EngineStream::new(&fake), Vec::new());
    let mut engine = Engine { copier, cache, stream, pages, running };
    for step in 0..STEPS {
        let what = format!("seed {seed}, step {step}");
        if step == registers_own {
            engine.copier.register(&store.own);
        }
        if step == registers_seen {
            engine.copier.register(&store.seen);
        }
        let page = u32::try_from(choices.below(PAGES as usize)).unwrap();
        let layer = u32::try_from(choices.below(LAYERS as usize)).unwrap();
        let place = choices.below(PLACES);
        let is_saved = engine.running.iter().any(|running| {
            running.saved.as_ref().is_some_and(|(_, content)| *content == store.content[place])
        });
        match choices.below(5) {
            0 if engine.is_free(page) => engine.compute(page, layer, seed * 100 + step as u64),
            1 | 2 if engine.is_free(page) && !is_saved => {
                engine.load(&store, page, layer, place, choices.below(3));
            }
            3 if engine.is_free(page) && !is_saved => {
                // Not while a load reads the place.
                while !engine.running.is_empty() {
                    engine.end(0, &what);
                }
                engine.save(&mut store, page, layer, place, choices.below(4) == 0);
            }
            _ if !engine.running.is_empty() => {
                let at = choices.below(engine.running.len());
                engine.end(at, &what);
            }
            _ => engine.check(page, layer, &what),
        }
    }
    while !engine.running.is_empty() {
        engine.end(0, &format!("seed {seed}, the end"));
    }
    for (page, layer) in engine.pages.keys().copied().collect::<Vec<_>>() {
        engine.check(page, layer, &format!("seed {seed}, the end"));
    }
    let facts = engine.copier.facts().registration;
    assert_eq!(facts.refusal, None);
    drop(engine);
    drop(store);
    eventually("nothing is registered", || fake.alive(crate::fake::Kind::Registrations) == 0);
}

#[test]
fn what_an_engine_computes_saves_and_loads_is_what_a_machine_without_overlap_has() {
    let is_long = std::env::var_os("DALSEGNO_DOSE").is_some_and(|dose| dose == "long");
    let count = if is_long { 1_000 } else { 60 };
    let first: u64 =
        std::env::var("DALSEGNO_GPU_SEED").ok().map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + count {
        history(seed);
    }
}
