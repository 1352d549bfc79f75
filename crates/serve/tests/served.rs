//! A server and its clients, over a real socket.

#[path = "served/loads.rs"]
mod loads;
mod support;

use std::time::Duration;

use dalsegno_core::{Clock, Error, KvLayout, Namespace};
use dalsegno_io::SystemClock;
use dalsegno_serve::{Client, Server};
use dalsegno_store::{
    Cancel, Cause, ErrorKind, Keep, LayerSpan, Memory, Outcome, PoolPut, Put, PutOutcome,
    RegisterOptions, Scope, Terms, lend,
};

use support::{BLOCK, Place, chain, content, get, lease_bytes, namespace, put, wait_for};

#[test]
fn what_one_client_puts_another_gets() {
    let place = Place::new();
    let server = place.serve();
    let (a, b) = (place.client(), place.client());
    let chain = chain("a", 100);
    assert_eq!(a.probe(namespace().id(), &chain).unwrap(), 0);
    assert_eq!(put(&a, &chain, 0).count(PutOutcome::Stored), 100);
    assert_eq!(b.probe(namespace().id(), &chain).unwrap(), 100);
    assert_eq!(b.touch(namespace().id(), &chain).unwrap(), 100);
    assert_eq!(b.contains(namespace().id(), &chain[98..]).unwrap(), [true, true]);
    let got = get(&b, &chain, Scope::Prefix);
    assert_eq!(got.iter().flatten().count(), 100);
    for (hash, bytes) in chain.iter().zip(got) {
        assert_eq!(bytes.unwrap(), content(hash, BLOCK));
    }
    assert_eq!(b.remove(namespace().id(), Some(&chain[50..]), &Terms::default()).unwrap(), 50);
    assert_eq!(a.probe(namespace().id(), &chain).unwrap(), 50);
    assert_eq!(put(&a, &chain, 10).count(PutOutcome::Present), 40);
    let stats = a.stats();
    assert_eq!(stats["blocks"], 100);
    assert_eq!(a.limits()["dram_bytes"], stats_bytes(&server));
}

fn stats_bytes(server: &Server) -> u64 {
    server.stats().tenants[0].pool_bytes
}

#[test]
fn blocks_at_any_position() {
    let place = Place::new();
    let _server = place.serve();
    let client = place.client();
    let chain = chain("a", 9);
    put(&client, &chain[..3], 0);
    put(&client, &chain[..6], 5);
    let got = get(&client, &chain, Scope::Each);
    let there: Vec<bool> = got.iter().map(Option::is_some).collect();
    assert_eq!(there, [true, true, true, false, false, true, false, false, false]);
}

#[test]
fn a_long_chain_is_located_up_to_its_first_hole() {
    let place = Place::new();
    let _server = place.serve();
    let client = place.client();
    let small = Namespace::builder(KvLayout::new(1, 64).unwrap()).field("model", "s").build();
    let (small, chain) = (small.unwrap(), chain("long", 4_500));
    let id = small.id();
    client.register(&small, RegisterOptions::default()).unwrap();
    let located = |count: usize| {
        let runs = client.locate(id, &chain[..count]).unwrap();
        assert!(runs.is_sorted_by(|one, next| one.tier != next.tier), "runs of one tier are one");
        runs.iter().map(|run| run.blocks).sum::<u64>()
    };
    assert_eq!(located(3_000), 0);
    let blocks = (0..4_400).map(|_| vec![Memory::zeroed(64)]).collect();
    let put = Put { chain: &chain[..4_400], first: 0, blocks, keep: Keep::Stored };
    let report = client.put_batch(id, put, &Terms::default()).unwrap();
    assert_eq!(report.count(PutOutcome::Stored), 4_400);
    assert_eq!([1, 1_024, 1_025, 4_096, 4_097].map(located), [1, 1_024, 1_025, 4_096, 4_097]);
    assert_eq!(located(4_500), 4_400);
    for hole in [4_097, 2_048, 1_500, 1_023] {
        client.remove(id, Some(&chain[hole..=hole]), &Terms::default()).unwrap();
        assert_eq!(located(4_500), hole as u64);
    }
    // The connection is in step again.
    assert_eq!(client.probe(id, &chain).unwrap(), 1_023);
}

