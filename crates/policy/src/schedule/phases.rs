//! What the engines of one device do now, as far as they say so.
//!
//! 1. An engine that says nothing more for its term is forgotten: it ended, hangs, or never ends its phase.
//! 2. Of several engines the most urgent one counts: any prefill before any decoding, the least slack first. Slack
//!    passes with time.
//! 3. A process speaks for a few engines, so one alone does not make the others forgotten.

use std::time::Duration;

use dalsegno_core::Nanos;

/// Names an engine of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId {
    /// The process that speaks for it.
    pub process: u64,
    /// Its number in that process.
    pub number: u64,
}

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It computes prompts, and waits for reads. A write delays nobody if it takes no longer than the slack: the time
    /// that reads for the next layers have left.
    Prefill {
        /// Zero: reads are late already.
        slack: Duration,
    },
    /// It decodes: its steps must stay as short as they are without writes.
    Decode,
    /// It computes nothing.
    Idle,
}

impl Phase {
    /// Smaller numbers are more urgent.
    fn order(self) -> (u8, Duration) {
        match self {
            Self::Prefill { slack } => (0, slack),
            Self::Decode => (1, Duration::ZERO),
            Self::Idle => (2, Duration::ZERO),
        }
    }
}

/// Most engines of one process.
const MOST_OF_PROCESS: usize = 8;

/// The phases of all engines.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    /// Of each engine, and until when it holds.
    engines: Vec<(EngineId, Phase, Nanos)>,
    most: usize,
    term: Duration,
}

impl Phases {
    /// Of at most `most` engines, each of which is believed for `term`.
    pub(super) fn new(most: usize, term: Duration) -> Self {
        Self { engines: Vec::new(), most: most.max(1), term }
    }

    /// An engine says what it does from now on.
    pub(super) fn set(&mut self, engine: EngineId, phase: Phase, now: Nanos) {
        let until = now.after(self.term);
        self.engines.retain(|(known, _, until)| *known != engine && *until > now);
        let own = |known: &EngineId| known.process == engine.process;
        let is_greedy =
            self.engines.iter().filter(|(known, ..)| own(known)).count() >= MOST_OF_PROCESS;
        if is_greedy || self.engines.len() >= self.most {
            // The one that was silent for longest.
            let known = self.engines.iter().enumerate();
            let replaced = known.filter(|(_, (known, ..))| !is_greedy || own(known));
            if let Some((at, _)) = replaced.min_by_key(|(_, (.., until))| *until) {
                self.engines.swap_remove(at);
            }
        }
        self.engines.push((engine, phase, until));
    }

    /// All engines ended.
    pub(super) fn clear(&mut self) {
        self.engines.clear();
    }

    /// How many engines say what they do.
    pub(super) fn count(&self, now: Nanos) -> usize {
        self.engines.iter().filter(|(.., until)| *until > now).count()
    }

    /// The most urgent phase; `None` if no engine says what it does.
    pub(super) fn now(&self, now: Nanos) -> Option<Phase> {
        let valid = self.engines.iter().filter(|(.., until)| *until > now);
        valid
            .map(|(_, phase, until)| self.left(*phase, *until, now))
            .min_by_key(|phase| phase.order())
    }

    /// What an engine does now, if it said so for as long as it is believed.
    fn left(&self, phase: Phase, until: Nanos, now: Nanos) -> Phase {
        let Phase::Prefill { slack } = phase else { return phase };
        // Since it said so; none of it if the clock jumped back.
        let passed = self.term.saturating_sub(until.since(now));
        Phase::Prefill { slack: slack.saturating_sub(passed) }
    }

    /// When the next phase is forgotten.
    pub(super) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        self.engines.iter().map(|(.., until)| *until).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(1);

    fn engine(process: u64) -> EngineId {
        EngineId { process, number: 1 }
    }

    const HASTY: Phase = Phase::Prefill { slack: Duration::ZERO };
    const CALM: Phase = Phase::Prefill { slack: Duration::from_millis(5) };

    #[test]
    fn the_most_urgent_engine_counts() {
        let mut phases = Phases::new(4, TERM);
        assert_eq!(phases.now(Nanos(0)), None);
        for (number, phase, now) in [
            (1, Phase::Idle, Phase::Idle),
            (2, Phase::Decode, Phase::Decode),
            (3, CALM, CALM),
            (1, HASTY, HASTY),
            (1, Phase::Decode, CALM),
        ] {
            phases.set(engine(number), phase, Nanos(0));
            assert_eq!(phases.now(Nanos(0)), Some(now));
        }
        phases.clear();
        assert_eq!(phases.now(Nanos(0)), None);
    }

    #[test]
    fn an_engine_that_dies_in_prefill_is_forgotten_after_its_term() {
        let mut phases = Phases::new(4, TERM);
        phases.set(engine(1), HASTY, Nanos(0));
        let end = Nanos(0).after(TERM);
        assert_eq!(
            (phases.now(Nanos(end.0 - 1)), phases.next_end(Nanos(0))),
            (Some(HASTY), Some(end))
        );
        assert_eq!((phases.now(end), phases.next_end(end)), (None, None));
        // A clock that jumps back finds it again, until the same moment.
        assert_eq!(phases.now(Nanos(5)), Some(HASTY));
    }

    #[test]
    fn a_process_replaces_its_own_engines_only() {
        let mut phases = Phases::new(64, TERM);
        phases.set(engine(1), HASTY, Nanos(0));
        for number in 0..64 {
            phases.set(EngineId { process: 2, number }, Phase::Idle, Nanos(number));
        }
        assert_eq!((phases.now(Nanos(64)), phases.count(Nanos(64))), (Some(HASTY), 9));
    }

    #[test]
    fn slack_passes_with_time() {
        let mut phases = Phases::new(2, TERM);
        phases.set(engine(1), CALM, Nanos(0));
        let left = |ms| Some(Phase::Prefill { slack: Duration::from_millis(ms) });
        assert_eq!(
            [0, 3, 9].map(|ms| phases.now(Nanos(ms * 1_000_000))),
            [left(5), left(2), left(0)]
        );
    }

    #[test]
    fn so_many_engines_are_remembered_and_no_more() {
        let mut phases = Phases::new(2, TERM);
        phases.set(engine(0), HASTY, Nanos(0));
        for number in 1..1000 {
            phases.set(engine(number), Phase::Decode, Nanos(number));
        }
        assert_eq!(phases.engines.len(), 2);
        assert_eq!(phases.now(Nanos(1000)), Some(Phase::Decode), "the oldest was forgotten");
    }
}
