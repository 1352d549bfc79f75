//! One request that reads layers while an engine computes, and saves that are pending: in which order a disk serves them.
//!
//! Reads cells as JSON from standard input, and prints for each cell and order when the first token comes, and how many
//! bytes were saved until then. The order `ours` is the schedule of the product, to which the engine says what its model
//! predicts; `table` and `stale_table` are the same with predictions of a table that was measured before, on this GPU and
//! on a faster one; `silent` is the same without an engine that says what it does. A second mode measures what one request
//! costs the schedule.

mod cost;
mod disk;
mod order;

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::order::Order;

/// A request, what is pending, and the disk; times in seconds, sizes in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Cell {
    /// Layers of the model.
    pub layers: u32,
    /// What a layer of the first step computes for.
    pub layer_s: f64,
    /// What it reads.
    pub layer_bytes: u64,
    /// What the steps behind the first one compute for.
    pub later_s: f64,
    /// What is to be saved when the request comes.
    pub save_bytes: u64,
    /// The rate of reads alone.
    pub read_bytes_per_s: f64,
    /// The rate of writes alone.
    pub write_bytes_per_s: f64,
    /// What reads and writes reach of these beside each other.
    pub beside: f64,
    /// What the model predicts of the times of layers and steps, as a part of what they are.
    pub model: f64,
    /// The same of a table that was measured before, on this GPU.
    pub table: f64,
    /// The same of one that was measured on a faster GPU.
    pub stale_table: f64,
}

/// What became of a cell.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Served {
    /// Until the first token.
    pub first_token_s: f64,
    /// Saved by then.
    pub saved_bytes: u64,
    /// Until all is saved.
    pub all_saved_s: f64,
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("cost") {
        println!("{}", serde_json::to_string(&cost::measure()).expect("plain numbers"));
        return;
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("cells on standard input");
    let cells: Vec<Cell> = serde_json::from_str(&text).expect("a list of cells");
    for cell in cells {
        let served: Vec<(Order, Served)> =
            Order::ALL.into_iter().map(|order| (order, disk::serve(&cell, order))).collect();
        println!("{}", serde_json::to_string(&served).expect("plain numbers"));
    }
}
