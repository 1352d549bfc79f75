//! The requests that wait, by class and direction.
//!
//! 1. Those that an engine waits for are ordered by due time, all others by arrival.
//! 2. What a class has waiting is bounded, and one request always may wait.
//! 3. A queue, of a class and a direction, waits from when its first request did, until one has its turn. So those
//!    that are asked for one after the other, each when the one before was done, wait for the patience of their class
//!    once and not each of them. A request that has waited for so long itself need not wait for its queue.
//! 4. Queues whose patience is over take turns.
//! 5. No due time is later than [`LATEST`] after the arrival.

use std::collections::BTreeMap;
use std::time::Duration;

use dalsegno_core::{Class, Nanos};
use hashbrown::HashMap;

use super::ask::{Ask, Direction};
use super::numbers::real;

/// Requests whose due times are looked at one by one; the others are due when the last of these is.
const LOOKED_AT: usize = 64;

/// How late a request can be due that waits now.
const LATEST: Duration = Duration::from_secs(10);

/// A queue still waits if its next request comes within this time after its queue became empty.
const GAP: Duration = Duration::from_millis(250);

/// The place of a request in its queue: when it is due or arrived, and a number that no other one has.
type Place = (Nanos, u64);

/// A queue that waits for a turn.
#[derive(Clone, Copy, Debug)]
struct Hunger {
    since: Nanos,
    /// When it was not empty last, or had a turn.
    last: Nanos,
    /// Its last turn, if its patience is over.
    turn: Nanos,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    most_waiting: usize,
    most_bytes: u64,
    /// By class, then by direction.
    waiting: [[BTreeMap<Place, Ask>; 2]; 4],
    places: HashMap<u64, (Class, Direction, Place)>,
    /// Bytes by class.
    bytes: [u64; 4],
    /// By class, then by direction; `None` for one that does not wait.
    hungry: [[Option<Hunger>; 2]; 4],
    arrivals: u64,
}

impl Queues {
    /// Of at most so many requests and bytes in each class.
    pub(super) fn new(most_waiting: usize, most_bytes: u64) -> Self {
        Self {
            most_waiting: most_waiting.max(1),
            most_bytes,
            waiting: Default::default(),
            places: HashMap::new(),
            bytes: [0; 4],
            hungry: [[None; 2]; 4],
            arrivals: 0,
        }
    }

    fn of(&self, class: Class, direction: Direction) -> &BTreeMap<Place, Ask> {
        &self.waiting[class as usize][direction as usize]
    }

    /// Adds a request. `false` if too many of its class wait, or one of its name does.
    pub(super) fn push(&mut self, ask: Ask, now: Nanos) -> bool {
        let (count, bytes) = self.waiting(ask.class);
        let is_full =
            count >= self.most_waiting || bytes.saturating_add(ask.bytes) > self.most_bytes;
        if is_full && count > 0 || self.places.contains_key(&ask.id) {
            return false;
        }
        let due = if ask.class == Class::Need { ask.due } else { None };
        let place = (due.map_or(now, |due| due.min(now.after(LATEST))), self.arrivals);
        self.arrivals += 1;
        let others = !self.of(ask.class, ask.direction).is_empty();
        let hungry = &mut self.hungry[ask.class as usize][ask.direction as usize];
        if !hungry.is_some_and(|hunger| others || now.since(hunger.last) <= GAP) {
            *hungry = Some(Hunger { since: now, last: now, turn: Nanos(0) });
        }
        self.bytes[ask.class as usize] += ask.bytes;
        self.places.insert(ask.id, (ask.class, ask.direction, place));
        self.waiting[ask.class as usize][ask.direction as usize].insert(place, ask);
        true
    }

