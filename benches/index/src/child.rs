//! One engine in a process of its own, so that its memory, time and writes are its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::engines;
use crate::workload::{CHAIN_BLOCKS, EXTENT_BLOCKS, random};

/// The process of an engine.
pub struct Child {
    pub name: &'static str,
    dir: PathBuf,
    process: std::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a process took.
pub struct Usage {
    pub rss_mb: f64,
    pub disk_mb: f64,
    pub written_bytes: f64,
    pub cpu_s: f64,
}

impl Child {
    pub fn start(name: &'static str, dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("a folder");
        let program = std::env::current_exe().expect("this program has a name");
        let mut process = Command::new(program)
            .args(["--engine", name, "--dir"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the engine's process starts");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Self { name, dir: dir.to_owned(), process, input, output }
    }

    /// Lets the engine do something; returns the seconds it took.
    pub fn ask(&mut self, what: &str) -> f64 {
        writeln!(self.input.as_mut().expect("open"), "{what}").expect("the engine listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the engine answers");
        line.trim().parse().unwrap_or_else(|_| panic!("{} ended during {what:?}", self.name))
    }

    /// What the process took so far; it ends.
    pub fn usage(mut self) -> Usage {
        let id = self.process.id();
        let proc =
            |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        let field = |text: &str, name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace()
                .nth(1)
                .and_then(|number| number.parse().ok())
                .unwrap_or(f64::NAN)
        };
        let stat = proc("stat");
        let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: f64 = times.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
        let usage = Usage {
            rss_mb: field(&proc("status"), "VmRSS:") / 1024.0,
            disk_mb: disk_bytes(&self.dir) / 1e6,
            written_bytes: field(&proc("io"), "write_bytes:"),
            cpu_s: ticks / 100.0,
        };
        drop(self.input.take());
        self.process.wait().expect("the engine ends");
        usage
    }
}

fn disk_bytes(dir: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).expect("the folder is there");
    entries
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|file| file.blocks() as f64 * 512.0)
        .sum()
}

/// The engine's side: carries out what comes, and answers with seconds.
pub fn serve(name: &str, dir: &Path) {
    let mut engine = engines::open(name, dir);
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let start = Instant::now();
        match (what, &numbers[..]) {
            ("put", [first, count]) => {
                let extents = (*first..first + count).step_by(EXTENT_BLOCKS as usize);
                extents.for_each(|first| engine.put(first));
            }
            ("settle", []) => engine.settle(),
            ("hit", [seed, count, blocks]) => {
                for at in 0..*count {
                    assert!(engine.has(random(seed << 32 | at) % blocks), "a block is missing");
                }
            }
            ("miss", [seed, count, blocks]) => {
                for at in 0..*count {
                    assert!(
                        !engine.has(blocks + random(seed << 32 | at) % (1 << 40)),
                        "a block too many"
                    );
                }
            }
            ("scan", [seed, count, blocks]) => {
                for at in 0..*count {
                    let chain = random(seed << 32 | at) % (blocks / CHAIN_BLOCKS);
                    assert_eq!(engine.scan(chain), CHAIN_BLOCKS, "a chain is cut");
                }
            }
            _ => panic!("{line:?} is no command"),
        }
        println!("{}", start.elapsed().as_secs_f64());
    }
}
