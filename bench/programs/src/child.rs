//! One engine in a process of its own, so that its memory, time and writes are its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use crate::engine::Engine;
use crate::workload::{CHAIN_BLOCKS, EXTENT_BLOCKS, percentile, random};

/// The process of an engine.
pub struct Child {
    pub name: String,
    dir: PathBuf,
    process: std::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a process took.
pub struct Usage {
    pub rss_mb: f64,
    /// The most it ever had.
    pub peak_mb: f64,
    pub files: usize,
    pub disk_mb: f64,
    pub written_bytes: f64,
    pub cpu_s: f64,
}

impl Child {
    pub fn start(name: &str, dir: &Path) -> Self {
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
        Self { name: name.to_owned(), dir: dir.to_owned(), process, input, output }
    }

    /// Lets the engine do something; returns the seconds it took.
    pub fn ask(&mut self, what: &str) -> f64 {
        writeln!(self.input.as_mut().expect("open"), "{what}").expect("the engine listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the engine answers");
        line.trim().parse().unwrap_or_else(|_| panic!("{} ended during {what:?}", self.name))
    }

    /// What the process took so far; it ends.
    pub fn end(mut self) -> Usage {
        let usage = self.usage();
        drop(self.input.take());
        self.process.wait().expect("the engine ends");
        usage
    }

    /// Kills the process where it stands.
    pub fn kill(mut self) {
        self.process.kill().expect("the engine is killed");
        self.process.wait().expect("the engine ends");
    }

    /// What the process took so far.
    pub fn usage(&self) -> Usage {
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
        Usage {
            rss_mb: field(&proc("status"), "VmRSS:") / 1024.0,
            peak_mb: field(&proc("status"), "VmHWM:") / 1024.0,
            files: std::fs::read_dir(&self.dir).map_or(0, Iterator::count),
            disk_mb: disk_bytes(&self.dir) / 1e6,
            written_bytes: field(&proc("io"), "write_bytes:"),
            cpu_s: ticks / 100.0,
        }
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

/// The engine's side: carries out what comes, and answers with a number, seconds mostly.
pub fn serve(mut engine: Box<dyn Engine>) {
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let start = Instant::now();
        let answer = answer(engine.as_mut(), what, &numbers);
        println!("{}", answer.unwrap_or_else(|| start.elapsed().as_secs_f64()));
    }
}

/// Does what is asked; `None` where the answer is how long it took.
fn answer(engine: &mut dyn Engine, what: &str, numbers: &[u64]) -> Option<f64> {
    let scan = |engine: &mut dyn Engine, seed: u64, blocks: u64| {
        let chain = random(seed) % (blocks / CHAIN_BLOCKS);
        assert_eq!(engine.scan(chain), CHAIN_BLOCKS, "a chain is cut");
    };
    match (what, numbers) {
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
                let other = blocks + random(seed << 32 | at) % (1 << 40);
                assert!(!engine.has(other), "a block too many");
            }
        }
        ("scan", [seed, count, blocks]) => {
            (0..*count).for_each(|at| scan(engine, seed << 32 | at, *blocks));
        }
        ("scan_p99", [seed, count, blocks]) => {
            let timed = |at| {
                let start = Instant::now();
                scan(engine, seed << 32 | at, *blocks);
                start.elapsed().as_secs_f64()
            };
            return Some(percentile((0..*count).map(timed).collect(), 0.99));
        }
        ("opened_s", []) => return Some(engine.opened().0),
        ("covered", []) => return Some(engine.opened().1 as f64),
        _ => panic!("{what:?} is no command"),
    }
    None
}