    /// Removes a request by its name. `false` if it does not wait.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some((class, direction, place)) = self.places.get(&id).copied() else { return false };
        self.remove_at(class, direction, place).is_some()
    }

    /// The first request of a class and direction.
    pub(super) fn first(&self, class: Class, direction: Direction) -> Option<&Ask> {
        self.of(class, direction).values().next()
    }

    /// Takes the first request of a class and direction.
    pub(super) fn take(&mut self, class: Class, direction: Direction, now: Nanos) -> Option<Ask> {
        let place = *self.of(class, direction).keys().next()?;
        if let Some(hunger) = &mut self.hungry[class as usize][direction as usize] {
            (hunger.last, hunger.turn) = (now, now);
        }
        self.remove_at(class, direction, place)
    }

    /// A queue has had a turn, without having waited for its patience.
    pub(super) fn feed(&mut self, class: Class, direction: Direction, now: Nanos) {
        let is_empty = self.of(class, direction).is_empty();
        let hunger = Hunger { since: now, last: now, turn: Nanos(0) };
        self.hungry[class as usize][direction as usize] = (!is_empty).then_some(hunger);
    }

    fn remove_at(&mut self, class: Class, direction: Direction, place: Place) -> Option<Ask> {
        let ask = self.waiting[class as usize][direction as usize].remove(&place)?;
        self.places.remove(&ask.id);
        self.bytes[class as usize] -= ask.bytes;
        Some(ask)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Requests and bytes of a class.
    pub(super) fn waiting(&self, class: Class) -> (usize, u64) {
        let at = class as usize;
        (self.waiting[at].iter().map(BTreeMap::len).sum(), self.bytes[at])
    }

    /// When the patience of each queue is over that has requests, but for those that an engine waits for.
    fn overdue<'a>(
        &'a self,
        patience: &'a [Duration; 4],
    ) -> impl Iterator<Item = (Nanos, Class, Direction)> + 'a {
        let patient = Class::ALL.into_iter().filter(|class| *class != Class::Need);
        patient.flat_map(|class| [(class, Direction::Read), (class, Direction::Write)]).filter_map(
            move |(class, direction)| {
                let ((since, _), _) = self.of(class, direction).first_key_value()?;
                let hungry = self.hungry[class as usize][direction as usize];
                let since = hungry.map_or(*since, |hunger| hunger.since.min(*since));
                Some((since.after(patience[class as usize]), class, direction))
            },
        )
    }

    /// Whose last turn was the longest time ago of those whose patience is over, of the directions that `may_start`.
    pub(super) fn most_overdue(
        &self,
        patience: &[Duration; 4],
        now: Nanos,
        may_start: impl Fn(Direction) -> bool,
    ) -> Option<(Class, Direction)> {
        let ready =
            self.overdue(patience).filter(|(at, _, direction)| *at <= now && may_start(*direction));
        let turn = |class: Class, direction: Direction| {
            self.hungry[class as usize][direction as usize].map(|hunger| hunger.turn)
        };
        ready
            .min_by_key(|(at, class, direction)| (turn(*class, *direction), *at, *class))
            .map(|(_, class, direction)| (class, direction))
    }

    /// When the next patience is over, or later from when on its direction may start one.
    pub(super) fn next_overdue(
        &self,
        patience: &[Duration; 4],
        may_start_from: impl Fn(Direction) -> Option<Nanos>,
    ) -> Option<Nanos> {
        self.overdue(patience)
            .filter_map(|(at, _, direction)| Some(at.max(may_start_from(direction)?)))
            .min()
    }

    /// The seconds by which reads that engines wait for can be delayed before the first of them is late, if they are
    /// read one after the other at this rate, in bytes per second, behind so many bytes in flight. Negative if one is
    /// late already.
    pub(super) fn laxity_s(&self, rate: f64, in_flight: u64, now: Nanos) -> f64 {
        let needs = self.of(Class::Need, Direction::Read);
        let (mut behind, mut looked_at, mut latest) = (in_flight, 0, now);
        let mut least = f64::INFINITY;
        let laxity = |due: Nanos, bytes: u64| seconds_to(due, now) - real(bytes) / rate;
        for ((due, _), ask) in needs.iter().take(LOOKED_AT) {
            behind += ask.bytes;
            looked_at += ask.bytes;
            latest = *due;
            least = least.min(laxity(latest, behind));
        }
        if needs.len() > LOOKED_AT {
            let writes: u64 =
                self.of(Class::Need, Direction::Write).values().map(|ask| ask.bytes).sum();
            let rest = self.bytes[Class::Need as usize] - writes - looked_at;
            least = least.min(laxity(latest, behind + rest));
        }
        least
    }
}

