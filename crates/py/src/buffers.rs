//! Python buffers as the store's memory, and 32-byte values as block hashes.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_store::{ChainHash, Memory};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySequence, PyTuple};

use crate::access::Access;
use crate::errors::InvalidError;
use crate::tensors::buffer_of_tensor;

/// Parses a sequence of 32-byte hashes.
pub(crate) fn hashes(hashes: &Bound<'_, PyAny>) -> PyResult<Vec<ChainHash>> {
    let one = |item: Bound<'_, PyAny>| {
        let bytes = item
            .cast::<PyBytes>()
            .map_err(|_| PyTypeError::new_err("a block hash is a bytes object of 32 bytes"))?;
        <[u8; 32]>::try_from(bytes.as_bytes()).map(ChainHash).map_err(|_| {
            let got = bytes.as_bytes().len();
            InvalidError::new_err(format!("a block hash must have 32 bytes, got {got}"))
        })
    };
    // Most callers give a list; an iterator would take twice as long.
    if let Ok(list) = hashes.cast::<PyList>() {
        let mut found = Vec::with_capacity(list.len());
        for item in list.iter() {
            found.push(one(item)?);
        }
        return Ok(found);
    }
    hashes.try_iter()?.map(|item| one(item?)).collect()
}

/// Parses a sequence of blocks, each one buffer or a sequence of buffers.
pub(crate) fn blocks(blocks: &Bound<'_, PyAny>, access: Access) -> PyResult<Vec<Vec<Memory>>> {
    let (mut buffers, mut parts) = (Vec::new(), Vec::new());
    for item in blocks.try_iter()? {
        let before = buffers.len();
        push_block(&item?, access, &mut buffers)?;
        parts.push(buffers.len() - before);
    }
    for buffer in &buffers {
        check(buffer, access)?;
    }
    if access == Access::Write {
        refuse_overlap(&buffers)?;
    }
    Ok(lend(buffers, &parts, access))
}

/// Parses a sequence of buffers that do not overlap and that can be filled.
pub(crate) fn writable_buffers(buffers: &Bound<'_, PyAny>) -> PyResult<Vec<PyUntypedBuffer>> {
    let one = |item: PyResult<Bound<'_, PyAny>>| buffer_of(&item?, Access::Write);
    let buffers: Vec<PyUntypedBuffer> = buffers.try_iter()?.map(one).collect::<PyResult<_>>()?;
    buffers.iter().try_for_each(|buffer| check(buffer, Access::Write))?;
    refuse_overlap(&buffers)?;
    Ok(buffers)
}

/// Appends the buffers of one block.
fn push_block(
    block: &Bound<'_, PyAny>,
    access: Access,
    buffers: &mut Vec<PyUntypedBuffer>,
) -> PyResult<()> {
    // These types have no buffer. Requesting one to find that out would cost more than everything else.
    if !block.is_instance_of::<PyList>() && !block.is_instance_of::<PyTuple>() {
        match buffer_of(block, access) {
            Ok(buffer) => {
                buffers.push(buffer);
                return Ok(());
            }
            Err(not_a_buffer) if block.cast::<PySequence>().is_err() => return Err(not_a_buffer),
            Err(_) => {}
        }
    }
    for part in block.try_iter()? {
        buffers.push(buffer_of(&part?, access)?);
    }
    Ok(())
}

/// The buffer of an object. Some objects (`ctypes` arrays) omit strides, which a memoryview over them adds. Torch
/// tensors have no buffer, but their bytes can be lent.
fn buffer_of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object).or_else(|error| {
        if error.is_instance_of::<PyBufferError>(object.py()) {
            let view = PyMemoryView::from(object)?;
            return PyUntypedBuffer::get(view.as_any());
        }
        buffer_of_tensor(object, access)?.ok_or(error)
    })
}

/// Whether the bytes of a buffer can be used in place.
fn check(buffer: &PyUntypedBuffer, access: Access) -> PyResult<()> {
    if !buffer.is_c_contiguous() {
        return Err(InvalidError::new_err(
            "a buffer is not contiguous; give contiguous memory, or its contiguous parts as a sequence",
        ));
    }
    if holds_objects(buffer.format().to_bytes()) {
        return Err(InvalidError::new_err(
            "a buffer holds Python objects, so its bytes are addresses; give an array of numbers",
        ));
    }
    if access == Access::Write && buffer.readonly() {
        return Err(InvalidError::new_err("a buffer is read-only and cannot be filled"));
    }
    Ok(())
}

/// Whether a buffer protocol format contains a Python object, `O`, outside of field names, `:name:`.
fn holds_objects(format: &[u8]) -> bool {
    format.contains(&b'O')
        && format.split(|byte| *byte == b':').step_by(2).any(|part| part.contains(&b'O'))
}

/// Refuses to read two blocks into the same bytes.
fn refuse_overlap(buffers: &[PyUntypedBuffer]) -> PyResult<()> {
    let range = |buffer: &PyUntypedBuffer| {
        let start = buffer.buf_ptr() as usize;
        (start, start + buffer.len_bytes())
    };
    let mut ranges: Vec<(usize, usize)> = buffers.iter().map(range).collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(InvalidError::new_err("two buffers overlap; every block needs its own memory"));
    }
    Ok(())
}

/// The buffers of one call. They are released together: releasing one takes the GIL, and the store's threads would
/// otherwise wait for it at every block.
pub(crate) struct Lent(Vec<PyUntypedBuffer>);

impl Lent {
    pub(crate) fn new(buffers: Vec<PyUntypedBuffer>) -> Self {
        Self(buffers)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // If Python is shutting down, each buffer handles that itself.
        let _ended = Python::try_attach(|_| self.0.clear());
    }
}

/// Makes memory of buffers, `parts` of them for each block.
fn lend(buffers: Vec<PyUntypedBuffer>, parts: &[usize], access: Access) -> Vec<Vec<Memory>> {
    let ranges: Vec<(NonNull<u8>, usize)> = buffers
        .iter()
        .map(|buffer| {
            let start = NonNull::new(buffer.buf_ptr().cast::<u8>());
            (start.unwrap_or(NonNull::dangling()), buffer.len_bytes())
        })
        .collect();
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(Lent(buffers));
    let mut ranges = ranges.into_iter();
    let mut next = || {
        let (start, len) = ranges.next().expect("as many buffers as parts");
        // SAFETY: the exported buffer keeps `start..start + len` allocated and in place until it is released, which
        // happens when the last piece of memory of this call drops `owner`. The caller guarantees that nobody else
        // touches the bytes meanwhile, as with `readinto`. Overlapping buffers of one call and read-only ones were
        // refused if they are to be filled.
        unsafe { Memory::from_raw(start, len, access == Access::Write, Arc::clone(&owner)) }
    };
    parts.iter().map(|count| (0..*count).map(|_| next()).collect()).collect()
}
