//! `Server`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use dalsegno_serve::{LeaseShare, Presence, Server, Tenant, explained, server_of, socket_of};
use dalsegno_store::{Backing, Config, Error, Pool, Result, StopSignal};
use pyo3::prelude::*;

use crate::arguments::LocalPath;
use crate::errors::OrRaise;
use crate::json::to_python;
use crate::log;

/// A store that this process owns and shares with others, over a socket.
///
/// ``dalsegno serve`` runs one. Others open the store by its directory, or as ``unix:`` and the
/// path of the socket. A ``lease_share`` of the pool may be leased in place, half by default.
/// ``stopped`` is called several times a second while the system provides the memory of the pool;
/// if it returns true, the start fails.
#[pyclass(name = "Server", module = "dalsegno._native", frozen)]
pub(crate) struct PyServer {
    server: Server,
}

/// The name of a tenant, and the ids of its users.
type TenantUsers = (String, BTreeSet<u32>);

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(
        signature = (
            path, config_json, *, socket=None, pool_file=None, tenants=Vec::new(), lease_share=None,
            stopped=None
        )
    )]
    fn new(
        path: LocalPath,
        config_json: &str,
        socket: Option<LocalPath>,
        pool_file: Option<LocalPath>,
        tenants: Vec<TenantUsers>,
        lease_share: Option<f64>,
        stopped: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let path = path.directory()?;
        let socket = match socket {
            Some(socket) => socket.directory()?,
            None => socket_of(&path),
        };
        let stop = stopped.map_or_else(StopSignal::default, stop_signal);
        let share =
            lease_share.map_or_else(|| Ok(LeaseShare::default()), LeaseShare::new).or_raise()?;
        let wanted = Wanted { path, socket, pool_file, tenants, share, stop };
        let started = Python::attach(|py| py.detach(|| wanted.start(config_json)));
        Ok(Self { server: started.or_raise()? })
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

/// Returns the path of the socket of the server that owns a directory.
///
/// It waits at most two seconds.
///
/// Args:
///     directory: The directory of a store. Without a server, or if this user may not read which
///         socket it made, the default is returned.
#[pyfunction]
pub(crate) fn server_socket(py: Python<'_>, directory: LocalPath) -> PyResult<PathBuf> {
    let directory = directory.directory()?;
    Ok(py.detach(|| server_of(&directory).0))
}

/// Returns why nothing can use the server of a socket, or ``None`` if it answers.
///
/// It waits at most a second.
///
/// Args:
///     socket: Path of the socket.
#[pyfunction]
pub(crate) fn server_trouble(py: Python<'_>, socket: LocalPath) -> PyResult<Option<String>> {
    let socket = socket.directory()?;
    let presence = py.detach(|| Presence::at(&socket));
    Ok(match &presence {
        Presence::Ready => None,
        Presence::Absent => Some("no server is there".to_owned()),
        Presence::Silent(process) => Some(format!("the server ({process}) does not respond")),
        Presence::Refused(process, why) => {
            Some(format!("the server ({process}) refuses connections: {why}"))
        }
    })
}

/// What a server is started with.
struct Wanted {
    path: PathBuf,
    socket: PathBuf,
    pool_file: Option<LocalPath>,
    tenants: Vec<TenantUsers>,
    share: LeaseShare,
    stop: StopSignal,
}

impl Wanted {
    /// Opens the stores and starts the server. What is wrong in the arguments is found before anything is opened.
    fn start(self, config_json: &str) -> Result<Server> {
        let config = Config::from_json(config_json)?;
        check_tenants(&self.tenants)?;
        Server::check_socket(&self.socket, &self.path)?;
        let open = |path: &Path, config: &Config, tenant: Option<&str>| {
            Pool::open_unless(path, config, self.backing(tenant), self.stop.clone())
        };
        let pool = explained(&self.path, open(&self.path, &config, None))?;
        let open_tenant = |(name, uids): &TenantUsers| {
            let folder = Path::new("tenants").join(name);
            // No tenant may read or remove blocks of another one, so each has a far directory of its own, too.
            let far_folder = config.far.as_ref().map(|_| folder.display().to_string());
            let config = Config { far_folder, ..config.clone() };
            let pool = open(&self.path.join(&folder), &config, Some(name))?;
            Ok(Tenant { name: name.clone(), uids: uids.clone(), pool })
        };
        let tenants = self.tenants.iter().map(open_tenant).collect::<Result<_>>()?;
        Server::start(&self.socket, &self.path, pool, tenants, self.share)
    }

    fn backing(&self, tenant: Option<&str>) -> Backing {
        let Some(LocalPath(file)) = &self.pool_file else { return Backing::MemoryFile };
        let mut name = file.clone().into_os_string();
        if let Some(tenant) = tenant {
            name.push(format!(".{tenant}"));
        }
        Backing::Named(PathBuf::from(name))
    }
}

/// Refuses tenants that share a name or a user, and names that are no folder.
fn check_tenants(tenants: &[TenantUsers]) -> Result<()> {
    let is_plain = |one: char| one.is_alphanumeric() || "_-".contains(one);
    let mut by_uid = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (name, uids) in tenants {
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(Error::invalid(format!(
                "tenant {name:?} has no usable name; use letters, digits, `_` and `-`"
            )));
        }
        if !names.insert(name) {
            return Err(Error::invalid(format!(
                "tenant {name} is given twice; name all of its users at once"
            )));
        }
        for uid in uids {
            if let Some(other) = by_uid.insert(uid, name) {
                return Err(Error::invalid(format!(
                    "user {uid} is in the tenants {other} and {name}; give each user one tenant"
                )));
            }
        }
    }
    Ok(())
}

/// A signal that a function of Python returns. If it raises, the signal is not set.
fn stop_signal(stopped: Py<PyAny>) -> StopSignal {
    StopSignal::new(move || {
        Python::attach(|py| stopped.call0(py).and_then(|is| is.is_truthy(py)).unwrap_or(false))
    })
}
