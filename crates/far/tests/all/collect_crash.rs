//! Writers die, and others collect what they left, while any of them is killed at every operation that changes the
//! location.
//!
//! A host that starts at any moment reads no wrong byte and no removed block, and everything of writers that run.

use std::collections::BTreeSet;

use dalsegno_core::StoreId;
use dalsegno_far::{DEAD_AFTER, StopMode, WATCHED, WriterId};

use crate::dose::dose;
use crate::hosts::Host;
use crate::world::{HOUR, Model, World, collect};

/// How a history ended.
struct Ended {
    was_killed: bool,
    checks: u64,
}

/// Three hosts publish and remove. The first one dies and is collected by the other two at the same time, then the
/// others die as well. Host `victim` is killed after so many changes of the location.
fn history(victim: usize, changes: u64, mode: StopMode) -> Ended {
    let (mut world, mut model) = (World::new(), Model::default());
    let mut hosts = [(1, 3), (2, 99), (3, 99)].map(|(number, packs)| world.host_of(number, packs));
    hosts[victim].tier.stop_after(changes, mode);
    let poll = |hosts: &mut [Host]| hosts.iter_mut().for_each(|host| drop(host.poll()));
    let beat = |hosts: &mut [Host]| hosts.iter_mut().for_each(|host| drop(host.publisher.beat()));
    for (who, first) in [(0, 10), (0, 20), (0, 30), (1, 40), (1, 50), (2, 60)] {
        model.publish(&mut hosts[who], first);
    }
    beat(&mut hosts);
    poll(&mut hosts);
    // The first host removes blocks of all, and others remove blocks of it.
    for (who, block) in [(0, 40), (0, 10), (0, 61), (1, 20), (2, 31)] {
        model.remove(&mut hosts[who], block);
        poll(&mut hosts);
    }
    // A block that is put again stays.
    model.publish(&mut hosts[1], 40);
    // The oldest pack of the first host leaves.
    model.publish(&mut hosts[0], 80);
    model.present.retain(|block, _| !(10..12).contains(block));
    drop(hosts[0].publisher.evict());
    beat(&mut hosts);
    poll(&mut hosts);
    for host in hosts.iter().filter(|host| host.tier.is_stopped()) {
        model.is_dead(host.writer);
    }
    model.check(&mut world);

    let [a, mut b, mut c] = hosts;
    model.is_dead(a.writer);
    world.pass(DEAD_AFTER + HOUR);
    drop(b.publisher.beat());
    drop(c.publisher.beat());
    let (of_b, of_c) = (b.writer, c.writer);
    let is_at_work = |world: &mut World, hosts: &mut [&mut Host], model: &mut Model| {
        let mut check = |world: &mut World| model.check(world);
        collect(world, hosts, &mut check);
    };
    // A collector that is killed is dead from then on: what it published may stay or go.
    if victim > 0 {
        model.is_dead(if victim == 1 { of_b } else { of_c });
    }
    is_at_work(&mut world, &mut [&mut b, &mut c], &mut model);
    assert!(!world.has_packs(a.writer), "packs of a dead writer are left");

    let mut e = world.host(5);
    model.publish(&mut e, 70);
    e.poll();
    model.is_dead(of_b);
    world.pass(DEAD_AFTER + HOUR);
    drop(c.publisher.beat());
    e.publisher.beat().unwrap();
    is_at_work(&mut world, &mut [&mut c, &mut e], &mut model);
    assert!(!world.has_packs(of_b));

    model.is_dead(of_c);
    // Twice, because an empty folder is young again.
    for _ in 0..2 {
        world.pass(DEAD_AFTER + HOUR);
        e.publisher.beat().unwrap();
        is_at_work(&mut world, &mut [&mut e], &mut model);
    }
    for writer in [a.writer, of_b, of_c] {
        assert!(!world.has_folder(writer), "{:?} are left of {writer}", world.objects(writer));
    }
    assert_eq!(e.readable(), BTreeSet::from([70, 71]));
    let was_killed = [&a, &b, &c].iter().any(|host| host.tier.is_stopped());
    Ended { was_killed, checks: model.checks }
}

#[test]
fn a_crash_at_any_operation_loses_nothing_published_brings_nothing_back_and_leaves_nothing() {
    let mut counts = Vec::new();
    let mut checks = 0;
    for victim in 0..3 {
        for mode in [StopMode::NotDone, StopMode::DoneUnanswered] {
            let mut points = 0;
            loop {
                let ended = history(victim, points, mode);
                checks += ended.checks;
                if !ended.was_killed {
                    break;
                }
                points += 1;
            }
            counts.push(points);
        }
    }
    let histories: u64 = counts.iter().map(|points| points + 1).sum();
    println!(
        "{} crash points (by host and mode: {counts:?}), {histories} histories, {checks} checks",
        counts.iter().sum::<u64>()
    );
    assert!(counts.iter().all(|points| *points >= 17), "{counts:?}");
}

