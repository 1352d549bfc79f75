//! One connection to the server, and the memory that a put hands over on it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Result};
use dalsegno_io::{
    Backing, Channel, ChannelError, Claim, Counters, Frame, IoError, Memory, Region, Touch,
};

use crate::wire::{
    self, MOST_FRAME_BYTES, OLDEST_VERSION, Reply, Request, VERSION, WINDOW_HEADER_BYTES,
};

/// The longest wait for the server to say hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// The smallest window that is kept.
const LEAST_WINDOW_BYTES: usize = 1 << 20;

static WINDOWS: AtomicU64 = AtomicU64::new(0);

/// Memory that the server reads puts from.
#[derive(Debug)]
pub(crate) struct Window {
    number: u64,
    region: Arc<Region>,
    ticket: Counters,
    file: OwnedFd,
}

impl Window {
    /// Takes memory for blocks of `bytes`.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide it.
    pub(crate) fn new(bytes: usize) -> std::result::Result<Self, IoError> {
        let bytes = bytes.saturating_add(WINDOW_HEADER_BYTES);
        let region = Region::shared(&Backing::MemoryFile, bytes, Touch::AtUse, "memory for puts")?;
        let (file, region) = (region.reader_file()?, Arc::new(region));
        let ticket = Counters::of(&region, 0, 1);
        let number = WINDOWS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { number, region, ticket, file })
    }

    /// What a put of its blocks names now.
    pub(super) fn ticket(&self) -> u64 {
        self.ticket.as_ref()[0].load(Ordering::SeqCst)
    }

    /// A put of its blocks got no answer: from now on the server does not take them, however late it reads them. Call
    /// it before anybody writes other bytes into the window.
    pub(super) fn give_up(&self) {
        self.ticket.as_ref()[0].fetch_add(1, Ordering::SeqCst);
    }

    /// What a server reads.
    #[cfg(test)]
    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes for blocks.
    fn bytes(&self) -> usize {
        self.region.bytes() - WINDOW_HEADER_BYTES
    }

    /// Exclusive access to `len` of its bytes. Blocks start at [`WINDOW_HEADER_BYTES`].
    ///
    /// # Panics
    ///
    /// If somebody has access to one of them.
    pub(crate) fn claim(&self, offset: usize, len: usize) -> Claim {
        Claim::of(&self.region, offset, len, ())
    }
}

/// What the server says of itself.
#[derive(Debug)]
pub(super) struct Welcome {
    pub(super) store: [u8; 16],
    pub(super) epoch: u64,
    pub(super) arena_bytes: u64,
    pub(super) limits: String,
    pub(super) arena: OwnedFd,
}

/// A connection, used by one call at a time.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    /// The window that the server knows.
    known: Option<u64>,
    /// A window for copies, kept for the next put.
    own: Option<Arc<Window>>,
}

impl Connection {
    /// Connects and says hello.
    ///
    /// # Errors
    ///
    /// `Unavailable` if nobody answers there, `Incompatible` if the server does not speak our version.
    pub(super) fn open(socket: &Path, timeout: Duration) -> Result<(Self, Welcome)> {
        let away = |error: ChannelError| {
            let message = format!("no server answers at {}", socket.display());
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let mut channel =
            Channel::connect(socket).map_err(|error| away(ChannelError::Io(error)))?;
        let hello = wire::encode(&Request::Hello { version: VERSION });
        channel.send(&hello, &[], Some(timeout)).map_err(away)?;
        let frame = channel.receive(MOST_FRAME_BYTES, Some(timeout)).map_err(away)?;
        let welcome = welcome_of(frame)?;
        Ok((Self { channel, known: None, own: None }, welcome))
    }

    /// Whether the server closed it. To be asked only between two calls.
    pub(super) fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }

    pub(super) fn send(
        &mut self,
        message: &[u8],
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ChannelError> {
        self.channel.send(message, &[], timeout)
    }

    pub(super) fn receive(
        &mut self,
        timeout: Duration,
    ) -> std::result::Result<Vec<u8>, ChannelError> {
        Ok(self.channel.receive(MOST_FRAME_BYTES, Some(timeout))?.bytes)
    }

    /// Gives the server this window to read puts from; returns whether it will answer.
    pub(super) fn send_window(
        &mut self,
        window: &Window,
        timeout: Option<Duration>,
    ) -> std::result::Result<bool, ChannelError> {
        if self.known == Some(window.number) {
            return Ok(false);
        }
        let message = wire::encode(&Request::Window);
        self.channel.send(&message, &[window.file.as_fd()], timeout)?;
        self.known = Some(window.number);
        Ok(true)
    }

    /// Copies blocks into memory that the server can read.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if there is no memory.
    pub(super) fn copy_in(
        &mut self,
        blocks: &[Vec<Memory>],
        bytes: usize,
    ) -> std::result::Result<Arc<Window>, IoError> {
        let window = match self.own.take().filter(|window| window.bytes() >= bytes) {
            Some(window) => window,
            // It is kept, so that puts of growing sizes do not need a new one each.
            None => Arc::new(Window::new(bytes.max(LEAST_WINDOW_BYTES).next_power_of_two())?),
        };
        let mut memory = window.claim(WINDOW_HEADER_BYTES, bytes).memory();
        let mut to = memory.as_mut_slice();
        for piece in blocks.iter().flatten() {
            let (now, later) = std::mem::take(&mut to).split_at_mut(piece.len());
            now.copy_from_slice(piece.as_slice());
            to = later;
        }
        drop(memory);
        self.own = Some(Arc::clone(&window));
        Ok(window)
    }
}

fn welcome_of(frame: Frame) -> Result<Welcome> {
    let strange = || Error::new(ErrorKind::Incompatible, "the server does not speak our language");
    let (reply, _) = wire::decode::<Reply>(&frame.bytes).map_err(|_| strange())?;
    match (reply, frame.descriptors.into_iter().next()) {
        (Reply::Welcome { version, store, epoch, arena_bytes, limits }, Some(arena))
            if (OLDEST_VERSION..=VERSION).contains(&version) =>
        {
            Ok(Welcome { store, epoch, arena_bytes, limits, arena })
        }
        (Reply::Failed { kind, message }, _) => Err(wire::error_of(kind, message)),
        _ => Err(strange()),
    }
}
