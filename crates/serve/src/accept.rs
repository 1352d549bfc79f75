//! The thread that accepts connections.
//!
//! 1. It waits for no client: what it sends fits into the socket's buffer, or is not sent.
//! 2. A refused connection gets the reason, and is closed a moment later, so that its hello meets an open socket.
//! 3. Nothing ends it but the server's end. If descriptors run out, it frees one of its own, with which it refuses.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_core::{Error, ErrorKind, Nanos};
use dalsegno_io::{Channel, ChannelError, Listener, PeerName};
use dalsegno_store::Pool;
use parking_lot::Mutex;

use crate::account::{ClientId, NO_USER, SessionSlot};
use crate::serving::{PATIENCE, POLL, Serving};
use crate::session::{Answer, Session};
use crate::wire::{self, MOST_FRAME_BYTES};

/// Refused connections that are still open.
const MOST_REFUSED: usize = 16;

/// Connections that were refused, oldest first.
#[derive(Default)]
struct Refused(VecDeque<(Nanos, Channel)>);

impl Refused {
    /// Says why a connection is refused. It stays open until the client had time to say hello and to read this.
    fn add(&mut self, mut channel: Channel, error: &Error, now: Nanos) {
        if say(&mut channel, error).is_ok() {
            if self.0.len() == MOST_REFUSED {
                self.0.pop_front();
            }
            self.0.push_back((now, channel));
        }
    }

    fn close_old(&mut self, now: Nanos) {
        while self.0.front().is_some_and(|(at, _)| now.since(*at) >= POLL) {
            self.0.pop_front();
        }
    }
}

/// Sends an error without waiting.
fn say(channel: &mut Channel, error: &Error) -> Result<(), ChannelError> {
    channel.send(&wire::encode(&wire::failed(error)), &[], Some(Duration::ZERO))
}

/// Accepts connections until the server closes.
pub(crate) fn accept(shared: &Arc<Serving>, listener: &Listener) {
    let mut refused = Refused::default();
    let mut reserve = reserved(shared);
    while !shared.is_closing.load(Ordering::Acquire) {
        refused.close_old(shared.clock.now());
        match listener.accept(POLL) {
            Ok(Some(channel)) => start_session(shared, channel, &mut refused),
            Ok(None) => {}
            Err(error) => {
                shared.lines.say(NO_USER, shared.clock.now(), || {
                    tracing::warn!(%error, "a connection was not accepted");
                });
                // Too many open files, for example. The reserve is for one that is closed immediately.
                drop(reserve);
                refuse_one(listener);
                std::thread::sleep(POLL);
                reserve = reserved(shared);
            }
        }
    }
}

/// A descriptor that can be freed.
fn reserved(shared: &Serving) -> Option<OwnedFd> {
    shared.offers[0].tenant.pool.file().try_clone().ok()
}

fn refuse_one(listener: &Listener) {
    if let Ok(Some(mut channel)) = listener.accept(Duration::ZERO) {
        let message = "the server has no file descriptors left; raise its limit (ulimit -n)";
        // It is closed either way.
        let _ = say(&mut channel, &Error::new(ErrorKind::Unavailable, message));
    }
}

fn start_session(shared: &Arc<Serving>, channel: Channel, refused: &mut Refused) {
    let user = channel.peer().uid;
    let offer = shared.offer(user);
    // Without a number, a connection counts as a process of its own.
    let process = channel
        .peer()
        .process()
        .unwrap_or_else(|| PeerName::NAMELESS | shared.nameless.fetch_add(1, Ordering::Relaxed));
    let client = PeerName(process);
    let slot = match SessionSlot::open(&offer.accounts, ClientId { process, user }) {
        Ok(slot) => slot,
        Err(error) => {
            let line = || tracing::warn!(%client, user, %error, "a connection is refused");
            offer.accounts.say(user, line);
            return refused.add(channel, &error, shared.clock.now());
        }
    };
    if slot.is_first() {
        let tenant = &offer.tenant.name;
        offer.accounts.say(user, || tracing::info!(%client, user, tenant, "client connected"));
    }
    // The thread takes it out, unless the system refuses the thread.
    let accounts = Arc::clone(slot.accounts());
    let given = Arc::new(Mutex::new(Some(channel)));
    let (of_thread, serving, pool) =
        (Arc::clone(&given), Arc::clone(shared), offer.tenant.pool.clone());
    let body = move || {
        let channel = of_thread.lock().take();
        if let Some(channel) = channel {
            serve(&serving, channel, pool, slot, client);
        }
    };
    if let Err(error) = dalsegno_io::spawn("dalsegno-session", body) {
        let line = || tracing::warn!(%client, %error, "no thread for a connection; it is refused");
        accounts.say(user, line);
        let reason =
            Error::new(ErrorKind::Unavailable, "the server has no thread for a connection");
        let channel = given.lock().take();
        if let Some(channel) = channel {
            refused.add(channel, &reason, shared.clock.now());
        }
    }
}

/// Answers one client until it or the server ends.
fn serve(shared: &Serving, mut channel: Channel, pool: Pool, slot: SessionSlot, client: PeerName) {
    let (user, arena) = (channel.peer().uid, pool.clone());
    let accounts = Arc::clone(slot.accounts());
    let mut session = Session::new(pool, Arc::clone(&shared.clock), slot);
    let silent_until = shared.clock.now().after(PATIENCE);
    let mut is_silent = true;
    while !shared.is_closing.load(Ordering::Acquire) && !session.slot().is_taken_over() {
        let frame = match channel.receive(MOST_FRAME_BYTES, Some(POLL)) {
            Ok(frame) => frame,
            // Also in the middle of a frame: such a client is idle.
            Err(ChannelError::Timeout) if is_silent && shared.clock.now() > silent_until => break,
            Err(ChannelError::Timeout) => continue,
            Err(ChannelError::Ended) => break,
            Err(error) => {
                session.note_malformed();
                accounts.say(user, || {
                    tracing::warn!(%client, user, %error, "a connection was closed");
                });
                break;
            }
        };
        is_silent = false;
        shared.requests.fetch_add(1, Ordering::Relaxed);
        match session.handle(&frame.bytes, frame.descriptors) {
            Answer::Nothing => {}
            Answer::Send { bytes, with_arena, lease } => {
                let sent = send(&mut channel, &bytes, with_arena.then_some(&arena));
                if let Err(error) = sent {
                    // The client never learns of it.
                    session.slot().account().take_back(lease);
                    tracing::debug!(%client, %error, "an answer was not sent");
                    break;
                }
            }
            Answer::End(malformed) => {
                accounts.say(user, || {
                    tracing::warn!(%client, user, %malformed, "a connection was closed");
                });
                break;
            }
            Answer::TakenOver => break,
        }
        if !shared.is_closing.load(Ordering::Acquire) {
            session.read_ahead();
        }
        session.slot().rest();
    }
}

fn send(channel: &mut Channel, bytes: &[u8], arena: Option<&Pool>) -> Result<(), ChannelError> {
    let files: Vec<_> = arena.iter().map(|pool| std::os::fd::AsFd::as_fd(pool.file())).collect();
    channel.send(bytes, &files, Some(PATIENCE))
}
