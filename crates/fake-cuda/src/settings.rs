//! The properties of the driver and device that tests can change, and the random numbers.

use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUresult};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// `CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED`
pub(crate) const HOST_REGISTER_SUPPORTED: i32 = 99;
/// `CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`
pub(crate) const READ_ONLY_HOST_REGISTER_SUPPORTED: i32 = 113;

/// Attributes of an H100. All others are 0.
const DEFAULT_ATTRIBUTES: [(i32, i32); 7] = [
    (16, 132),
    (40, 3),
    (41, 1),
    (75, 9),
    (76, 0),
    (HOST_REGISTER_SUPPORTED, 1),
    (READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
];

/// The changeable properties.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The version that `cuDriverGetVersion` reports.
    pub(crate) driver_version: i32,
    /// The newest PTX version that the driver accepts.
    pub(crate) ptx: (u32, u32),
    /// The most bytes of host memory that may be pinned, in whole pages.
    pub(crate) memlock: usize,
    /// The start of all random sequences.
    pub(crate) seed: u64,
    /// The longest random delay before an operation, in microseconds.
    pub(crate) max_delay_us: u32,
    /// Changed device attributes.
    pub(crate) attributes: BTreeMap<i32, i32>,
}

impl Settings {
    const fn new() -> Self {
        Self {
            driver_version: 12_080,
            ptx: (8, 2),
            memlock: usize::MAX,
            seed: 1,
            max_delay_us: 100,
            attributes: BTreeMap::new(),
        }
    }
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings::new());

/// Returns the settings of this moment.
pub(crate) fn current() -> Settings {
    SETTINGS.lock().clone()
}

/// Changes the settings.
pub(crate) fn change(change: impl FnOnce(&mut Settings)) {
    change(&mut SETTINGS.lock());
}

/// Returns to the defaults, with this seed and delay.
pub(crate) fn reset(seed: u64, max_delay_us: u32) {
    *SETTINGS.lock() = Settings { seed, max_delay_us, ..Settings::new() };
}

/// Returns a device attribute.
pub(crate) fn attribute(number: i32) -> Result<i32, CUresult> {
    if number <= 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let changed = SETTINGS.lock().attributes.get(&number).copied();
    let default = DEFAULT_ATTRIBUTES.iter().find(|(one, _)| *one == number);
    Ok(changed.or(default.map(|(_, value)| *value)).unwrap_or(0))
}

/// A sequence of random numbers (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    /// Starts the sequence of an operation of a stream.
    pub(crate) fn new(seed: u64, stream: u64, operation: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next() ^ stream;
        random.0 = random.next() ^ operation;
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `bound` - 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Brings items into random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        let mut left = items.len();
        for bound in (2..=items.len() as u64).rev() {
            left -= 1;
            let other = usize::try_from(self.below(bound)).expect("less than the length");
            items.swap(left, other);
        }
    }
}
