//! Follows what all writers publish.
//!
//! 1. A poll reads the new lists of removals first. If that fails, it reads no catalog: its blocks may be removed. Then
//!    it fetches the catalogs behind the newest known one of each writer: one lookup if there is none. Every
//!    [`LIST_EVERY`] polls it lists the folders, finds packs that are gone, and catalogs that appeared out of order.
//! 2. An object or a folder that cannot be used costs only itself: it is counted, and tried again at later listings.
//! 3. A writer without a new beat, pack or catalog in [`QUIET_LISTS`] listings is looked at only by listings: it ended,
//!    or is suspended. A writer that runs has a new beat each minute.
//! 4. If the location is another directory, a poll ends after the lists. So no poll reads lists of one directory and
//!    catalogs of another one.
//! 5. A failure of one object does not keep others from being read in the same poll. Only a location that hangs ends
//!    the poll. What was read counts, and what is indexed stays.

mod bad;
mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_core::{Deadline, Nanos, Stopped};
use dalsegno_io::IoError;

use self::bad::{BadName, BadObjects};
use self::lists::ListFollower;
use crate::format::{Catalog, MAX_CATALOG_BYTES, packs_of};
use crate::member::{FOLLOW_LIMIT, Member};
use crate::names::{Object, WriterId};
use crate::polled::{LocationTime, Polled};
use crate::removal::Applied;
use crate::replies::Replies;
use crate::signs::Signs;
use crate::tier::Listed;

/// Polls from one listing to the next.
pub const LIST_EVERY: u64 = 30;
/// The location's time is asked again after this time, also between two listings: the host may have been suspended.
const ASK_AFTER: Duration = Duration::from_secs(90);
/// Objects that are fetched at a time.
const FETCHES: usize = 16;
/// Catalogs that cannot be used and that a poll tries again.
const RETRIES: usize = 16;
/// Listings in a row without a sign of life after which a writer is quiet.
const QUIET_LISTS: u32 = 4;
/// Catalogs behind the newest known one that a poll looks for in the first place.
const AHEAD: u64 = 2;
/// As many catalogs behind the newest known one are looked for in turns, one in each poll: packs may have failed.
const MOST_AHEAD: u64 = 8;

/// How the folder of a writer was listed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    /// Not at all, or that failed: the next poll tries again.
    #[default]
    Wanted,
    Done,
    /// It cannot be listed, because it belongs to another user.
    Refused,
}

/// What is known of a writer.
#[derive(Debug, Default)]
struct Followed {
    /// The newest catalog that was seen; 0 for none.
    newest: u64,
    /// Catalogs that were indexed, or that cannot be.
    seen: BTreeSet<u64>,
    /// How its folder was listed last.
    listing: Listing,
    /// What that listing showed.
    signs: Signs,
    /// Listings in a row that showed no newer sign of life.
    quiet_lists: u32,
}

impl Followed {
    fn note(&mut self, listed: &[Listed]) {
        let signs = Signs::of(listed);
        self.quiet_lists =
            if signs.are_newer_than(self.signs) { 0 } else { self.quiet_lists.saturating_add(1) };
        self.signs = signs;
        self.listing = Listing::Done;
    }

    fn is_quiet(&self) -> bool {
        self.quiet_lists >= QUIET_LISTS
    }
}

/// Follows the writers of a location.
#[derive(Debug)]
pub struct Follower {
    member: Member,
    writers: BTreeMap<WriterId, Followed>,
    lists: ListFollower,
    /// Catalogs that were set aside, because lists cannot be read whose removals may cover their packs.
    set_aside: BTreeSet<(WriterId, u64)>,
    bad: BadObjects,
    polls: u64,
    /// The writer whose folder could not be listed in time.
    hung: Option<WriterId>,
    /// How often the location was another directory when lists were read last.
    reopened: u64,
    /// When the location's time was asked last.
    asked: Option<Nanos>,
}

