//! A connection: frames of bytes, some with descriptors.
//!
//! A frame is its length in bytes (u32, little-endian), the number of its descriptors (u8), then these bytes. The
//! descriptors travel with the first byte of their frame.
//!
//! 1. A frame is at most [`Channel::receive`]'s `most` bytes, and a channel holds at most [`MOST_DESCRIPTORS`]. What
//!    exceeds that ends the connection.
//! 2. No call waits longer than its timeout. A call that gives up in the middle of a frame leaves the connection as it
//!    is: what was received of the frame is kept, and the rest of a frame that was sent in part goes out first.
//! 3. A connection belongs to the process that opened it: a forked child cannot use it.
//! 4. A connection ends when the process at the other end has ended, even if a child of it still holds the socket.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
};
use thiserror::Error;

use super::peer::Peer;
use super::system::{Until, poll, stream_socket};
use crate::{IoError, Process};

/// Most descriptors of one frame, and of frames that were not taken yet.
const MOST_DESCRIPTORS: usize = 4;
/// Bytes that one read takes. Most frames fit.
const READ_BYTES: usize = 64 << 10;
/// A buffer that grew beyond this for a large frame is made small again after it.
const KEPT_BYTES: usize = 256 << 10;
/// How long a receiver looks for a frame before it sleeps. To wake a thread on an idle core takes 20 to 50 us, longer
/// than most answers do.
const POLLING: Duration = Duration::from_micros(50);
/// Length and number of descriptors.
const HEADER_BYTES: usize = 5;

/// Why a frame was not moved. Every error but `Timeout` ends the connection.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The other end closed the connection, or its process ended.
    #[error("the connection ended")]
    Ended,
    /// The timeout passed first.
    #[error("the other process did not respond in time")]
    Timeout,
    /// A frame is too long, or has too many descriptors.
    #[error("the other process sent {0}")]
    Malformed(String),
    /// The system failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// One message.
#[derive(Debug)]
pub struct Frame {
    /// Its bytes, without the length.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// A connection to another process.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Peer,
    process: Process,
    buffer: Vec<u8>,
    /// Bytes in the buffer that belong to no frame that was taken.
    held: std::ops::Range<usize>,
    descriptors: VecDeque<OwnedFd>,
    /// The end of a frame whose beginning was sent.
    unsent: Vec<u8>,
    /// Whether a byte of the last frame was sent.
    has_begun: bool,
    is_broken: bool,
}

impl Channel {
    /// Connects to the listener on `path`.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`], with the path: `NotFound` or `ConnectionRefused` if nobody listens there.
    pub fn connect(path: &Path) -> Result<Self, IoError> {
        let failed = |error| IoError::os("connect", path.display().to_string(), error);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        // Connecting to a Unix socket waits for nobody: with a full backlog it fails immediately.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = stream_socket(flags).map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        Self::of(socket)
    }

    pub(super) fn of(socket: OwnedFd) -> Result<Self, IoError> {
        let peer = Peer::of(&socket)?;
        Ok(Self {
            socket,
            peer,
            process: Process::this(),
            buffer: vec![0; READ_BYTES],
            held: 0..0,
            descriptors: VecDeque::new(),
            unsent: Vec::new(),
            has_begun: false,
            is_broken: false,
        })
    }

