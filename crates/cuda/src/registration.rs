//! Regions of memory that the GPU reads and writes directly.
//!
//! 1. A region is registered in pieces. No range of a copy crosses the border of two: the driver refuses such copies.
//! 2. A region is registered as a whole or not at all. What was registered is undone in reverse order.
//! 3. A region is unmapped only after it was unregistered: its mapping belongs to the registry from the end of its last
//!    user on.
//! 4. Registering takes a second per 20 GiB. A thread of its own does it. Until it is done, copies take another way.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::Arc;

use dalsegno_io::{Access, Mapping, Region, RegionId, spawn};
use parking_lot::{Condvar, Mutex};

use crate::device::Device;
use crate::driver::{CudaError, DevicePointer, Driver};

/// Bytes of a piece. One call for 512 GiB and more fails with some drivers.
const PIECE_BYTES: usize = 1 << 30;

/// What became of the regions that were to be registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrationFacts {
    /// Bytes that are registered. They stay in physical memory.
    pub registered_bytes: u64,
    /// Regions that are being registered.
    pub pending: usize,
    /// Why the last region that was refused was.
    pub refusal: Option<String>,
}

/// The regions that were registered, and the thread that does so.
#[derive(Debug)]
pub(crate) struct Registry {
    shared: Arc<RegistryShared>,
}

#[derive(Debug)]
struct RegistryShared {
    device: Arc<Device>,
    piece_bytes: usize,
    state: Mutex<RegistryState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct RegistryState {
    regions: HashMap<RegionId, RegionState>,
    jobs: VecDeque<Job>,
    refusal: Option<String>,
    is_closed: bool,
}

#[derive(Debug)]
enum RegionState {
    Pending,
    Registered(Arc<Registered>),
    Refused,
}

enum Job {
    Register(Arc<Region>),
    Unmap(Mapping, Option<Arc<Registered>>),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Register(region) => write!(f, "Register({region:?})"),
            Self::Unmap(..) => f.write_str("Unmap"),
        }
    }
}

/// A registered region.
#[derive(Debug)]
pub(crate) struct Registered {
    start: usize,
    bytes: usize,
    piece_bytes: usize,
    /// The address of each piece as the GPU has it.
    addresses: Vec<DevicePointer>,
}

impl Registered {
    /// The address of the byte at `offset` as the GPU has it, and how many bytes behind it are in the same piece.
    pub(crate) fn address(&self, offset: usize) -> (DevicePointer, usize) {
        let (piece, within) = (offset / self.piece_bytes, offset % self.piece_bytes);
        let left = self.piece_bytes.min(self.bytes - piece * self.piece_bytes) - within;
        (self.addresses[piece] + within as u64, left)
    }

    /// Undoes the registration of the first pieces. `false` if one of them is still registered.
    fn undo(&self, driver: &Driver, pieces: usize) -> bool {
        let mut are_undone = true;
        for piece in (0..pieces).rev() {
            let start = piece_start(self.start, piece * self.piece_bytes);
            // SAFETY: it was registered, and no copy uses it: it never could, or the region's last user has gone.
            if let Err(error) = unsafe { driver.unregister(start) } {
                tracing::warn!(%error, "memory could not be unregistered, and stays mapped");
                are_undone = false;
            }
        }
        are_undone
    }
}

fn piece_start(start: usize, offset: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(start + offset)
}

impl Registry {
    pub(crate) fn start(device: &Arc<Device>) -> std::io::Result<Self> {
        Self::with_pieces(device, PIECE_BYTES)
    }

