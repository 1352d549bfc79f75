//! Connections that are taken over when there are too many.
//!
//! 1. Only a connection between two requests is taken over, and none with a watch of removals.
//! 2. A process that holds a lease keeps a connection, so that its leases stay.
//! 3. A process takes connections over only from itself, or from one that has more.

use std::cmp::Reverse;

use dalsegno_core::Nanos;

use super::book::Book;
use super::bounds::Resource;
use super::seat::{ClientId, Seat};

/// Most connections that were taken over and have not ended yet.
const MOST_LEAVING: usize = 64;

/// Which bound a further connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionLimit {
    Process,
    User,
    All,
}

/// The bound that keeps a process from a further connection.
pub(super) fn session_limit(book: &Book, client: ClientId) -> Option<SessionLimit> {
    if book.offer(client, Resource::Sessions) > 0 {
        return None;
    }
    let bound = book.bounds().sessions;
    Some(if book.own(client.process, Resource::Sessions) >= bound.process {
        SessionLimit::Process
    } else if book.all().of(Resource::Sessions) < bound.all
        && book.of_user(client.user, Resource::Sessions) >= bound.user()
    {
        SessionLimit::User
    } else {
        SessionLimit::All
    })
}

/// Ends a connection, so that `client` can have one more. `false` if none can be ended.
pub(super) fn take_over(
    book: &mut Book,
    client: ClientId,
    limit: SessionLimit,
    now: Nanos,
) -> bool {
    if book.leaving >= MOST_LEAVING {
        return false;
    }
    let own = book.own(client.process, Resource::Sessions);
    let mut candidates = Vec::new();
    for (number, seat) in &book.seats {
        let standing = seat.standing.lock();
        let count = book.own(seat.client.process, Resource::Sessions);
        let is_own = seat.client.process == client.process;
        let is_in_reach = match limit {
            SessionLimit::Process => is_own,
            SessionLimit::User => seat.client.user == client.user,
            SessionLimit::All => true,
        };
        let is_half_open = standing.is_half_open(now);
        // With one more the process would have as many as the other one is left with.
        let has_more = count > own + 1 || own == 0;
        if is_in_reach && (is_own || is_half_open || has_more) && standing.can_end(now) {
            let of_user = book.of_user(seat.client.user, Resource::Sessions);
            let key = (Reverse(is_half_open), Reverse(count), Reverse(of_user), standing.since());
            candidates.push((key, *number));
        }
    }
    candidates.sort_unstable();
    candidates.into_iter().any(|(_, number)| end(book, number, now))
}

/// Ends a connection if it still can be ended, and its process keeps its leases.
fn end(book: &mut Book, number: u64, now: Nanos) -> bool {
    let Some(seat) = book.seats.get(&number).cloned() else { return false };
    let mut standing = seat.standing.lock();
    let keeps_leases = has_others(book, number, &seat) || !book.has_leases(seat.client.process);
    if !standing.can_end(now) || !keeps_leases {
        return false;
    }
    standing.set_taken_over();
    drop(standing);
    let leases = book.get_up(number);
    debug_assert!(leases.is_none_or(|leases| leases.is_empty()), "a lease ended by a take-over");
    book.leaving += 1;
    true
}

/// Whether the process of a connection has another one that has said hello.
fn has_others(book: &Book, number: u64, seat: &Seat) -> bool {
    let is_other = |(other, one): (&u64, &Seat)| {
        *other != number
            && one.client.process == seat.client.process
            && one.standing.lock().has_said_hello()
    };
    book.seats.iter().any(is_other)
}
