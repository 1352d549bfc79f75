//! `Server`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dalsegno_serve::{Server, Tenant, socket_of};
use dalsegno_store::{Backing, Config, Pool, Result};
use pyo3::prelude::*;

use crate::arguments::LocalPath;
use crate::errors::OrRaise;
use crate::json::to_python;
use crate::log;

/// A store that this process owns and shares with others, over a socket.
///
/// ``dalsegno serve`` runs one. Others open the store by its directory, or as ``unix:`` and the
/// path of the socket.
#[pyclass(name = "Server", module = "dalsegno._native", frozen)]
pub(crate) struct PyServer {
    server: Server,
}

/// The name of a tenant, and the ids of its users.
type TenantUsers = (String, BTreeSet<u32>);

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (path, config_json, *, socket=None, pool_file=None, tenants=Vec::new()))]
    fn new(
        py: Python<'_>,
        path: LocalPath,
        config_json: &str,
        socket: Option<LocalPath>,
        pool_file: Option<LocalPath>,
        tenants: Vec<TenantUsers>,
    ) -> PyResult<Self> {
        let LocalPath(path) = path;
        let start = || start(&path, config_json, socket, pool_file, tenants);
        Ok(Self { server: py.detach(start).or_raise()? })
    }

    /// Path of the socket.
    #[getter]
    fn socket(&self) -> String {
        self.server.socket().display().to_string()
    }

    /// Returns all counters and gauges: the server's, and those of each tenant.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut stats =
            py.detach(|| serde_json::to_value(self.server.stats()).expect("plain fields"));
        stats["lost_log_lines"] = log::lost_lines().into();
        to_python(py, &stats)
    }

    /// Ends all connections after the requests under way, then closes the store.
    ///
    /// Closing a closed server does nothing.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.server.close();
            log::flush();
        });
    }

    fn __repr__(&self) -> String {
        format!("<Server on {}>", self.server.socket().display())
    }
}

fn start(
    path: &Path,
    config_json: &str,
    socket: Option<LocalPath>,
    pool_file: Option<LocalPath>,
    tenants: Vec<TenantUsers>,
) -> Result<Server> {
    let config = Config::from_json(config_json)?;
    let file = pool_file.map(|LocalPath(file)| file);
    let backing = |tenant: Option<&str>| match (&file, tenant) {
        (None, _) => Backing::MemoryFile,
        (Some(file), None) => Backing::Named(file.clone()),
        (Some(file), Some(tenant)) => {
            let mut name = file.clone().into_os_string();
            name.push(format!(".{tenant}"));
            Backing::Named(PathBuf::from(name))
        }
    };
    let pool = Pool::open(path, &config, backing(None))?;
    let open = |(name, uids): TenantUsers| {
        let folder = Path::new("tenants").join(&name);
        // No tenant may read or remove blocks of another one, so each has a far directory of its own, too.
        let far_folder = config.far.as_ref().map(|_| folder.display().to_string());
        let config = Config { far_folder, ..config.clone() };
        let pool = Pool::open(&path.join(&folder), &config, backing(Some(&name)))?;
        Ok(Tenant { name, uids, pool })
    };
    let tenants = tenants.into_iter().map(open).collect::<Result<_>>()?;
    let socket = socket.map_or_else(|| socket_of(path), |LocalPath(socket)| socket);
    Server::start(&socket, pool, tenants)
}
