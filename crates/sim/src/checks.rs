//! Checks of a store and its files against the oracle and the bounds.

use std::sync::Arc;

use dalsegno_core::ManualClock;
use dalsegno_extent::format::segment_number;
use dalsegno_io::Device;
use dalsegno_log::{Finding, LogError, VerifyReport};
use dalsegno_store::Store;

use crate::device::SimDevice;
use crate::disk::Torn;
use crate::oracle::Oracle;
use crate::setup::Setup;

/// The longest slice of a history. Damage that starts within this many bytes before a torn sector is explained by it.
const LONGEST_SLICE_BYTES: u64 = 128 << 10;

/// Verifies a store offline. An outage must explain every finding.
///
/// # Panics
///
/// If one is unexplained.
pub(crate) fn verify(device: &Arc<SimDevice>, setup: &Setup, oracle: &Oracle, torn: &[Torn]) {
    let device: Arc<dyn Device> = Arc::<SimDevice>::clone(device);
    let clock = Arc::<ManualClock>::clone(&setup.clock);
    let index = dalsegno_index::verify_index(Arc::clone(&device), None, &|_| {});
    let report = match dalsegno_log::verify(device, clock, setup.pool.clone(), &|_, _| {}) {
        Ok(report) => report,
        Err(LogError::Format { .. }) => {
            assert_eq!(oracle.kept_count(), 0, "verify finds no store");
            return;
        }
        Err(error) => panic!("verify fails: {error}"),
    };
    let VerifyReport { mut findings, .. } = report;
    let faults = index.expect("the device lists its files").faults.into_iter();
    findings.extend(faults.map(|f| Finding { file: f.file, offset: f.offset, what: f.what }));
    let contradiction = findings.iter().find(|finding| !explains(finding, torn));
    assert!(contradiction.is_none(), "verify contradicts: {contradiction:?}");
}

fn explains(finding: &Finding, torn: &[Torn]) -> bool {
    // An open rewrites the store's header, so an outage may leave anything of it.
    let rewritten = finding.file == dalsegno_extent::format::STORE_FILE;
    let start = dalsegno_core::sector_down(finding.offset);
    let near = start..start + LONGEST_SLICE_BYTES;
    rewritten || torn.iter().any(|torn| torn.file == finding.file && near.contains(&torn.offset))
}

/// Checks that a store is within its bounds on disk, now and at every moment since the device was started. Returns how
/// many bounds were compared.
///
/// # Panics
///
/// If it is not.
pub(crate) fn check_bounds(store: &Store, device: &SimDevice) -> usize {
    let limits = store.limits();
    let (most, peak) = (limits.capacity_bytes, device.peak_bytes());
    assert!(peak <= most, "files took {peak} bytes, more than the capacity of {most}");
    // An outage may have come just before the store was open.
    let Ok(files) = device.list() else { return 0 };
    let segments = files.iter().filter(|file| segment_number(&file.name).is_some()).count();
    let most = limits.segment_count as usize;
    assert!(segments <= most, "{segments} segments, more than {most}");
    let index = files.iter().filter(|file| file.name.starts_with("index-"));
    let (bytes, most) = (index.map(|file| file.bytes).sum::<u64>(), limits.index_bytes);
    assert!(bytes <= most, "the index takes {bytes} bytes, more than {most}");
    3
}

/// Withdraws the promises of blocks that the store no longer lists, because it dropped them for space.
pub(crate) fn forget_dropped(store: &Store, setup: &Setup, oracle: &mut Oracle) {
    for (namespace, id) in setup.ids() {
        let kept = oracle.kept(namespace);
        let listed = store.peek(id, &kept).expect("the store is open");
        for (hash, listed) in kept.iter().zip(listed) {
            if !listed {
                oracle.dropped(namespace, *hash);
            }
        }
    }
}

/// Before an outage: promises every block that the store lists.
pub(crate) fn promise_listed(store: &Store, setup: &Setup, oracle: &mut Oracle) {
    for (namespace, id) in setup.ids() {
        let all = oracle.hashes(namespace);
        let listed = store.peek(id, &all).expect("the store is open");
        for (hash, _) in all.iter().zip(listed).filter(|(_, listed)| *listed) {
            oracle.listed(namespace, *hash);
        }
    }
}