/// Numbers that look random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Hosts of a random history. Each is awake, asleep as a suspended one is, or killed and started again. Two have a
/// store with the same id, because its directory was copied.
struct Crowd {
    world: World,
    model: Model,
    hosts: Vec<Host>,
    asleep: BTreeSet<WriterId>,
    next_block: u8,
    next_store: u8,
}

impl Crowd {
    fn pass_a_day(&mut self) {
        let Self { world, model, hosts, asleep, .. } = self;
        world.pass(DEAD_AFTER + HOUR);
        let awake: BTreeSet<StoreId> = hosts
            .iter()
            .filter(|host| !asleep.contains(&host.writer))
            .map(|host| host.writer.store)
            .collect();
        model.present.retain(|_, of| awake.contains(&of.store));
        for host in hosts.iter_mut().filter(|host| !asleep.contains(&host.writer)) {
            model.keep_up(world, host);
        }
    }

    /// One random event at host `at`.
    fn act(&mut self, at: usize, what: u64, dice: &mut Dice) {
        let Self { world, model, hosts, asleep, next_block, next_store } = self;
        let host = &mut hosts[at];
        match what {
            // Wakes up, if it was asleep.
            0 => {
                asleep.remove(&host.writer);
            }
            1 => {
                asleep.insert(host.writer);
            }
            2 => {
                asleep.remove(&host.writer);
                // Half of them lost their disk, and continue with an empty store.
                *next_store += 1;
                let number = [host.writer.store.0[0], *next_store][usize::from(dice.below(2) == 0)];
                *host = world.host_of(number, 3 + dice.below(6));
            }
            3 | 4 => self.pass_a_day(),
            5 => world.pass(WATCHED),
            _ if asleep.contains(&host.writer) => {}
            6..=9 if *next_block < 250 => {
                model.publish(host, *next_block);
                *next_block += 2;
                model.keep_up(world, host);
            }
            10 | 11 => {
                let block = u8::try_from(dice.below(250)).unwrap();
                if host.finds(block) {
                    model.remove(host, block);
                }
            }
            12..=14 => drop(host.poll()),
            15 => {
                // What it knows may be gone: a read returns the right bytes, or nothing.
                host.readable();
                drop(host.poll());
                assert!(host.readable().is_disjoint(&model.removed));
            }
            _ => {
                host.collect();
            }
        }
    }
}

/// A random history, at the end of which all but one host are dead for days.
fn random_history(seed: u64, events: u64) -> [u64; 3] {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut world = World::new();
    let hosts = [1, 2, 3, 3].map(|number| world.host_of(number, 6)).into();
    let (model, asleep) = (Model::default(), BTreeSet::new());
    let mut crowd = Crowd { world, model, hosts, asleep, next_block: 0, next_store: 100 };
    for _ in 0..events {
        let at = usize::try_from(dice.below(4)).unwrap();
        let what = dice.below(40);
        crowd.act(at, what, &mut dice);
        crowd.model.check(&mut crowd.world);
    }
    let Crowd { mut world, mut model, hosts, .. } = crowd;
    let collected = hosts.iter().map(|host| host.collector.stats().packs).sum();
    let mut last = world.host(9);
    model.present.clear();
    for _ in 0..3 {
        world.pass(DEAD_AFTER + HOUR);
        last.publisher.beat().unwrap();
        for _ in 0..8 {
            collect(&mut world, &mut [&mut last], &mut |world| model.check(world));
        }
    }
    last.pass_keep(&mut world);
    let left: Vec<_> = world.location.objects();
    assert!(left.iter().all(|(name, _)| name.writer == last.writer), "{seed}: {left:?}");
    [model.checks, collected, model.evicted]
}

#[test]
fn random_histories_of_hosts_that_sleep_restart_and_collect_keep_all_promises() {
    let (histories, events) = dose((40, 300), (2000, 500));
    let [mut checks, mut collected, mut evicted] = [0; 3];
    for seed in 1..=histories {
        let of_history = random_history(seed, events);
        checks += of_history[0];
        collected += of_history[1];
        evicted += of_history[2];
    }
    println!(
        "{histories} histories, {checks} checks, {collected} packs collected and {evicted} of earlier opens evicted \
         in them"
    );
    assert!(collected > histories, "{collected} packs were collected");
    assert!(evicted > histories, "{evicted} packs of earlier opens were evicted");
}
