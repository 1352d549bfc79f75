//! Random names.

use crate::IoError;

/// Bytes from the operating system's generator, at most 256.
///
/// # Errors
///
/// [`IoError::Os`] if the system has no generator. Every supported kernel has one.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], IoError> {
    let mut bytes = [0_u8; N];
    // SAFETY: the pointer and the length describe `bytes`, which outlives the call.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // Requests of up to 256 bytes are never short once the generator is ready.
    if usize::try_from(got) == Ok(bytes.len()) {
        return Ok(bytes);
    }
    Err(IoError::Os {
        operation: "getrandom",
        file: "the system's generator".to_owned(),
        source: std::io::Error::last_os_error(),
    })
}
