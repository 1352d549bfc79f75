//! Copies, batches of copies and memset.

#![expect(clippy::missing_safety_doc, reason = "the contract is that of cuda.h")]

use super::memory::address;
use crate::abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUdeviceptr, CUmemcpyAttributes, CUresult,
    CUstream, SOURCE_ORDER_ANY, SOURCE_ORDER_DURING_API_CALL, SOURCE_ORDER_STREAM,
};
use crate::calls::call_on_stream;
use crate::copies::{
    CopyWork, HostSide, Refusal, Site, Source, Transfer, check_overlaps, device_side, host_side,
    site, writable,
};
use crate::regions::Place;
use crate::settings;
use crate::streams::{Stream, is_legacy};
use crate::violations::{self, Kind};
use std::ffi::{c_uchar, c_void};

/// The first version that exports `cuMemcpyBatchAsync`.
const BATCH_VERSION: i32 = 12_080;
/// The first version that exports `cuMemcpyBatchAsync_v2`.
const BATCH_V2_VERSION: i32 = 13_000;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`
const FLAGS: u32 = 1;

fn submit(
    stream: &Stream,
    transfer: Transfer,
    failure: Option<CUresult>,
) -> Result<Option<u64>, CUresult> {
    stream.submit(Box::new(CopyWork { transfers: vec![transfer], failure }))
}

/// Makes a call that queues a copy; one of no bytes queues none.
fn copy_on_stream(
    call: &'static str,
    bytes: usize,
    stream: CUstream,
    work: impl FnOnce(&Stream, Option<CUresult>) -> Result<(), CUresult>,
) -> CUresult {
    call_on_stream(
        call,
        stream,
        |stream, failure| {
            if bytes == 0 { Ok(()) } else { work(stream, failure) }
        },
    )
}

/// Copies from host to device. Pageable memory is read before the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    const CALL: &str = "cuMemcpyHtoDAsync_v2";
    copy_on_stream(CALL, bytes, stream, |stream, failure| {
        let to = device_side(CALL, address(to), bytes)?;
        let from = match host_side(CALL, from.expose_provenance(), bytes)? {
            HostSide::Pinned(place) => Source::Place(place),
            HostSide::Pageable(range) => Source::read_now(CALL, &Place::pageable(range))?,
        };
        submit(stream, Transfer { from, to }, failure).map(drop)
    })
}

/// Copies from device to host. With pageable memory the call returns when the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    const CALL: &str = "cuMemcpyDtoHAsync_v2";
    copy_on_stream(CALL, bytes, stream, |stream, failure| {
        let from = Source::Place(device_side(CALL, address(from), bytes)?);
        match host_side(CALL, to.expose_provenance(), bytes)? {
            HostSide::Pinned(place) => {
                submit(stream, Transfer { from, to: writable(CALL, place)? }, failure)?;
            }
            HostSide::Pageable(range) => {
                let to = Place::pageable(range);
                if let Some(number) = submit(stream, Transfer { from, to }, failure)? {
                    stream.wait_for(number);
                }
            }
        }
        Ok(())
    })
}

/// Fills device memory with a byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    byte: c_uchar,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    const CALL: &str = "cuMemsetD8Async";
    copy_on_stream(CALL, bytes, stream, |stream, failure| {
        let to = device_side(CALL, address(to), bytes)?;
        submit(stream, Transfer { from: Source::Fill(byte), to }, failure).map(drop)
    })
}

/// The arrays of a batch.
struct Batch<'a> {
    call: &'static str,
    targets: &'a [CUdeviceptr],
    sources: &'a [CUdeviceptr],
    sizes: &'a [usize],
    attributes: &'a [CUmemcpyAttributes],
    /// The first copy that each entry of `attributes` is for.
    first_copies: &'a [usize],
}

impl Batch<'_> {
    fn check(&self) -> Result<(), CUresult> {
        let starts = self.first_copies;
        let are_starts_valid = starts.first() == Some(&0)
            && starts.is_sorted_by(|a, b| a < b)
            && starts.last().is_some_and(|last| *last < self.sizes.len());
        let are_attributes_valid = self.attributes.iter().all(|one| {
            (SOURCE_ORDER_STREAM..=SOURCE_ORDER_ANY).contains(&one.source_access_order)
                && one.flags & !FLAGS == 0
        });
        if are_starts_valid && are_attributes_valid {
            Ok(())
        } else {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }

    fn source_order(&self, copy: usize) -> i32 {
        let after = self.first_copies.partition_point(|first| *first <= copy);
        self.attributes[after - 1].source_access_order
    }

    fn place(&self, address: usize, bytes: usize) -> Result<Place, CUresult> {
        let refusal = Refusal { call: self.call, address, bytes };
        match site(address, bytes) {
            Site::Device(place) | Site::Pinned { place, .. } => Ok(place),
            Site::Pageable(_) => Err(CUDA_ERROR_INVALID_VALUE),
            Site::Border => Err(refusal.record(Kind::Border, "are not inside one registration")),
            Site::Outside => Err(refusal.record(Kind::Outside, "are in no memory of the device")),
        }
    }

    /// Checks a copy and returns its source and destination.
    fn places(&self, copy: usize) -> Result<(Place, Place), CUresult> {
        let bytes = self.sizes[copy];
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let to = self.place(address(self.targets[copy]), bytes)?;
        let from = self.place(address(self.sources[copy]), bytes)?;
        Ok((from, writable(self.call, to)?))
    }

    /// Checks all copies. An error comes with the number of its copy.
    fn transfers(&self) -> Result<Vec<Transfer>, (usize, CUresult)> {
        let mut places = Vec::new();
        for copy in 0..self.sizes.len() {
            places.push(self.places(copy).map_err(|error| (copy, error))?);
        }
        let sources: Vec<_> = places.iter().map(|(from, _)| from.range()).collect();
        let targets: Vec<_> = places.iter().map(|(_, to)| to.range()).collect();
        check_overlaps(self.call, &sources, &targets);
        let mut transfers = Vec::new();
        for (copy, (from, to)) in places.into_iter().enumerate() {
            let from = match self.source_order(copy) {
                SOURCE_ORDER_DURING_API_CALL | SOURCE_ORDER_ANY => {
                    Source::read_now(self.call, &from).map_err(|error| (copy, error))?
                }
                _ => Source::Place(from),
            };
            transfers.push(Transfer { from, to });
        }
        Ok(transfers)
    }
}

/// Returns a slice of an argument.
///
/// # Safety
///
/// `start` is null or valid for reads of `count` values during `'a`.
unsafe fn slice<'a, T>(start: *const T, count: usize) -> Result<&'a [T], CUresult> {
    if start.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: As the caller guarantees.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// The arguments that both versions of the call have.
struct BatchArguments {
    call: &'static str,
    since_version: i32,
    targets: *const CUdeviceptr,
    sources: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    attributes: *const CUmemcpyAttributes,
    first_copies: *const usize,
    attribute_count: usize,
    stream: CUstream,
}

impl BatchArguments {
    /// Queues the batch and stores the number of a refused copy.
    ///
    /// # Safety
    ///
    /// The arrays are as cuda.h requires. `failed` is null or valid for writes.
    unsafe fn run(&self, failed: *mut usize) -> CUresult {
        let report = |copy| {
            if !failed.is_null() {
                // SAFETY: The caller guarantees that a pointer that is not null can be written.
                unsafe { failed.write(copy) };
            }
        };
        report(usize::MAX);
        call_on_stream(self.call, self.stream, |stream, failure| {
            if settings::current().driver_version < self.since_version {
                let text = format_args!("{} is newer than the driver", self.call);
                violations::record(Kind::Version, text);
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            if is_legacy(self.stream.expose_provenance()) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: As cuda.h requires, the arrays have these lengths.
            let batch = unsafe {
                Batch {
                    call: self.call,
                    targets: slice(self.targets, self.count)?,
                    sources: slice(self.sources, self.count)?,
                    sizes: slice(self.sizes, self.count)?,
                    attributes: slice(self.attributes, self.attribute_count)?,
                    first_copies: slice(self.first_copies, self.attribute_count)?,
                }
            };
            batch.check()?;
            let transfers = batch.transfers().map_err(|(copy, error)| {
                report(copy);
                error
            })?;
            stream.submit(Box::new(CopyWork { transfers, failure })).map(drop)
        })
    }
}

/// Copies many ranges in any order. The interface of CUDA 12.8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyBatchAsync(
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    first_copies: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: CUstream,
) -> CUresult {
    let arguments = BatchArguments {
        call: "cuMemcpyBatchAsync",
        since_version: BATCH_VERSION,
        targets,
        sources,
        sizes,
        count,
        attributes,
        first_copies,
        attribute_count,
        stream,
    };
    // SAFETY: As cuda.h requires.
    unsafe { arguments.run(failed) }
}

/// Copies many ranges in any order. The interface of CUDA 13.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    first_copies: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> CUresult {
    let arguments = BatchArguments {
        call: "cuMemcpyBatchAsync_v2",
        since_version: BATCH_V2_VERSION,
        targets,
        sources,
        sizes,
        count,
        attributes,
        first_copies,
        attribute_count,
        stream,
    };
    // SAFETY: As cuda.h requires.
    unsafe { arguments.run(std::ptr::null_mut()) }
}
