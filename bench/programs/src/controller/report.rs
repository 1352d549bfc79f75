//! What the runs say, as tables and as one JSON object.

use dalsegno_core::Shape;
use serde_json::{Value, json};

use crate::prompts::HIT_RATES;
use crate::run::{Sizes, Spent, Trace};

/// Of a stage its first fifth is left out: that is how long a change may take.
const LEFT_OUT: usize = 5;
const STAGES: std::ops::Range<usize> = 0..HIT_RATES.len();

/// A shape that stayed, and its runs.
pub struct Contender {
    pub shape: Shape,
    pub traces: Vec<Trace>,
}

/// All runs with pages of one size.
pub struct Scenario {
    pub sizes: Sizes,
    pub adaptive: Vec<Trace>,
    pub statics: Vec<Contender>,
}

fn whole(trace: &Trace) -> Spent {
    trace.spent[trace.spent.len() - 1].since(&trace.spent[0])
}

/// A run in one line.
pub fn line(trace: &Trace) -> String {
    let spent = whole(trace);
    format!(
        "{:.0} pages ({:.0} looked up, {:.0} flushed, {:.0} merged), {} flushes, {:.2} s, {} entries, {} KiB, \
         runs {:?}",
        spent.pages(),
        spent.looked_up,
        spent.flushed,
        spent.merges(),
        trace.flushes,
        spent.seconds,
        trace.end.entries,
        trace.end.table_bytes >> 10,
        trace.end.runs,
    )
}

/// What a stage took but for its first fifth.
fn of_stage(trace: &Trace, stage: usize) -> Spent {
    let prompts = (trace.spent.len() - 1) / HIT_RATES.len();
    let (first, end) = (stage * prompts, (stage + 1) * prompts);
    trace.spent[end].since(&trace.spent[first + prompts / LEFT_OUT])
}

/// Pages of a stage, merges as they were caused; the head of `main.rs` has the rule.
fn charged(trace: &Trace, stage: usize) -> f64 {
    let (whole, stage) = (whole(trace), of_stage(trace, stage));
    stage.looked_up + stage.flushed + whole.merges() * stage.debt / whole.debt
}

fn sum(traces: &[Trace], of: impl Fn(&Trace) -> f64) -> f64 {
    traces.iter().map(of).sum()
}

fn pages(trace: &Trace) -> f64 {
    whole(trace).pages()
}

fn charged_in_all(trace: &Trace) -> f64 {
    STAGES.map(|stage| charged(trace, stage)).sum()
}

/// How much two shapes differ.
fn distance(one: Shape, two: Shape) -> f64 {
    let numbers =
        |shape: Shape| [shape.size_ratio(), shape.runs(), shape.last_runs()].map(f64::from);
    let pairs = numbers(one).into_iter().zip(numbers(two));
    pairs.map(|(one, two)| (one / two).ln().abs()).sum()
}

impl Scenario {
    /// The best shape of the grid, by a sum over runs.
    fn best(&self, cost: impl Fn(&Trace) -> f64) -> (f64, Shape) {
        let costs =
            self.statics.iter().map(|contender| (sum(&contender.traces, &cost), contender.shape));
        costs.min_by(|one, two| one.0.total_cmp(&two.0)).expect("a grid has shapes")
    }

    /// Adaptive over the best static of the whole run.
    fn ratio(&self, cost: impl Fn(&Trace) -> f64) -> f64 {
        sum(&self.adaptive, &cost) / self.best(&cost).0
    }

    /// What the best shape of each stage would cost, if changing were free, over the best for all: as counted. It is
    /// the least of noisy figures, so it promises a little too much.
    fn ideal(&self) -> f64 {
        let stages: f64 = STAGES.map(|stage| self.best(|trace| charged(trace, stage)).0).sum();
        stages / self.best(charged_in_all).0
    }

    /// How far the same shape's cost with another run is from the mean, in the whole run and in a stage: the median
    /// over shapes and runs, and the most.
    fn noise(&self) -> [[f64; 2]; 2] {
        let spread = |of: &dyn Fn(&Trace) -> f64, out: &mut Vec<f64>| {
            for contender in &self.statics {
                let mean = sum(&contender.traces, of) / contender.traces.len() as f64;
                out.extend(contender.traces.iter().map(|trace| (of(trace) / mean - 1.0).abs()));
            }
        };
        let (mut runs, mut stages) = (Vec::new(), Vec::new());
        spread(&pages, &mut runs);
        STAGES.for_each(|stage| spread(&|trace| charged(trace, stage), &mut stages));
        [runs, stages].map(|mut spreads| {
            spreads.sort_by(f64::total_cmp);
            [spreads[spreads.len() / 2], spreads[spreads.len() - 1]]
        })
    }

    /// Pages that adaptive runs wrote in merges beyond those that their shapes write when they stay, as a share of all
    /// they wrote. The shape of the grid that is most alike shows how much is merged for each page the model expects.
    fn transition_extra(&self) -> f64 {
        let per_debt = |shape: Shape| {
            let alike = |one: &&Contender, two: &&Contender| {
                distance(shape, one.shape).total_cmp(&distance(shape, two.shape))
            };
            let traces = &self.statics.iter().min_by(alike).expect("a grid has shapes").traces;
            sum(traces, |trace| whole(trace).merge_written) / sum(traces, |trace| whole(trace).debt)
        };
        let expected = |trace: &Trace| -> f64 {
            trace.debts.iter().map(|(shape, debt)| debt * per_debt(*shape)).sum()
        };
        let extra = sum(&self.adaptive, |trace| whole(trace).merge_written - expected(trace));
        extra.max(0.0) / sum(&self.adaptive, |trace| whole(trace).written())
    }