impl Follower {
    /// Follows all writers but `member` itself, whose publisher indexes its packs, and the removals of all.
    #[must_use]
    pub fn new(member: Member) -> Self {
        let lists = ListFollower::new(member.clone());
        let (writers, set_aside, bad) = (BTreeMap::new(), BTreeSet::new(), BadObjects::default());
        let (polls, hung, reopened, asked) = (0, None, 0, None);
        Self { member, writers, lists, set_aside, bad, polls, hung, reopened, asked }
    }

    /// Says what earlier opens of the store had applied. As long as lists of these stores cannot be read, packs whose
    /// writers had not applied all of it are not found: the removals are carried out here only once.
    pub fn set_earlier(&mut self, applied: Applied) {
        self.lists.set_earlier(applied);
    }

    /// Reads what was published since the last poll; the first one reads everything. Waits for the location.
    pub fn poll(&mut self) -> Polled {
        let lists = self.polls.is_multiple_of(LIST_EVERY);
        self.polls += 1;
        let began = self.member.clock.now();
        let mut polled = Polled::default();
        let asks = lists || self.asked.is_none_or(|asked| began.since(asked) >= ASK_AFTER);
        if asks {
            self.ask_time(&mut polled);
        }
        if !polled.hangs() {
            let unproven = self.lists.unproven();
            self.lists.follow(lists, &mut self.bad, &mut polled);
            if self.lists.unproven() < unproven {
                self.want_set_aside();
            }
        }
        if asks {
            self.ask_bound(&mut polled);
            self.asked = Some(began).filter(|_| polled.time != LocationTime::Unknown);
        }
        if self.is_elsewhere() {
            (polled.at_location, polled.time) = (None, LocationTime::Unknown);
        } else if polled.at_location.is_some() && !polled.hangs() {
            self.follow_writers(lists, &mut polled);
            if lists && polled.failure.is_none() {
                self.member.index.known().set_complete(began, self.reopened);
            }
        }
        self.bad.report(&mut polled);
        polled
    }

    /// The next listings show catalogs that were set aside as new ones.
    fn want_set_aside(&mut self) {
        for (writer, number) in std::mem::take(&mut self.set_aside) {
            if let Some(followed) = self.writers.get_mut(&writer) {
                followed.seen.remove(&number);
                followed.listing = Listing::Wanted;
            }
        }
    }

    /// Whether the location is another directory than when lists were read last. What was read may be of either one, so
    /// the next poll reads all of the new one, the lists first.
    fn is_elsewhere(&mut self) -> bool {
        let reopened = self.member.tier.facts().reopened;
        let is_elsewhere = reopened != self.reopened;
        if is_elsewhere {
            (self.reopened, self.polls) = (reopened, 0);
        }
        is_elsewhere
    }

