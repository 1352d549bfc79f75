//! The exported calls of the driver.
//!
//! 1. A call's contract, pointers included, is that of cuda.h. Null is refused where cuda.h requires memory.

pub mod copy;
pub mod device;
pub mod memory;
pub mod module;
pub mod stream;
