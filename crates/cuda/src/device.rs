//! One GPU, as this process uses it.
//!
//! 1. The context is the one that the engine uses: its streams and memory are valid in it.
//! 2. A thread makes calls only while it is [`Entered`]. Afterwards its context is the one that it had before.
//! 3. A forked child makes none: the driver does not work there.
//! 4. No call spoils a graph that the engine captures at the time: by default, an allocation or a wait of any thread
//!    ends all captures of a process with an error. What is queued here never depends on a captured stream.

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;

use dalsegno_io::Process;
use parking_lot::Mutex;

use crate::driver::{Absent, CaptureMode, CudaError, Driver, Handle, attribute};

/// Events that wait to be used again.
const MOST_IDLE_EVENTS: usize = 256;

/// What is known about a GPU and its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The name of the GPU.
    pub name: String,
    /// The version of CUDA that the driver was made for: 12080 is 12.8.
    pub driver_version: u32,
    /// Whether the driver has batched copies.
    pub copies_batches: bool,
    /// Whether memory can be registered.
    pub registers: bool,
    /// Whether memory can be registered that this process may only read.
    pub registers_read_only: bool,
    /// The number of its multiprocessors.
    pub multiprocessors: u32,
}

/// A GPU.
pub(crate) struct Device {
    driver: Driver,
    index: c_int,
    context: Handle,
    facts: DeviceFacts,
    process: Process,
    idle_events: Mutex<Vec<IdleEvent>>,
}

/// A thread that may make calls (invariants 2 and 4).
pub(crate) struct Entered<'a> {
    driver: &'a Driver,
    mode_before: CaptureMode,
    /// It stays on its thread.
    thread: PhantomData<*const ()>,
}

impl Deref for Entered<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Neither can fail, as both were made before; and nobody could do anything.
        let _ = self.driver.exchange_capture_mode(self.mode_before);
        let _ = self.driver.pop_context();
    }
}

/// A handle of an event that nobody uses.
struct IdleEvent(Handle);

// SAFETY: the driver's handles may be used by any thread.
unsafe impl Send for IdleEvent {}
// SAFETY: as above. All calls of the driver may be made by several threads at a time.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The GPU with this number among those that the process sees. `library` takes the place of the driver's own.
    pub(crate) fn open(library: Option<&Path>, index: u32) -> Result<Self, Absent> {
        let driver = Driver::load(library)?;
        let index = driver.device(c_int::try_from(index).unwrap_or(c_int::MAX))?;
        let has = |number| driver.attribute(number, index) != 0;
        let facts = DeviceFacts {
            name: driver.device_name(index)?,
            driver_version: driver.version(),
            copies_batches: driver.has_batch_copy(),
            registers: has(attribute::HOST_REGISTER),
            registers_read_only: has(attribute::READ_ONLY_HOST_REGISTER),
            multiprocessors: u32::try_from(driver.attribute(attribute::MULTIPROCESSORS, index))
                .unwrap_or_default(),
        };
        let context = driver.retain_context(index)?;
        let (process, idle_events) = (Process::this(), Mutex::default());
        Ok(Self { driver, index, context, facts, process, idle_events })
    }

    /// Lets this thread make calls.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        let driver = &self.driver;
        // SAFETY: the context is retained as long as this lives, and popped before.
        unsafe { driver.push_context(self.context) }?;
        match driver.exchange_capture_mode(CaptureMode::RELAXED) {
            Ok(mode_before) => Ok(Entered { driver, mode_before, thread: PhantomData }),
            Err(error) => {
                // The first error says more.
                let _ = driver.pop_context();
                Err(error)
            }
        }
    }

    pub(crate) fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Whether this process opened it (invariant 3).
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_this()
    }

    /// A handle for an event.
    pub(crate) fn take_event(&self) -> Result<Handle, CudaError> {
        let idle = self.idle_events.lock().pop();
        match idle {
            Some(IdleEvent(event)) => Ok(event),
            None => self.enter()?.create_event(),
        }
    }

    /// Takes the handle of an event back that nobody uses any more.
    pub(crate) fn give_event(&self, event: Handle) {
        if !self.is_here() {
            return;
        }
        let mut idle = self.idle_events.lock();
        if idle.len() < MOST_IDLE_EVENTS {
            idle.push(IdleEvent(event));
            return;
        }
        drop(idle);
        if let Ok(driver) = self.enter() {
            // SAFETY: nobody uses it.
            let _ = unsafe { driver.destroy_event(event) };
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        if let Ok(driver) = self.enter() {
            for IdleEvent(event) in self.idle_events.lock().drain(..) {
                // SAFETY: nobody uses it.
                let _ = unsafe { driver.destroy_event(event) };
            }
        }
        // SAFETY: whatever uses the context holds this device.
        let _ = unsafe { self.driver.release_context(self.index) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.facts.name)
    }
}
