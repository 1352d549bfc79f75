//! Access to the memory of this process that may be unmapped at any time.
//!
//! 1. An access to an unmapped or protected page is an error, never a signal: the kernel does the copy.
//! 2. Threads that change the same bytes cause torn bytes, as on a real bus, but no data race in the sense of Rust.

use std::io;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("Linux knows its page size")
}

/// Widens a range to whole pages.
pub(crate) fn whole_pages(range: Range<usize>) -> Range<usize> {
    let page = page_bytes();
    range.start / page * page..range.end.next_multiple_of(page)
}

#[derive(Clone, Copy)]
enum Direction {
    FromProcess,
    ToProcess,
}

/// Copies between a buffer of the fake and an address that may be invalid.
///
/// # Safety
///
/// `buffer` is valid for writes (`FromProcess`) or reads (`ToProcess`) of `bytes` bytes.
unsafe fn transfer(
    direction: Direction,
    buffer: *mut u8,
    address: usize,
    bytes: usize,
) -> io::Result<()> {
    let pid = std::process::id().cast_signed();
    let mut done = 0;
    while done < bytes {
        let iov_len = bytes - done;
        let local = libc::iovec { iov_base: buffer.wrapping_add(done).cast(), iov_len };
        let remote = libc::iovec { iov_base: with_exposed_provenance_mut(address + done), iov_len };
        // SAFETY: The local range is within the caller's buffer. The kernel checks the remote range, and a page that is
        // not mapped is an error.
        let moved = unsafe {
            match direction {
                Direction::FromProcess => {
                    libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
                }
                Direction::ToProcess => {
                    libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
                }
            }
        };
        match usize::try_from(moved) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => done += moved,
            Err(_) => {
                let error = io::Error::last_os_error();
                let is_fault = error.raw_os_error() == Some(libc::EFAULT);
                // A sandbox may forbid the calls.
                assert!(is_fault, "FakeCuda needs process_vm_readv and _writev: {error}");
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Reads from an address.
pub(crate) fn read(address: usize, buffer: &mut [u8]) -> io::Result<()> {
    let bytes = buffer.len();
    // SAFETY: The buffer can be written as a whole.
    unsafe { transfer(Direction::FromProcess, buffer.as_mut_ptr(), address, bytes) }
}

/// Writes to an address.
pub(crate) fn write(address: usize, buffer: &[u8]) -> io::Result<()> {
    let bytes = buffer.len();
    // SAFETY: The buffer can be read as a whole, and this direction only reads it.
    unsafe { transfer(Direction::ToProcess, buffer.as_ptr().cast_mut(), address, bytes) }
}

/// The memory that is mapped in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Every page can be read.
    pub(crate) is_readable: bool,
    /// Every page can be written.
    pub(crate) is_writable: bool,
    /// The files that are mapped, in the order of the addresses.
    pub(crate) files: Vec<MappedFile>,
}

/// A file that is mapped, or anonymous memory. Neighboring mappings of the same file count as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// The device and inode; anonymous memory has inode 0.
    file: String,
    /// The address of the file's first byte, if all of the file were mapped.
    origin: usize,
    /// The first address of the range that is part of the file.
    start: usize,
}

/// Looks a range up in /proc/self/maps. Returns `None` if a page of it is not mapped.
pub(crate) fn mapped_in(range: &Range<usize>) -> Option<Mapped> {
    #[expect(clippy::disallowed_methods, reason = "a crate for tests, and /proc is no storage")]
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    find_in(&maps, range)
}

struct MapsLine<'a> {
    range: Range<usize>,
    permissions: &'a str,
    file: String,
    origin: usize,
}

fn parse_line(line: &str) -> Option<MapsLine<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let offset = usize::from_str_radix(words.next()?, 16).ok()?;
    let (device, inode) = (words.next()?, words.next()?);
    let origin = if inode == "0" { 0 } else { start.wrapping_sub(offset) };
    Some(MapsLine { range: start..end, permissions, file: format!("{device} {inode}"), origin })
}

fn find_in(maps: &str, range: &Range<usize>) -> Option<Mapped> {
    let mut mapped = Mapped { is_readable: true, is_writable: true, files: Vec::new() };
    let mut covered_to = range.start;
    for line in maps.lines().filter_map(parse_line) {
        if line.range.end <= covered_to {
            continue;
        }
        if line.range.start > covered_to || covered_to >= range.end {
            break;
        }
        mapped.is_readable &= line.permissions.starts_with('r');
        mapped.is_writable &= line.permissions.get(1..2) == Some("w");
        let file = MappedFile { file: line.file, origin: line.origin, start: covered_to };
        let is_continued = |last: &MappedFile| last.file == file.file && last.origin == file.origin;
        if !mapped.files.last().is_some_and(is_continued) {
            mapped.files.push(file);
        }
        covered_to = line.range.end;
    }
    (covered_to >= range.end).then_some(mapped)
}

/// Reads one byte of every page. This also allocates the pages, as pinning does.
pub(crate) fn touch(range: &Range<usize>) -> io::Result<()> {
    let mut byte = [0];
    whole_pages(range.clone()).step_by(page_bytes()).try_for_each(|page| read(page, &mut byte))
}

#[cfg(test)]
mod tests {
    use super::{find_in, read, write};

    const MAPS: &str = "\
00001000-00003000 rw-p 00000000 00:00 0
00003000-00004000 r--s 00000000 00:01 7    /memfd:x (deleted)
00004000-00005000 rw-s 00001000 00:01 7    /memfd:x (deleted)
00006000-00007000 ---p 00000000 00:00 0
";

    #[test]
    fn access_is_what_every_page_of_a_range_permits() {
        let access =
            |range| find_in(MAPS, &range).map(|found| (found.is_readable, found.is_writable));
        assert_eq!(access(0x1000..0x3000), Some((true, true)));
        assert_eq!(access(0x1800..0x3001), Some((true, false)));
        assert_eq!(access(0x6000..0x6001), Some((false, false)));
        for range in [0x0..0x1001, 0x4fff..0x5001, 0x5000..0x6001, 0x6fff..0x7001, 0x8000..0x8001] {
            assert_eq!(access(range.clone()), None, "{range:x?}");
        }
    }

    #[test]
    fn files_are_compared_whatever_their_permissions_are() {
        let files = |maps: &str, range| find_in(maps, &range).unwrap().files;
        let whole = "00003000-00005000 rw-s 00000000 00:01 7 /memfd:x";
        assert_eq!(files(MAPS, 0x3000..0x5000), files(whole, 0x3000..0x5000));
        for other in [
            "00003000-00005000 rw-s 00000000 00:01 8 /memfd:x",
            "00003000-00005000 rw-s 00001000 00:01 7 /memfd:x",
            "00003000-00005000 rw-p 00000000 00:00 0",
        ] {
            assert_ne!(files(MAPS, 0x3000..0x5000), files(other, 0x3000..0x5000), "{other}");
        }
        assert_eq!(files(MAPS, 0x2000..0x4000).len(), 2);
    }

    #[test]
    fn an_invalid_address_is_an_error() {
        let mut buffer = [1, 2, 3];
        assert!(read(4096, &mut buffer).is_err());
        assert!(write(4096, &buffer).is_err());
        let mut target = [0_u8; 3];
        write(target.as_mut_ptr().expose_provenance(), &buffer).unwrap();
        assert_eq!(target, [1, 2, 3]);
        let constant = b"constant".as_ptr().expose_provenance();
        assert!(write(constant, &buffer).is_err());
    }
}
