//! Log lines about clients: no user can fill the log.
//!
//! 1. A user has [`MOST_LINES`], and then one a second. A line says how many were left out before it.
//! 2. Nothing is logged while the lock is held.

use std::collections::HashMap;
use std::time::Duration;

use dalsegno_core::Nanos;
use parking_lot::Mutex;

/// Lines that a user has without a pause.
const MOST_LINES: u64 = 32;
/// How long it takes until a user has another line.
const PER_LINE: Duration = Duration::from_secs(1);
/// Users with a budget of their own; all others share one.
const MOST_USERS: usize = 64;
/// The budget of what belongs to no user, and of users beyond [`MOST_USERS`].
pub(crate) const NO_USER: u32 = u32::MAX;

/// The budgets of all users.
#[derive(Debug, Default)]
pub(crate) struct ClientLines {
    users: Mutex<HashMap<u32, Budget>>,
}

#[derive(Debug)]
struct Budget {
    lines: u64,
    /// Until when `lines` counts.
    at: Nanos,
    left_out: u64,
}

impl ClientLines {
    /// Writes a line about a client of `user`, if the user has one left.
    pub(crate) fn say(&self, user: u32, now: Nanos, line: impl FnOnce()) {
        let Some(left_out) = self.allow(user, now) else { return };
        if left_out > 0 {
            tracing::warn!(user, lines = left_out, "log lines about clients were left out");
        }
        line();
    }

    /// Takes a line of a user's budget; returns how many were left out before it.
    fn allow(&self, user: u32, now: Nanos) -> Option<u64> {
        let mut users = self.users.lock();
        let is_full = users.len() >= MOST_USERS && !users.contains_key(&user);
        let user = if is_full { NO_USER } else { user };
        let new = || Budget { lines: MOST_LINES, at: now, left_out: 0 };
        let budget = users.entry(user).or_insert_with(new);
        let seconds = now.since(budget.at).as_secs();
        budget.lines = (budget.lines + seconds).min(MOST_LINES);
        budget.at = budget.at.after(PER_LINE * u32::try_from(seconds).unwrap_or(u32::MAX));
        if budget.lines == 0 {
            budget.left_out += 1;
            return None;
        }
        budget.lines -= 1;
        Some(std::mem::take(&mut budget.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_user_cannot_fill_the_log_and_another_one_still_has_lines() {
        let lines = ClientLines::default();
        let written = (0..1000).filter(|_| lines.allow(1, at(5)).is_some()).count();
        assert_eq!(written as u64, MOST_LINES);
        assert_eq!(lines.allow(2, at(5)), Some(0));
        assert_eq!(lines.allow(1, at(6)), Some(1000 - MOST_LINES));
        assert_eq!(lines.allow(1, at(6)), None);
        let later = (0..1000).filter(|_| lines.allow(1, at(1_000)).is_some()).count();
        assert_eq!(later as u64, MOST_LINES);
    }

    #[test]
    fn the_memory_for_users_is_bounded() {
        let lines = ClientLines::default();
        let users = 0..10_000;
        let written = users.filter(|user| lines.allow(*user, at(0)).is_some()).count() as u64;
        assert_eq!(written, MOST_USERS as u64 + MOST_LINES);
        assert!(lines.users.lock().len() <= MOST_USERS + 1);
    }
}
