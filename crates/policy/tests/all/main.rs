//! Tests of decisions.
//!
//! They are one program, because each program compiles helpers and generic code again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../io/tests/common/dose.rs"]
mod dose;
mod first_token_model;
mod merging_properties;
mod recency_properties;
mod reclaim_properties;
mod s3fifo_hit_rate;
mod s3fifo_model;
mod schedule_properties;
mod tuning_controller;
mod tuning_properties;
mod tuning_stages;