    fn stages(&self) -> Vec<Value> {
        STAGES
            .map(|stage| {
                let cost = |trace: &Trace| charged(trace, stage);
                let seconds = |trace: &Trace| of_stage(trace, stage).seconds;
                let (best, shape) = self.best(cost);
                let looked_up = sum(&self.adaptive, |trace| of_stage(trace, stage).looked_up);
                json!({
                    "page_tokens": self.sizes.page_tokens,
                    "hit_rate": HIT_RATES[stage],
                    "adaptive_pages": sum(&self.adaptive, cost),
                    "looked_up_pages": looked_up,
                    "best_static_pages": best,
                    "best_static": shape.to_string(),
                    "vs_best_static": self.ratio(cost),
                    "seconds_vs_best_static": self.ratio(seconds),
                })
            })
            .collect()
    }

    pub fn print(&self) {
        println!("\npages of {} tokens, sums over runs", self.sizes.page_tokens);
        println!(
            "{:<16}{:>10}{:>10}{:>10}{:>10}{:>9}",
            "shape", "looked up", "flushed", "merged", "pages", "seconds"
        );
        let mut rows: Vec<(String, &[Trace])> =
            self.statics.iter().map(|one| (one.shape.to_string(), &one.traces[..])).collect();
        rows.push(("adaptive".into(), &self.adaptive));
        rows.sort_by(|one, two| sum(one.1, pages).total_cmp(&sum(two.1, pages)));
        for (name, traces) in rows {
            let of = |part: &dyn Fn(&Spent) -> f64| sum(traces, |trace| part(&whole(trace)));
            println!(
                "{name:<16}{:>10.0}{:>10.0}{:>10.0}{:>10.0}{:>9.2}",
                of(&|spent| spent.looked_up),
                of(&|spent| spent.flushed),
                of(&Spent::merges),
                of(&Spent::pages),
                of(&|spent| spent.seconds),
            );
        }
        println!(
            "{:<7}{:>9}{:>12}{:>12}{:>12}  {:<16}{:>7}",
            "stage", "hit rate", "looked up", "adaptive", "best", "", "ratio"
        );
        for (number, stage) in self.stages().iter().enumerate() {
            let number_of = |name: &str| stage[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "{number:<7}{:>9.1}{:>12.0}{:>12.0}{:>12.0}  {:<16}{:>7.3}",
                number_of("hit_rate"),
                number_of("looked_up_pages"),
                number_of("adaptive_pages"),
                number_of("best_static_pages"),
                stage["best_static"].as_str().unwrap_or_default(),
                number_of("vs_best_static"),
            );
        }
        let [runs, stages] = self.noise();
        println!("adaptive / best static: {:.3}", self.ratio(pages));
        println!("best of each stage for free / best static: {:.3}", self.ideal());
        println!(
            "same shape, other run: {:.1}% ({:.1}% at most) in a run, {:.1}% ({:.1}%) in a stage",
            100.0 * runs[0],
            100.0 * runs[1],
            100.0 * stages[0],
            100.0 * stages[1]
        );
    }

    fn output(&self) -> Value {
        let [run_noise, stage_noise] = self.noise();
        let first = &self.adaptive[0];
        json!({
            "page_tokens": self.sizes.page_tokens,
            "stage_prompts": self.sizes.stage_prompts,
            "flushes": first.flushes,
            "index_bytes": first.end.table_bytes,
            "memory_share": (self.sizes.cache_bytes + first.end.pinned_bytes) as f64 / first.end.table_bytes as f64,
            "adaptive_pages": sum(&self.adaptive, pages),
            "adaptive_seconds": sum(&self.adaptive, |trace| whole(trace).seconds),
            "best_static": self.best(pages).1.to_string(),
            "cost_vs_best_static": self.ratio(pages),
            "time_vs_best_static": self.ratio(|trace| whole(trace).seconds),
            "ideal_vs_best_static": self.ideal(),
            "noise_of_runs": run_noise,
            "noise_of_stages": stage_noise,
            "transition_extra_bytes": self.transition_extra(),
            "decisions": self.adaptive.iter().map(|trace| trace.reasons.clone()).collect::<Vec<_>>(),
        })
    }
}

/// Everything in one object; of several page sizes the worst counts.
pub fn summary(scenarios: &[Scenario]) -> Value {
    let runs: Vec<Value> = scenarios.iter().map(Scenario::output).collect();
    let stages: Vec<Value> = scenarios.iter().flat_map(Scenario::stages).collect();
    let worst = |rows: &[Value], name: &str| {
        rows.iter().filter_map(|row| row[name].as_f64()).fold(f64::NEG_INFINITY, f64::max)
    };
    json!({
        "bench": "controller",
        "cost_vs_best_static": worst(&runs, "cost_vs_best_static"),
        "time_vs_best_static": worst(&runs, "time_vs_best_static"),
        "worst_stage_vs_best_static": worst(&stages, "vs_best_static"),
        "transition_extra_bytes": worst(&runs, "transition_extra_bytes"),
        "ideal_vs_best_static": worst(&runs, "ideal_vs_best_static"),
        "runs": runs,
        "stages": stages,
    })
}
