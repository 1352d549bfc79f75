//! Sends blocks over TCP, straight from an arena in shared memory: the baseline of the bench `pool`.
//!
//! A client sends the number of a block, 8 bytes, and receives the block. Each connection has one blocking thread. Prints
//! its port, then serves until it is killed.

#![expect(clippy::disallowed_methods, reason = "without the crate that counts threads")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// Shared memory. It is written before the first connection, and stays until the process ends.
struct Arena {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: nobody writes after it was shared.
unsafe impl Send for Arena {}
// SAFETY: likewise.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let check = |failed: bool| {
            if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: the name is a C string, the length is that of the file, and the mapping is new.
        unsafe {
            let file = libc::memfd_create(c"dalsegno-bench-tcp".as_ptr(), libc::MFD_CLOEXEC);
            check(file < 0)?;
            check(libc::ftruncate(file, bytes as libc::off_t) < 0)?;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
            check(start == libc::MAP_FAILED)?;
            Ok(Self { start: start.cast(), bytes })
        }
    }

    fn fill(&mut self, block_bytes: usize) {
        // SAFETY: the mapping has this length, and nobody else has it yet.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) };
        for (number, block) in all.chunks_mut(block_bytes).enumerate() {
            block.fill(number as u8);
        }
    }

    fn slice(&self, at: usize, len: usize) -> &[u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "a block that exists");
        // SAFETY: it is within the mapping, and nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }
}

fn send_blocks(mut stream: TcpStream, arena: &Arena, block_bytes: usize) {
    let mut number = [0; 8];
    while stream.read_exact(&mut number).is_ok() {
        let at = u64::from_le_bytes(number) as usize * block_bytes;
        if stream.write_all(arena.slice(at, block_bytes)).is_err() {
            return;
        }
    }
}

fn main() -> std::io::Result<()> {
    let mut sizes = [0; 2];
    for (name, size) in ["--blocks=", "--block-bytes="].into_iter().zip(&mut sizes) {
        let given = std::env::args().find_map(|one| one.strip_prefix(name)?.parse().ok());
        *size = given.unwrap_or_else(|| panic!("{name}NUMBER is missing"));
    }
    let [blocks, block_bytes] = sizes;
    let mut arena = Arena::new(blocks * block_bytes)?;
    arena.fill(block_bytes);
    let arena = Arc::new(arena);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let (stream, arena) = (stream?, Arc::clone(&arena));
        std::thread::spawn(move || send_blocks(stream, &arena, block_bytes));
    }
    Ok(())
}
