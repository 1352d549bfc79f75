//! Modules of PTX text, and the one kernel that the fake knows.
//!
//! 1. A module's text decides which functions exist. The name of a function decides what it does.
//! 2. `dalsegno_copy_pieces` reads its list when the stream gets there, and then copies the pieces in random order.
//! 3. A kernel uses device memory and the device pointers of pinned host memory, nothing else.

use crate::abi::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NOT_FOUND, CUresult,
};
use crate::copies::{Refusal, Site, Source, Transfer, check_overlaps, run_chunks, site};
use crate::handles::Handles;
use crate::regions::Place;
use crate::settings;
use crate::streams::{Stream, Work};
use crate::violations::{self, Kind};
use std::sync::Arc;

/// The function that can be launched.
pub(crate) const COPY_PIECES: &str = "dalsegno_copy_pieces";
const PIECE_BYTES: usize = 24;
const PIECE_WORDS: usize = 3;

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    functions: Vec<String>,
}

/// A function of a module.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its name in the PTX text.
    pub(crate) name: String,
    module: Arc<Module>,
}

static MODULES: Handles<Module> = Handles::new("module", 3);
static FUNCTIONS: Handles<Function> = Handles::new("function", 4);

fn version_of(ptx: &str) -> Option<(u32, u32)> {
    let version = ptx.lines().find_map(|line| line.trim().strip_prefix(".version"))?;
    let (major, minor) = version.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn entries_of(ptx: &str) -> Vec<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_$%".contains(letter);
    ptx.split(".visible .entry")
        .skip(1)
        .map(|rest| rest.trim_start().chars().take_while(|letter| is_name(*letter)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

/// Loads a module and returns its handle.
pub(crate) fn load(ptx: &str) -> Result<usize, CUresult> {
    let version = version_of(ptx).ok_or(CUDA_ERROR_INVALID_PTX)?;
    let functions = entries_of(ptx);
    if version > settings::current().ptx || functions.is_empty() {
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    Ok(MODULES.insert(Module { functions }))
}

/// Unloads a module. Its functions are no longer valid.
pub(crate) fn unload(module: usize) -> Result<(), CUresult> {
    let module = MODULES.remove(module)?;
    FUNCTIONS.retain(|function| !Arc::ptr_eq(&function.module, &module));
    // Only launches that are queued or running still hold a function of it.
    if Arc::strong_count(&module) > 1 {
        violations::record(Kind::InUse, "a module is unloaded while a launch uses it");
    }
    Ok(())
}

/// Returns the handle of a module's function.
pub(crate) fn function(module: usize, name: &str) -> Result<usize, CUresult> {
    let module = MODULES.get(module)?;
    if !module.functions.iter().any(|one| one == name) {
        return Err(CUDA_ERROR_NOT_FOUND);
    }
    Ok(FUNCTIONS.insert(Function { name: name.to_owned(), module }))
}

/// Returns a function by its handle.
pub(crate) fn find(function: usize) -> Result<Arc<Function>, CUresult> {
    FUNCTIONS.get(function)
}

/// Returns the number of modules.
pub(crate) fn count() -> usize {
    MODULES.all().len()
}

/// A launch of `dalsegno_copy_pieces`.
pub(crate) struct CopyPieces {
    /// The device pointer of the list.
    pub(crate) list: usize,
    /// The number of pieces.
    pub(crate) count: u32,
    /// The function, so that its module is in use.
    pub(crate) function: Arc<Function>,
    /// The launch fails with this result and copies nothing.
    pub(crate) failure: Option<CUresult>,
}

impl Work for CopyPieces {
    fn run(self: Box<Self>, stream: &Stream) -> Result<(), CUresult> {
        if let Some(failure) = self.failure {
            return stream.step(|| Err(failure));
        }
        let transfers = stream.step(|| self.transfers())?;
        run_chunks(stream, &transfers)
    }
}

impl CopyPieces {
    fn place(&self, address: usize, bytes: usize) -> Result<Place, CUresult> {
        let refusal = Refusal { call: &self.function.name, address, bytes };
        let (kind, why) = match site(address, bytes) {
            Site::Device(place) | Site::Pinned { place, is_plain: false } => return Ok(place),
            Site::Pinned { is_plain: true, .. } => {
                (Kind::PlainPointer, "are given by their host address, not by their device pointer")
            }
            Site::Pageable(_) => (Kind::Pageable, "are in no registration"),
            Site::Border => (Kind::Border, "are not inside one registration"),
            Site::Outside => (Kind::Outside, "are in no memory of the device"),
        };
        refusal.record(kind, why);
        Err(CUDA_ERROR_ILLEGAL_ADDRESS)
    }

    fn transfers(&self) -> Result<Vec<Transfer>, CUresult> {
        let count = usize::try_from(self.count).expect("usize has 64 bits");
        if count == 0 {
            return Ok(Vec::new());
        }
        let list = self.place(self.list, count * PIECE_BYTES)?;
        let mut bytes = vec![0; count * PIECE_BYTES];
        if list.read(0, &mut bytes).is_err() {
            let refusal =
                Refusal { call: &self.function.name, address: self.list, bytes: bytes.len() };
            refusal.record(Kind::Unmapped, "cannot be read");
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        let (mut sources, mut targets) = (vec![list.range()], Vec::new());
        let mut transfers = Vec::new();
        for piece in bytes.chunks_exact(PIECE_BYTES) {
            let [from, to, bytes] = words(piece);
            if bytes == 0 {
                continue;
            }
            let from = self.place(from, bytes)?;
            let to = self.place(to, bytes)?;
            if to.is_read_only() {
                let address = to.range().start;
                let refusal = Refusal { call: &self.function.name, address, bytes };
                refusal.record(Kind::ReadOnly, "are registered as read-only");
                return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
            }
            sources.push(from.range());
            targets.push(to.range());
            transfers.push(Transfer { from: Source::Place(from), to });
        }
        check_overlaps(&self.function.name, &sources, &targets);
        Ok(transfers)
    }
}

fn words(piece: &[u8]) -> [usize; PIECE_WORDS] {
    let mut words = [0; PIECE_WORDS];
    for (word, bytes) in words.iter_mut().zip(piece.chunks_exact(size_of::<u64>())) {
        let bytes = bytes.try_into().expect("chunks of this size");
        // The device is little-endian, as are the machines that CUDA exists for.
        *word = usize::from_le_bytes(bytes);
    }
    words
}
