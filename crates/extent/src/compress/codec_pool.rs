//! Idle codecs, which keep their working memory between extents.

use std::fmt;

use parking_lot::Mutex;

use super::unit_codec::UnitCodec;

/// Idle codecs that the pool keeps.
const IDLE_CODECS: usize = 8;

/// Lends codecs.
#[derive(Default)]
pub struct CodecPool(Mutex<Vec<UnitCodec>>);

impl fmt::Debug for CodecPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodecPool({} idle)", self.0.lock().len())
    }
}

impl CodecPool {
    /// Lends a codec to `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut UnitCodec) -> R) -> R {
        let idle = self.0.lock().pop();
        let mut codec = idle.unwrap_or_default();
        let result = work(&mut codec);
        let mut idle = self.0.lock();
        if idle.len() < IDLE_CODECS {
            idle.push(codec);
        }
        result
    }
}
