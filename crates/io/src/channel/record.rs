//! Which sockets the servers of a directory made: docs/formats/sockets.md.
//!
//! 1. A socket is recorded by its identity, not by its path alone. A socket of another program in its place does not
//!    match.
//! 2. A server writes that it is about to make a socket before it does. So a server that is killed meanwhile leaves a
//!    socket that the next one recognizes. Such a note holds for the time of its file, so the next one to be written
//!    drops it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

const MAGIC: &[u8] = b"dalsegno sockets 1";
/// Most sockets of one file. The oldest are forgotten.
const MOST_SOCKETS: usize = 16;
const NANOS: i64 = 1_000_000_000;
/// How long a server may take from its note to the socket, and how far two clocks of the kernel may be apart.
const PENDING_NS: i64 = 10 * NANOS;
const SLACK_NS: i64 = NANOS;

/// What identifies a file for as long as it exists, and afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// When it was born, or last changed where the file system does not keep that.
    born_ns: i64,
    /// The start of the system. Device numbers hold as long.
    boot: String,
}

impl Identity {
    /// The identity of what is at a path; a link is not followed.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::lstat(path)?;
        let wanted = StatxFlags::BTIME;
        // Forbidden in some containers. Then the time of the last change counts.
        let born = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)
            .ok()
            .filter(|stat| stat.stx_mask & wanted.bits() != 0)
            .map(|stat| stat.stx_btime.tv_sec * NANOS + i64::from(stat.stx_btime.tv_nsec));
        let changed = || {
            let nanos = i64::try_from(found.st_ctime_nsec).unwrap_or_default();
            found.st_ctime * NANOS + nanos
        };
        Ok(Self {
            device: found.st_dev,
            inode: found.st_ino,
            born_ns: born.unwrap_or_else(changed),
            boot: boot_id(),
        })
    }

    /// Whether both are one file, while it exists.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_same_device = self.device == other.device || self.boot != other.boot;
        is_same_device && (self.inode, self.born_ns) == (other.inode, other.born_ns)
    }
}

/// The file of a directory that records the sockets of its servers.
#[derive(Debug)]
pub(super) struct SocketRecord {
    file: PathBuf,
    /// The last one is the newest.
    sockets: Vec<(PathBuf, Recorded)>,
    /// When the file was written.
    written_ns: i64,
}

#[derive(Clone, Debug)]
enum Recorded {
    /// A server was about to make it.
    Pending,
    Made(Identity),
}

impl SocketRecord {
    /// Reads the file. One that is missing or has another format records nothing.
    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    pub(super) fn load(file: &Path) -> Self {
        let bytes = fs::read(file).unwrap_or_default();
        let written_ns =
            fs::metadata(file).map_or(0, |found| found.mtime() * NANOS + found.mtime_nsec());
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let is_known = lines.next() == Some(MAGIC);
        let sockets = lines.filter_map(parse).filter(|_| is_known).collect();
        Self { file: file.to_owned(), sockets, written_ns }
    }

    /// Whether a server recorded what is at `path`.
    pub(super) fn has_made(&self, path: &Path, found: &Identity) -> bool {
        self.sockets.iter().any(|(recorded_path, recorded)| match recorded {
            Recorded::Made(identity) => recorded_path == path && identity.is_same(found),
            Recorded::Pending => {
                let since = found.born_ns - self.written_ns;
                recorded_path == path && (-SLACK_NS..PENDING_NS).contains(&since)
            }
        })
    }

    /// The newest path.
    pub(super) fn last(&self) -> Option<PathBuf> {
        self.sockets.last().map(|(path, _)| path.clone())
    }

    /// Records that a socket is about to be made at `path`.
    pub(super) fn begin(&mut self, path: &Path) -> io::Result<()> {
        self.replace(path, Recorded::Pending)
    }

    /// Records the socket that was made at `path`.
    pub(super) fn finish(&mut self, path: &Path, made: &Identity) -> io::Result<()> {
        self.replace(path, Recorded::Made(made.clone()))
    }

    /// Takes a note back.
    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    pub(super) fn forget(&mut self, path: &Path) {
        self.sockets.retain(|(one, _)| one != path);
        let done = if self.sockets.is_empty() { fs::remove_file(&self.file) } else { self.write() };
        // It is a note that matches nothing.
        drop(done);
    }

    fn replace(&mut self, path: &Path, recorded: Recorded) -> io::Result<()> {
        self.sockets
            .retain(|(one, recorded)| one != path && !matches!(recorded, Recorded::Pending));
        self.sockets.push((path.to_owned(), recorded));
        let surplus = self.sockets.len().saturating_sub(MOST_SOCKETS);
        self.sockets.drain(..surplus);
        self.write()
    }