    fn ask_time(&self, polled: &mut Polled) {
        match self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.now(ask)) {
            Ok(now) => polled.time = LocationTime::Is(now),
            Err(error) if error.is_late() => polled.fail(error),
            // Nothing can be written there.
            Err(error) => tracing::debug!(%error, "the time of a far location is unknown"),
        }
    }

    /// Asks for a bound on a time that is unknown, after the lists were read: what is missing there had gone before.
    fn ask_bound(&self, polled: &mut Polled) {
        if polled.time != LocationTime::Unknown || polled.at_location.is_none() {
            return;
        }
        match self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.removals_changed(ask)) {
            Ok(changed) => polled.time = LocationTime::NotBefore(changed),
            Err(error) => polled.fail(error),
        }
    }

    fn follow_writers(&mut self, lists: bool, polled: &mut Polled) {
        let mut present = match self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.writers(ask)) {
            Ok(present) => present,
            Err(error) => return polled.fail(error),
        };
        present.retain(|writer| *writer != self.member.writer);
        self.forget_writers(&present, polled);
        // The folder that took too long comes last, so it keeps no other one from being listed.
        let first = present.partition_point(|writer| Some(*writer) <= self.hung);
        present.rotate_left(first);
        let mut wanted = Vec::new();
        for writer in present {
            let followed = self.writers.entry(writer).or_default();
            if lists || followed.listing == Listing::Wanted {
                self.list(writer, &mut wanted, polled);
                if polled.hangs() {
                    self.hung = Some(writer);
                    break;
                }
            } else if followed.listing == Listing::Done && !followed.is_quiet() {
                let next = followed.newest + 1;
                let far = next + AHEAD + self.polls % (MOST_AHEAD - AHEAD);
                wanted.extend((next..next + AHEAD).chain([far]).map(|number| (writer, number)));
            }
        }
        if lists {
            let again = self.bad.next(RETRIES).into_iter().filter_map(|name| match name.object {
                Object::Catalog(number) => Some((name.writer, number)),
                _ => None,
            });
            wanted.extend(again);
        }
        // One that cannot be used is tried again with the others.
        let is_bad = |name| self.bad.contains(BadName::Object(name));
        let again = self.member.index.to_index_again().into_iter();
        wanted.extend(again.filter(|(of, catalog)| !is_bad(of.object(Object::Catalog(*catalog)))));
        self.fetch(wanted, polled);
    }

    /// Lists the folder of a writer, and adds its new catalogs to the wanted ones.
    fn list(&mut self, writer: WriterId, wanted: &mut Vec<(WriterId, u64)>, polled: &mut Polled) {
        let from = Some(Object::LAST_PACK);
        let listed = self.member.ask(FOLLOW_LIMIT, |tier, ask| tier.list(writer, from, ask));
        let followed = self.writers.entry(writer).or_default();
        match listed {
            Ok(listed) => {
                let numbers = catalogs_in(&listed);
                followed.note(&listed);
                let new = numbers.iter().filter(|number| !followed.seen.contains(number));
                wanted.extend(new.map(|number| (writer, *number)));
                self.bad.forget(BadName::Folder(writer));
                self.member.index.known().unlisted.remove(&writer);
                self.forget_packs(writer, &numbers, polled);
            }
            Err(error) if error.is_of_object() => {
                followed.listing = Listing::Refused;
                self.member.index.known().unlisted.insert(writer);
                self.bad.note(BadName::Folder(writer), &error.to_string(), polled);
            }
            Err(error) => {
                followed.listing = Listing::Wanted;
                polled.fail(error);
            }
        }
    }

    /// Forgets the writers that are gone.
    fn forget_writers(&mut self, present: &[WriterId], polled: &mut Polled) {
        let gone: Vec<WriterId> = self
            .writers
            .keys()
            .filter(|writer| present.binary_search(writer).is_err())
            .copied()
            .collect();
        for writer in gone {
            self.forget_packs(writer, &BTreeSet::new(), polled);
            self.writers.remove(&writer);
            self.bad.forget_writer(writer);
            self.member.index.known().unlisted.remove(&writer);
        }
    }

    /// Forgets the packs of a writer whose catalogs are gone.
    fn forget_packs(&mut self, writer: WriterId, present: &BTreeSet<u64>, polled: &mut Polled) {
        if let Some(followed) = self.writers.get_mut(&writer) {
            followed.seen.retain(|number| present.contains(number));
        }
        let numbers = self.member.index.known().numbers(writer);
        for number in numbers.into_iter().filter(|number| !present.contains(number)) {
            let name = BadName::Object(writer.object(Object::Catalog(number)));
            if self.bad.contains(name) {
                // Listings do not show a directory in the place of a catalog.
                continue;
            }
            self.member.index.known().remove_catalog(writer, number);
            for pack in packs_of(number) {
                if let Some(file) = self.member.index.remove_pack(writer, pack) {
                    self.member.tier.forget(file);
                    polled.gone_packs += 1;
                }
            }
        }
    }

    /// Fetches and indexes catalogs, and those behind them.
    fn fetch(&mut self, mut wanted: Vec<(WriterId, u64)>, polled: &mut Polled) {
        let mut asked: BTreeSet<(WriterId, u64)> = wanted.iter().copied().collect();
        wanted.reverse();
        let replies: Replies<Vec<u8>> = Replies::new(&self.member.clock);
        let mut under_way: BTreeMap<u64, (WriterId, u64)> = BTreeMap::new();
        let mut tag = 0;
        loop {
            while under_way.len() < FETCHES
                && let Some((writer, number)) = wanted.pop()
            {
                tag += 1;
                under_way.insert(tag, (writer, number));
                let name = writer.object(Object::Catalog(number));
                self.member.tier.fetch(name, MAX_CATALOG_BYTES, replies.ask(tag, FOLLOW_LIMIT));
            }
            if under_way.is_empty() {
                return;
            }
            let deadline = Deadline::At(self.member.clock.now().after(FOLLOW_LIMIT));
            let Some(reply) = replies.next(deadline) else {
                return polled.fail(IoError::Stopped(Stopped::Deadline));
            };
            let (writer, number) = under_way.remove(&reply.tag).expect("each call has one reply");
            if self.handle(writer, number, reply.result, polled) {
                // More may have appeared behind it.
                let seen = self.writers.get(&writer).map(|followed| &followed.seen);
                let is_new = |number: &u64| seen.is_none_or(|seen| !seen.contains(number));
                let next = (number + 1..=number + AHEAD).filter(is_new);
                wanted.extend(next.map(|next| (writer, next)).filter(|one| asked.insert(*one)));
            }
        }
    }

    /// Handles a fetched catalog. Returns whether there is something of this name.
    fn handle(
        &mut self,
        writer: WriterId,
        number: u64,
        fetched: Result<Vec<u8>, IoError>,
        polled: &mut Polled,
    ) -> bool {
        if self.member.tier.facts().reopened != self.reopened {
            // The next poll reads the lists there first.
            return false;
        }
        // An own pack had blocks of another one, which has gone.
        let is_own = writer == self.member.writer;
        let mut none = Followed::default();
        let followed = self.writers.get_mut(&writer).or(is_own.then_some(&mut none));
        let Some(followed) = followed else { return false };
        let name = BadName::Object(writer.object(Object::Catalog(number)));
        let decoded = match fetched {
            Ok(bytes) => match Catalog::decode(&bytes) {
                Ok(catalog) if (catalog.writer, catalog.number) == (writer, number) => Ok(catalog),
                Ok(_) => Err("it has another name".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            Err(error) if error.is_not_found() => {
                // If a listing shows it nevertheless, it is fetched again.
                self.bad.forget(name);
                followed.seen.remove(&number);
                return false;
            }
            Err(error) if error.is_of_object() => Err(error.to_string()),
            Err(error) => {
                // The next poll lists the folder again.
                followed.listing = Listing::Wanted;
                polled.fail(error);
                return false;
            }
        };
        followed.seen.insert(number);
        if followed.newest > 0 && number > followed.newest + AHEAD {
            // A listing shows those between them.
            followed.listing = Listing::Wanted;
        }
        followed.newest = followed.newest.max(number);
        let catalog = match decoded {
            Ok(catalog) => catalog,
            Err(reason) => {
                if !is_own {
                    self.member.index.known().add_unread(writer, number);
                }
                self.bad.note(name, &reason, polled);
                return !is_own;
            }
        };
        self.bad.forget(name);
        if !is_own && self.lists.may_cover(&catalog.applied) {
            self.member.index.known().add_catalog(&catalog);
            self.set_aside.insert((writer, number));
            return true;
        }
        let file = |pack| self.member.tier.file(writer.object(Object::Pack(pack)));
        let indexed = if is_own {
            self.member.index.insert_again(&catalog)
        } else {
            self.member.index.insert(&catalog, file)
        };
        indexed.forgotten.into_iter().for_each(|file| self.member.tier.forget(file));
        polled.new_blocks += indexed.new_blocks;
        polled.catalogs += 1;
        !is_own
    }
}

fn catalogs_in(listed: &[Listed]) -> BTreeSet<u64> {
    let numbers = listed.iter().filter_map(|one| match one.object {
        Object::Catalog(number) => Some(number),
        _ => None,
    });
    numbers.collect()
}

#[cfg(test)]
mod tests;
