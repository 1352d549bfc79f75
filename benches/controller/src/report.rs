//! What the runs say, as tables and as one JSON object.

use dalsegno_core::fluid::Shape;
use serde_json::{Value, json};

use crate::run::{Sizes, Spent, Trace};
use crate::workload::HIT_RATES;

/// Of a stage its first fifth is left out: that is how long a change may take.
const LEFT_OUT: usize = 5;

/// All runs with pages of one size.
pub struct Scenario {
    sizes: Sizes,
    adaptive: Trace,
    /// Whether the shape is one of the grid, or only there for comparison.
    statics: Vec<(Shape, bool, Trace)>,
}

fn whole(trace: &Trace) -> Spent {
    trace.spent[trace.spent.len() - 1].since(&trace.spent[0])
}

/// What a stage took but for its first fifth.
fn of_stage(trace: &Trace, stage: usize) -> Spent {
    let prompts = (trace.spent.len() - 1) / HIT_RATES.len();
    let (first, end) = (stage * prompts, (stage + 1) * prompts);
    trace.spent[end].since(&trace.spent[first + prompts / LEFT_OUT])
}

impl Scenario {
    pub fn new(sizes: Sizes, adaptive: Trace, statics: Vec<(Shape, bool, Trace)>) -> Self {
        Self { sizes, adaptive, statics }
    }

    fn grid(&self) -> impl Iterator<Item = (Shape, &Trace)> {
        self.statics.iter().filter(|(_, in_grid, _)| *in_grid).map(|(shape, _, run)| (*shape, run))
    }

    fn best(&self, cost: impl Fn(&Trace) -> f64) -> (f64, Shape) {
        let costs = self.grid().map(|(shape, trace)| (cost(trace), shape));
        costs.min_by(|one, two| one.0.total_cmp(&two.0)).expect("a grid has shapes")
    }

    /// Adaptive over the best static of the whole run, in pages and in seconds.
    fn ratios(&self) -> [f64; 2] {
        let pages = |trace: &Trace| whole(trace).pages();
        let seconds = |trace: &Trace| whole(trace).seconds;
        [pages(&self.adaptive) / self.best(pages).0, seconds(&self.adaptive) / self.best(seconds).0]
    }

    /// Pages that the adaptive run wrote over those of runs that had each of its shapes all along, in the same
    /// prompts, as a share of all it wrote.
    fn transition_extra(&self) -> f64 {
        let spent = &self.adaptive.spent;
        let ends = self.adaptive.shapes.iter().skip(1).map(|(at, _)| *at).chain([spent.len() - 1]);
        let extra = self.adaptive.shapes.iter().zip(ends).map(|((from, shape), end)| {
            let twin = self.statics.iter().find(|(other, ..)| other == shape);
            let twin = &twin.expect("each shape ran alone too").2.spent;
            let written = |spent: &[Spent]| spent[end].since(&spent[*from]).pages_written;
            written(spent) - written(twin)
        });
        extra.sum::<f64>().max(0.0) / whole(&self.adaptive).pages_written
    }

    fn stages(&self) -> Vec<Value> {
        (0..HIT_RATES.len())
            .map(|stage| {
                let (best, shape) = self.best(|trace| of_stage(trace, stage).pages());
                let (best_seconds, _) = self.best(|trace| of_stage(trace, stage).seconds);
                let adaptive = of_stage(&self.adaptive, stage);
                json!({
                    "page_tokens": self.sizes.page_tokens,
                    "hit_rate": HIT_RATES[stage],
                    "adaptive_pages": adaptive.pages(),
                    "best_static_pages": best,
                    "best_static": shape.to_string(),
                    "vs_best_static": adaptive.pages() / best,
                    "seconds_vs_best_static": adaptive.seconds / best_seconds,
                })
            })
            .collect()
    }

    pub fn print(&self) {
        println!("\npages of {} tokens", self.sizes.page_tokens);
        println!("{:<16}{:>10}{:>10}{:>10}{:>9}", "shape", "read", "written", "pages", "seconds");
        let mut rows: Vec<(String, Spent)> =
            self.grid().map(|(shape, trace)| (shape.to_string(), whole(trace))).collect();
        rows.push(("adaptive".into(), whole(&self.adaptive)));
        rows.sort_by(|one, two| one.1.pages().total_cmp(&two.1.pages()));
        for (name, spent) in rows {
            println!(
                "{name:<16}{:>10.0}{:>10.0}{:>10.0}{:>9.2}",
                spent.pages_read,
                spent.pages_written,
                spent.pages(),
                spent.seconds
            );
        }
        println!(
            "{:<7}{:>9}{:>12}{:>12}  {:<16}{:>7}",
            "stage", "hit rate", "adaptive", "best", "", "ratio"
        );
        for (number, stage) in self.stages().iter().enumerate() {
            let number_of = |name: &str| stage[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "{number:<7}{:>9.1}{:>12.0}{:>12.0}  {:<16}{:>7.3}",
                number_of("hit_rate"),
                number_of("adaptive_pages"),
                number_of("best_static_pages"),
                stage["best_static"].as_str().unwrap_or_default(),
                number_of("vs_best_static"),
            );
        }
    }
}

/// Everything in one object; of several page sizes the worst counts.
pub fn summary(scenarios: &[Scenario]) -> Value {
    let worst =
        |of: &dyn Fn(&Scenario) -> f64| scenarios.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let stages: Vec<Value> = scenarios.iter().flat_map(Scenario::stages).collect();
    let worst_stage = stages.iter().filter_map(|stage| stage["vs_best_static"].as_f64());
    let runs: Vec<Value> = scenarios
        .iter()
        .map(|scenario| {
            let pages = |trace: &Trace| whole(trace).pages();
            let [cost, time] = scenario.ratios();
            json!({
                "page_tokens": scenario.sizes.page_tokens,
                "stage_prompts": scenario.sizes.stage_prompts,
                "adaptive_pages": pages(&scenario.adaptive),
                "adaptive_seconds": whole(&scenario.adaptive).seconds,
                "best_static": scenario.best(pages).1.to_string(),
                "cost_vs_best_static": cost,
                "time_vs_best_static": time,
                "transition_extra_bytes": scenario.transition_extra(),
                "decisions": scenario.adaptive.reasons,
            })
        })
        .collect();
    json!({
        "bench": "controller",
        "cost_vs_best_static": worst(&|scenario| scenario.ratios()[0]),
        "time_vs_best_static": worst(&|scenario| scenario.ratios()[1]),
        "worst_stage_vs_best_static": worst_stage.fold(f64::NEG_INFINITY, f64::max),
        "transition_extra_bytes": worst(&|scenario| scenario.transition_extra()),
        "runs": runs,
        "stages": stages,
    })
}
