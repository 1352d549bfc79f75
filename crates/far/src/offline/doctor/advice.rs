//! What a diagnosis means for the settings of stores and mounts.

use super::report::{Advice, DoctorReport, PromiseRow, Severity, Verdict};

/// The default of `far_workers`.
const DEFAULT_WORKERS: u32 = 32;
/// A setting is good enough if it reaches this part of the best, in percent.
const ENOUGH: u64 = 90;
/// Below this part of the best, in percent, the default is bad. Short measurements differ by less.
const BAD: u64 = 75;

/// What was examined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    OneMount,
    TwoMounts,
    /// A bucket of an object store.
    Bucket,
}

pub(super) fn advise(found: &DoctorReport) -> Vec<Advice> {
    let place = if found.traces.requests.is_some() {
        Place::Bucket
    } else if found.two_mounts {
        Place::TwoMounts
    } else {
        Place::OneMount
    };
    let mut all: Vec<Advice> =
        found.promises.iter().filter_map(|row| of_promise(row, place)).collect();
    if !found.direct && place != Place::Bucket {
        all.push(Advice::new(
            Severity::Slow,
            "direct I/O does not work, so blocks pass through the page cache, and reads above may come from it",
            "mount with direct I/O, such as -o direct-io-mode=enable of GlusterFS, or leave memory for the page cache",
        ));
    }
    all.extend(of_workers(found));
    if place == Place::OneMount {
        all.push(Advice::new(
            Severity::Note,
            "only one mount was examined, so what other hosts see is not known",
            "give a second mount of the same directory with --other, best with the mount options of the other hosts",
        ));
    }
    let unreadable = found.unreadable.objects.len() as u64 + found.unreadable.more;
    if unreadable > 0 {
        all.push(Advice::new(
            Severity::Note,
            format!("{unreadable} objects or folders of stores cannot be read, and their blocks are misses"),
            "see the list of them; stores skip these and follow all others",
        ));
    }
    if found.traces.left_behind > 0 {
        all.push(Advice::new(
            Severity::Note,
            format!(
                "{} objects of this examination could not be removed",
                found.traces.left_behind
            ),
            "remove their folder with `dalsegno prune`, or leave it: stores collect it after a day",
        ));
    }
    all
}

fn of_promise(row: &PromiseRow, place: Place) -> Option<Advice> {
    let what = format!("{}: {}", row.name, row.detail);
    let (severity, action) = match (row.verdict, row.name) {
        (Verdict::Holds, _) => return None,
        (Verdict::Fails, name) if name.contains("age") && place == Place::Bucket => (
            Severity::Unsafe,
            "correct the clock of the server (NTP) first: removals expire by its time, and what was removed could \
             come back",
        ),
        (Verdict::Fails, _) if place == Place::Bucket => (
            Severity::Unsafe,
            "do not use this bucket as `far`: blocks would be misses or cost time; check its policy, its lifecycle \
             rules and what is between it and this host, and examine it again",
        ),
        (Verdict::Slow, _) if place == Place::Bucket => (
            Severity::Slow,
            "check what is between this host and the bucket, such as a cache; until then other hosts find blocks that \
             much later",
        ),
        (Verdict::Fails, name) if name.contains("becomes visible") && place == Place::TwoMounts => {
            (
                Severity::Unsafe,
                "check that both directories are the same one of the same file system; if so, mount with \
                 entry-timeout=0 and negative-timeout=0 (FUSE) or lookupcache=none (NFS)",
            )
        }
        (Verdict::Fails, name) if name.contains("age") => (
            Severity::Unsafe,
            "synchronize the clocks of all hosts and servers (NTP) first: removals expire by these ages, and what was \
             removed could come back",
        ),
        (Verdict::Fails, _) => (
            Severity::Unsafe,
            "do not use this mount as `far`: blocks would be misses or cost time; turn off caches of the mount \
             (write-behind, attribute and entry caches), and examine it again",
        ),
        (Verdict::Slow, name) if name.contains("age") => (
            Severity::Slow,
            "synchronize the clocks of all hosts and servers (NTP): a writer that seems dead may be removed",
        ),
        (Verdict::Slow, _) => (
            Severity::Slow,
            "mount with shorter caches of names: entry-timeout=0 and negative-timeout=0 (FUSE), lookupcache=none or \
             actimeo=1 (NFS); until then other hosts find blocks that much later",
        ),
    };
    Some(Advice::new(severity, what, action))
}

/// The number of workers to set, if the default is not good.
fn of_workers(found: &DoctorReport) -> Option<Advice> {
    let best = found.bandwidth.iter().map(|row| row.read_bytes_per_s).max()?;
    let reaches = |rate: u64, percent: u64| rate * 100 >= best * percent;
    let least = found.bandwidth.iter().find(|row| reaches(row.read_bytes_per_s, ENOUGH))?;
    let default = found.bandwidth.iter().find(|row| row.far_workers == DEFAULT_WORKERS)?;
    let mib = |rate: u64| rate >> 20;
    if !reaches(default.read_bytes_per_s, BAD) {
        let what = format!(
            "with the default of {DEFAULT_WORKERS} workers reads reach {} MiB/s, with {} workers {} MiB/s",
            mib(default.read_bytes_per_s),
            least.far_workers,
            mib(least.read_bytes_per_s)
        );
        let action = format!("set far_workers={}", least.far_workers);
        return Some(Advice::new(Severity::Slow, what, action));
    }
    (least.far_workers < DEFAULT_WORKERS).then(|| {
        let what = format!(
            "{} workers read as fast as the default of {DEFAULT_WORKERS}: {} MiB/s",
            least.far_workers,
            mib(least.read_bytes_per_s)
        );
        let action =
            format!("set far_workers={} if other users of the location matter", least.far_workers);
        Advice::new(Severity::Note, what, action)
    })
}
