//! The fake driver, called as Dalsegno calls it.

mod captures;
mod copies;
mod events;
mod kernels;
mod memory;
mod planted;
mod process;
mod registrations;
mod streams;
mod support;
