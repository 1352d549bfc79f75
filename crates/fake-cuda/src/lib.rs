//! `FakeCuda`: the calls of the CUDA driver that Dalsegno uses, implemented on the CPU, for tests without a GPU.
//!
//! The crate builds `libfake_cuda.so`, which stands in for `libcuda.so.1`. It is as unfriendly as CUDA permits.
//! A missing wait, a wrong stream, an early unmap or a copy out of bounds shows as wrong bytes or as a recorded
//! violation.
//!
//! 1. Results, signatures and the meaning of streams and events are those of cuda.h.
//! 2. Two streams are ordered by events only. Random delays, chunks in random order and batches in random order make
//!    sure that other orders happen.
//! 3. A CPU that touches device memory faults. So does one that uses the device pointer of host memory or a handle.
//! 4. A violation is recorded, see `fake_cuda_violations`. It neither crashes nor blocks the fake.
//! 5. Work keeps the memory that it uses. Memory of the caller is accessed by system calls, so unmapped pages are
//!    errors, not signals.
//! 6. Where cuda.h permits several behaviors, the fake chooses the one that most programs do not expect: sources with
//!    `SRC_ACCESS_ORDER_ANY` are read during the call, the legacy default stream synchronizes with no other stream,
//!    freeing and unregistering do not wait, every call that may need a current context does, a forked child may not
//!    make calls, and during a capture every call is unsafe that might be.
//! 7. A call that spoils the capture of a stream is a violation, so a test of ours fails that spoils an engine's.
//!
//! The fake cannot show:
//! - how long anything takes, or how copies and kernels share the bus and the multiprocessors;
//! - the weak memory order of a real GPU: a write of the fake is visible to all threads in the order of its steps;
//! - what a real kernel does: it copies the pieces itself, and the PTX text only decides which functions exist;
//! - several devices or contexts, and the teardown of a context with its last release;
//! - the replay of a captured graph: work of a captured stream is dropped. No second stream can join a capture, and the
//!   legacy default stream ignores captures, although it implicitly waits for blocking streams in CUDA;
//! - the old pages of memory that was unmapped and mapped again while it is registered. A GPU still uses them, the fake
//!   uses the new ones. Unregistering records a violation unless both mappings are anonymous memory.
//!
//! # Controls
//!
//! Tests control the fake with the `fake_cuda_` functions of `controls`, from Rust or through ctypes:
//!
//! - `fake_cuda_reset(seed, max_delay_us)` starts a test: it waits for all streams, and forgets captures and what is
//!   planted.
//! - `fake_cuda_fail(name, after, times, result)` and `fake_cuda_fail_later` plant failures.
//! - `fake_cuda_set_attribute`, `_set_driver_version`, `_set_ptx` and `_set_memlock` change the device and the driver.
//! - `fake_cuda_calls(name)`, `fake_cuda_violations(buffer, bytes)` and `fake_cuda_alive(kind)` observe.
//! - `fake_cuda_read` and `fake_cuda_write` access device memory immediately.
//! - `fake_cuda_delay(stream, us)`, `_hold(stream)`, `_step(stream, count)` and `_release(stream)` control a stream. A
//!   stream that is held after `n` steps is frozen in the middle of a copy.
//! - `fake_cuda_hold_all` and `fake_cuda_release_all` do so for all streams, also for those created in between.
//!
//! Defaults: seed 1, delays up to 100 us, driver 12.8, PTX up to 8.2, unlimited pinned memory, the attributes of an
//! H100. The environment variable `FAKE_CUDA` has the settings and failures of a whole process, for example
//! `seed=1,delay=100,version=12040,memlock=65536,ptx=7.8,attribute:113=0,fail:cuInit=34`.

mod calls;
mod captures;
mod copies;
mod device_memory;
mod environment;
mod events;
mod handles;
mod host_memory;
mod kernels;
mod plants;
mod process_memory;
mod regions;
mod settings;
mod streams;
mod violations;

pub mod abi;
pub mod controls;
pub mod driver;

pub use abi::*;
pub use controls::*;
pub use driver::copy::*;
pub use driver::device::*;
pub use driver::memory::*;
pub use driver::module::*;
pub use driver::stream::*;
