//! Two ends of a channel, in threads and in processes.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::os::fd::AsFd;
use std::time::Duration;

use common::child::in_child;
use dalsegno_io::{Channel, ChannelError, Listener, spawn};

const SOON: Option<Duration> = Some(Duration::from_millis(30));
const LATE: Option<Duration> = Some(Duration::from_secs(20));
const MOST: usize = 1 << 20;

fn record(folder: &std::path::Path) -> std::path::PathBuf {
    folder.join("record/sockets")
}

fn ends() -> (tempfile::TempDir, Listener, Channel, Channel) {
    let folder = tempfile::tempdir().unwrap();
    let listener =
        Listener::bind(&folder.path().join("run/pool.sock"), &record(folder.path())).unwrap();
    let client = Channel::connect(listener.path()).unwrap();
    let server = listener.accept(LATE.unwrap()).unwrap().unwrap();
    (folder, listener, client, server)
}

#[test]
fn frames_of_any_size_arrive_whole_and_in_order() {
    let (_folder, _listener, mut client, mut server) = ends();
    let sizes = [0, 1, 65_532, 65_533, 300_000, 3, MOST];
    let sender = spawn("sender", move || {
        for (number, size) in (0_u8..).zip(sizes) {
            client.send(&vec![number; size], &[], LATE).unwrap();
        }
    });
    for (number, size) in (0_u8..).zip(sizes) {
        let frame = server.receive(MOST, LATE).unwrap();
        assert!(frame.bytes == vec![number; size] && frame.descriptors.is_empty());
    }
    sender.unwrap().join().unwrap();
    assert!(matches!(server.receive(MOST, LATE), Err(ChannelError::Ended)));
}

