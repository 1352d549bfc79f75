//! Chooses and starts an engine.

use std::io;

use dalsegno_core::EngineChoice;

use super::backend::{Engine, Setup};
use super::psync::Psync;
use super::uring::Uring;
use crate::IoError;

/// Starts the chosen engine.
pub(crate) fn start(choice: EngineChoice, setup: &Setup) -> Result<Box<dyn Engine>, IoError> {
    let psync = || Psync::start(setup);
    let started: io::Result<Box<dyn Engine>> = match choice {
        EngineChoice::Psync => psync().map(|engine| Box::new(engine) as _),
        EngineChoice::Uring => Uring::start(setup).map(|engine| Box::new(engine) as _),
        EngineChoice::Auto => match Uring::start(setup) {
            Ok(engine) => Ok(Box::new(engine)),
            Err(error) => {
                tracing::info!(%error, engine = "psync", "io_uring is unavailable; using psync");
                psync().map(|engine| Box::new(engine) as _)
            }
        },
    };
    let name = if choice == EngineChoice::Uring { "io_uring" } else { "psync" };
    started.map_err(|error| IoError::os("start", format!("the {name} engine"), error))
}
