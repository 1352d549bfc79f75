//! Threads of a store, and the queues before them.

pub(crate) mod helper;
pub(crate) mod task_queue;
pub(crate) mod transfers;
