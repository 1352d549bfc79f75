//! Python buffers as the store's memory, and hashes as its names.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use dalsegno_store::{ChainHash, Memory};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySequence, PyTuple};

use crate::errors::InvalidError;
use crate::tensors::buffer_of_tensor;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The store reads the buffers.
    Read,
    /// The store fills the buffers.
    Write,
}

/// Reads a sequence of 32-byte hashes.
pub(crate) fn hashes(hashes: &Bound<'_, PyAny>) -> PyResult<Vec<ChainHash>> {
    let one = |item: Bound<'_, PyAny>| {
        let bytes = item
            .cast::<PyBytes>()
            .map_err(|_| PyTypeError::new_err("a block hash is a bytes object of 32 bytes"))?;
        <[u8; 32]>::try_from(bytes.as_bytes()).map(ChainHash).map_err(|_| {
            let got = bytes.as_bytes().len();
            InvalidError::new_err(format!("a block hash has 32 bytes, not {got}"))
        })
    };
    hashes.try_iter()?.map(|item| one(item?)).collect()
}

/// Reads a sequence of blocks, each one buffer or a sequence of buffers.
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

/// Appends the buffers of one block.
fn push_block(
    block: &Bound<'_, PyAny>,
    access: Access,
    buffers: &mut Vec<PyUntypedBuffer>,
) -> PyResult<()> {
    // These are no buffers, and to find that out by asking for one costs more than all the rest.
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

/// The buffer of an object. Some (`ctypes` arrays) leave out strides, which a memoryview over them fills in; torch
/// tensors have none, but bytes that can be lent.
fn buffer_of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object).or_else(|error| {
        if error.is_instance_of::<PyBufferError>(object.py()) {
            let view = PyMemoryView::from(object)?;
            return PyUntypedBuffer::get(view.as_any());
        }
        buffer_of_tensor(object, access)?.ok_or(error)
    })
}

/// Whether the bytes of a buffer can be used as they lie.
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

/// Whether a format of the buffer protocol names a Python object, `O`, outside the names of fields, `:name:`.
fn holds_objects(format: &[u8]) -> bool {
    format.contains(&b'O')
        && format.split(|byte| *byte == b':').step_by(2).any(|part| part.contains(&b'O'))
}

/// Two blocks cannot be read into the same bytes.
fn refuse_overlap(buffers: &[PyUntypedBuffer]) -> PyResult<()> {
    let range = |buffer: &PyUntypedBuffer| {
        let start = buffer.buf_ptr() as usize;
        (start, start + buffer.len_bytes())
    };
    let mut ranges: Vec<(usize, usize)> = buffers.iter().map(range).collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(InvalidError::new_err(
            "two buffers overlap; every block needs memory of its own",
        ));
    }
    Ok(())
}

/// The buffers of one call. They are given back together: to give one back takes Python's lock, for which the store's
/// threads would otherwise wait at every block.
struct Lent(Vec<PyUntypedBuffer>);

impl Drop for Lent {
    fn drop(&mut self) {
        // If Python is ending, each buffer deals with that by itself.
        let _ended = Python::try_attach(|_| self.0.clear());
    }
}

/// Turns buffers into memory, `parts` of them for each block.
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
        // happens when the last piece of memory of this call drops `owner`. That nobody else touches the bytes
        // meanwhile is the caller's promise, as with `readinto`; overlapping buffers of one call, and read-only ones,
        // were refused if they are to be filled.
        unsafe { Memory::from_raw(start, len, access == Access::Write, Arc::clone(&owner)) }
    };
    parts.iter().map(|count| (0..*count).map(|_| next()).collect()).collect()
}
