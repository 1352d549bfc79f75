//! Counts the calls by name, and fails those that a test planted a failure for.
//!
//! 1. A planted failure counts the calls of its name from the moment it was planted.
//! 2. A call is counted also if it fails.

use crate::abi::CUresult;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The exported calls of the driver.
pub(crate) const NAMES: [&str; 43] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];

/// The calls that queue work which can fail later.
const ASYNCHRONOUS: [&str; 6] = [
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];

/// The time at which a planted failure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The call itself returns it and does nothing.
    Now,
    /// The call succeeds. Its work fails when the stream runs it.
    Later,
}

/// A planted failure: the calls numbered `after` + 1 to `after` + `times` fail.
#[derive(Debug)]
pub(crate) struct Plant {
    /// The number of calls that succeed first.
    pub(crate) after: u32,
    /// The number of calls that fail then.
    pub(crate) times: u32,
    /// The result of the failed calls.
    pub(crate) result: CUresult,
    /// The time at which the failure shows.
    pub(crate) shows: Shows,
}

struct Planted {
    plant: Plant,
    calls_seen: u64,
}

impl Planted {
    fn fails_next(&mut self) -> bool {
        self.calls_seen += 1;
        let after = u64::from(self.plant.after);
        (after + 1..=after + u64::from(self.plant.times)).contains(&self.calls_seen)
    }
}

struct Counted {
    calls: u64,
    planted: Vec<Planted>,
}

static COUNTED: Mutex<BTreeMap<&'static str, Counted>> = Mutex::new(BTreeMap::new());

/// The failures planted for one call.
#[derive(Default)]
pub(crate) struct Failures {
    /// The call returns this result.
    pub(crate) now: Option<CUresult>,
    /// The work of the call fails with this result.
    pub(crate) later: Option<CUresult>,
}

fn known(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|one| **one == name).copied()
}

/// Plants a failure. Returns whether there is such a call, and whether it can fail that way.
pub(crate) fn plant(name: &str, plant: Plant) -> bool {
    let Some(name) = known(name) else { return false };
    if plant.shows == Shows::Later && !ASYNCHRONOUS.contains(&name) {
        return false;
    }
    let mut counted = COUNTED.lock();
    let entry = counted.entry(name).or_insert(Counted { calls: 0, planted: Vec::new() });
    entry.planted.push(Planted { plant, calls_seen: 0 });
    true
}

/// Counts a call and returns the failures planted for it.
pub(crate) fn count(name: &str) -> Failures {
    let name = known(name).expect("every exported call is in NAMES");
    let mut counted = COUNTED.lock();
    let entry = counted.entry(name).or_insert(Counted { calls: 0, planted: Vec::new() });
    entry.calls += 1;
    let mut failures = Failures::default();
    for planted in &mut entry.planted {
        let shows = planted.plant.shows;
        let result = planted.plant.result;
        if planted.fails_next() {
            match shows {
                Shows::Now => failures.now.get_or_insert(result),
                Shows::Later => failures.later.get_or_insert(result),
            };
        }
    }
    failures
}

/// Returns how often a call was made; `None` if there is no such call.
pub(crate) fn calls(name: &str) -> Option<u64> {
    let name = known(name)?;
    Some(COUNTED.lock().get(name).map_or(0, |entry| entry.calls))
}

/// Forgets all counts and planted failures.
pub(crate) fn clear() {
    COUNTED.lock().clear();
}
