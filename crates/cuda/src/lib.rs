//! Copies between the memory of this machine and of an NVIDIA GPU: the second [`Copier`](dalsegno_io::Copier).
//!
//! Nothing of CUDA is needed to build it. The driver is loaded when the process runs, and its absence is an answer.
//!
//! 1. A copy reads or writes only memory that its slices hold, until the event behind it has happened. Then its end is
//!    called.
//! 2. A copy to pages comes after everything that the engine's stream had when the pages were given. A copy from pages
//!    comes after the point that the caller names.
//! 3. What cannot be done directly takes a slower way with the same bytes: memory that is not registered goes through a
//!    buffer, and pieces that the kernel cannot copy go to the copy engines.

mod copier;
mod device;
mod driver;
mod kernel;
mod lane;
mod pinned;
mod queue;
mod registration;
mod slots;
mod span_copier;
mod spans;
mod stream;
mod tuning;

pub use copier::{GpuCopier, GpuError, GpuFacts, GpuOptions};
pub use device::DeviceFacts;
pub use driver::{Absent, CudaError};
pub use queue::QueueError;
pub use registration::RegistrationFacts;
pub use span_copier::CopyWays;
pub use stream::StreamHandle;
