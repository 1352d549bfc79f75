//! Tables from handles to objects.
//!
//! 1. A handle is never used again, so a destroyed object is always recognized.
//! 2. A handle is not an address: a CPU that reads from it faults.

use crate::abi::{CUDA_ERROR_INVALID_HANDLE, CUresult};
use crate::violations::{self, Kind};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The objects of one type.
pub(crate) struct Handles<T> {
    noun: &'static str,
    next: AtomicUsize,
    objects: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Handles<T> {
    /// Starts an empty table. `tag` distinguishes the handles of different tables.
    pub(crate) const fn new(noun: &'static str, tag: u8) -> Self {
        // Above all addresses of user space, of x86-64 and of aarch64.
        let first = ((tag as usize) << 51) | 0x10;
        Self { noun, next: AtomicUsize::new(first), objects: Mutex::new(BTreeMap::new()) }
    }

    /// Adds an object that is made with its handle, and returns the handle.
    pub(crate) fn try_insert(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<T>, CUresult>,
    ) -> Result<usize, CUresult> {
        let handle = self.next.fetch_add(0x10, Ordering::Relaxed);
        let object = make(handle)?;
        self.objects.lock().insert(handle, object);
        Ok(handle)
    }

    /// Adds an object and returns its handle.
    pub(crate) fn insert(&self, object: T) -> usize {
        let handle = self.next.fetch_add(0x10, Ordering::Relaxed);
        self.objects.lock().insert(handle, Arc::new(object));
        handle
    }

    /// Returns an object. An unknown handle is a violation.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, CUresult> {
        self.find(handle).ok_or_else(|| self.refuse(handle))
    }

    /// Removes an object. An unknown handle is a violation.
    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, CUresult> {
        self.objects.lock().remove(&handle).ok_or_else(|| self.refuse(handle))
    }

    /// Returns an object, if it is there.
    pub(crate) fn find(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.lock().get(&handle).cloned()
    }

    /// Records an unknown handle and returns the error of the call.
    pub(crate) fn refuse(&self, handle: usize) -> CUresult {
        let noun = self.noun;
        violations::record(Kind::Handle, format_args!("{noun} {handle:#x} does not exist"));
        CUDA_ERROR_INVALID_HANDLE
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.objects.lock().values().cloned().collect()
    }

    /// Removes the objects that do not fulfill a condition.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.objects.lock().retain(|_, object| keep(object));
    }
}

/// Returns a handle as the pointer that callers see.
pub(crate) fn as_pointer(handle: usize) -> *mut c_void {
    with_exposed_provenance_mut(handle)
}
