//! Sockets and waits, as both ends need them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use dalsegno_core::{Clock, Nanos};
use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::SystemClock;

/// A socket that is not connected.
pub(super) fn stream_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// How long a wait may last.
#[derive(Clone, Copy)]
pub(super) struct Until {
    clock: SystemClock,
    timeout: Option<Duration>,
}

impl Until {
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self { clock: SystemClock::new(), timeout }
    }

    /// Whether the time has passed.
    pub(super) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    fn left(self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.clock.now().since(Nanos::default())))
    }
}

/// Waits for one of the descriptors; 0 if none was ready in time.
pub(super) fn poll(waiting: &mut [PollFd<'_>], until: Until) -> Result<usize, Errno> {
    loop {
        let timeout = until.left().map(|timeout| {
            Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
        });
        match rustix::event::poll(waiting, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
