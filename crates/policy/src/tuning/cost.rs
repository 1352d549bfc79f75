//! The costs of operations.

/// Costs of one operation, in the unit of the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Putting one entry: its part of all compactions until it is in the last level.
    pub write: f64,
    /// Finding one entry.
    pub hit: f64,
    /// Finding that an entry is absent.
    pub miss: f64,
    /// Reading a range of the mean length.
    pub range: f64,
    /// The mean, weighted by the shares.
    pub total: f64,
}
