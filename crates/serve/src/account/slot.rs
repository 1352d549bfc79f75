//! A connection in the accounts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dalsegno_core::{Error, ErrorKind, Result};
use dalsegno_io::PeerName;

use super::accounts::Accounts;
use super::bounds::Resource;
use super::grant::Account;
use super::seat::{ClientId, Seat};
use super::take_over::{SessionLimit, session_limit, take_over};

/// A connection of a process. Dropping it ends the connection's part in the account.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    account: Account,
    number: u64,
    seat: Seat,
    is_first: bool,
}

impl SessionSlot {
    /// Counts a connection of a process. If there are too many, an idle one is taken over.
    ///
    /// # Errors
    ///
    /// `Unavailable` if none can be taken over.
    pub(crate) fn open(accounts: &Arc<Accounts>, client: ClientId) -> Result<Self> {
        let now = accounts.clock.now();
        let mut book = accounts.book.lock();
        if let Some(limit) = session_limit(&book, client) {
            if !take_over(&mut book, client, limit, now) {
                let (own, all) = (book.own(client.process, Resource::Sessions), book.seats.len());
                drop(book);
                accounts.refused.fetch_add(1, Ordering::Relaxed);
                return Err(refusal(limit, own, all));
            }
            accounts.taken_over.fetch_add(1, Ordering::Relaxed);
        }
        let (number, seat, is_first) = book.sit_down(client, now);
        drop(book);
        let account = Account { accounts: Arc::clone(accounts), client };
        Ok(Self { account, number, seat, is_first })
    }

    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.account.accounts
    }

    /// Whether it is the first connection of its process.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// A request begins. `false` if the connection was taken over: then it must end.
    pub(crate) fn begin(&self) -> bool {
        self.seat.standing.lock().begin()
    }

    /// The request has ended, and its answer was sent.
    pub(crate) fn rest(&self) {
        let now = self.account.accounts.clock.now();
        self.seat.standing.lock().rest(now);
    }

    /// Whether the connection was given to another one.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.seat.standing.lock().is_taken_over()
    }

    /// Whether the connection has a watch of removals.
    pub(crate) fn set_watch(&self, has_watch: bool) {
        self.seat.standing.lock().set_watch(has_watch);
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let accounts = &self.account.accounts;
        let Some(leases) = accounts.book.lock().get_up(self.number) else { return };
        let (count, ClientId { process, user }) = (leases.len(), self.account.client);
        accounts.free(leases);
        accounts.say(user, || {
            tracing::info!(client = %PeerName(process), user, leases = count, "client ended");
        });
    }
}

fn refusal(limit: SessionLimit, own: u64, all: usize) -> Error {
    let message = match limit {
        SessionLimit::Process => format!(
            "this process has {own} connections to the server, the most that one may have, and all are in use; close \
             some or wait"
        ),
        SessionLimit::User => {
            "the processes of this user have as many connections to the server as one user may have, and all are in \
             use; stop some or wait"
                .to_owned()
        }
        SessionLimit::All => format!(
            "the server has {all} connections, and none that this process (it has {own}) may take over is idle; wait, \
             or stop other clients"
        ),
    };
    Error::new(ErrorKind::Unavailable, message)
}
