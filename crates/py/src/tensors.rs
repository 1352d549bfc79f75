//! Torch tensors, which have no buffer protocol: their bytes as a buffer, in place.
//!
//! 1. Nothing is imported: an object can only be a tensor if its program has imported torch already.
//! 2. Nothing is copied. A tensor that needs a copy is refused, with the call that makes one.
//! 3. A tensor may be longer than its storage, which can be freed or shrunk behind it. Such a tensor is refused: its
//!    bytes do not exist, and numpy would allocate others.
//! 4. Torch exports the bytes through numpy, and does not resize the tensor while they are lent.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::access::Access;
use crate::errors::InvalidError;

/// The bytes of a tensor, or `None` for any other object.
pub(crate) fn buffer_of_tensor(
    object: &Bound<'_, PyAny>,
    access: Access,
) -> PyResult<Option<PyUntypedBuffer>> {
    let Some(torch) = imported_torch(object.py())? else { return Ok(None) };
    let Some(kind) = torch.getattr_opt("Tensor")? else { return Ok(None) };
    if !object.is_instance(&kind)? {
        return Ok(None);
    }
    refuse_unusable(object, access)?;
    let buffer = as_bytes(object, &torch).and_then(|bytes| PyUntypedBuffer::get(&bytes));
    buffer.map(Some).map_err(|error| {
        if !error.is_instance_of::<PyException>(object.py()) {
            return error; // KeyboardInterrupt or SystemExit.
        }
        let why = error.value(object.py());
        InvalidError::new_err(format!("the bytes of this tensor cannot be used in place: {why}"))
    })
}

/// The module torch, if the program has imported it.
fn imported_torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    // `None` marks a module that must not be imported.
    Ok(modules.get_item("torch")?.filter(|torch| !torch.is_none()))
}

fn refuse_unusable(tensor: &Bound<'_, PyAny>, access: Access) -> PyResult<()> {
    let device = tensor.getattr("device")?;
    if device.getattr("type")?.extract::<String>()? != "cpu" {
        return Err(InvalidError::new_err(format!(
            "a tensor is on the device {device}; give one in the CPU's memory and copy between the two"
        )));
    }
    if !tensor.call_method0("is_contiguous")?.is_truthy()? {
        return Err(InvalidError::new_err(match access {
            Access::Read => "a tensor is not contiguous; give tensor.contiguous()",
            Access::Write => "a tensor is not contiguous; give a contiguous one and copy from it",
        }));
    }
    refuse_short_storage(tensor)?;
    if access == Access::Write && tensor.getattr("requires_grad")?.is_truthy()? {
        return Err(InvalidError::new_err(
            "a tensor requires grad, and autograd would not see it filled; give tensor.detach()",
        ));
    }
    Ok(())
}

/// Refuses a contiguous tensor whose storage ends before it does.
fn refuse_short_storage(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    let number = |method: &str| tensor.call_method0(method)?.extract::<u64>();
    let last = number("storage_offset")?.saturating_add(number("numel")?);
    let needed = last.saturating_mul(number("element_size")?);
    let held = tensor.call_method0("untyped_storage")?.call_method0("nbytes")?.extract::<u64>()?;
    if held < needed {
        return Err(InvalidError::new_err(format!(
            "a tensor's storage has {held} bytes where the tensor needs {needed}: it was freed or resized; \
             give a tensor that has its memory"
        )));
    }
    Ok(())
}

/// A numpy array of the tensor's bytes. Numpy lacks some of torch's types, such as bfloat16, but not bytes.
fn as_bytes<'py>(
    tensor: &Bound<'py, PyAny>,
    torch: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // `view` fails where `reshape` would copy.
    let flat = tensor.call_method0("detach")?.call_method1("view", (-1,))?;
    flat.call_method1("view", (torch.getattr("uint8")?,))?.call_method0("numpy")
}
