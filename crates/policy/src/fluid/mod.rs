//! What a fluid LSM tree is: its shape, the steps that keep it, how its filters share their memory.
//!
//! Pure: sizes in, decisions out. The index obeys it, the controller reckons with it, simulations replay it; so what is
//! reckoned is what is done.

mod filling;
mod filters;
mod plan;

pub use filling::{Filling, filter_bits, mean_levels};
pub use filters::{Level, divide_filter_bits, false_positive_rates};
pub use plan::{Step, carry_out, next_step};
