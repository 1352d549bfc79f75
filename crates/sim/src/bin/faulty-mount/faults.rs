//! Which operations fail, and how.
//!
//! 1. Rules are checked in the order in which they were added. The first that matches decides alone.
//! 2. A held operation continues when its time is up or its rule is removed, whichever is first.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Operations of a file system, by the names that rules use.
pub(crate) const OPERATIONS: [&str; 13] = [
    "read",
    "write",
    "sync",
    "open",
    "create",
    "allocate",
    "truncate",
    "remove",
    "rename",
    "sync-names",
    "list",
    "stat",
    "mkdir",
];

const ERRORS: [(&str, i32); 12] = [
    ("EPERM", 1),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EAGAIN", 11),
    ("EACCES", 13),
    ("ENODEV", 19),
    ("EMFILE", 24),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("ETIMEDOUT", 110),
    ("EDQUOT", 122),
];

/// One rule, as given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    operations: Vec<&'static str>,
    /// Prefix of the file's name.
    file: String,
    /// Bytes of the file. A read or write matches if it touches one of them.
    at: Option<Range<u64>>,
    effect: Effect,
    /// Number of matching operations that still pass.
    after: u64,
    /// Number of operations that still fail; `None` for all.
    times: Option<u64>,
    /// One in so many matching operations fails.
    every: u64,
    matched: u64,
    met: u64,
}

/// The effect of a rule: the operation is held first, then it fails, is shortened, or continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) rule: u64,
    /// A system error number.
    pub(crate) error: Option<i32>,
    /// Most bytes that a read or write moves.
    pub(crate) short: Option<u32>,
    pub(crate) delay: Option<Duration>,
    pub(crate) hang: bool,
}

impl Effect {
    /// Whether the operation must wait.
    pub(crate) fn holds(&self) -> bool {
        self.hang || self.delay.is_some()
    }
}

#[derive(Default)]
struct State {
    rules: BTreeMap<u64, Rule>,
    added: u64,
    held: u64,
    seen: BTreeMap<&'static str, u64>,
}

/// The active rules.
#[derive(Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation, and returns the effect on it. `span` is the range of bytes that it touches.
    pub(crate) fn meet(&self, operation: &'static str, file: &str, span: &Range<u64>) -> Effect {
        let mut state = self.state();
        *state.seen.entry(operation).or_default() += 1;
        for rule in state.rules.values_mut() {
            if rule.matches(operation, file, span) {
                return rule.effect;
            }
        }
        Effect::default()
    }

    /// Holds an operation as long as its rule says.
    #[expect(clippy::disallowed_methods, reason = "the time of the system outside of the store")]
    pub(crate) fn hold(&self, effect: &Effect) {
        let end = effect.delay.filter(|_| !effect.hang).map(|delay| Instant::now() + delay);
        let mut state = self.state();
        state.held += 1;
        while state.rules.contains_key(&effect.rule) {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.held -= 1;
    }

    /// Executes a command line, and returns a line.
    pub(crate) fn execute(&self, line: &str) -> Result<String, String> {
        let (command, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let mut state = self.state();
        match command {
            "add" => {
                state.added += 1;
                let number = state.added;
                let rule = Rule::parse(number, rest)?;
                state.rules.insert(number, rule);
                Ok(number.to_string())
            }
            "clear" => {
                match rest.trim() {
                    "" => state.rules.clear(),
                    number => {
                        let number = parse_number(number)?;
                        state.rules.remove(&number).ok_or(format!("there is no rule {number}"))?;
                    }
                }
                self.changed.notify_all();
                Ok("cleared".to_owned())
            }
            "status" => Ok(state.status()),
            _ => Err(format!("{command:?} is not known; add, clear, status and quit are")),
        }
    }
}

impl State {
    /// As JSON.
    fn status(&self) -> String {
        let mut text = format!("{{\"held\": {}, \"met\": {{", self.held);
        for (at, (number, rule)) in self.rules.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}\"{number}\": {}", rule.met);
        }
        text.push_str("}, \"seen\": {");
        for (at, (operation, count)) in self.seen.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}\"{operation}\": {count}");
        }
        text.push_str("}}");
        text
    }
}

impl Rule {
    fn parse(number: u64, text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let operations = match words.next() {
            None => return Err("add wants operations, such as read,write or all".to_owned()),
            Some("all") => OPERATIONS.to_vec(),
            Some(list) => list.split(',').map(parse_operation).collect::<Result<_, _>>()?,
        };
        let mut rule = Self {
            operations,
            file: String::new(),
            at: None,
            effect: Effect { rule: number, ..Effect::default() },
            after: 0,
            times: None,
            every: 1,
            matched: 0,
            met: 0,
        };
        for word in words {
            rule.refine(word)?;
        }
        let effect = Effect { rule: 0, ..rule.effect };
        if effect == Effect::default() {
            return Err("a rule wants error=, short=, delay= or hang".to_owned());
        }
        Ok(rule)
    }

