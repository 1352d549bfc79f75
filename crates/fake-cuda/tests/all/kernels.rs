//! Modules and the kernel `dalsegno_copy_pieces`.

use crate::support::{
    CHUNK, Device, Event, PAGE, Pages, Pinned, Session, Stream, assert_given_back, ok, pattern,
    result,
};
use fake_cuda::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
    CUdeviceptr, CUfunction, CUmodule, CUresult, REGISTER_READ_ONLY, controls,
};
use std::ffi::CStr;
use std::ptr::null_mut;

const PTX: &CStr = c"//\n.version 7.8\n.target sm_80\n.address_size 64\n
.visible .entry dalsegno_copy_pieces(\n.param .u64 a,\n.param .u32 b\n)\n{ ret; }\n
.visible .entry other() { ret; }\n";

fn load(ptx: &CStr) -> Result<CUmodule, CUresult> {
    let mut module = null_mut();
    match result!(cuModuleLoadData(&raw mut module, ptx.as_ptr().cast())) {
        CUDA_SUCCESS => Ok(module),
        error => Err(error),
    }
}

fn function(module: CUmodule, name: &CStr) -> Result<CUfunction, CUresult> {
    let mut function = null_mut();
    match result!(cuModuleGetFunction(&raw mut function, module, name.as_ptr())) {
        CUDA_SUCCESS => Ok(function),
        error => Err(error),
    }
}

/// A loaded module with its function.
pub(crate) struct Kernel {
    module: CUmodule,
    function: CUfunction,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        let module = load(PTX).expect("valid PTX");
        let function = function(module, c"dalsegno_copy_pieces").expect("an entry");
        Self { module, function }
    }

    fn launch_shaped(
        &self,
        blocks: u32,
        threads: u32,
        list: u64,
        count: u32,
        on: &Stream,
    ) -> CUresult {
        let (mut list, mut count) = (list, count);
        let mut parameters = [(&raw mut list).cast(), (&raw mut count).cast()];
        result!(cuLaunchKernel(
            self.function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            on.0,
            parameters.as_mut_ptr(),
            null_mut(),
        ))
    }

    pub(crate) fn launch(&self, list: u64, count: u32, on: &Stream) {
        assert_eq!(self.launch_shaped(8, 512, list, count, on), CUDA_SUCCESS);
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        assert_given_back(result!(cuModuleUnload(self.module)));
    }
}

pub(crate) fn list_of(pieces: &[(CUdeviceptr, CUdeviceptr, usize)]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|(from, to, bytes)| [*from, *to, *bytes as u64])
        .flat_map(u64::to_le_bytes)
        .collect()
}

