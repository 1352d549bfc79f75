//! Predicts when the first token of a request comes, and decides how many of its blocks to load.

mod choice;
mod compute;
mod learned;
mod model;
mod recent;
mod regression;
mod runs;
mod transfer;

pub use choice::{
    Ahead, LoadChoice, Others, Overlap, Question, Run, StoredRuns, Way, choose, load_all, part_of,
};
pub use compute::{ComputeModel, ComputePrior, StepWork};
pub use learned::{Learned, Shown, Single};
pub use model::{CostModel, Situation};
pub use recent::Usual;
pub use regression::Regression;
pub use runs::{TierRun, farthest_runs};
pub use transfer::{LargeLoads, TransferModel, TransferPrior};