    /// A registry with pieces of another size.
    pub(crate) fn with_pieces(device: &Arc<Device>, piece_bytes: usize) -> std::io::Result<Self> {
        let shared = Arc::new(RegistryShared {
            device: Arc::clone(device),
            piece_bytes,
            state: Mutex::default(),
            arrived: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        spawn("dalsegno-pin", move || of_thread.run())?;
        Ok(Self { shared })
    }

    /// Has a region registered in the background, unless it was before. Never waits.
    pub(crate) fn register(&self, region: &Arc<Region>) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.regions.contains_key(&region.id()) {
            return;
        }
        if let Err(refusal) = shared.may_register(region) {
            tracing::warn!(%refusal, "copies between memory and the GPU go through a buffer");
            state.refusal = Some(refusal);
            state.regions.insert(region.id(), RegionState::Refused);
            return;
        }
        state.regions.insert(region.id(), RegionState::Pending);
        state.jobs.push_back(Job::Register(Arc::clone(region)));
        shared.arrived.notify_all();
    }

    /// The region, if it is registered.
    pub(crate) fn find(&self, region: RegionId) -> Option<Arc<Registered>> {
        match self.shared.state.lock().regions.get(&region)? {
            RegionState::Registered(registered) => Some(Arc::clone(registered)),
            RegionState::Pending | RegionState::Refused => None,
        }
    }

    pub(crate) fn facts(&self) -> RegistrationFacts {
        let state = self.shared.state.lock();
        let mut facts =
            RegistrationFacts { refusal: state.refusal.clone(), ..RegistrationFacts::default() };
        for region in state.regions.values() {
            match region {
                RegionState::Registered(registered) => {
                    facts.registered_bytes += registered.bytes as u64;
                }
                RegionState::Pending => facts.pending += 1,
                RegionState::Refused => {}
            }
        }
        facts
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.shared.device.is_here() {
            self.shared.state.lock().is_closed = true;
            self.shared.arrived.notify_all();
        }
    }
}

impl RegistryShared {
    /// Checks whether a region can be registered, and takes care of its mapping. Fails with the reason.
    fn may_register(self: &Arc<Self>, region: &Arc<Region>) -> Result<(), String> {
        let facts = self.device.facts();
        if !facts.registers {
            return Err("the GPU cannot register memory".to_owned());
        }
        if region.access() == Access::Read && !facts.registers_read_only {
            return Err("the GPU cannot register memory that this process may only read".to_owned());
        }
        if !region.keeps_memory() {
            return Err("this memory goes back to the system in between".to_owned());
        }
        let (shared, id) = (Arc::clone(self), region.id());
        if !region.keep_mapping(Box::new(move |mapping| shared.end_region(id, mapping))) {
            return Err("the memory is registered with another GPU".to_owned());
        }
        Ok(())
    }

    /// Takes the mapping of a region whose last user has gone.
    fn end_region(&self, id: RegionId, mapping: Mapping) {
        let mut state = self.state.lock();
        let registered = match state.regions.remove(&id) {
            Some(RegionState::Registered(registered)) => Some(registered),
            _ => None,
        };
        if state.is_closed {
            drop(state);
            self.unmap(mapping, registered.as_deref());
        } else {
            state.jobs.push_back(Job::Unmap(mapping, registered));
            self.arrived.notify_all();
        }
    }

    fn unmap(&self, mapping: Mapping, registered: Option<&Registered>) {
        let is_undone = registered.is_none_or(|registered| {
            let driver = self.device.enter();
            driver.is_ok_and(|driver| registered.undo(&driver, registered.addresses.len()))
        });
        if is_undone {
            drop(mapping);
        } else {
            // What is mapped there next would count as registered.
            std::mem::forget(mapping);
        }
    }

    /// Registers and unregisters until the registry is closed.
    fn run(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                self.arrived
                    .wait_while(&mut state, |state| state.jobs.is_empty() && !state.is_closed);
                let Some(job) = state.jobs.pop_front() else { return };
                job
            };
            match job {
                Job::Register(region) => self.register(&region),
                Job::Unmap(mapping, registered) => self.unmap(mapping, registered.as_deref()),
            }
        }
    }

    fn register(&self, region: &Arc<Region>) {
        if self.state.lock().is_closed {
            return;
        }
        let registered = self.register_pieces(region);
        let mut state = self.state.lock();
        let outcome = match registered {
            Ok(registered) => {
                let bytes = registered.bytes;
                tracing::info!(bytes, "memory is registered with the GPU, and stays resident");
                RegionState::Registered(Arc::new(registered))
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    bytes = region.bytes(),
                    "memory cannot be registered with the GPU: copies go through a buffer"
                );
                state.refusal = Some(error.to_string());
                RegionState::Refused
            }
        };
        state.regions.insert(region.id(), outcome);
    }

    fn register_pieces(&self, region: &Arc<Region>) -> Result<Registered, CudaError> {
        let driver = self.device.enter()?;
        let (start, bytes) = region.range();
        let is_read_only = region.access() == Access::Read;
        let (piece_bytes, addresses) = (self.piece_bytes, Vec::new());
        let mut registered = Registered { start, bytes, piece_bytes, addresses };
        for offset in (0..bytes).step_by(piece_bytes) {
            let at = piece_start(start, offset);
            let len = piece_bytes.min(bytes - offset);
            // SAFETY: it is mapped, and its keeper unregisters it before it is unmapped.
            let done = unsafe { driver.register(at, len, is_read_only) };
            let pieces = registered.addresses.len();
            let (address, to_undo) = match done {
                Ok(()) => (driver.device_pointer(at), pieces + 1),
                Err(error) => (Err(error), pieces),
            };
            match address {
                Ok(address) => registered.addresses.push(address),
                Err(error) => {
                    if !registered.undo(&driver, to_undo) {
                        // Never unmapped: what is mapped there next would count as registered.
                        std::mem::forget(Arc::clone(region));
                    }
                    return Err(error);
                }
            }
        }
        Ok(registered)
    }
}