#[test]
fn a_removal_also_removes_what_its_client_submitted_before_it() {
    let place = Place::new();
    let _server = place.serve();
    let client = place.client();
    let chains: Vec<_> = (0..40).map(|number| chain(&format!("submitted {number}"), 4)).collect();
    let submit = |chain: &Vec<_>| {
        let block = |hash| vec![Memory::owned(content(hash, BLOCK), ())];
        let blocks = chain.iter().map(block).collect();
        client.submit_put(namespace().id(), chain.clone(), 0, blocks, Keep::Stored, None)
    };
    let submitted: Vec<_> = chains.iter().map(submit).collect();
    client.remove(namespace().id(), None, &Terms::default()).unwrap();
    for (transfer, chain) in submitted.iter().zip(&chains) {
        assert!(transfer.wait(None) && !transfer.is_throttled());
        assert_eq!(client.probe(namespace().id(), chain).unwrap(), 0);
    }
    let late = submit(&chains[0]);
    assert!(late.wait(None));
    assert_eq!(client.probe(namespace().id(), &chains[0]).unwrap(), 4);
}

#[test]
fn a_removal_also_removes_a_put_that_arrived_before_it_and_is_still_copied() {
    let place = Place::new();
    let (pool, chain, terms) = (place.pool(), chain("arrived", 3), Terms::default());
    let id = namespace().id();
    pool.store().register(&namespace(), RegisterOptions::default()).unwrap();
    for (removes, keep) in [
        (true, Keep::PoolOnly),
        (false, Keep::PoolOnly),
        (true, Keep::Stored),
        (false, Keep::Stored),
    ] {
        let arrival = pool.arrival().unwrap();
        let receive = |hash| {
            pool.receive::<Error>(BLOCK, |memory| {
                memory.as_mut_slice().copy_from_slice(&content(hash, BLOCK));
                Ok(())
            })
        };
        let blocks = chain.iter().map(|hash| receive(hash).unwrap()).collect();
        if removes {
            pool.store().remove(id, None, &terms).unwrap();
        }
        let put = PoolPut { chain: &chain, first: 0, blocks, keep };
        let report = pool.put(arrival, id, put, &terms).unwrap();
        let kept = report.kept().into_iter().filter(|kept| *kept).count();
        assert_eq!(kept, if removes { 0 } else { 3 });
        assert_eq!(pool.store().contains(id, &chain).unwrap(), [!removes; 3]);
    }
}

/// More blocks than a message names, and more bytes than the server keeps for one client at a time.
#[test]
fn a_get_may_be_larger_than_the_pool() {
    let place = Place::new();
    let server = place.serve();
    let client = place.client();
    let chain = chain("a", 600);
    assert_eq!(put(&client, &chain, 0).count(PutOutcome::Stored), 600);
    assert!(600 * BLOCK as u64 > 2 * stats_bytes(&server), "{}", stats_bytes(&server));
    let got = get(&client, &chain, Scope::Prefix);
    assert_eq!(got.iter().flatten().count(), 600);
    for (hash, bytes) in chain.iter().zip(got) {
        assert_eq!(bytes.unwrap(), content(hash, BLOCK));
    }
    drop(client);
    support::wait_for("the leases to end", || server.stats().tenants[0].accounts.leases == 0);
}

#[test]
fn a_get_that_was_cancelled_or_late_keeps_what_it_copied_and_frees_the_rest() {
    let place = Place::new();
    let server = place.serve();
    let client = place.client();
    let chain = chain("a", 600);
    put(&client, &chain, 0);
    let cancel = Cancel::default();
    cancel.cancel();
    let cancelled = Terms { timeout: None, cancel: Some(cancel) };
    let within = |micros| Terms::within(Duration::from_micros(micros));
    let late = (1..40).map(|number| within(number * 500));
    for terms in std::iter::once(cancelled).chain(late) {
        let mut blocks = vec![vec![0; BLOCK]; chain.len()];
        let report = lend(|lender| {
            let out = blocks.iter_mut().map(|block| vec![lender.exclusive(block)]).collect();
            client.get_batch(namespace().id(), &chain, out, Scope::Prefix, &terms).unwrap()
        });
        let hits = report.leading_blocks();
        assert!(hits == 0 || terms.cancel.is_none());
        for (hash, block) in chain.iter().zip(&blocks[..hits]) {
            assert_eq!(*block, content(hash, BLOCK));
        }
        // A server that had no time to look a block up says why that one is lost.
        let lost =
            |outcome: &Outcome| outcome.is_lost() && *outcome != Outcome::Lost(Cause::Recycled);
        assert!(report.outcomes[hits..].iter().all(|one| lost(one) || *one == Outcome::Absent));
    }
    put(&client, &chain, 0);
    assert_eq!(get(&client, &chain, Scope::Prefix).iter().flatten().count(), 600);
    support::wait_for("the leases to end", || server.stats().tenants[0].accounts.leases == 0);
}

