//! A child process that runs one function of the test and reports line by line what it did, until it is killed.
#![expect(clippy::disallowed_methods, reason = "plays the world outside of the store")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A running child; killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Runs the test `name` of this very file in another process, with `value` for the environment variable `variable`.
    pub(crate) fn spawn(name: &str, variable: &str, value: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            // Quiet, or the name of the test would precede its first report.
            .args(["--exact", name, "--nocapture", "--quiet", "--test-threads", "1"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = process.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let reports = BufReader::new(output).split(b'\n').map_while(Result::ok);
            for line in reports {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    /// Waits for one more line.
    pub(crate) fn line(&self, patience: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(patience)
    }

    /// The reports until now that were not read.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// How it has ended by itself, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    /// Kills it, and returns the reports that were not read.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.end();
        self.lines.iter().collect()
    }

    fn end(&mut self) {
        // Fails only if it has ended already.
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reports to the parent, as the child. One write call per line: lines of threads never mix, and a killed child leaves
/// whole lines.
pub(crate) fn report(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Set in a process that runs one test alone.
const ALONE: &str = "DALSEGNO_TEST_ALONE";

/// Runs `body`, the body of the test `name`, in a process of its own, and passes on what that says it skips.
pub(crate) fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{said}");
    for line in said.split_inclusive('\n').filter(|line| line.starts_with("skipped")) {
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}
