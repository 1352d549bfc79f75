//! Finding out from which tiers the blocks of a chain would be read.
//!
//! 1. A call reads memory only: it waits for no disk and no far location. Blocks whose index entries are not in memory
//!    end the answer.
//! 2. It is no use of the blocks.

use dalsegno_core::{ChainHash, Deadline, NamespaceId, Result};
use dalsegno_index::Scope;
use serde::Serialize;

use crate::engine::Engine;
use crate::read::lookup::are_found;
use crate::read::whereabouts::Whereabouts;
use crate::state::speeds::BlockTier;

/// Consecutive blocks that one tier would serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Located {
    /// The tier.
    pub tier: BlockTier,
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The median time in which recent calls had their blocks of this tier, in nanoseconds; `None` before the first
    /// one.
    pub latency_p50_ns: Option<u64>,
    /// The bytes per second of recent calls from this tier; `None` before the first one.
    pub bytes_per_s: Option<u64>,
}

/// See [`Store::locate`](crate::Store::locate).
pub(crate) fn locate(
    engine: &Engine,
    namespace: NamespaceId,
    chain: &[ChainHash],
) -> Result<Vec<Located>> {
    let block_bytes = engine.namespaces.get(namespace)?.layout().block_bytes();
    let now = Deadline::At(engine.clock.now());
    let found = Whereabouts::find(engine, namespace, chain, Scope::Prefix, now);
    let far = engine.far.as_ref().filter(|far| !far.is_suspended());
    let is_suspended = engine.device.is_suspended();
    let is_near = are_found(chain.len(), &found.near);
    let mut located: Vec<Located> = Vec::new();
    for (hash, is_near) in chain[..found.count()].iter().zip(is_near) {
        let tier = if engine.front.dram.holds(&(namespace, *hash)) {
            BlockTier::Dram
        } else if is_near && !is_suspended {
            BlockTier::Log
        } else if !is_near || far.is_some_and(|far| far.find(namespace, hash).is_some()) {
            BlockTier::Far
        } else {
            break;
        };
        if located.last().is_none_or(|last| last.tier != tier) {
            let speed = engine.front.speeds.view(tier);
            located.push(Located {
                tier,
                blocks: 0,
                bytes: 0,
                latency_p50_ns: speed.map(|(latency_ns, _)| latency_ns),
                bytes_per_s: speed.map(|(_, bytes_per_s)| bytes_per_s),
            });
        }
        let last = located.last_mut().expect("pushed above");
        last.blocks += 1;
        last.bytes += block_bytes;
    }
    Ok(located)
}
