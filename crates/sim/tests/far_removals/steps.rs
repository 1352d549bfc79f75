//! What happens in a history: random steps, and episodes in which certain steps follow each other.

use std::collections::VecDeque;
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
    let (is_eio, at) = (random.percent(50), random.below(8));
    let trouble = *random.pick(&[
        Trouble::Fails,
        Trouble::Fails,
        Trouble::FailsLate,
        Trouble::Hangs,
        Trouble::ReadOnly,
        Trouble::NoCatalogs,
        Trouble::NoLists(is_eio),
        Trouble::HidesList(at),
    ]);
    let times = *random.pick(&[1, 1, 2, 5, 40]);
    let times = if matches!(trouble, Trouble::HidesList(_)) { 1 } else { times };
    Rule { trouble, skip: random.below(6) as u64, times }
}

fn far(random: &mut Random, host: usize) -> Step {
    let (step, times, pause) = match random.below(100) {
        0..34 => (FarStep::Publish, 3, SECOND),
        34..40 => (FarStep::Removals, 1, SECOND),
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

/// The steps of a history.
#[derive(Debug, Default)]
pub(crate) struct Script {
    episode: VecDeque<Step>,
}

impl Script {
    /// The next step: of an episode, or any.
    pub(crate) fn next(&mut self, random: &mut Random) -> Step {
        if self.episode.is_empty() && random.percent(12) {
            self.episode = episode(random).into();
        }
        let is_next = !self.episode.is_empty() && random.percent(80);
        is_next.then(|| self.episode.pop_front()).flatten().unwrap_or_else(|| any(random))
    }
}

/// Two different hosts.
fn two_hosts(random: &mut Random) -> (usize, usize) {
    let one = random.below(HOSTS);
    (one, (one + 1 + random.below(HOSTS - 1)) % HOSTS)
}

/// Blocks of one host that another one reads twice, so that they wait to be promoted.
fn shared(random: &mut Random, (one, other): (usize, usize)) -> (Span, Vec<Step>) {
    let span = Span { first: 0, ..span(random) };
    let steps = vec![
        Step::Open(one),
        Step::Open(other),
        Step::Put(one, span),
        publish(one),
        poll(other),
        Step::Probe(other, Span { end: CHAIN_BLOCKS, ..span }),
        Step::Get(other, span, Vec::new()),
        Step::Get(other, span, meanwhile(random, other)),
    ];
    (span, steps)
}

fn poll(host: usize) -> Step {
    Step::Far(host, FarStep::Poll, 1, Duration::ZERO)
}

fn publish(host: usize) -> Step {
    Step::Far(host, FarStep::Publish, 4, SECOND)
}

/// The location fails for a host until it is healed.
fn failing(host: usize, trouble: Trouble) -> Step {
    Step::Trouble(host, Rule { trouble, skip: 0, times: u64::MAX })
}

/// A host is away while a removal expires that another one has published. It has put blocks before, and puts them again
/// when it is back; then its polls find this trouble.
pub(crate) fn away_for_a_week(trouble: Option<Trouble>) -> Vec<Step> {
    let span = Span { namespace: 0, chain: 0, first: 0, end: CHAIN_BLOCKS };
    let mut steps = vec![Step::Open(0), Step::Open(1), poll(0), poll(1), Step::Put(1, span)];
    steps.extend([poll(1), Step::Close(1), Step::Remove(0, Target::Blocks(span))]);
    steps.extend([Step::Live(8 * DAY), Step::Far(0, FarStep::Collect, 30, MINUTE), Step::Open(1)]);
    steps.extend(trouble.map(|trouble| failing(1, trouble)));
    if trouble.is_some() {
        steps.extend([poll(1), poll(1), Step::CheckAll(1)]);
    }
    steps.extend([Step::Put(1, span), publish(1), publish(1), poll(0), Step::CheckAll(0)]);
    steps
}

/// A host has applied a removal. After its restart lists cannot be read, until it is healed.
fn unread_after_restart(
    random: &mut Random,
    (one, other): (usize, usize),
    (span, target): (Span, Target),
) -> Vec<Step> {
    let mut steps = vec![Step::Remove(one, target), poll(other)];
    steps.extend([Step::Crash(other, Outage::Process), Step::Open(other)]);
    steps.push(failing(other, Trouble::NoLists(random.percent(50))));
    steps.push(Step::Far(other, FarStep::Poll, 6, SECOND));
    steps.extend(read_twice(other, span));
    steps.extend([Step::Heal(other), Step::Far(other, FarStep::Poll, 31, SECOND)]);
    steps
}

/// A listing does not show a list, and a pack appears that it covers.
fn hidden_list(
    random: &mut Random,
    (one, other): (usize, usize),
    (span, target): (Span, Target),
) -> Vec<Step> {
    let third = HOSTS - one - other;
    let mut steps = vec![Step::Open(one), Step::Open(other), Step::Open(third), poll(other)];
    steps.extend([Step::Put(third, span), Step::Remove(one, self::target(random))]);
    steps.extend([Step::Remove(one, target), poll(other), publish(third)]);
    let trouble = Trouble::HidesList(random.below(8));
    steps.push(Step::Trouble(other, Rule { trouble, skip: 0, times: 1 }));
    steps.push(Step::Far(other, FarStep::Poll, 3, SECOND));
    steps.extend(read_twice(other, span));
    steps
}

/// Reads twice, so that what is found at the location is promoted.
fn read_twice(host: usize, span: Span) -> [Step; 3] {
    let get = Step::Get(host, span, Vec::new());
    [get.clone(), get, Step::Far(host, FarStep::Promote, 1, Duration::ZERO)]
}

/// Steps that follow each other.
fn episode(random: &mut Random) -> Vec<Step> {
    let (one, other) = two_hosts(random);
    let (span, mut steps) = shared(random, (one, other));
    let target =
        if random.percent(50) { Target::Blocks(span) } else { Target::Namespace(span.namespace) };
    let last = [publish(other), poll(one), poll(other)];
    match random.below(9) {
        // A removal while blocks wait for promotion or publication.
        0 => {
            steps.extend([Step::Remove(one, target), poll(other)]);
            steps.push(Step::Far(other, FarStep::Promote, 1, Duration::ZERO));
        }
        1 => {
            steps = vec![Step::Open(one), Step::Open(other), Step::Put(other, span)];
            steps.extend([Step::Remove(one, target), Step::Put(other, span), poll(other)]);
        }
        // A poll fails, and the next one does not.
        2 => {
            let skip = random.below(9) as u64;
            let rule = Rule { trouble: Trouble::Fails, skip, times: 1 };
            steps.extend([Step::Remove(one, target), Step::Trouble(other, rule), poll(other)]);
        }
        // A removal that cannot be published before its host crashes.
        3 => {
            steps.extend([Step::Full(random.percent(30)), Step::Trouble(one, rule(random))]);
            steps.extend([Step::Remove(one, target), Step::Crash(one, Outage::Power)]);
            steps.extend([Step::Full(false), Step::Open(one)]);
            steps.push(Step::Far(one, FarStep::Removals, 2, 3 * SECOND));
        }
        // A copy of a directory does not know a removal.
        4 => {
            steps.extend([Step::BackUp(one), Step::Remove(one, target)]);
            steps.extend([Step::Restore(other), poll(other)]);
        }
        // A host is away while a removal expires.
        5 => {
            steps.extend([Step::Close(other), Step::Remove(one, target)]);
            steps.extend([Step::Live(8 * DAY), Step::Far(one, FarStep::Collect, 30, MINUTE)]);
            steps.push(Step::Open(other));
            match random.below(4) {
                0 => steps.extend([Step::Put(other, span), publish(other), poll(one)]),
                1 => steps.extend([failing(other, Trouble::ReadOnly), poll(other)]),
                2 => steps.push(failing(other, Trouble::NoCatalogs)),
                _ => {}
            }
            steps.push(poll(other));
        }
        6 => steps.extend(unread_after_restart(random, (one, other), (span, target))),
        7 => steps = hidden_list(random, (one, other), (span, target)),
        // The disk does not store that a removal was applied.
        _ => {
            steps.extend([Step::Remove(one, target), Step::DiskTrouble(other, BadFile::FarMeta)]);
            steps.extend([poll(other), Step::Put(other, span), poll(other)]);
            steps.extend([Step::Crash(other, Outage::Power), Step::Open(other), poll(other)]);
        }
    }
    steps.extend(last);
    steps.extend([Step::CheckAll(other), Step::CheckAll(one)]);
    steps
}

/// A random step.
fn any(random: &mut Random) -> Step {
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
        855..882 => Step::Heal(host),
        882..885 => Step::Full(true),
        885..895 => Step::Full(false),
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
