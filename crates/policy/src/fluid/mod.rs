//! The planner of a fluid LSM tree: the steps that keep its shape, and how filters share their memory.
//!
//! It is pure: sizes in, decisions out. The index, the controller's model and simulations all use it, so the model
//! describes what the index does.

mod filling;
mod filters;
mod plan;

pub use filling::{Filling, filter_bits, mean_levels};
pub use filters::{Level, divide_filter_bits, false_positive_rates};
pub use plan::{Step, carry_out, next_step};
