//! Frames and descriptors between two processes of one host, over a Unix stream socket.

mod listener;
mod peer;
mod record;
mod stream;
mod system;

pub use listener::{BindError, Listener, Occupant};
pub use peer::{Peer, PeerName};
pub use stream::{Channel, ChannelError, Frame};
