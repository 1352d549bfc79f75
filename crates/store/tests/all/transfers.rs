//! The end of a transfer: every function given to `Transfer::on_end` is called once, whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::ThreadId;
use std::time::Duration;

use crate::support::hanging::{Hanging, Hung, hanging};
use crate::support::{block, chain, config, namespace, open};
use dalsegno_store::{
    ChainHash, Config, ErrorKind, Keep, MAX_CALLBACKS, Memory, NamespaceId, PutReport, Store,
    Terms, Transfer, TransferState,
};

const BYTES: usize = 60 << 10;
/// Longer than any machine is slow.
const TIMEOUT: Duration = Duration::from_secs(40);

fn opened(dir: &std::path::Path, config: &Config) -> (Arc<Hanging>, Store, NamespaceId) {
    let (device, store) = hanging(dir, config);
    let blocks = namespace(&store, 2, 30 << 10, "transfers");
    (device, store, blocks)
}

fn submit(store: &Store, blocks: NamespaceId, name: u64) -> Transfer<PutReport> {
    let chain = chain(name, 2);
    let memory = |hash: &ChainHash| vec![Memory::owned(block(*hash, BYTES), ())];
    let memory = chain.iter().map(memory).collect();
    store.submit_put(blocks, chain, 0, memory, Keep::Stored, Some(TIMEOUT))
}

/// Reports the thread of each call.
fn report_end(transfer: &Transfer<PutReport>) -> Receiver<ThreadId> {
    let (called, calls) = channel();
    transfer.on_end(move || called.send(std::thread::current().id()).unwrap()).unwrap();
    calls
}

fn wait_until_device_holds(device: &Hanging, requests: usize) {
    while device.kept() < requests {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_end_of_a_transfer_is_reported_once_by_a_thread_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, blocks) = opened(dir.path(), &config(64 << 20));
    device.hang(Hung::Writes);
    let transfer = submit(&store, blocks, 1);
    let calls = [report_end(&transfer), report_end(&transfer)];
    wait_until_device_holds(&device, 1);
    assert!(calls.iter().all(|calls| calls.try_recv().is_err()), "it has not ended");
    device.go_on();
    for calls in calls {
        assert_ne!(calls.recv_timeout(TIMEOUT).unwrap(), std::thread::current().id());
        assert_eq!(transfer.state(), TransferState::Done);
        assert!(calls.recv().is_err(), "a second call");
    }
    assert!(transfer.take().unwrap().is_ok());
}

#[test]
fn a_transfer_that_has_ended_calls_immediately() {
    let dir = tempfile::tempdir().unwrap();
    let (_, store, blocks) = opened(dir.path(), &config(64 << 20));
    let transfer = submit(&store, blocks, 1);
    assert!(transfer.wait(None));
    assert_eq!(report_end(&transfer).try_recv().unwrap(), std::thread::current().id());
    store.close();
    let refused = submit(&store, blocks, 2);
    assert_eq!(report_end(&refused).try_recv().unwrap(), std::thread::current().id());
    assert_eq!(refused.take().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn cancelled_throttled_and_queued_transfers_report_their_end_when_the_store_closes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { transfer_queue: Some(1), transfer_threads: Some(1), ..config(64 << 20) };
    let (device, store, blocks) = opened(dir.path(), &config);
    device.hang(Hung::Writes);
    let under_way = submit(&store, blocks, 1);
    wait_until_device_holds(&device, 1);
    let queued = submit(&store, blocks, 2);
    let throttled = submit(&store, blocks, 3);
    assert!(throttled.is_throttled());
    assert!(report_end(&throttled).try_recv().is_ok());
    let calls = [report_end(&under_way), report_end(&queued)];
    queued.cancel();
    std::thread::scope(|scope| {
        scope.spawn(|| store.close());
        std::thread::sleep(Duration::from_millis(50));
        device.go_on();
    });
    for calls in calls {
        assert!(calls.recv_timeout(TIMEOUT).is_ok());
        assert!(calls.recv().is_err(), "a second call");
    }
}

#[test]
fn a_transfer_that_is_withdrawn_in_the_queue_never_begins() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { transfer_threads: Some(1), ..config(64 << 20) };
    let (device, store, blocks) = opened(dir.path(), &config);
    device.hang(Hung::Writes);
    let under_way = submit(&store, blocks, 1);
    wait_until_device_holds(&device, 1);
    let queued = submit(&store, blocks, 2);
    assert!(queued.withdraw(), "it waits behind the other one");
    assert!(queued.withdraw(), "it is withdrawn");
    assert_eq!(queued.state(), TransferState::Running);
    assert!(!under_way.withdraw(), "its memory is in use");
    device.go_on();
    assert!(under_way.wait(Some(TIMEOUT)) && queued.wait(Some(TIMEOUT)));
    assert!(under_way.withdraw(), "it has ended");
    assert_eq!(queued.take().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    store.close();
}

#[test]
fn a_transfer_accepts_a_bounded_number_of_functions() {
    let dir = tempfile::tempdir().unwrap();
    let (device, store, blocks) = opened(dir.path(), &config(64 << 20));
    device.hang(Hung::Writes);
    let transfer = submit(&store, blocks, 1);
    let count = Arc::new(AtomicUsize::new(0));
    let on_end = || {
        let count = Arc::clone(&count);
        transfer.on_end(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
    };
    for _ in 0..MAX_CALLBACKS {
        on_end().unwrap();
    }
    assert_eq!(on_end().unwrap_err().kind(), ErrorKind::Invalid);
    device.go_on();
    assert!(transfer.wait(Some(TIMEOUT)));
    store.close();
    assert_eq!(count.load(Ordering::Relaxed), MAX_CALLBACKS);
}

#[test]
fn a_function_that_panics_stops_neither_the_others_nor_later_transfers() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { transfer_threads: Some(1), ..config(64 << 20) };
    let (device, store, blocks) = opened(dir.path(), &config);
    device.hang(Hung::Writes);
    let transfer = submit(&store, blocks, 1);
    transfer.on_end(|| panic!("meant to be")).unwrap();
    let calls = report_end(&transfer);
    wait_until_device_holds(&device, 1);
    device.go_on();
    assert!(calls.recv_timeout(TIMEOUT).is_ok());
    assert!(submit(&store, blocks, 2).wait(Some(TIMEOUT)));
}

#[test]
fn puts_that_were_submitted_before_a_removal_are_removed_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(64 << 20);
    let (device, store, blocks) = opened(dir.path(), &config);
    device.hang(Hung::Writes);
    let threads = u64::from(store.limits().transfer_threads);
    let submitted: Vec<_> = (0..threads + 4).map(|name| submit(&store, blocks, name)).collect();
    wait_until_device_holds(&device, 1);
    let terms = Terms::within(Duration::from_millis(200));
    let error = store.remove(blocks, None, &terms).unwrap_err();
    assert!(error.to_string().starts_with("the removal continues"), "{error}");
    let later = submit(&store, blocks, 100);
    device.go_on();
    for transfer in submitted.iter().chain([&later]) {
        assert!(transfer.wait(Some(TIMEOUT)));
    }
    let check = |store: &Store| {
        for name in 0..threads + 4 {
            assert_eq!(store.probe(blocks, &chain(name, 2)).unwrap(), 0, "chain {name}");
        }
        assert_eq!(store.probe(blocks, &chain(100, 2)).unwrap(), 2);
    };
    check(&store);
    store.close();
    check(&open(dir.path(), &config));
}