#[test]
fn pieces_are_copied_between_host_and_device() {
    let _session = Session::with_delay(2, 50);
    let bytes = pattern(4 * CHUNK, 1);
    let (source, target) = (Pinned::with(&bytes), Pinned::new(bytes.len() / PAGE));
    let device = Device::new(bytes.len());
    let (kernel, stream) = (Kernel::new(), Stream::new());
    let sizes = [1, 100, CHUNK + 3, 2 * CHUNK];
    let mut at = 0;
    let (mut gather, mut scatter) = (Vec::new(), Vec::new());
    for size in sizes {
        let (host, there) = (source.device_pointer() + at, device.address + at);
        gather.push((host, there, size));
        scatter.push((there, target.device_pointer() + at, size));
        at += size as u64;
    }
    gather.push((0, 0, 0));
    let gather_list = Device::with(&list_of(&gather));
    let scatter_list = Pinned::with(&list_of(&scatter));
    kernel.launch(gather_list.address, 5, &stream);
    kernel.launch(scatter_list.device_pointer(), 4, &stream);
    kernel.launch(0, 0, &stream);
    stream.synchronize();
    let copied = sizes.iter().sum::<usize>();
    assert_eq!(device.content()[..copied], bytes[..copied]);
    assert_eq!(target.0.read(bytes.len())[..copied], bytes[..copied]);
    assert!(target.0.read(bytes.len())[copied..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_list_is_read_when_the_kernel_runs() {
    let _session = Session::new();
    let source = Pinned::with(&pattern(PAGE, 1));
    let device = Device::with(&[0; 100]);
    let list = Pinned::with(&list_of(&[(source.device_pointer(), device.address, 10)]));
    let (kernel, stream) = (Kernel::new(), Stream::held());
    kernel.launch(list.device_pointer(), 1, &stream);
    list.0.write(&list_of(&[(source.device_pointer(), device.address + 50, 10)]));
    stream.release();
    stream.synchronize();
    let content = device.content();
    assert_eq!(content[..50], [0; 50]);
    assert_eq!(content[50..60], pattern(10, 1));
}

#[test]
fn a_kernel_refuses_memory_that_is_not_its_own() {
    let session = Session::new();
    let (pinned, pageable, device) = (Pinned::new(2), Pages::new(1), Device::new(PAGE));
    let read_only = Pages::new(1);
    assert_eq!(read_only.register(REGISTER_READ_ONLY), CUDA_SUCCESS);
    let mut read_only_pointer = 0;
    ok!(cuMemHostGetDevicePointer_v2(&raw mut read_only_pointer, read_only.at(0), 0));
    let (kernel, stream) = (Kernel::new(), Stream::new());
    let plain = pinned.0.start.expose_provenance() as u64;
    let end = pinned.device_pointer() + 2 * PAGE as u64;
    let cases = [
        ("plain-pointer", plain, device.address),
        ("pageable", pageable.start.expose_provenance() as u64, device.address),
        ("border", end - 4, device.address),
        ("outside", device.address + PAGE as u64, pinned.device_pointer()),
        ("outside", pinned.device_pointer() + (1 << 40), device.address),
        ("read-only", device.address, read_only_pointer),
        ("overlap", device.address + 5, device.address),
    ];
    for (kind, from, to) in cases {
        let list = Device::with(&list_of(&[(from, to, 10)]));
        kernel.launch(list.address, 1, &stream);
        let is_fatal = kind != "overlap";
        let expected = if is_fatal { CUDA_ERROR_ILLEGAL_ADDRESS } else { CUDA_SUCCESS };
        assert_eq!(result!(cuStreamSynchronize(stream.0)), expected, "{kind}");
        session.expect_violation(kind);
    }
    kernel.launch(plain, 1, &stream);
    let event = Event::new();
    event.record(&stream);
    assert_eq!(result!(cuEventSynchronize(event.0)), CUDA_ERROR_ILLEGAL_ADDRESS);
    session.expect_violation("plain-pointer");
    assert_eq!(read_only.unregister(), CUDA_SUCCESS);
}

#[test]
fn a_list_that_was_freed_before_the_kernel_runs_is_a_violation() {
    let session = Session::new();
    let (kernel, stream) = (Kernel::new(), Stream::held());
    let list = Device::with(&list_of(&[(0, 0, 0)]));
    kernel.launch(list.address, 1, &stream);
    drop(list);
    stream.release();
    assert_eq!(result!(cuStreamSynchronize(stream.0)), CUDA_ERROR_ILLEGAL_ADDRESS);
    session.expect_violation("outside");
}

#[test]
fn a_module_needs_a_supported_version_and_an_entry() {
    let _session = Session::new();
    let alive = controls::fake_cuda_alive(5);
    for bad in [
        c"",
        c".visible .entry f() { }",
        c".version 8\n.visible .entry f() { }",
        c".version 8.3\n.visible .entry f() { }",
        c".version 10.0\n.visible .entry f() { }",
        c".version 8.2\n.entry f() { }",
    ] {
        assert_eq!(load(bad), Err(CUDA_ERROR_INVALID_PTX), "{bad:?}");
    }
    controls::fake_cuda_set_ptx(7, 7);
    assert_eq!(load(PTX), Err(CUDA_ERROR_INVALID_PTX));
    controls::fake_cuda_set_ptx(7, 8);
    let module = load(PTX).unwrap();
    assert_eq!(controls::fake_cuda_alive(5), alive + 1);
    assert_eq!(function(module, c"dalsegno_copy"), Err(CUDA_ERROR_NOT_FOUND));
    ok!(cuModuleUnload(module));
    assert_eq!(controls::fake_cuda_alive(5), alive);
}

#[test]
fn functions_of_an_unloaded_module_are_invalid() {
    let session = Session::new();
    let stream = Stream::held();
    let kernel = Kernel::new();
    let handle = kernel.function;
    kernel.launch(0, 0, &stream);
    drop(kernel);
    session.expect_violation("in-use");
    stream.release();
    stream.synchronize();
    let gone = std::mem::ManuallyDrop::new(Kernel { module: null_mut(), function: handle });
    assert_eq!(gone.launch_shaped(1, 1, 0, 0, &stream), CUDA_ERROR_INVALID_HANDLE);
    session.expect_violation("handle");
}

#[test]
fn launches_need_a_valid_shape_and_the_known_function() {
    let _session = Session::new();
    let (kernel, stream) = (Kernel::new(), Stream::new());
    for (blocks, threads) in [(0, 1), (1, 0), (1, 1025)] {
        let result = kernel.launch_shaped(blocks, threads, 0, 0, &stream);
        assert_eq!(result, CUDA_ERROR_INVALID_VALUE);
    }
    let other = std::mem::ManuallyDrop::new(Kernel {
        module: kernel.module,
        function: function(kernel.module, c"other").unwrap(),
    });
    assert_eq!(other.launch_shaped(1, 1, 0, 0, &stream), CUDA_ERROR_NOT_SUPPORTED);
}
