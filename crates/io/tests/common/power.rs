//! Simulates a power cut of a file system, as far as its kernel supports that. The store's tests use this file; it is
//! here because this crate may contain unsafe code.

use std::fs::File;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `XFS_IOC_GOINGDOWN`, which ext4 calls `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);

/// What happens to the part of a file system's journal that is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is lost.
    Hard,
    /// It is written. Then the journal holds all metadata, but not all data that the metadata refers to.
    Journalled,
}

/// Stops the file system immediately and permanently: every request fails until it is unmounted. Unwritten parts of its
/// journal and of the page cache are lost.
///
/// # Errors
///
/// The kernel's error if this process is not root, or the file system does not support it.
pub fn cut_power(root: &File, cut: Cut) -> std::io::Result<()> {
    let flag: u32 = match cut {
        Cut::Journalled => 1,
        Cut::Hard => 2,
    };
    // SAFETY: the kernel reads the u32 at the given address and changes no memory of this process.
    unsafe { ioctl(root, Setter::<SHUTDOWN, u32>::new(flag)) }?;
    Ok(())
}
