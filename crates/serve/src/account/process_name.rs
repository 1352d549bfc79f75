//! Processes in log lines.

/// Set in numbers of processes in another PID namespace: see `Peer::process`.
pub(super) const OTHER_NAMESPACE: u64 = 1 << 63;
/// Set in the numbers of connections whose process has none.
pub(crate) const NAMELESS: u64 = 1 << 62;

/// A process in a log line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessName(pub(crate) u64);

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(process) = *self;
        if process & OTHER_NAMESPACE != 0 {
            write!(f, "process {} of another PID namespace", process & !OTHER_NAMESPACE)
        } else if process & NAMELESS != 0 {
            write!(f, "unknown process {} of another PID namespace", process & !NAMELESS)
        } else {
            write!(f, "pid {process}")
        }
    }
}
