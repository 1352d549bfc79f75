//! One connection to the server, and the memory that a put hands over on it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Stopped};
use dalsegno_io::{Channel, ChannelError, Claim, Counters, Frame, IoError, Memory, Region};

use super::shared::Shared;
use crate::wire::{
    self, MOST_FRAME_BYTES, OLDEST_VERSION, Reply, Request, VERSION, WINDOW_HEADER_BYTES,
};

/// The longest wait for the server to say hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Most memory of a window that is kept from one put to the next.
const KEPT_BYTES: usize = 32 << 20;
/// Bytes that are copied between two looks at the deadline, and that the system provides at a time.
const PIECE_BYTES: usize = 4 << 20;

/// What the first put of a window names. Memory that was given back reads as zeros, which must be the ticket of no put.
pub(crate) const FIRST_TICKET: u64 = 1;

static WINDOWS: AtomicU64 = AtomicU64::new(0);

/// Memory that the server reads puts from.
#[derive(Debug)]
pub(crate) struct Window {
    number: u64,
    region: Arc<Region>,
    ticket: Counters,
    file: OwnedFd,
    /// How many of its bytes the system has provided, from the first on.
    provided: AtomicUsize,
}

impl Window {
    /// A window for blocks of `bytes`, whose memory is provided when it is used.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide it.
    pub(super) fn empty(bytes: usize) -> std::result::Result<Self, IoError> {
        let bytes = bytes.saturating_add(WINDOW_HEADER_BYTES);
        let region = Region::lent(bytes, "memory for puts")?;
        region.provide(0, WINDOW_HEADER_BYTES)?;
        let (file, region) = (region.reader_file()?, Arc::new(region));
        let ticket = Counters::of(&region, 0, 1);
        ticket.as_ref()[0].store(FIRST_TICKET, Ordering::SeqCst);
        let number = WINDOWS.fetch_add(1, Ordering::Relaxed);
        let provided = AtomicUsize::new(WINDOW_HEADER_BYTES);
        Ok(Self { number, region, ticket, file, provided })
    }

    /// Takes memory for blocks of `bytes`.
    ///
    /// # Errors
    ///
    /// [`IoError::Os`] if the system cannot provide it.
    #[cfg(test)]
    pub(crate) fn new(bytes: usize) -> std::result::Result<Self, IoError> {
        let window = Self::empty(bytes)?;
        window.provide(window.region.bytes())?;
        Ok(window)
    }