    /// The process at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the other end closed the connection or sent something, while neither end expects a frame.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_broken || self.wait(PollFlags::IN, Until::after(Some(Duration::ZERO))).is_ok()
    }

    /// Whether the last frame was sent, or a part of it, whose end goes out with the next call.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Sends a frame of `bytes` with `descriptors`.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]. After `Timeout` the other end gets the whole frame later if [`Channel::has_begun`], and
    /// otherwise nothing of it; after any other error the connection has ended.
    ///
    /// # Panics
    ///
    /// If there are more than [`MOST_DESCRIPTORS`], or more bytes than a `u32` counts.
    pub fn send(
        &mut self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<(), ChannelError> {
        assert!(descriptors.len() <= MOST_DESCRIPTORS, "{} descriptors", descriptors.len());
        self.has_begun = false;
        self.check()?;
        let until = Until::after(timeout);
        let result = self.send_rest(until).and_then(|()| self.send_all(bytes, descriptors, until));
        self.noted(result)
    }

    fn send_all(
        &mut self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Until,
    ) -> Result<(), ChannelError> {
        let length = u32::try_from(bytes.len()).expect("a frame is small").to_le_bytes();
        let count = u8::try_from(descriptors.len()).expect("at most MOST_DESCRIPTORS");
        let header = [length[0], length[1], length[2], length[3], count];
        let mut sent = 0;
        while sent < HEADER_BYTES + bytes.len() {
            let head = &header[sent.min(HEADER_BYTES)..];
            let tail = &bytes[sent.saturating_sub(HEADER_BYTES)..];
            let files = if sent == 0 { descriptors } else { &[] };
            let moved = self.send_some(&[IoSlice::new(head), IoSlice::new(tail)], files, until);
            if sent > 0 && matches!(moved, Err(ChannelError::Timeout)) {
                self.unsent = [head, tail].concat();
            }
            sent += moved?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Sends the end of a frame whose beginning was sent.
    fn send_rest(&mut self, until: Until) -> Result<(), ChannelError> {
        while !self.unsent.is_empty() {
            let sent = self.send_some(&[IoSlice::new(&self.unsent)], &[], until)?;
            self.unsent.drain(..sent);
        }
        Ok(())
    }

    /// Sends at least one byte.
    fn send_some(
        &self,
        parts: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
        until: Until,
    ) -> Result<usize, ChannelError> {
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(fits, "the buffer holds the most descriptors");
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, parts, &mut control, flags) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Ended),
                Err(error) => return Err(IoError::os("send", "a socket", error).into()),
            }
        }
    }

    /// Waits for the next frame, of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]. After a timeout the connection goes on, also in the middle of a frame; after any other error
    /// it has ended.
    pub fn receive(
        &mut self,
        most: usize,
        timeout: Option<Duration>,
    ) -> Result<Frame, ChannelError> {
        self.check()?;
        let received = self.receive_frame(most, Until::after(timeout));
        self.noted(received)
    }

    fn receive_frame(&mut self, most: usize, until: Until) -> Result<Frame, ChannelError> {
        let polling = Until::after(Some(POLLING));
        loop {
            if let Some(frame) = self.take_frame(most)? {
                return Ok(frame);
            }
            match self.send_rest(Until::after(Some(Duration::ZERO))) {
                Ok(()) | Err(ChannelError::Timeout) => {}
                Err(error) => return Err(error),
            }
            match self.read_some()? {
                true => {}
                // Other threads of this core run meanwhile.
                false if !polling.is_over() && !until.is_over() => std::thread::yield_now(),
                false => self.wait(PollFlags::IN, until)?,
            }
        }
    }

    /// Remembers an error that ends the connection.
    fn noted<T>(&mut self, result: Result<T, ChannelError>) -> Result<T, ChannelError> {
        self.is_broken |= matches!(&result, Err(error) if !matches!(error, ChannelError::Timeout));
        result
    }

    fn check(&self) -> Result<(), ChannelError> {
        // In a forked child the parent uses the connection.
        if self.is_broken || !self.process.is_this() { Err(ChannelError::Ended) } else { Ok(()) }
    }

    /// The next frame, if all of it is in the buffer.
    fn take_frame(&mut self, most: usize) -> Result<Option<Frame>, ChannelError> {
        let held = &self.buffer[self.held.clone()];
        let Some((length, [count, ..])) = held.split_first_chunk::<4>() else { return Ok(None) };
        let (length, count) = (u32::from_le_bytes(*length) as usize, usize::from(*count));
        if length > most {
            let what = format!("a frame of {length} bytes, more than {most}");
            return Err(ChannelError::Malformed(what));
        }
        if count > self.descriptors.len() {
            let what = format!("{} descriptors with a frame of {count}", self.descriptors.len());
            return Err(ChannelError::Malformed(what));
        }
        let Some(bytes) = held[HEADER_BYTES..].get(..length).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.held.start += HEADER_BYTES + length;
        let descriptors = self.descriptors.drain(..count).collect();
        if self.held.is_empty() && self.buffer.len() > KEPT_BYTES {
            (self.buffer, self.held) = (vec![0; READ_BYTES], 0..0);
        }
        Ok(Some(Frame { bytes, descriptors }))
    }

    /// Reads what has arrived. `false` if nothing has.
    fn read_some(&mut self) -> Result<bool, ChannelError> {
        if self.held.start > 0 {
            self.buffer.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        if self.held.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.held.end..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(ChannelError::Ended),
            Err(error) => return Err(IoError::os("receive", "a socket", error).into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if self.descriptors.len() > MOST_DESCRIPTORS {
            let what = format!("more than {MOST_DESCRIPTORS} descriptors");
            return Err(ChannelError::Malformed(what));
        }
        if received.bytes == 0 {
            return Err(ChannelError::Ended);
        }
        self.held.end += received.bytes;
        Ok(true)
    }

    /// Waits until the socket is ready, or its peer has ended.
    fn wait(&self, flags: PollFlags, until: Until) -> Result<(), ChannelError> {
        let mut waiting = vec![PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        waiting.extend(self.peer.end().map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        let ready = poll(&mut waiting, until)
            .map_err(|error| IoError::os("wait for", "a socket", error))?;
        if ready == 0 {
            return Err(ChannelError::Timeout);
        }
        let socket_is_ready = !waiting[0].revents().is_empty();
        if socket_is_ready { Ok(()) } else { Err(ChannelError::Ended) }
    }
}