#[test]
fn a_lease_is_read_in_place_and_its_blocks_stay() {
    let place = Place::new();
    let server = place.serve();
    let client = place.client();
    let chain = chain("a", 4);
    put(&client, &chain, 0);
    let lease = client.lease(namespace().id(), &chain, &Terms::default()).unwrap();
    assert_eq!((lease.len(), lease.is_truncated(), lease.valid_blocks()), (4, false, 4));
    // The whole pool is replaced, but for what is leased.
    let others = support::chain("b", 300);
    put(&client, &others, 0);
    get(&client, &others, Scope::Prefix);
    for (at, hash) in chain.iter().enumerate() {
        assert_eq!(lease_bytes(&lease, at), content(hash, BLOCK));
    }
    assert_eq!(lease.valid_blocks(), 4);
    let leases = || server.stats().tenants[0].accounts.leases;
    support::wait_for("the copies to end", || leases() == 1);
    drop(lease);
    support::wait_for("the lease to end", || leases() == 0);
}

#[test]
fn a_lease_over_the_quota_is_truncated() {
    let place = Place::new();
    let server = place.serve();
    let client = place.client();
    let chain = chain("a", 100);
    put(&client, &chain, 0);
    let most = stats_bytes(&server) / 8 / (2 * 65536);
    let lease = client.lease(namespace().id(), &chain, &Terms::default()).unwrap();
    assert_eq!((lease.len() as u64, lease.is_truncated()), (most, true));
    let more = client.lease(namespace().id(), &chain, &Terms::default()).unwrap();
    assert_eq!((more.len(), more.is_truncated()), (0, true));
    drop(lease);
    support::wait_for("the lease to end", || {
        client.lease(namespace().id(), &chain[..1], &Terms::default()).unwrap().len() == 1
    });
}

#[test]
fn layers_are_put_together_by_the_commit() {
    let place = Place::new();
    let _server = place.serve();
    let client = place.client();
    let chain = chain("a", 5);
    put(&client, &chain[..2], 0);
    let writer = client
        .layer_writer(
            namespace().id(),
            LayerSpan { chain: &chain, first: 0, count: 5 },
            &Terms::default(),
        )
        .unwrap();
    assert_eq!((writer.first(), writer.count()), (2, 3));
    let terms = Terms::default();
    for layer in [1, 0] {
        let half = |hash| content(hash, BLOCK)[layer as usize * BLOCK / 2..][..BLOCK / 2].to_vec();
        let slices = chain[2..].iter().map(|hash| vec![Memory::owned(half(hash), ())]);
        assert_eq!(client.probe(namespace().id(), &chain).unwrap(), 2);
        assert_eq!(writer.commit(Keep::Stored, &terms).unwrap_err().kind(), ErrorKind::Invalid);
        writer.store_layer(layer, slices.collect(), &terms).unwrap();
    }
    assert_eq!(writer.commit(Keep::Stored, &terms).unwrap(), 3);
    let got = get(&client, &chain, Scope::Prefix);
    for (hash, bytes) in chain.iter().zip(got) {
        assert_eq!(bytes.unwrap(), content(hash, BLOCK));
    }
}

