//! Latency and bandwidth of a location.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use dalsegno_core::{Class, Stopped};
use dalsegno_io::{Completion, FileId, IoError, Memory, Operation, Purpose, Request};

use super::objects::{OpenTier, Subject, content, numbered, percentile_us};
use super::report::{BandwidthRow, DoctorError, LatencyRow};
use crate::filling::IN_FLIGHT;
use crate::names::ObjectName;
use crate::replies::Replies;
use crate::tier::Tier;

/// Numbers of workers that are measured.
const LEVELS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const PACK_BYTES: usize = 8 << 20;
/// Packs that stay for the reads.
const MOST_PACKS: usize = 32;
/// Bytes of a read.
const READ_BYTES: usize = 1 << 20;
const MOST_SAMPLES: usize = 2000;
/// Longest wait for one reply.
const LIMIT: Duration = Duration::from_secs(10);

/// Bytes per second by the number of packs that are published at a time.
pub(super) type PublishRates = Vec<(usize, u64)>;

/// Publishes packs, some at a time, for `time` each. Returns the packs that stay, and the rates.
pub(super) fn publish(
    subject: &mut Subject<'_>,
    open: OpenTier<'_>,
    time: Duration,
) -> Result<(Vec<ObjectName>, PublishRates), DoctorError> {
    let (mut packs, mut rates) = (Vec::new(), Vec::new());
    let content = content(0, PACK_BYTES);
    for (levels_left, at_a_time) in [(3, 1), (2, 2), (1, IN_FLIGHT)] {
        let tier = open(u32::try_from(2 * at_a_time).expect("a small number"))?;
        let replies = Replies::new(&subject.near.clock);
        let (start, end) = (subject.now(), subject.until(time));
        let left = subject.most_bytes.saturating_sub(subject.written_bytes);
        let limit = subject.written_bytes + left / levels_left;
        let (mut names, mut in_flight, mut published) = (Vec::new(), 0, 0_u64);
        loop {
            let is_over = end.expired(subject.now());
            while in_flight < at_a_time && (!is_over || names.is_empty()) {
                if !subject.may_write(PACK_BYTES, limit) {
                    break;
                }
                let number = subject.number();
                let name = subject.pack(number);
                let memory = vec![numbered(&content, number)];
                tier.publish(name, memory, replies.ask(names.len() as u64, LIMIT));
                names.push(name);
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            let reply =
                replies.next(subject.until(LIMIT)).ok_or(IoError::Stopped(Stopped::Deadline))?;
            reply.result?;
            in_flight -= 1;
            published += PACK_BYTES as u64;
            let name = names[usize::try_from(reply.tag).expect("a position")];
            if packs.len() < MOST_PACKS {
                packs.push(name);
            } else {
                subject.near.call(|tier, ask| tier.remove(name, ask))?;
            }
            subject.check_stop()?;
        }
        rates.push((at_a_time, per_second(published, subject.now().since(start))));
    }
    Ok((packs, rates))
}

/// Measures single reads through the other mount.
pub(super) fn latency(
    subject: &Subject<'_>,
    packs: &[ObjectName],
    time: Duration,
) -> Result<Vec<LatencyRow>, DoctorError> {
    let mut rows = Vec::new();
    for bytes in [4096, READ_BYTES] {
        let mut reads = Reads::new(subject, Arc::clone(&subject.other.tier), packs, bytes);
        let (end, mut times) = (subject.until(time), Vec::new());
        while !end.expired(subject.now()) && times.len() < MOST_SAMPLES {
            let start = subject.now();
            reads.start();
            reads.wait()?;
            times.push(subject.now().since(start));
            subject.check_stop()?;
        }
        times.sort_unstable();
        rows.push(LatencyRow {
            operation: "read",
            bytes: bytes as u64,
            count: times.len() as u64,
            p50_us: percentile_us(&times, 50),
            p99_us: percentile_us(&times, 99),
        });
    }
    Ok(rows)
}

/// Measures reads with each number of workers, for `time` each.
pub(super) fn bandwidth(
    subject: &Subject<'_>,
    open: OpenTier<'_>,
    packs: &[ObjectName],
    time: Duration,
    publish: &[(usize, u64)],
) -> Result<Vec<BandwidthRow>, DoctorError> {
    let mut rows = Vec::new();
    for far_workers in LEVELS {
        let mut reads = Reads::new(subject, open(far_workers)?, packs, READ_BYTES);
        let (start, end) = (subject.now(), subject.until(time));
        let mut done = 0_u64;
        (0..far_workers).for_each(|_| reads.start());
        while reads.in_flight > 0 {
            reads.wait()?;
            // Reads that end after the time count with the time that they took.
            done += READ_BYTES as u64;
            if !end.expired(subject.now()) {
                reads.start();
            }
            subject.check_stop()?;
        }
        let at_a_time = (far_workers as usize / 2).clamp(1, IN_FLIGHT);
        let rate = publish.iter().rev().find(|(packs, _)| *packs <= at_a_time);
        rows.push(BandwidthRow {
            far_workers,
            read_bytes_per_s: per_second(done, subject.now().since(start)),
            publish_bytes_per_s: rate.map_or(0, |(_, rate)| *rate),
        });
    }
    Ok(rows)
}

/// Reads of random parts of packs.
struct Reads<'a> {
    subject: &'a Subject<'a>,
    tier: Arc<dyn Tier>,
    files: Vec<FileId>,
    bytes: usize,
    random: u64,
    in_flight: usize,
    reply: Sender<Completion>,
    replies: crossbeam_channel::Receiver<Completion>,
    free: Vec<Memory>,
}

impl<'a> Reads<'a> {
    fn new(
        subject: &'a Subject<'a>,
        tier: Arc<dyn Tier>,
        packs: &[ObjectName],
        bytes: usize,
    ) -> Self {
        let files = packs.iter().map(|name| tier.file(*name)).collect();
        let (reply, replies) = unbounded();
        let (random, in_flight, free) = (0x2545_F491_4F6C_DD1D, 0, Vec::new());
        Self { subject, tier, files, bytes, random, in_flight, reply, replies, free }
    }

    /// Starts one.
    fn start(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let places = PACK_BYTES / self.bytes;
        let place = usize::try_from(self.random >> 32).expect("32 bits");
        let file = self.files[place / places % self.files.len()];
        let memory = self.free.pop().unwrap_or_else(|| Memory::zeroed(self.bytes));
        let request = Request {
            operation: Operation::Read,
            purpose: Purpose::of(Class::Need),
            file,
            offset: (place % places * self.bytes) as u64,
            memory: vec![memory],
            tag: 0,
            deadline: self.subject.until(LIMIT),
            guard: None,
            watch: None,
            reply: self.reply.clone(),
        };
        self.in_flight += 1;
        self.tier.submit(vec![request]);
    }

    /// Waits for one.
    fn wait(&mut self) -> Result<(), IoError> {
        let completion = self.replies.recv_timeout(LIMIT).map_err(|_| Stopped::Deadline)?;
        self.in_flight -= 1;
        self.free.extend(completion.memory);
        completion.result
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| self.tier.forget(*file));
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}
