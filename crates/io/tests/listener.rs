//! What a listener finds in the place of its socket, and what it leaves there.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "makes files")]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dalsegno_io::{BindError, Listener};
use rustix::net::{SocketAddrUnix, SocketFlags, SocketType};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn bind(&self, name: &str) -> Result<Listener, BindError> {
        Listener::bind(&self.at(name), &self.at("serve/sockets"))
    }

    /// The error of a bind, which left everything as it was.
    fn refused(&self, name: &str) -> String {
        let before = fs::symlink_metadata(self.at(name)).unwrap();
        let error = self.bind(name).unwrap_err().to_string();
        let after = fs::symlink_metadata(self.at(name)).unwrap();
        assert_eq!((before.dev(), before.ino()), (after.dev(), after.ino()), "{error}");
        assert!(!self.at("serve").exists(), "nothing is left of a failed start");
        error
    }

    /// Leaves the socket of a listener as a kill does.
    fn killed(&self, name: &str) {
        let listener = self.bind(name).unwrap();
        fs::rename(self.at(name), self.at("kept")).unwrap();
        drop(listener);
        fs::rename(self.at("kept"), self.at(name)).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_listener_makes_its_directories_and_removes_its_socket() {
    let place = Place::new();
    let listener = place.bind("run/socket").unwrap();
    assert_eq!((mode(&place.at("run")), mode(&place.at("run/socket"))), (0o750, 0o660));
    UnixStream::connect(place.at("run/socket")).unwrap();
    assert!(listener.accept(Duration::from_secs(60)).unwrap().is_some());
    drop(listener);
    assert!(!place.at("run/socket").exists());
}

#[test]
fn a_socket_of_a_killed_listener_is_replaced_also_with_another_mode() {
    let place = Place::new();
    for _ in 0..3 {
        place.killed("socket");
        // An administrator may have changed that.
        let born = rustix::fs::StatxFlags::BTIME;
        let flags = rustix::fs::AtFlags::empty();
        let stat = rustix::fs::statx(rustix::fs::CWD, place.at("socket"), flags, born).unwrap();
        if stat.stx_mask & born.bits() != 0 {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            rustix::fs::chmod(place.at("socket"), mode).unwrap();
        }
    }
    drop(place.bind("socket").unwrap());
    assert!(!place.at("socket").exists());
}

#[test]
fn what_is_no_socket_is_refused_and_stays() {
    let place = Place::new();
    fs::write(place.at("file"), b"precious").unwrap();
    fs::create_dir(place.at("directory")).unwrap();
    symlink("missing", place.at("dangling")).unwrap();
    symlink("file", place.at("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    for (name, said) in [
        ("file", "it is an ordinary file; remove it"),
        ("directory", "it is a directory"),
        ("dangling", "it is a symbolic link"),
        ("link", "it is a symbolic link"),
        ("pipe", "it is a pipe"),
    ] {
        let error = place.refused(name);
        assert!(error.contains(said) && error.contains(name), "{error}");
    }
    assert_eq!(fs::read(place.at("file")).unwrap(), b"precious");
}

#[test]
fn sockets_of_others_are_refused_and_stay() {
    let place = Place::new();
    let _datagram = UnixDatagram::bind(place.at("datagram")).unwrap();
    let packets =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let packets = packets.unwrap();
    let address = SocketAddrUnix::new(place.at("packets")).unwrap();
    rustix::net::bind(&packets, &address).unwrap();
    let _alive = UnixListener::bind(place.at("alive")).unwrap();
    drop(UnixListener::bind(place.at("dead")).unwrap());
    drop(UnixDatagram::bind(place.at("dead datagram")).unwrap());
    // Bound, and about to listen.
    let early: OwnedFd = stream();
    rustix::net::bind(&early, &SocketAddrUnix::new(place.at("early")).unwrap()).unwrap();
    for (name, said) in [
        ("datagram", "a socket of another kind"),
        ("packets", "a socket of another kind"),
        ("alive", "a process listens there; stop it"),
        ("dead", "nobody listens on this socket, and it is not recorded"),
        ("dead datagram", "choose another path"),
        ("early", "not recorded"),
    ] {
        let error = place.refused(name);
        assert!(error.contains(said), "{name}: {error}");
    }
}

fn stream() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = rustix::net::AddressFamily::UNIX;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap()
}

#[test]
fn a_listener_that_accepts_nothing_is_refused_without_waiting_for_it() {
    let place = Place::new();
    let address = SocketAddrUnix::new(place.at("full")).unwrap();
    let full = stream();
    rustix::net::bind(&full, &address).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let mut clients = Vec::new();
    loop {
        let client = stream();
        if rustix::net::connect(client.as_fd(), &address).is_err() {
            break;
        }
        clients.push(client);
    }
    assert!(place.refused("full").contains("which accepts no connections"));
}

#[test]
fn another_socket_in_the_place_of_a_recorded_one_is_refused() {
    let place = Place::new();
    place.killed("socket");
    fs::remove_file(place.at("socket")).unwrap();
    drop(UnixListener::bind(place.at("socket")).unwrap());
    // Its inode may be the one that is recorded.
    let error = place.bind("socket").unwrap_err().to_string();
    assert!(error.contains("not recorded"), "{error}");
    assert!(place.at("socket").exists());
}

#[test]
fn a_path_that_another_process_took_is_not_removed() {
    let place = Place::new();
    let listener = place.bind("socket").unwrap();
    fs::remove_file(place.at("socket")).unwrap();
    fs::write(place.at("socket"), b"of another program").unwrap();
    drop(listener);
    assert_eq!(fs::read(place.at("socket")).unwrap(), b"of another program");
}

#[test]
fn a_listener_that_cannot_be_made_leaves_nothing() {
    let place = Place::new();
    let long = place.bind(&"x".repeat(120)).unwrap_err().to_string();
    assert!(long.contains("at most 107; choose a shorter one"), "{long}");
    assert!(place.bind("missing/folder/socket").is_err());
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0);
}

#[test]
fn a_check_finds_what_a_bind_would_and_changes_nothing() {
    let place = Place::new();
    let check = |name: &str| Listener::check(&place.at(name), &place.at("serve/sockets"));
    fs::write(place.at("file"), b"").unwrap();
    assert!(check("new/socket").is_ok() && check("file").is_err());
    let _alive = UnixListener::bind(place.at("alive")).unwrap();
    assert!(check("alive").is_ok(), "the lock of its directory says more");
    assert!(!place.at("new").exists() && !place.at("serve").exists());
}