#[test]
fn pool_only_blocks_of_a_client_are_served_until_they_are_removed_or_the_server_ends() {
    let place = Place::new();
    let server = place.serve();
    let (a, b) = (place.client(), place.client());
    let (chain, id, terms) = (chain("pool", 6), namespace().id(), Terms::default());
    let writer = |first: usize, count: usize, keep| {
        let span = LayerSpan { chain: &chain, first, count };
        let writer = a.layer_writer(id, span, &terms).unwrap();
        let whole = |hash| vec![Memory::owned(content(hash, BLOCK), ())];
        let blocks = chain[writer.first()..][..writer.count()].iter();
        writer.store_blocks(blocks.map(whole).collect(), &terms).unwrap();
        (writer.first(), writer.commit(keep, &terms).unwrap())
    };
    assert_eq!(writer(0, 4, Keep::PoolOnly), (0, 4));
    let blocks = chain[4..].iter().map(|hash| vec![Memory::owned(content(hash, BLOCK), ())]);
    let put = Put { chain: &chain, first: 4, blocks: blocks.collect(), keep: Keep::PoolOnly };
    let report = a.put_batch(id, put, &terms).unwrap();
    assert_eq!(report.outcomes, [PutOutcome::PoolOnly; 2]);
    assert_eq!(b.probe(id, &chain).unwrap(), 6);
    assert_eq!(b.contains(id, &chain).unwrap(), [true; 6]);
    assert_eq!(b.locate(id, &chain).unwrap()[0].blocks, 6);
    assert_eq!(b.lease(id, &chain, &terms).unwrap().len(), 6);
    let got = get(&b, &chain, Scope::Prefix);
    for (hash, bytes) in chain.iter().zip(got) {
        assert_eq!(bytes.unwrap(), content(hash, BLOCK));
    }
    let stats = a.stats();
    assert_eq!((stats["blocks"].as_u64(), stats["pool_only_blocks"].as_u64()), (Some(0), Some(6)));
    let watch = b.watch_removals(100).unwrap();
    assert_eq!(b.remove(id, Some(&chain[5..]), &terms).unwrap(), 1);
    wait_for("removal", || watch.take(10).blocks == [(id, chain[5])]);
    assert_eq!(writer(0, 2, Keep::Stored), (0, 2), "a writer does not skip pool-only blocks");
    assert_eq!(a.stats()["blocks"], 2);
    assert_eq!(a.probe(id, &chain).unwrap(), 5);
    drop(server);
    let _server = place.serve();
    wait_for("client", || a.probe(id, &chain).unwrap() == 2);
    assert_eq!(get(&a, &chain, Scope::Each).iter().flatten().count(), 2);
}

#[test]
fn without_a_server_everything_is_a_miss_until_it_is_there() {
    let place = Place::new();
    let client = place.client();
    let chain = chain("a", 3);
    assert_eq!(client.probe(namespace().id(), &chain).unwrap(), 0);
    assert_eq!(put(&client, &chain, 0).count(PutOutcome::Failed), 3);
    assert_eq!(get(&client, &chain, Scope::Each).iter().flatten().count(), 0);
    assert!(client.lease(namespace().id(), &chain, &Terms::default()).unwrap().is_empty());
    assert!(client.remove(namespace().id(), None, &Terms::default()).is_err());
    let server = place.serve();
    support::wait_for("the client to connect", || {
        put(&client, &chain, 0).count(PutOutcome::Failed) == 0
    });
    server.close();
    let clock = SystemClock::new();
    let began = clock.now();
    assert_eq!(client.probe(namespace().id(), &chain).unwrap(), 0);
    let waited = clock.now().since(began);
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    drop(server);
    let _server = place.serve();
    support::wait_for("the client to connect again", || {
        client.probe(namespace().id(), &chain).unwrap() == 3
    });
    let got = get(&client, &chain, Scope::Prefix);
    assert_eq!(got[2].as_ref().unwrap(), &content(&chain[2], BLOCK));
}

#[test]
fn removals_are_reported_and_a_new_server_is_a_gap() {
    let place = Place::new();
    let server = place.serve();
    let client = place.client();
    let chain = chain("a", 3);
    put(&client, &chain, 0);
    let watch = client.watch_removals(100).unwrap();
    assert!(watch.take(10).is_complete);
    client.remove(namespace().id(), Some(&chain[1..2]), &Terms::default()).unwrap();
    assert_eq!(watch.waiting(), 1);
    let removals = watch.take(10);
    assert_eq!((removals.blocks, removals.is_complete), (vec![(namespace().id(), chain[1])], true));
    server.close();
    drop(server);
    assert!(!watch.take(10).is_complete);
    let _server = place.serve();
    support::wait_for("the watch to go on", || watch.take(10).is_complete);
}

#[test]
fn a_closed_client_refuses_calls() {
    let place = Place::new();
    let _server = place.serve();
    let client: Client = place.client();
    client.close();
    client.close();
    assert!(client.is_closed());
    let refused = client.probe(namespace().id(), &chain("a", 1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
}
