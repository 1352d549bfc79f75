//! A change of shape.

use dalsegno_core::Shape;

use super::facts::Unit;
use super::window::Shares;

/// A change of shape, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The shape before.
    pub from: Shape,
    /// The new shape. The tree adopts it with its next flushes and compactions.
    pub to: Shape,
    /// Operations observed so far.
    pub operations: u64,
    /// The shares in the window that the decision is based on.
    pub shares: Shares,
    /// The modelled cost of one of its operations if the shape stays.
    pub cost_before: f64,
    /// The modelled cost with the new shape.
    pub cost_after: f64,
    /// The unit of the costs.
    pub unit: Unit,
    /// One sentence for people.
    pub reason: String,
}
