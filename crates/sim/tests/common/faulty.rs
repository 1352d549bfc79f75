//! A folder under a file system that fails on command: the program `faulty-mount`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::skip::skip;

/// A mount, removed when dropped.
pub(crate) struct FaultyMount {
    program: Child,
    place: PathBuf,
    control: PathBuf,
    _folder: tempfile::TempDir,
}

impl FaultyMount {
    /// Mounts a new folder. Reports it if that is not possible here.
    pub(crate) fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (below, place, control) = (path("below"), path("place"), path("control"));
        for path in [&below, &place] {
            std::fs::create_dir(path).unwrap();
        }
        let mut program = Command::new(env!("CARGO_BIN_EXE_faulty-mount"))
            .args([&below, &place])
            .arg("--control")
            .arg(&control)
            .arg("--until-eof")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(program.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        if line != "ready\n" {
            let output = program.wait_with_output().unwrap();
            skip("fuse", &String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Self { program, place, control, _folder: folder })
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Sends a command to the file system, and returns its response.
    pub(crate) fn command(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(&self.control).unwrap();
        stream.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let response = answer.strip_prefix("ok ").unwrap_or_else(|| panic!("{command}: {answer}"));
        response.trim_end().to_owned()
    }
}

impl Drop for FaultyMount {
    fn drop(&mut self) {
        // The program ends with its input, and releases held operations first.
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}
