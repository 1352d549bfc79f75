//! Signs of life of writers: docs/formats/pack.md, Collection.
//!
//! 1. Ages are those of the location's clock. No host's clock is compared with another one.

use std::time::Duration;

use dalsegno_io::IoError;

use crate::names::Object;
use crate::tier::Listed;

/// A writer without a sign of life for so long is dead, unless its store gave one through another open.
pub const DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How long a writer whose sign of life is old is watched for a newer one.
pub const WATCHED: Duration = Duration::from_secs(300);
/// A writer publishes a sign of life each minute. After ten missing ones it is silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(10 * 60);

/// Descriptions whose age counts if there is no beat.
const DESCRIPTIONS: usize = 16;

/// The newest objects of a writer. A writer that runs has newer ones after a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    pub(crate) beat: Option<u64>,
    pub(crate) pack: Option<u64>,
    pub(crate) catalog: Option<u64>,
}

impl Signs {
    /// Of a sorted listing.
    pub(crate) fn of(listed: &[Listed]) -> Self {
        let mut signs = Self::default();
        for one in listed {
            match one.object {
                Object::Pack(number) => signs.pack = Some(number),
                Object::Catalog(number) => signs.catalog = Some(number),
                Object::Beat(number) => signs.beat = Some(number),
                Object::Namespace(_) | Object::Removals(_) => {}
            }
        }
        signs
    }

    /// Whether something appeared since. What went was removed by another collector.
    pub(crate) fn are_newer_than(self, earlier: Self) -> bool {
        self.beat > earlier.beat || self.pack > earlier.pack || self.catalog > earlier.catalog
    }

    /// The objects of this listing whose ages count: all of them are old if the writer's sign of life is.
    pub(crate) fn objects(self, listed: &[Listed]) -> Vec<Object> {
        if let Some(beat) = self.beat {
            return vec![Object::Beat(beat)];
        }
        let is_description = |object: &Object| matches!(object, Object::Namespace(_));
        let others = [self.pack.map(Object::Pack), self.catalog.map(Object::Catalog)];
        let descriptions = listed.iter().map(|one| one.object).filter(is_description);
        others.into_iter().flatten().chain(descriptions.take(DESCRIPTIONS)).collect()
    }
}

/// Whether an object is gone, by what fetching none of its bytes returned.
pub(crate) fn is_gone(fetched: Result<Vec<u8>, IoError>) -> Result<bool, IoError> {
    match fetched {
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) if !error.is_too_large() => Err(error),
        _ => Ok(false),
    }
}
