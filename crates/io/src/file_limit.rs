//! The limit on open files of this process.

/// Raises the soft limit on open files to `count`, or to the hard limit if that is lower. Returns the limit that
/// applies.
///
/// The default soft limit of 1,024 exists for programs that use `select`. A store with more segments needs more.
pub fn allow_open_files(count: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one struct, which is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return u64::MAX;
    }
    if limit.rlim_cur >= count || limit.rlim_cur >= limit.rlim_max {
        return limit.rlim_cur;
    }
    let raised = libc::rlimit { rlim_cur: count.min(limit.rlim_max), ..limit };
    // SAFETY: the kernel reads one struct, which is ours.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    if done { raised.rlim_cur } else { limit.rlim_cur }
}
