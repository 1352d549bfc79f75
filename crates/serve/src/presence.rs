//! Whether a server is there, and if it cannot be used, why.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Result};
use dalsegno_io::{Channel, ChannelError, IoError, Listener, PeerName};

use crate::place::{record_of, socket_of};
use crate::wire::{self, MOST_FRAME_BYTES, Reply, Request};

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// What is at a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nobody listens there.
    Absent,
    /// A server, which answers.
    Ready,
    /// A server that exists and does not answer, and its process.
    Silent(String),
    /// A server that refuses this process, itself and its reason.
    Refused(String, String),
}

impl Presence {
    /// Connects to the socket and says hello. It waits at most a second.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        let mut channel = match Channel::connect(socket) {
            Ok(channel) => channel,
            Err(error) => return Self::not_connected(&error),
        };
        let process = channel.peer().process();
        let name = process.map_or_else(unknown, |number| PeerName(number).to_string());
        let hello = wire::encode(&Request::Hello { version: wire::VERSION });
        let answer = channel
            .send(&hello, &[], Some(ANSWER_TIMEOUT))
            .and_then(|()| channel.receive(MOST_FRAME_BYTES, Some(ANSWER_TIMEOUT)));
        match answer.map(|frame| wire::decode::<Reply>(&frame.bytes).map(|(reply, _)| reply)) {
            Ok(Ok(Reply::Welcome { .. })) => Self::Ready,
            Ok(Ok(Reply::Failed { message, .. })) => Self::Refused(name, message),
            Ok(_) => Self::Refused(name, "it speaks another version".to_owned()),
            Err(ChannelError::Timeout) => Self::Silent(name),
            Err(error) => Self::Refused(name, error.to_string()),
        }
    }

    fn not_connected(error: &IoError) -> Self {
        if error.is_not_found() || error.is_refused() {
            Self::Absent
        } else if error.is_full_backlog() {
            Self::Silent(unknown())
        } else {
            Self::Refused(unknown(), error.to_string())
        }
    }

    /// Says it in a line; nothing if nobody is there.
    #[must_use]
    pub fn describe(&self, socket: &Path) -> Option<String> {
        let socket = socket.display();
        Some(match self {
            Self::Absent => return None,
            Self::Ready => format!("a server shares it at unix:{socket}"),
            Self::Silent(process) => {
                format!(
                    "its server ({process}) at unix:{socket} does not respond; end it or wait for it"
                )
            }
            Self::Refused(process, why) => {
                format!("its server ({process}) at unix:{socket} refuses connections: {why}")
            }
        })
    }
}

fn unknown() -> String {
    "another process".to_owned()
}

/// The socket of the server that owns `directory`, and what is there. Without one, the default socket.
#[must_use]
pub fn server_of(directory: &Path) -> (PathBuf, Presence) {
    let default = socket_of(directory);
    // Where the directory has another path than the server saw, only the default holds.
    let recorded = Listener::last_recorded(&record_of(directory)).filter(|it| *it != default);
    if let Some(socket) = recorded {
        let presence = Presence::at(&socket);
        if presence != Presence::Absent {
            return (socket, presence);
        }
    }
    let presence = Presence::at(&default);
    (default, presence)
}

/// Adds to the error about a directory in use what its server says, if it has one.
///
/// # Errors
///
/// The given one.
pub fn explained<T>(directory: &Path, result: Result<T>) -> Result<T> {
    let error = match result {
        Err(error) if error.kind() == ErrorKind::Unavailable => error,
        other => return other,
    };
    let (socket, presence) = server_of(directory);
    match presence.describe(&socket) {
        Some(said) => Err(Error::new(ErrorKind::Unavailable, format!("{error}; {said}"))),
        None => Err(error),
    }
}
