//! Explains a decision in one sentence.

use super::decision::Decision;
use super::window::Shares;

/// Why the controller searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cause {
    /// The first window is full.
    First,
    /// The shares have shifted.
    Shift { before: Shares },
    /// The shares have stayed long enough to pay for a more expensive change.
    Stayed { before: Shares },
    /// The tree has grown or shrunk.
    Growth { before: u64, now: u64 },
}

/// The cause, the change, and the modelled costs.
pub(super) fn explain(cause: &Cause, decision: &Decision) -> String {
    let why = match cause {
        Cause::First => most(&decision.shares),
        Cause::Shift { before } | Cause::Stayed { before } => moved(before, &decision.shares),
        Cause::Growth { before, now } => {
            let verb = if now > before { "grew" } else { "shrank" };
            format!("the tree {verb} from {before} to {now} entries")
        }
    };
    let (before, after) = (decision.cost_before, decision.cost_after);
    let digits = if before < 10.0 { 2 } else { 0 };
    let unit = decision.unit.name();
    format!(
        "{why}: {} (modelled cost {before:.digits$} -> {after:.digits$} {unit} per operation)",
        changes(decision)
    )
}

/// The largest share.
fn most(shares: &Shares) -> String {
    let largest = shares.named().into_iter().max_by(|(_, one), (_, two)| one.total_cmp(two));
    let (name, part) = largest.unwrap_or(("writes", 0.0));
    format!("{name} are {:.0}% of operations", part * 100.0)
}

/// The share that moved most.
fn moved(before: &Shares, now: &Shares) -> String {
    let pairs = before.named().into_iter().zip(now.named());
    let moves = pairs.map(|((name, before), (_, now))| (name, before * 100.0, now * 100.0));
    let furthest = moves.max_by(|one, two| (one.2 - one.1).abs().total_cmp(&(two.2 - two.1).abs()));
    let (name, before, now) = furthest.unwrap_or(("writes", 0.0, 0.0));
    if (now - before).abs() < 1.0 {
        return format!("{name} stayed at {now:.0}% of operations");
    }
    let verb = if now > before { "rose" } else { "fell" };
    format!("{name} {verb} from {before:.0}% to {now:.0}% of operations")
}

/// The numbers of the shape that change.
fn changes(decision: &Decision) -> String {
    let (from, to) = (decision.from, decision.to);
    let numbers = [
        ("size ratio", from.size_ratio(), to.size_ratio()),
        ("runs per level", from.runs(), to.runs()),
        ("runs of the last level", from.last_runs(), to.last_runs()),
    ];
    let changed = numbers.into_iter().filter(|(_, from, to)| from != to);
    let texts: Vec<String> =
        changed.map(|(name, from, to)| format!("{name} {from} -> {to}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use dalsegno_core::Shape;

    use super::super::Unit;
    use super::*;

    fn decision(from: Shape, to: Shape) -> Decision {
        let shares = Shares { writes: 0.78, hits: 0.12, misses: 0.1, ..Shares::default() };
        let (cost_before, cost_after) = (0.81, 0.44);
        let reason = String::new();
        let unit = Unit::Io;
        Decision { from, to, operations: 0, shares, cost_before, cost_after, unit, reason }
    }

    #[test]
    fn a_shift_is_explained_in_one_sentence() {
        let before = Shares { writes: 0.31, hits: 0.5, misses: 0.19, ..Shares::default() };
        let decision = decision(Shape::leveled(4).unwrap(), Shape::lazy_leveled(8).unwrap());
        assert_eq!(
            explain(&Cause::Shift { before }, &decision),
            "writes rose from 31% to 78% of operations: size ratio 4 -> 8, runs per level 1 -> 7 \
             (modelled cost 0.81 -> 0.44 I/O per operation)"
        );
    }

    #[test]
    fn each_cause_has_its_own_words() {
        let decision = decision(Shape::leveled(4).unwrap(), Shape::tiered(4).unwrap());
        let explained = |cause| explain(&cause, &decision);
        assert!(
            explained(Cause::First).starts_with("writes are 78% of operations: runs per level 1")
        );
        let stayed = Cause::Stayed { before: decision.shares };
        assert!(explained(stayed).contains("stayed at"), "{}", explained(stayed));
        let grown = explained(Cause::Growth { before: 1000, now: 2000 });
        assert!(grown.starts_with("the tree grew from 1000 to 2000 entries: "), "{grown}");
        assert!(grown.contains("runs of the last level 1 -> 3 (modelled"), "{grown}");
    }
}
