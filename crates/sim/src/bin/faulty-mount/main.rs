//! A folder, mounted elsewhere through a file system that fails on command: `faulty-mount --help`.
//!
//! 1. It ends, and its mount with it, on a command, or with `--until-eof` when its standard input ends. So a test that
//!    dies leaves no mount behind. Held operations then fail with an error.
//! 2. The control socket responds even while every operation hangs.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program, not a library")]
#![expect(clippy::disallowed_methods, reason = "simulates the system outside of the store")]

mod faults;
mod files;
mod folder;
mod nodes;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use faults::Faults;
use files::Faulty;
use fuser::{Config, MountOption, SessionACL};

const USAGE: &str = "\
Mount a folder elsewhere, through a FUSE file system whose operations fail, are short, are slow or hang on command.
A program that uses it, even with io_uring and O_DIRECT, sees what a bad device shows. Needs root and /dev/fuse.

usage: faulty-mount SOURCE MOUNTPOINT --control SOCKET [--until-eof]
       faulty-mount --send SOCKET COMMAND...

  SOURCE       an existing folder, which has the files
  MOUNTPOINT   an existing folder; its content is hidden while this runs
  SOCKET       a Unix socket to create for commands: one per line, each with a response 'ok …' or 'error …'
  --until-eof  also end when the standard input ends
  --send       send a command to a running one, and print the response

When it is mounted it prints 'ready'. Commands:

  add OPERATIONS EFFECT… [file=PREFIX] [at=FIRST..END] [after=N] [times=N] [every=N]
               add a rule and return its number; the first rule that matches an operation decides
               OPERATIONS: all, or some of read,write,sync,open,create,allocate,truncate,remove,rename,sync-names,
                           list,stat,mkdir (stat: also lookups of names, and free space)
               EFFECT: error=EIO (any name of a disk error, or its number)
                       short=BYTES (read or write at most this many, and report the number)
                       delay=MS (then continue, or fail if error= is given, too)
                       hang (as delay, until the rule is cleared)
               file=PREFIX: only files whose name starts with this; at=FIRST..END: only reads and writes that touch one
               of these bytes; after=N: not the first N; times=N: only N; every=N: one in N
  clear        remove all rules and release held operations
  clear N      remove rule N
  status       print JSON: operations that are held now, that matched each rule, that were seen by kind
  quit         release held operations, unmount, and end

example: faulty-mount --send /tmp/control add read hang file=segment-";

/// Number of threads for requests of the kernel.
const THREADS: usize = 4;

struct Wanted {
    source: PathBuf,
    mountpoint: PathBuf,
    control: PathBuf,
    until_eof: bool,
}

fn parse(arguments: Vec<String>) -> Result<Wanted, String> {
    let (mut places, mut control, mut until_eof) = (Vec::new(), None, false);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--control" => control = arguments.next().map(PathBuf::from),
            "--until-eof" => until_eof = true,
            option if option.starts_with("--") => return Err(format!("{option} is not known")),
            _ => places.push(PathBuf::from(argument)),
        }
    }
    let [source, mountpoint] = <[PathBuf; 2]>::try_from(places)
        .map_err(|_| "SOURCE and MOUNTPOINT are wanted".to_owned())?;
    let control = control.ok_or("--control SOCKET is wanted")?;
    Ok(Wanted { source, mountpoint, control, until_eof })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((first, _)) if first == "--help" || first == "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        Some((first, rest)) if first == "--send" => send(rest),
        _ => match parse(arguments) {
            Ok(wanted) => serve(&wanted).map_err(|error| error.to_string()),
            Err(what) => {
                eprintln!("faulty-mount: {what}\n\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("faulty-mount: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends a command to a running one.
fn send(arguments: &[String]) -> Result<(), String> {
    let (socket, words) = arguments.split_first().ok_or("--send needs SOCKET and a command")?;
    let answer = || -> io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(format!("{}\n", words.join(" ")).as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = answer().map_err(|error| format!("{socket}: {error}"))?;
    print!("{line}");
    if line.starts_with("ok") { Ok(()) } else { Err("it was not done".to_owned()) }
}

fn serve(wanted: &Wanted) -> io::Result<()> {
    let source = wanted.source.canonicalize()?;
    let faults = Arc::new(Faults::default());
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("faulty".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    config.n_threads = Some(THREADS);
    let listener = UnixListener::bind(&wanted.control)?;
    let files = Faulty::new(&source, Arc::clone(&faults));
    let session = fuser::spawn_mount(files, &wanted.mountpoint, &config)?;
    println!("ready");
    io::stdout().flush()?;
    let end = {
        let (mountpoint, control) = (wanted.mountpoint.clone(), wanted.control.clone());
        move |faults: &Faults| end(faults, &mountpoint, &control)
    };
    if wanted.until_eof {
        let (faults, end) = (Arc::clone(&faults), end.clone());
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock().take(u64::MAX), &mut io::sink());
            end(&faults);
        });
    }
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (faults, end) = (Arc::clone(&faults), end.clone());
            std::thread::spawn(move || converse(stream, &faults, end));
        }
    });
    // Ends when the folder is unmounted.
    let ended = session.join();
    let _ = std::fs::remove_file(&wanted.control);
    ended
}

/// Executes the command lines of one connection.
fn converse(stream: UnixStream, faults: &Faults, end: impl Fn(&Faults)) {
    let Ok(mut out) = stream.try_clone() else { return };
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.trim() == "quit" {
            let _ = out.write_all(b"ok bye\n");
            return end(faults);
        }
        let answer = match faults.execute(&line) {
            Ok(outcome) => format!("ok {outcome}\n"),
            Err(what) => format!("error {what}\n"),
        };
        if out.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Releases all held operations, and removes the mount even if it is in use.
fn end(faults: &Faults, mountpoint: &Path, control: &Path) {
    let _ = faults.execute("clear");
    let mut umount = Command::new("umount");
    let done = umount.arg("--lazy").arg(mountpoint).stdin(Stdio::null()).status();
    let _ = std::fs::remove_file(control);
    let is_gone = done.is_ok_and(|status| status.success());
    std::process::exit(i32::from(!is_gone));
}
