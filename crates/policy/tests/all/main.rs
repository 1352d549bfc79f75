//! Tests of decisions.
//!
//! They are one program, because compiling generic code and linking cost more than most tests.

mod merging_properties;
mod recency_properties;
mod reclaim_properties;
mod s3fifo_hit_rate;
mod s3fifo_model;
mod tuning_controller;
mod tuning_properties;
mod tuning_stages;
