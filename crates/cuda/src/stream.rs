//! Streams of ours, and events in any stream.

use std::sync::Arc;

use crate::device::Device;
use crate::driver::{CudaError, Handle};

/// The handle of a stream, of ours or of the engine.
#[derive(Clone, Copy, Debug)]
pub struct StreamHandle(pub(crate) Handle);

// SAFETY: the driver's handles may be used by any thread.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

/// A stream of ours.
#[derive(Debug)]
pub(crate) struct Stream {
    device: Arc<Device>,
    handle: StreamHandle,
}

/// A point in a stream. Its handle is used again after it was dropped.
#[derive(Debug)]
pub(crate) struct Event {
    device: Arc<Device>,
    handle: StreamHandle,
}

impl StreamHandle {
    /// The stream that torch or the driver names by this number; 0 is the default stream.
    ///
    /// # Safety
    ///
    /// The stream exists as long as this is used.
    #[must_use]
    pub unsafe fn new(number: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(number))
    }

    /// Fails if no work can be ordered with it: in a forked child, before any lock, and while it is captured.
    pub(crate) fn check(self, device: &Device) -> Result<(), CudaError> {
        if !device.is_here() {
            return Err(CudaError::forked());
        }
        // SAFETY: a `StreamHandle` is one of an existing stream.
        let is_captured = unsafe { device.enter()?.is_capturing(self.0) }?;
        if is_captured { Err(CudaError::captured()) } else { Ok(()) }
    }
}

impl Stream {
    /// A stream that goes before those of the engine.
    pub(crate) fn create(device: &Arc<Device>) -> Result<Self, CudaError> {
        let driver = device.enter()?;
        let handle = StreamHandle(driver.create_stream(driver.highest_priority()?)?);
        Ok(Self { device: Arc::clone(device), handle })
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Lets later work of this stream wait for an event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CudaError> {
        event.order(self.handle)
    }

    /// Waits until all of its work has ended.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream exists until this is dropped.
        unsafe { self.device.enter()?.synchronize_stream(self.handle.0) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.is_here()
            && let Ok(driver) = self.device.enter()
        {
            // SAFETY: nobody uses it afterwards. Its work goes on.
            let _ = unsafe { driver.destroy_stream(self.handle.0) };
        }
    }
}

impl Event {
    /// The point behind all work that a stream has now.
    pub(crate) fn record(device: &Arc<Device>, stream: StreamHandle) -> Result<Self, CudaError> {
        let handle = StreamHandle(device.take_event()?);
        let event = Self { device: Arc::clone(device), handle };
        // SAFETY: the event was made above, and a `StreamHandle` is one of an existing stream.
        unsafe { device.enter()?.record_event(handle.0, stream.0) }?;
        Ok(event)
    }

    /// Lets later work of a stream wait for it.
    pub(crate) fn order(&self, stream: StreamHandle) -> Result<(), CudaError> {
        // SAFETY: as in `record`.
        unsafe { self.device.enter()?.stream_wait(stream.0, self.handle.0) }
    }

    /// Waits for it.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: as in `record`.
        unsafe { self.device.enter()?.synchronize_event(self.handle.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.give_event(self.handle.0);
    }
}
