//! Cutting the power of a file system, as far as its kernel plays that. The store's tests use this file; it lies here
//! because this room may hold unsafe code.

use std::fs::File;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `XFS_IOC_GOINGDOWN`, which ext4 calls `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);

/// What still happens to the part of a file system's journal that is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is lost.
    Hard,
    /// It is written, so that the journal holds all metadata, but not everything that the metadata speaks of.
    Journalled,
}

/// Stops the file system at once, for good: every request fails until it is unmounted, and what of its journal and of
/// the page cache was not written is lost.
///
/// # Errors
///
/// As the kernel: if this process is not root, or the file system cannot be stopped so.
pub fn cut_power(root: &File, cut: Cut) -> std::io::Result<()> {
    let flag: u32 = match cut {
        Cut::Journalled => 1,
        Cut::Hard => 2,
    };
    // SAFETY: the kernel reads the u32 that it is given the address of, and changes nothing of this process's memory.
    unsafe { ioctl(root, Setter::<SHUTDOWN, u32>::new(flag)) }?;
    Ok(())
}