    fn refine(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "hang" => self.effect.hang = true,
            "error" => self.effect.error = Some(parse_error(value)?),
            "short" => {
                let most = u32::try_from(parse_number(value)?).map_err(|e| e.to_string())?;
                self.effect.short = Some(most);
            }
            "delay" => self.effect.delay = Some(Duration::from_millis(parse_number(value)?)),
            "file" => value.clone_into(&mut self.file),
            "at" => self.at = Some(parse_span(value)?),
            "after" => self.after = parse_number(value)?,
            "times" => self.times = Some(parse_number(value)?),
            "every" => self.every = parse_number(value)?.max(1),
            _ => return Err(format!("{word:?} is no part of a rule")),
        }
        Ok(())
    }

    /// Whether this operation matches. Counts it.
    fn matches(&mut self, operation: &str, file: &str, span: &Range<u64>) -> bool {
        let touches = |at: &Range<u64>| span.start < at.end && at.start < span.end;
        let is_here = file.starts_with(&self.file) && self.at.as_ref().is_none_or(touches);
        let concerns = is_here && self.operations.contains(&operation);
        if !concerns || self.times == Some(self.met) {
            return false;
        }
        self.matched += 1;
        let counted = self.matched.saturating_sub(self.after);
        let is_met = counted > 0 && counted.is_multiple_of(self.every);
        self.met += u64::from(is_met);
        is_met
    }
}

fn parse_operation(name: &str) -> Result<&'static str, String> {
    let known = OPERATIONS.iter().find(|known| **known == name);
    known.copied().ok_or(format!("{name:?} is no operation; these are: {}", OPERATIONS.join(" ")))
}

fn parse_error(name: &str) -> Result<i32, String> {
    let known = ERRORS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let number = known.or_else(|| name.parse().ok()).filter(|number| (1..4096).contains(number));
    number.ok_or(format!("{name:?} is no error; say EIO, ENOSPC … or its number"))
}

fn parse_span(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or(format!("{text:?} is not FIRST..END"))?;
    Ok(parse_number(first)?..parse_number(end)?)
}

fn parse_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides_alone() {
        let faults = Faults::default();
        assert_eq!(
            faults.execute("add read error=EIO file=seg after=1 times=2"),
            Ok("1".to_owned())
        );
        assert_eq!(faults.execute("add read,write short=7"), Ok("2".to_owned()));
        let met: Vec<u64> =
            (0..5).map(|_| faults.meet("read", "segment-1", &(0..0)).rule).collect();
        assert_eq!(met, [2, 1, 1, 2, 2]);
        assert_eq!(faults.meet("write", "segment-1", &(0..0)).short, Some(7));
        assert_eq!(faults.meet("sync", "segment-1", &(0..0)), Effect::default());
        faults.execute("clear").unwrap();
        assert_eq!(faults.meet("read", "segment-1", &(0..0)), Effect::default());
        let status = faults.execute("status").unwrap();
        assert_eq!(status, r#"{"held": 0, "met": {}, "seen": {"read": 6, "sync": 1, "write": 1}}"#);
    }

    #[test]
    fn a_rule_for_some_bytes_meets_what_touches_them() {
        let faults = Faults::default();
        faults.execute("add read error=EIO at=4096..8192").unwrap();
        let met = |span: Range<u64>| faults.meet("read", "x", &span).error.is_some();
        assert_eq!(
            [met(0..4096), met(0..4097), met(8191..9000), met(8192..9000)],
            [false, true, true, false]
        );
        assert!(!met(0..0), "what touches no bytes");
    }

    #[test]
    fn one_in_every_so_many_is_met() {
        let faults = Faults::default();
        faults.execute("add all error=5 every=3").unwrap();
        let met = (0..9).filter(|_| faults.meet("write", "x", &(0..0)).error == Some(5)).count();
        assert_eq!(met, 3);
    }

    #[test]
    fn what_is_held_goes_on_when_its_time_is_up_or_its_rule_is_gone() {
        let faults = Faults::default();
        faults.execute("add read delay=1").unwrap();
        faults.hold(&faults.meet("read", "x", &(0..0)));
        faults.execute("clear").unwrap();
        faults.execute("add read hang").unwrap();
        let effect = faults.meet("read", "x", &(0..0));
        assert!(effect.holds());
        std::thread::scope(|scope| {
            let held = scope.spawn(|| faults.hold(&effect));
            while faults.state().held == 0 {
                std::thread::yield_now();
            }
            faults.execute("clear 2").unwrap();
            held.join().unwrap();
        });
        assert_eq!(faults.state().held, 0);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let faults = Faults::default();
        for line in [
            "add",
            "add read",
            "add fly hang",
            "add read error=EWHAT",
            "add read x=1",
            "add read hang at=5",
            "go",
        ] {
            assert!(faults.execute(line).is_err(), "{line}");
        }
        assert!(faults.execute("clear 9").is_err());
    }
}
