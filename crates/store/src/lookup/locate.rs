//! From which tiers the blocks of a chain would be read.

use dalsegno_core::BlockTier;
use serde::Serialize;

use crate::state::speeds::TierSpeeds;

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

/// Groups blocks of `block_bytes` by the tiers that would serve them, in their order.
pub(super) fn located(
    tiers: impl Iterator<Item = BlockTier>,
    block_bytes: u64,
    speeds: &TierSpeeds,
) -> Vec<Located> {
    let mut located: Vec<Located> = Vec::new();
    for tier in tiers {
        if located.last().is_none_or(|last| last.tier != tier) {
            let speed = speeds.view(tier);
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
    located
}
