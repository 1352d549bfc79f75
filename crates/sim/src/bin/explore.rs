//! Explores histories of a store with an outage at every operation of the device: `make sim`.
//!
//! 1. No result depends on the clock, which only measures the duration.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program, not a library")]

use std::process::ExitCode;

use dalsegno_core::Clock;
use dalsegno_io::SystemClock;
use dalsegno_sim::{Course, Explored, HISTORIES, Plan, Violation, explore, replay};

const USAGE: &str = "\
Lives through a fixed set of histories of a store on a simulated device, with an outage at every operation of the
device, and checks what is left each time.

usage: explore [--seed SEED [--at OPERATION]] [--first]

  --seed SEED     only the history of this seed
  --at OPERATION  only the outage at this operation, with a trace
  --first         stop at the first violation; outages come in a random order

The last line is a JSON object. Exits with 1 if there was a violation, with 2 if it was not asked properly.";

/// Number of violations that are shown. All are counted.
const SHOWN: usize = 20;
/// Number of progress lines.
const LINES: u64 = 20;

/// What to do.
#[derive(Default)]
struct Wanted {
    seed: Option<u64>,
    at: Option<u64>,
    first: bool,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut wanted = Self::default();
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().and_then(|value| value.parse().ok());
                value.filter(|value| *value > 0).ok_or(format!("{argument} wants a number from 1"))
            };
            match argument.as_str() {
                "--seed" => wanted.seed = Some(number()?),
                "--at" => wanted.at = Some(number()?),
                "--first" => wanted.first = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("{argument} is not known")),
            }
        }
        if wanted.at.is_some() && wanted.seed.is_none() {
            return Err("--at wants --seed as well".to_owned());
        }
        Ok(Some(wanted))
    }
}

fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("explore: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A violation is a panic, which is caught and reported below.
    std::panic::set_hook(Box::new(|_| {}));
    let clock = SystemClock::new();
    let start = clock.now();
    let seeds = wanted.seed.map_or(1..=HISTORIES, |seed| seed..=seed);
    let plans: Vec<Plan> = seeds.map(Plan::of).collect();
    let seconds = || clock.now().since(start).as_secs_f64();
    let explored = match (plans.as_slice(), wanted.at) {
        ([plan], Some(at)) => {
            println!("seed {}: {}", plan.seed, plan.words);
            let (trace, explored) = replay(plan, at);
            for line in &trace {
                println!("{line}");
            }
            explored
        }
        _ => run(&plans, wanted.first, &seconds),
    };
    explored.violations.iter().take(SHOWN).for_each(show);
    println!("{}", summary(plans.len(), &explored, seconds()));
    if explored.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(plans: &[Plan], stops: bool, seconds: &(dyn Fn() -> f64 + Sync)) -> Explored {
    if let [plan] = plans {
        println!("seed {}: {}", plan.seed, plan.words);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    explore(plans, Course { threads, stops }, &|lived, all, explored| {
        if lived == 0 {
            println!("{}", what_they_do(plans.len(), explored));
        } else if lived * LINES / all > (lived - 1) * LINES / all {
            let (violations, seconds) = (explored.violations.len(), seconds());
            println!("{lived} of {all} lives, {violations} violations, {seconds:.0} s");
        }
    })
}

fn what_they_do(histories: usize, explored: &Explored) -> String {
    let totals = explored.totals;
    format!(
        "{histories} histories open stores {} times, drop {} blocks to make room and move {} KiB, recycle {} segments, \
         merge {} times, flush {} memtables and merge {} times tables of the index",
        totals.openings,
        totals.evicted_blocks,
        totals.relocated_bytes >> 10,
        totals.recycled_segments,
        totals.merges,
        totals.flushes,
        totals.index_merges
    )
}

fn show(violation: &Violation) {
    let Violation { seed, at, what } = violation;
    let (place, again) = match at {
        Some(at) => (format!("operation {at}"), format!("make sim SEED={seed} AT={at}")),
        None => ("no outage".to_owned(), format!("make sim SEED={seed}")),
    };
    println!("violation: seed {seed}, {place}: {what}; again with: {again}");
}

fn summary(histories: usize, explored: &Explored, seconds: f64) -> String {
    let Explored { crash_points, lives, checks, .. } = explored;
    let violations = explored.violations.len();
    format!(
        "{{\"histories\":{histories},\"crash_points\":{crash_points},\"lives\":{lives},\"checks\":{checks},\
         \"violations\":{violations},\"seconds\":{seconds:.1}}}"
    )
}
