//! A sync that fails: afterwards nothing unsynced counts as durable, and nothing more is written.

use crate::worlds::{filled, part};
use dalsegno_core::{Durability, ErrorKind};
use dalsegno_sim::{Action, Fault, Kind, Label, Outage, Rule, Style, World};

/// After a sync that failed: nothing that is tried is written, and opened after a power cut all is well.
fn stops_until_opened_again(world: &mut World, tries: impl FnOnce(&mut World)) {
    assert!(world.stats().poisoned);
    world.device.heal();
    world.expect_faults();
    let changes = world.device.changes();
    tries(world);
    assert_eq!(world.device.changes(), changes, "nothing is written, and no sync is tried again");
    world.reboot(Outage::Power);
    world.open().unwrap();
    world.check_all();
    assert_eq!(world.check_usable(0), 0);
}

#[test]
fn the_first_failed_sync_stops_all_writes_until_reopen() {
    let style = Style::roomy(Durability::Batch);
    let mut world = filled(&style, 7);
    world.device.inject(Rule::once(Kind::Sync, Fault::Error, 0).on("segment"));
    assert_eq!(world.put(&part(0, 50), false).unwrap_err(), ErrorKind::Poisoned);
    stops_until_opened_again(&mut world, |world| {
        for chain in 51..55 {
            assert_eq!(world.put(&part(0, chain), false).unwrap_err(), ErrorKind::Poisoned);
            world.act(&Action::PutLayers(part(1, chain), true));
            world.act(&Action::Remove(part(1, chain)));
        }
        assert_eq!(world.get(&part(0, 0), false), 4, "reads go on");
    });
}

#[test]
fn a_put_whose_sync_failed_is_never_acknowledged_although_a_later_sync_succeeds() {
    let style = Style::roomy(Durability::Batch);
    for seed in 0..20 {
        let _label = Label(format!("seed {seed}"));
        let mut world = filled(&style, seed);
        world.device.inject(Rule::once(Kind::Sync, Fault::Error, 0).on("segment"));
        assert!(world.put(&part(0, 50), false).is_err());
        world.device.heal();
        // The kernel calls the lost pages clean; opened without a reboot, the store sees them in the cache.
        world.reboot(Outage::Process);
        world.open().unwrap();
        world.put(&part(0, 60), false).unwrap();
        world.reboot(Outage::Power);
        world.open().unwrap();
        world.check_all();
    }
}

/// Puts one chain after the other until the rule hits; `false` if it never does.
fn put_until_it_fails(world: &mut World) -> bool {
    for chain in 100..300 {
        // The put that meets it fails as a whole, or for those blocks that found no room before.
        drop(world.put(&part(0, chain), false));
        if world.device.faults_fired() > 0 {
            return true;
        }
    }
    false
}

#[test]
fn a_failed_sync_while_a_segment_is_prepared_stops_all_writes() {
    // No put is synced here: it is a segment that is created, or one that is used again.
    for (style, kind) in [
        (Style::roomy(Durability::None), Kind::Sync),
        (Style::roomy(Durability::None), Kind::SyncNames),
        (Style::crowded(Durability::None), Kind::Sync),
    ] {
        for skip in 0..3 {
            let _label = Label(format!("{kind:?} after {skip}, evicts {}", style.evicts));
            let mut world = filled(&style, 7);
            world.expect_faults();
            world.device.inject(Rule::once(kind, Fault::Error, skip));
            assert!(put_until_it_fails(&mut world), "no segment began a life");
            stops_until_opened_again(&mut world, |world| {
                assert_eq!(world.put(&part(0, 50), false).unwrap_err(), ErrorKind::Poisoned);
            });
        }
    }
}