    /// Has the system provide the memory up to `end`.
    pub(super) fn provide(&self, end: usize) -> std::result::Result<(), IoError> {
        let provided = self.provided.load(Ordering::Relaxed);
        if provided < end {
            let end = end.next_multiple_of(PIECE_BYTES).min(self.region.bytes());
            self.region.provide(provided, end - provided)?;
            self.provided.store(end, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether it has memory that [`Window::give_back`] returns.
    fn has_memory(&self) -> bool {
        self.provided.load(Ordering::Relaxed) > WINDOW_HEADER_BYTES
    }

    /// Gives the memory of its blocks back to the system, although the server knows the window.
    fn give_back(&self) {
        self.region.give_back(WINDOW_HEADER_BYTES, self.bytes());
        self.provided.store(WINDOW_HEADER_BYTES, Ordering::Relaxed);
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

/// Why there is no further connection.
#[derive(Debug)]
pub(super) enum Unreached {
    /// Nobody listens there.
    Away(Error),
    /// Somebody does, and says nothing.
    Silent(Error),
    /// The server has too many connections.
    Refused(Error),
    /// It does not speak our language.
    Incompatible(Error),
}

impl Unreached {
    pub(super) fn into_error(self) -> Error {
        let (Self::Away(error)
        | Self::Silent(error)
        | Self::Refused(error)
        | Self::Incompatible(error)) = self;
        error
    }
}

/// A connection, used by one call at a time.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    /// Requests that were sent and whose replies were not read.
    owed: usize,
    /// Whether a reply other than the welcome was read.
    is_used: bool,
    /// The window that the server knows.
    known: Option<u64>,
    /// A window for copies, kept for the next put.
    own: Option<Arc<Window>>,
    reported: ReportedLeases,
}

/// Ended leases that were reported on a connection, until a later reply shows that the server has read of them. If the
/// connection ends before, they are reported on another one.
#[derive(Debug, Default)]
pub(super) struct ReportedLeases {
    leases: Vec<u64>,
    /// Whom they are given back to, and the epoch of their server.
    owner: Option<(Arc<Shared>, u64)>,
}

impl Drop for ReportedLeases {
    fn drop(&mut self) {
        if let Some((shared, epoch)) = &self.owner
            && !self.leases.is_empty()
            && shared.process.is_this()
        {
            shared.ended.add(*epoch, &self.leases);
        }
    }
}

impl Connection {
    /// Connects and says hello.
    pub(super) fn open(
        socket: &Path,
        timeout: Duration,
    ) -> std::result::Result<(Self, Welcome), Unreached> {
        let mut channel = Channel::connect(socket).map_err(|error| {
            let is_full = error.system_kind() == Some(std::io::ErrorKind::WouldBlock);
            let (place, kind) = (socket.display(), ErrorKind::Unavailable);
            if is_full {
                let message = format!("the server at {place} accepts no connections now");
                return Unreached::Refused(Error::new(kind, message).with_source(error));
            }
            let message = format!("no server answers at {place}");
            Unreached::Away(Error::new(kind, message).with_source(error))
        })?;
        let hello = wire::encode(&Request::Hello { version: VERSION });
        let unread = |error| unwelcome(socket, error);
        channel.send(&hello, &[], Some(timeout)).map_err(unread)?;
        let frame = channel.receive(MOST_FRAME_BYTES, Some(timeout)).map_err(unread)?;
        let welcome = welcome_of(frame)?;
        let connection = Self {
            channel,
            owed: 0,
            is_used: false,
            known: None,
            own: None,
            reported: ReportedLeases::default(),
        };
        Ok((connection, welcome))
    }

    /// Whether the server closed it. To be asked only between two calls.
    pub(super) fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }

    /// Whether a reply is still to come.
    pub(super) fn is_owing(&self) -> bool {
        self.owed > 0
    }

    /// Whether a call used it before. The server may have closed it since.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sends a request that is answered.
    pub(super) fn send(
        &mut self,
        message: &[u8],
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ChannelError> {
        self.ask(message, None, timeout)
    }

    /// These leases were reported on it.
    pub(super) fn note_reported(&mut self, leases: Vec<u64>, owner: (&Arc<Shared>, u64)) {
        self.reported.leases.extend(leases);
        self.reported.owner = Some((Arc::clone(owner.0), owner.1));
    }

    /// Sends a request that is not answered.
    pub(super) fn report(
        &mut self,
        message: &[u8],
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ChannelError> {
        match self.channel.send(message, &[], timeout) {
            // The rest goes out with the next request.
            Err(ChannelError::Timeout) if self.channel.has_begun() => Ok(()),
            sent => sent,
        }
    }

    fn ask(
        &mut self,
        message: &[u8],
        window: Option<&Window>,
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ChannelError> {
        let file = window.map(|window| window.file.as_fd());
        let sent = self.channel.send(message, file.as_slice(), timeout);
        self.owed += usize::from(self.channel.has_begun());
        sent
    }

    /// Reads a reply.
    pub(super) fn receive(
        &mut self,
        timeout: Duration,
    ) -> std::result::Result<Vec<u8>, ChannelError> {
        let reply = self.channel.receive(MOST_FRAME_BYTES, Some(timeout))?.bytes;
        (self.owed, self.is_used) = (self.owed.saturating_sub(1), true);
        // The server reads messages in their order, and what was reported came before the last request.
        if self.owed == 0 {
            self.reported.leases.clear();
        }
        Ok(reply)
    }

    /// Whether the server was given this window to read puts from.
    pub(super) fn knows(&self, window: &Window) -> bool {
        self.known == Some(window.number)
    }

    /// Gives the server a window, which it confirms.
    pub(super) fn send_window(
        &mut self,
        window: &Window,
        timeout: Option<Duration>,
    ) -> std::result::Result<(), ChannelError> {
        // Until it is confirmed, the server may have the one before or this one.
        self.known = None;
        self.ask(&wire::encode(&Request::Window), Some(window), timeout)
    }

    /// The server confirmed a window.
    pub(super) fn window_is_known(&mut self, window: &Window) {
        self.known = Some(window.number);
    }

    /// Copies blocks into memory that the server can read, unless `is_over` says that it is too late.
    pub(super) fn copy_in(
        &mut self,
        blocks: &[Vec<Memory>],
        bytes: usize,
        is_over: impl Fn() -> bool,
    ) -> std::result::Result<Arc<Window>, Stopped> {
        let no_memory = |_| Stopped::Busy;
        let window = match self.own.take().filter(|window| window.bytes() >= bytes) {
            Some(window) => window,
            None => Arc::new(Window::empty(bytes.max(KEPT_BYTES)).map_err(no_memory)?),
        };
        self.own = Some(Arc::clone(&window));
        let mut memory = window.claim(WINDOW_HEADER_BYTES, bytes).memory();
        let (mut to, mut end) = (memory.as_mut_slice(), WINDOW_HEADER_BYTES);
        for piece in blocks.iter().flatten().flat_map(|piece| piece.as_slice().chunks(PIECE_BYTES))
        {
            if is_over() {
                return Err(Stopped::Deadline);
            }
            end += piece.len();
            window.provide(end).map_err(no_memory)?;
            let (now, later) = std::mem::take(&mut to).split_at_mut(piece.len());
            now.copy_from_slice(piece);
            to = later;
        }
        Ok(window)
    }

    /// Gives the memory of a large put back at once.
    pub(super) fn trim(&self) {
        if let Some(window) = self.own.as_ref().filter(|window| window.bytes() > KEPT_BYTES) {
            window.give_back();
        }
    }

    /// Whether it has memory that it could give back.
    pub(super) fn has_memory(&self) -> bool {
        self.own.as_ref().is_some_and(|window| window.has_memory())
    }

    /// Gives the memory of its puts back.
    pub(super) fn give_memory_back(&mut self) {
        if let Some(window) = &self.own {
            window.give_back();
        }
    }
}

/// Why a server that accepted a connection did not welcome us.
fn unwelcome(socket: &Path, error: ChannelError) -> Unreached {
    let (place, kind) = (socket.display(), ErrorKind::Unavailable);
    match error {
        ChannelError::Timeout => {
            let message = format!("the server at {place} does not respond");
            Unreached::Silent(Error::new(kind, message).with_source(error))
        }
        ChannelError::Malformed(_) => Unreached::Incompatible(strange()),
        ChannelError::Ended | ChannelError::Io(_) => {
            let message = format!("the server at {place} closed the connection");
            Unreached::Refused(Error::new(kind, message).with_source(error))
        }
    }
}

fn strange() -> Error {
    Error::new(ErrorKind::Incompatible, "the server does not speak our language")
}

fn welcome_of(frame: Frame) -> std::result::Result<Welcome, Unreached> {
    let Ok((reply, _)) = wire::decode::<Reply>(&frame.bytes) else {
        return Err(Unreached::Incompatible(strange()));
    };
    match (reply, frame.descriptors.into_iter().next()) {
        (Reply::Welcome { version, store, epoch, arena_bytes, limits }, Some(arena))
            if (OLDEST_VERSION..=VERSION).contains(&version) =>
        {
            Ok(Welcome { store, epoch, arena_bytes, limits, arena })
        }
        (Reply::Failed { kind, message }, _) => {
            let error = wire::error_of(kind, message);
            Err(match error.kind() {
                ErrorKind::Incompatible => Unreached::Incompatible(error),
                _ => Unreached::Refused(error),
            })
        }
        _ => Err(Unreached::Incompatible(strange())),
    }
}
