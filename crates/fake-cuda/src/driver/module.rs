//! Modules, functions and launches.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use super::memory::address;
use crate::abi::{
    CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND,
    CUDA_ERROR_NOT_SUPPORTED, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream,
};
use crate::calls::{Needs, call, call_on_stream, store};
use crate::handles::as_pointer;
use crate::kernels::{self, COPY_PIECES, CopyPieces};
use std::ffi::{CStr, c_char, c_uint, c_void};

const MAX_BLOCK_THREADS: u64 = 1024;

/// Loads a module from PTX text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    call("cuModuleLoadData", Needs::Context, || {
        if image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: As cuda.h requires, the text ends with a zero byte.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let ptx = image.to_str().map_err(|_| CUDA_ERROR_INVALID_PTX)?;
        // SAFETY: As cuda.h requires.
        unsafe { store(module, || kernels::load(ptx).map(as_pointer)) }
    })
}

/// Unloads a module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    call("cuModuleUnload", Needs::Context, || kernels::unload(module.expose_provenance()))
}

/// Returns a function of a module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call("cuModuleGetFunction", Needs::Context, || {
        if name.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: As cuda.h requires, the name ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let find = || kernels::function(module.expose_provenance(), name).map(as_pointer);
        // SAFETY: As cuda.h requires.
        unsafe { store(function, find) }
    })
}

fn check_shape(grid: [c_uint; 3], block: [c_uint; 3]) -> Result<(), CUresult> {
    let threads = block.iter().fold(1, |product: u64, one| product.saturating_mul((*one).into()));
    let has_zero = grid.iter().chain(&block).any(|one| *one == 0);
    if has_zero || threads > MAX_BLOCK_THREADS { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Launches `dalsegno_copy_pieces`. Other functions are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    call_on_stream("cuLaunchKernel", stream, |stream, failure| {
        let function = kernels::find(function.expose_provenance())?;
        if function.name != COPY_PIECES {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        check_shape([grid_x, grid_y, grid_z], [block_x, block_y, block_z])?;
        if parameters.is_null() || !extra.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: As cuda.h requires, there is a pointer to each of the two parameters of the kernel.
        let (list, count) = unsafe {
            let list = parameters.read().cast::<CUdeviceptr>().read_unaligned();
            let count = parameters.add(1).read().cast::<c_uint>().read_unaligned();
            (address(list), count)
        };
        stream.submit(Box::new(CopyPieces { list, count, function, failure })).map(drop)
    })
}
