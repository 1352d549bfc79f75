//! Mooncake's client, a Python module, for the stores of this process.
//!
//! 1. The interpreter is held while a call is prepared and its result is read. Mooncake's client releases it while it
//!    waits for the network.
//! 2. Memory is given as addresses, and only for the time of a call, which the memory outlives.

use std::sync::Arc;

use dalsegno_store::Memory;
use dalsegno_store::mooncake::{Client, ClientError, MooncakeLocation, set_connector};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Lets the stores of this process connect to Mooncake clusters.
pub(crate) fn install() {
    set_connector(Arc::new(|location| {
        let connected = Python::try_attach(|py| PyClient::connect(py, location));
        connected.unwrap_or_else(|| Err(ended()))
    }));
}

/// The interpreter is about to end.
fn ended() -> ClientError {
    ClientError::NoClient("the interpreter ends".to_owned())
}

/// An exception of the client. Its text is that of Mooncake, or of an import that failed.
fn raised(py: Python<'_>, error: &PyErr) -> ClientError {
    ClientError::NoClient(error.value(py).to_string())
}

/// A `dalsegno.mooncake_client.MooncakeClient`.
struct PyClient(Py<PyAny>);

impl PyClient {
    fn connect(
        py: Python<'_>,
        location: &MooncakeLocation,
    ) -> Result<Arc<dyn Client>, ClientError> {
        let connect = || -> PyResult<Py<PyAny>> {
            let settings = PyDict::new(py);
            settings.set_item("master", &location.master)?;
            settings.set_item("metadata_server", &location.metadata_server)?;
            settings.set_item("protocol", &location.protocol)?;
            settings.set_item("devices", &location.devices)?;
            settings.set_item("replicas", location.replicas)?;
            let module = py.import("dalsegno.mooncake_client")?;
            Ok(module.getattr("MooncakeClient")?.call((), Some(&settings))?.unbind())
        };
        match connect() {
            Ok(client) => Ok(Arc::new(Self(client))),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Calls a method.
    fn call<T>(
        &self,
        method: &str,
        arguments: impl for<'py> pyo3::call::PyCallArgs<'py>,
    ) -> Result<T, ClientError>
    where
        T: for<'py> FromPyObjectOwned<'py>,
    {
        let called = Python::try_attach(|py| {
            let returned = self.0.bind(py).call_method1(method, arguments);
            let value = returned.and_then(|value| value.extract().map_err(Into::into));
            value.map_err(|error| raised(py, &error))
        });
        called.unwrap_or_else(|| Err(ended()))
    }

    /// Calls a method that returns a code: 0, or a negative one.
    fn run(
        &self,
        method: &str,
        arguments: impl for<'py> pyo3::call::PyCallArgs<'py>,
    ) -> Result<(), ClientError> {
        match self.call::<i64>(method, arguments)? {
            0 => Ok(()),
            code => Err(ClientError::Code(code)),
        }
    }
}

fn places(memory: &[Memory]) -> Vec<(usize, usize)> {
    memory.iter().map(|piece| (piece.address(), piece.len())).collect()
}

impl Client for PyClient {
    fn put(&self, key: &str, bytes: &[Memory]) -> Result<(), ClientError> {
        self.run("put", (key, places(bytes)))
    }

    fn get(&self, key: &str, offset: u64, memory: &mut [Memory]) -> Result<(), ClientError> {
        self.run("get", (key, offset, places(memory)))
    }

    fn sizes(&self, keys: &[String]) -> Result<Vec<Option<u64>>, ClientError> {
        let size = |size: i64| match u64::try_from(size) {
            Ok(size) => Ok(Some(size)),
            Err(_) if ClientError::Code(size).is_missing() => Ok(None),
            Err(_) => Err(ClientError::Code(size)),
        };
        self.call::<Vec<i64>>("sizes", (keys,))?.into_iter().map(size).collect()
    }

    fn remove(&self, key: &str) -> Result<(), ClientError> {
        self.run("remove", (key,))
    }
}

impl Drop for PyClient {
    /// Closing waits for the network, for longer than a store may take to close: a thread does it.
    fn drop(&mut self) {
        let closed = Python::try_attach(|py| self.0.clone_ref(py));
        let Some(client) = closed else { return };
        let close = move || {
            // Without an interpreter, the process is about to end.
            let _ = Python::try_attach(|py| drop(client.call_method0(py, "close")));
        };
        if let Err(error) = dalsegno_store::spawn("dalsegno-mooncake-close", close) {
            tracing::warn!(%error, "no thread to close the Mooncake client");
        }
    }
}
