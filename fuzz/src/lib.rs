//! Fuzz targets for every decoder of bytes from disk or from a socket, and for a whole store: `make fuzz`.
//!
//! Each target turns any bytes into the input of a decoder, and panics if the decoder breaks a promise:
//!
//! 1. No bytes make a decoder panic, hang, or allocate more than a bound that grows with its input.
//! 2. Bytes that decode encode to the same bytes again.
//! 3. Checksums guard nothing here: they are made valid after each change, because random bytes would never pass them.

mod device;
mod far;
mod headers;
mod index;
mod memory;
mod mutate;
mod seal;
mod session;
mod settings;
mod store;

pub use far::{applied_seed, catalog_seeds, removal_seeds};
pub use memory::Meter;
pub use mutate::{Random, mutate};
pub use session::session_seeds;
pub use store::seed_files;

/// A target: its name, its function, and the most bytes that one input may allocate.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The folder of its corpus.
    pub name: &'static str,
    /// Panics if the input shows a bug.
    pub run: fn(&[u8]),
    /// The most bytes of memory for each byte of the input.
    pub bytes_per_byte: usize,
    /// The most bytes of memory in addition to that.
    pub bytes_besides: usize,
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run, bytes_per_byte: 64, bytes_besides: 1 << 20 }
    }

    /// Whole stores have segments of 1 MiB, buffers and threads.
    const fn large(name: &'static str, run: fn(&[u8])) -> Self {
        Self { bytes_besides: 256 << 20, ..Self::new(name, run) }
    }

    /// Runs one input.
    ///
    /// # Panics
    ///
    /// If the input shows a bug, or takes more memory than allowed.
    pub fn check(&self, input: &[u8]) {
        let meter = Meter::start();
        (self.run)(input);
        let (peak, most) = (meter.peak(), self.bytes_per_byte * input.len() + self.bytes_besides);
        assert!(peak <= most, "{} took {peak} bytes of memory for {}", self.name, input.len());
    }
}

/// All targets.
pub const TARGETS: [Target; 18] = [
    Target::new("record", headers::record),
    Target::new("sector", headers::sector),
    Target::new("namespace", headers::namespace),
    Target::new("list", headers::list),
    Target::new("unit", headers::unit),
    Target::new("catalog", far::catalog),
    Target::new("removals", far::removals),
    Target::new("applied", far::applied),
    Target::new("checkpoint", headers::checkpoint),
    Target::new("key", index::key),
    Target::new("block", index::block),
    Target::new("filter", index::filter),
    Target::new("manifest", index::manifest),
    Target::new("table", index::table),
    Target::new("settings", settings::settings),
    Target::new("reply", session::reply),
    Target::large("session", session::session),
    Target::large("store", store::store),
];