#[test]
fn descriptors_travel_with_their_frame_and_are_closed_in_a_new_program() {
    let (_folder, _listener, mut client, mut server) = ends();
    let file = tempfile::tempfile().unwrap();
    client.send(b"none", &[], LATE).unwrap();
    client.send(b"two", &[file.as_fd(), file.as_fd()], LATE).unwrap();
    assert!(server.receive(MOST, LATE).unwrap().descriptors.is_empty());
    let frame = server.receive(MOST, LATE).unwrap();
    assert_eq!((frame.bytes.as_slice(), frame.descriptors.len()), (&b"two"[..], 2));
    for descriptor in &frame.descriptors {
        let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn a_peer_that_says_nothing_or_stops_amid_a_frame_costs_one_timeout() {
    let (_folder, _listener, mut client, mut server) = ends();
    assert!(matches!(server.receive(MOST, SOON), Err(ChannelError::Timeout)));
    client.send(b"still here", &[], LATE).unwrap();
    assert_eq!(server.receive(MOST, LATE).unwrap().bytes, b"still here");
    // Half of a frame, by another way.
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&folder.path().join("s"), &record(folder.path())).unwrap();
    let raw = std::os::unix::net::UnixStream::connect(listener.path()).unwrap();
    let mut server = listener.accept(LATE.unwrap()).unwrap().unwrap();
    std::io::Write::write_all(&mut &raw, &[10, 0, 0, 0, 0, b'h']).unwrap();
    for byte in *b"alf a fra" {
        assert!(matches!(server.receive(MOST, SOON), Err(ChannelError::Timeout)));
        std::io::Write::write_all(&mut &raw, &[byte]).unwrap();
    }
    assert_eq!(server.receive(MOST, LATE).unwrap().bytes, b"half a fra");
}

#[test]
fn a_frame_beyond_the_bound_ends_the_connection_before_its_bytes_are_read() {
    let (_folder, _listener, mut client, mut server) = ends();
    client.send(&[7; 101], &[], LATE).unwrap();
    let error = server.receive(100, LATE).unwrap_err();
    assert!(error.to_string().contains("a frame of 101 bytes, more than 100"), "{error}");
    assert!(matches!(server.receive(100, LATE), Err(ChannelError::Ended)));
}

#[test]
fn a_receiver_that_does_not_read_costs_a_sender_its_timeout() {
    const LARGE: usize = 8 << 20;
    let (_folder, _listener, mut client, mut server) = ends();
    let file = tempfile::tempfile().unwrap();
    let result = client.send(&vec![7; LARGE], &[file.as_fd()], SOON);
    assert!(matches!(result, Err(ChannelError::Timeout)) && client.has_begun(), "{result:?}");
    // Nothing of this frame fits, so nothing of it is sent later.
    let result = client.send(b"late", &[], SOON);
    assert!(matches!(result, Err(ChannelError::Timeout)) && !client.has_begun(), "{result:?}");
    let receiver = spawn("receiver", move || {
        let frame = server.receive(LARGE, LATE).unwrap();
        assert!(frame.bytes == vec![7; LARGE] && frame.descriptors.len() == 1);
        assert_eq!(server.receive(LARGE, LATE).unwrap().bytes, b"next");
    });
    client.send(b"next", &[], LATE).unwrap();
    assert!(client.has_begun());
    receiver.unwrap().join().unwrap();
}

#[test]
fn the_end_of_a_frame_goes_out_while_its_sender_waits_for_an_answer() {
    const LARGE: usize = 1 << 20;
    let (_folder, _listener, mut client, mut server) = ends();
    assert!(matches!(client.send(&vec![7; LARGE], &[], SOON), Err(ChannelError::Timeout)));
    let answering = spawn("answering", move || {
        assert_eq!(server.receive(LARGE, LATE).unwrap().bytes.len(), LARGE);
        server.send(b"answer", &[], LATE).unwrap();
        assert!(matches!(server.receive(LARGE, LATE), Err(ChannelError::Ended)));
    });
    let answer = loop {
        match client.receive(MOST, SOON) {
            Err(ChannelError::Timeout) => {}
            answer => break answer.unwrap(),
        }
    };
    assert_eq!(answer.bytes, b"answer");
    drop(client);
    answering.unwrap().join().unwrap();
}

#[test]
fn a_peer_is_who_connected() {
    let (_folder, _listener, client, server) = ends();
    let this = i32::try_from(std::process::id()).unwrap();
    for peer in [client.peer(), server.peer()] {
        assert_eq!((peer.pid, peer.uid), (this, rustix::process::getuid().as_raw()));
    }
}

#[test]
fn a_forked_child_cannot_use_the_connection_of_its_parent() {
    let (_folder, _listener, mut client, mut server) = ends();
    in_child(|| {
        assert!(matches!(client.send(b"child", &[], LATE), Err(ChannelError::Ended)));
        assert!(matches!(server.receive(MOST, LATE), Err(ChannelError::Ended)));
    });
    client.send(b"parent", &[], LATE).unwrap();
    assert_eq!(server.receive(MOST, LATE).unwrap().bytes, b"parent");
}

/// A client is killed while a child of it, which inherited the socket, lives on.
#[test]
fn the_end_of_a_peer_is_seen_although_its_child_holds_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&folder.path().join("s"), &record(folder.path())).unwrap();
    // SAFETY: the child connects, forks a child that sleeps, and ends.
    let client = unsafe { libc::fork() };
    if client == 0 {
        let channel = std::os::unix::net::UnixStream::connect(listener.path());
        // SAFETY: the grandchild only sleeps with the socket open, and ends.
        if unsafe { libc::fork() } == 0 {
            std::thread::sleep(Duration::from_secs(10));
        } else {
            std::thread::sleep(Duration::from_millis(200));
        }
        drop(channel);
        // SAFETY: ends the process immediately.
        unsafe { libc::_exit(0) };
    }
    let mut server = listener.accept(LATE.unwrap()).unwrap().unwrap();
    assert_eq!(server.peer().pid, client);
    assert!(matches!(server.receive(MOST, Some(Duration::from_secs(5))), Err(ChannelError::Ended)));
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(client, std::ptr::null_mut(), 0) };
}

#[test]
fn nobody_listening_is_an_error_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = Channel::connect(&folder.path().join("nobody")).unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("nobody"), "{error}");
}
