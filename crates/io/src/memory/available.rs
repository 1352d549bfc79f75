//! How much memory the system can provide now.

use std::fs;

#[expect(clippy::disallowed_methods, reason = "files of the kernel, and this crate touches files")]
fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Bytes that can be allocated without swapping, within the limits of this process's control group. `None` if the
/// system does not say.
pub(super) fn available_bytes() -> Option<u64> {
    let meminfo = read("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let of_system = kib * 1024;
    Some(of_group().map_or(of_system, |left| left.min(of_system)))
}

/// Bytes that the control groups of this process leave, if any of them has a limit.
fn of_group() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let mut folder = path.trim_end_matches('/');
    let mut least = None;
    loop {
        let at = format!("/sys/fs/cgroup/{folder}");
        if let Some(most) = number(&format!("{at}/memory.max")) {
            let used = number(&format!("{at}/memory.current")).unwrap_or(0);
            // What was read from files and not used since goes before anything is refused.
            let left = most.saturating_sub(used).saturating_add(unused_cache(&at));
            least = Some(least.map_or(left, |known: u64| known.min(left)));
        }
        if folder.is_empty() {
            return least;
        }
        folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
}

/// Bytes of files in memory that a control group has not used for a while.
fn unused_cache(group: &str) -> u64 {
    let stat = read(&format!("{group}/memory.stat")).unwrap_or_default();
    let bytes = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_has_some_memory_and_not_an_exabyte() {
        let bytes = available_bytes().unwrap();
        assert!(bytes > 1 << 20 && bytes < 1 << 60, "{bytes}");
    }
}