    #[expect(clippy::disallowed_methods, reason = "this crate touches files")]
    fn write(&self) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        for (path, recorded) in &self.sockets {
            let start = match recorded {
                Recorded::Pending => "\npending ".to_owned(),
                Recorded::Made(Identity { device, inode, born_ns, boot }) => {
                    format!("\nmade {device} {inode} {born_ns} {boot} ")
                }
            };
            bytes.extend_from_slice(start.as_bytes());
            bytes.extend_from_slice(path.as_os_str().as_bytes());
        }
        bytes.push(b'\n');
        let new = self.file.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let written = file.write_all(&bytes).and_then(|()| file.sync_all());
        let written = written.and_then(|()| fs::rename(&new, &self.file));
        if written.is_err() {
            let _ = fs::remove_file(&new);
            return written;
        }
        // The name counts from here on. A file system that syncs no directories may forget it in a power cut.
        let _ = self.file.parent().map(|folder| File::open(folder).and_then(|it| it.sync_all()));
        Ok(())
    }
}

fn parse(line: &[u8]) -> Option<(PathBuf, Recorded)> {
    let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
    if let Some(rest) = line.strip_prefix(b"pending ") {
        return Some((path(rest), Recorded::Pending));
    }
    let mut fields = line.strip_prefix(b"made ")?.splitn(5, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (device, inode) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let (born_ns, boot) = (text()?.parse().ok()?, text()?.to_owned());
    Some((path(fields.next()?), Recorded::Made(Identity { device, inode, born_ns, boot })))
}

#[expect(clippy::disallowed_methods, reason = "this crate touches files")]
fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id: String =
        text.chars().filter(|one| one.is_ascii_alphanumeric() || *one == '-').collect();
    if id.is_empty() { "unknown".to_owned() } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes files")]
    fn a_socket_is_recognized_by_its_identity_and_for_a_while_by_its_announcement() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("sockets"), folder.path().join("a b"));
        assert!(SocketRecord::load(&file).begin(&socket).is_ok());
        fs::write(&socket, b"").unwrap();
        let made = Identity::of(&socket).unwrap();
        assert!(SocketRecord::load(&file).has_made(&socket, &made), "it was killed meanwhile");
        let later = Identity { born_ns: made.born_ns + PENDING_NS + SLACK_NS, ..made.clone() };
        assert!(!SocketRecord::load(&file).has_made(&socket, &later));
        SocketRecord::load(&file).finish(&socket, &made).unwrap();
        for number in 0..MOST_SOCKETS - 1 {
            let other = folder.path().join(number.to_string());
            SocketRecord::load(&file).finish(&other, &later).unwrap();
        }
        let record = SocketRecord::load(&file);
        assert!(record.has_made(&socket, &made));
        assert!(!record.has_made(&socket, &later), "another file of the same inode");
        assert!(!record.has_made(&folder.path().join("a"), &made));
        let boots =
            |boot: &str| Identity { device: 1 << 40, boot: boot.to_owned(), ..made.clone() };
        assert!(!record.has_made(&socket, &boots(&made.boot)));
        assert!(record.has_made(&socket, &boots("another")), "devices have other numbers then");
        SocketRecord::load(&file).begin(&folder.path().join("one more")).unwrap();
        assert!(!SocketRecord::load(&file).has_made(&socket, &made), "the oldest is forgotten");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes files")]
    fn an_announcement_does_not_outlive_the_next_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let file = path("sockets");
        SocketRecord::load(&file).begin(&path("of a killed server")).unwrap();
        SocketRecord::load(&file).begin(&path("next")).unwrap();
        let foreign = path("of a killed server");
        fs::write(&foreign, b"").unwrap();
        let found = Identity::of(&foreign).unwrap();
        assert!(!SocketRecord::load(&file).has_made(&foreign, &found));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes files")]
    fn a_file_of_another_format_records_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("sockets"), folder.path().join("s"));
        fs::write(&socket, b"").unwrap();
        let made = Identity::of(&socket).unwrap();
        let mut line = b"dalsegno sockets 2\npending ".to_vec();
        line.extend_from_slice(socket.as_os_str().as_bytes());
        for text in [&line[..], b"", b"dalsegno sockets 1\nmade 1 2\npending\n\xff"] {
            fs::write(&file, text).unwrap();
            assert!(!SocketRecord::load(&file).has_made(&socket, &made));
        }
    }
}
