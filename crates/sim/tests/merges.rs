//! Merges that an outage or a failed operation met, and the lives after them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/worlds.rs"]
mod worlds;

use dalsegno_core::Durability;
use dalsegno_io::Device;
use dalsegno_sim::{Action, Label, Outage, Part, Style, World};
use worlds::{filled, part};

fn segments(world: &World) -> usize {
    let files = world.device.list().unwrap();
    files.iter().filter(|file| file.name.starts_with("segment-")).count()
}

#[test]
fn a_merge_that_a_power_cut_met_is_believed_at_no_later_open() {
    let roomy = Style::roomy(Durability::Batch).merging_at_once();
    for style in [&roomy, &roomy.clone().indexed_in_files()] {
        for seed in 0..4 {
            for at in 0..60 {
                let _label = Label(format!("seed {seed}, outage at {at}"));
                let mut world = filled(style, seed);
                world.device.fail_at(world.device.changes() + at);
                for (chain, first) in
                    (20..23).flat_map(|chain| (0..4).map(move |first| (chain, first)))
                {
                    let whole = part(0, chain);
                    let one = Part { first, chain: whole.chain[..=first].to_vec(), ..whole };
                    if !world.device.is_down() {
                        world.act(&Action::Put(one, false));
                    }
                }
                world.reboot(Outage::Power);
                world.open().unwrap();
                world.check_all();
                // Room in another segment, whose header tells what is durable; no put, so nothing is merged anew.
                let mut chains = 100..300;
                while segments(&world) < 2 {
                    drop(world.begin_layers(&part(1, chains.next().unwrap())));
                }
                for outage in [Outage::Process, Outage::Power] {
                    world.reboot(outage);
                    world.open().unwrap();
                    world.check_all();
                }
            }
        }
    }
}