/// The seconds from `now` to a moment; negative if it is over.
fn seconds_to(moment: Nanos, now: Nanos) -> f64 {
    moment.since(now).as_secs_f64() - now.since(moment).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const PATIENCE: [Duration; 4] = [Duration::from_secs(1); 4];

    fn ask(id: u64, class: Class, direction: Direction, bytes: u64, due: Option<u64>) -> Ask {
        Ask { id, direction, class, bytes, due: due.map(Nanos) }
    }

    #[test]
    fn needs_are_ordered_by_due_time_and_others_by_arrival() {
        let mut queues = Queues::new(16, 1 << 30);
        for (id, due) in [(1, Some(9)), (2, Some(4)), (3, None), (4, Some(4))] {
            assert!(queues.push(ask(id, Class::Need, Direction::Read, 1, due), Nanos(5)));
            assert!(queues.push(ask(id + 10, Class::Save, Direction::Write, 1, due), Nanos(5)));
        }
        let order = |queues: &mut Queues, class, direction| {
            std::iter::from_fn(|| queues.take(class, direction, Nanos(9)))
                .map(|ask| ask.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&mut queues, Class::Need, Direction::Read), [2, 4, 3, 1]);
        assert_eq!(order(&mut queues, Class::Save, Direction::Write), [11, 12, 13, 14]);
        assert_eq!(queues.waiting(Class::Need), (0, 0));
    }

    #[test]
    fn a_class_has_a_bound_and_one_request_always_fits() {
        let mut queues = Queues::new(2, 100);
        assert!(queues.push(ask(1, Class::Save, Direction::Write, 1000, None), Nanos(0)));
        assert!(!queues.push(ask(2, Class::Save, Direction::Write, 1, None), Nanos(0)));
        assert!(
            queues.push(ask(2, Class::Upkeep, Direction::Write, 1, None), Nanos(0)),
            "another class"
        );
        assert!(
            !queues.push(ask(2, Class::Need, Direction::Read, 1, None), Nanos(0)),
            "its name is taken"
        );
        assert!(queues.remove(1) && !queues.remove(1));
        assert!(queues.push(ask(3, Class::Save, Direction::Write, 50, None), Nanos(0)));
        assert!(queues.push(ask(4, Class::Save, Direction::Read, 50, None), Nanos(0)));
        assert!(!queues.push(ask(5, Class::Save, Direction::Read, 0, None), Nanos(0)));
        assert_eq!(queues.waiting(Class::Save), (2, 100));
    }

    #[test]
    fn the_longest_wait_beyond_its_patience_goes_first() {
        let mut queues = Queues::new(16, 1 << 30);
        let _ = queues.push(ask(1, Class::Upkeep, Direction::Write, 1, None), Nanos(0));
        let _ = queues.push(ask(2, Class::Save, Direction::Read, 1, None), Nanos(SECOND));
        let _ = queues.push(ask(3, Class::Need, Direction::Read, 1, None), Nanos(0));
        let all = |_| true;
        assert_eq!(queues.most_overdue(&PATIENCE, Nanos(SECOND - 1), all), None);
        let first = queues.most_overdue(&PATIENCE, Nanos(3 * SECOND), all);
        assert_eq!(first, Some((Class::Upkeep, Direction::Write)));
        let reads = |direction| (direction == Direction::Read).then_some(Nanos(0));
        assert_eq!(queues.next_overdue(&PATIENCE, reads), Some(Nanos(2 * SECOND)));
    }

    #[test]
    fn laxity_is_that_of_the_read_that_is_late_first() {
        let mut queues = Queues::new(1000, 1 << 30);
        assert!(queues.laxity_s(100.0, 50, Nanos(0)).is_infinite());
        let _ = queues.push(ask(1, Class::Need, Direction::Read, 100, Some(10 * SECOND)), Nanos(0));
        let _ = queues.push(ask(2, Class::Need, Direction::Read, 300, Some(5 * SECOND)), Nanos(0));
        assert!((queues.laxity_s(100.0, 0, Nanos(0)) - 2.0).abs() < 1e-9);
        assert!((queues.laxity_s(100.0, 700, Nanos(0)) + 5.0).abs() < 1e-9);
        // One that is due as soon as possible is late.
        let _ = queues.push(ask(3, Class::Need, Direction::Read, 1, None), Nanos(0));
        assert!(queues.laxity_s(100.0, 0, Nanos(1)) < 0.0);
        queues.remove(3);
        for id in 10..110 {
            let due = Some(10 * SECOND);
            let _ = queues.push(ask(id, Class::Need, Direction::Read, 100, due), Nanos(0));
        }
        let laxity = queues.laxity_s(100.0, 0, Nanos(0));
        assert!((laxity - (10.0 - 104.0)).abs() < 1e-6, "{laxity}");
    }
}
