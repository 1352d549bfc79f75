//! What happens in a history: random steps.

use std::time::Duration;

use dalsegno_sim::{Outage, Random};
use dalsegno_store::testing::FarStep;

use crate::rough_tier::{Rule, Trouble};

pub(crate) const NAMESPACES: usize = 2;
pub(crate) const CHAINS: u64 = 3;
pub(crate) const CHAIN_BLOCKS: usize = 3;
pub(crate) const HOSTS: usize = 3;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Blocks of a chain, from `first` to before `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) namespace: usize,
    pub(crate) chain: u64,
    pub(crate) first: usize,
    pub(crate) end: usize,
}

/// What is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Blocks(Span),
    Namespace(usize),
    /// No block.
    Nothing,
}

/// Where a local disk fails once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadFile {
    /// The file of applied removals.
    FarMeta,
    /// A segment of the log.
    Segment,
}

/// A step. Hosts have numbers.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put(usize, Span),
    BeginLayers(usize, Span),
    CommitLayers(usize),
    /// Other steps run while the first read of the far location is in flight.
    Get(usize, Span, Vec<Self>),
    Probe(usize, Span),
    Remove(usize, Target),
    /// Work of the far tier, so often, and the time that passes after each.
    Far(usize, FarStep, u32, Duration),
    /// Removes writers that are dead, or the folders of a host's store.
    Prune(usize, Option<usize>),
    Trouble(usize, Rule),
    DiskTrouble(usize, BadFile),
    Heal(usize),
    Full(bool),
    Pass(Duration),
    /// As the pass of time, but each open host polls and publishes each hour.
    Live(Duration),
    Open(usize),
    Close(usize),
    Crash(usize, Outage),
    /// Copies the directory of a host.
    BackUp(usize),
    /// Puts that copy in the place of a host's directory, and opens it.
    Restore(usize),
    CheckAll(usize),
}

fn span(random: &mut Random) -> Span {
    let first = if random.percent(70) { 0 } else { random.below(CHAIN_BLOCKS) };
    let end = first + 1 + random.below(CHAIN_BLOCKS - first);
    Span {
        namespace: random.below(NAMESPACES),
        chain: random.below(usize::try_from(CHAINS).expect("a few")) as u64,
        first,
        end,
    }
}

fn target(random: &mut Random) -> Target {
    match random.below(20) {
        0 => Target::Nothing,
        1..8 => Target::Namespace(random.below(NAMESPACES)),
        _ => Target::Blocks(span(random)),
    }
}

fn rule(random: &mut Random) -> Rule {
    let trouble = *random.pick(&[
        Trouble::Fails,
        Trouble::Fails,
        Trouble::FailsLate,
        Trouble::Hangs,
        Trouble::ReadOnly,
    ]);
    let times = *random.pick(&[1, 1, 2, 5, 40]);
    Rule { trouble, skip: random.below(6) as u64, times }
}

fn far(random: &mut Random, host: usize) -> Step {
    let (step, times, pause) = match random.below(100) {
        0..40 => (FarStep::Publish, 3, SECOND),
        40..75 => (FarStep::Poll, 1, SECOND),
        75..85 => (FarStep::Promote, 1, Duration::ZERO),
        85..92 => (FarStep::Prefetch, 2, Duration::ZERO),
        _ => (FarStep::Collect, 12, MINUTE),
    };
    Step::Far(host, step, times, pause)
}

/// What happens while a get is in flight.
fn meanwhile(random: &mut Random, host: usize) -> Vec<Step> {
    if random.percent(60) {
        return Vec::new();
    }
    let other = random.below(HOSTS);
    let first = if random.percent(50) {
        Step::Remove(other, target(random))
    } else {
        Step::Put(host, span(random))
    };
    vec![first, Step::Far(host, FarStep::Poll, 1, Duration::ZERO)]
}

/// A random step.
pub(crate) fn next(random: &mut Random) -> Step {
    let host = random.below(HOSTS);
    match random.below(1000) {
        0..190 => Step::Put(host, span(random)),
        190..210 => Step::BeginLayers(host, span(random)),
        210..240 => Step::CommitLayers(host),
        240..390 => {
            let during = meanwhile(random, host);
            Step::Get(host, span(random), during)
        }
        390..420 => Step::Probe(host, span(random)),
        420..510 => Step::Remove(host, target(random)),
        510..790 => far(random, host),
        790..805 => Step::Prune(host, random.percent(50).then(|| random.below(HOSTS))),
        805..840 => Step::Trouble(host, rule(random)),
        840..855 => {
            let file = if random.percent(70) { BadFile::FarMeta } else { BadFile::Segment };
            Step::DiskTrouble(host, file)
        }
        855..880 => Step::Heal(host),
        880..895 => Step::Full(random.percent(50)),
        895..915 => Step::Pass(*random.pick(&[MINUTE, 11 * MINUTE, HOUR, 8 * HOUR, DAY, 8 * DAY])),
        915..925 => Step::Live(*random.pick(&[HOUR, DAY, 8 * DAY])),
        925..940 => Step::Open(host),
        940..950 => Step::Close(host),
        950..965 => Step::Crash(host, *random.pick(&[Outage::Power, Outage::Process])),
        965..975 => Step::BackUp(host),
        975..985 => Step::Restore(host),
        _ => Step::CheckAll(host),
    }
}
