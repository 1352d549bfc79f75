//! What happens to hosts: they close, crash, recover, and their directories are copied.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::Clock;
use dalsegno_far::Tier;
use dalsegno_far::offline::{Location, prune};
use dalsegno_sim::{Fault, Kind, Outage, Rule};
use dalsegno_store::testing::FarStep;

use crate::acts::HOUR;
use crate::model::Reach;
use crate::steps::BadFile;
use crate::world::{Directory, World};

impl World {
    pub(crate) fn prune(&self, host: usize, named: Option<usize>) {
        let tier = Arc::clone(&self.hosts[host].lock().tier) as Arc<dyn Tier>;
        let writers: Vec<String> =
            named.iter().map(|named| self.hosts[*named].lock().writer.store.to_string()).collect();
        let location = Location::new(tier, Arc::clone(&self.clock) as Arc<dyn Clock>);
        let pruned = prune(&location, &writers, true, &|_, _| {});
        self.note(format!("  pruned {:?}", pruned.map(|report| report.writers.len())));
    }

    pub(crate) fn trouble_disk(&self, host: usize, file: BadFile) {
        let state = &mut *self.hosts[host].lock();
        let rule = match file {
            BadFile::FarMeta => Rule::once(Kind::Create, Fault::Error, 0).on("far"),
            BadFile::Segment => {
                state.directory.is_fragile = true;
                Rule::once(Kind::Write, Fault::Error, 0).on("segment")
            }
        };
        state.directory.device.inject(rule);
    }

    pub(crate) fn heal(&self, host: usize) {
        let state = self.hosts[host].lock();
        state.tier.heal();
        state.directory.device.heal();
    }

    /// Each open host polls and publishes each hour.
    pub(crate) fn live(&self, time: Duration) {
        let hours = time.as_secs() / HOUR.as_secs();
        for _ in 0..hours {
            for host in 0..self.hosts.len() {
                self.far(host, FarStep::Removals);
                self.far(host, FarStep::Poll);
                self.far(host, FarStep::Publish);
                self.far(host, FarStep::Collect);
            }
            self.pass(HOUR);
        }
    }

    pub(crate) fn close(&self, host: usize) {
        let Some(store) = self.store(host) else { return };
        let layers = self.hosts[host].lock().layers.take();
        drop(layers);
        // It polls when it is closed, if nothing may be published without.
        self.forgive_if_old(host);
        let all = 0..self.model.lock().removals.len();
        self.hosts[host].lock().directory.seen.extend(all);
        self.excuse_hidden(host, &store, || store.close());
        self.hosts[host].lock().store = None;
    }

    pub(crate) fn crash(&self, host: usize, outage: Outage) {
        let late_happens = self.random.lock().percent(50);
        let state = &mut *self.hosts[host].lock();
        if state.store.is_none() {
            return;
        }
        state.tier.go_down(late_happens);
        let had_faults = state.directory.had_faults();
        state.directory.has_failed = had_faults;
        let (device, _) = state.directory.device.reboot(outage);
        state.layers = None;
        state.store = None;
        state.directory.device = Arc::new(device);
    }

    pub(crate) fn back_up(&self, host: usize) {
        let directory = self.hosts[host].lock().directory.clone();
        let device = Arc::new(directory.device.fork());
        *self.backup.lock() = Some(Directory { device, ..directory });
    }

    /// The copy takes the place of a host's directory. Removals that only this directory knew are no longer promised.
    pub(crate) fn restore(&self, host: usize) {
        let Some(backup) = self.backup.lock().clone() else { return };
        self.crash(host, Outage::Process);
        for removal in &mut self.model.lock().removals {
            if removal.host == host && removal.reach == Reach::Pending {
                removal.reach = Reach::Unsure;
            }
        }
        let device = Arc::new(backup.device.fork());
        self.hosts[host].lock().directory = Directory { device, ..backup };
        self.open(host);
    }
}
