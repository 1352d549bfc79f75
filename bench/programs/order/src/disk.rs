//! A disk in virtual time: it serves the requests of each direction one after the other, and both more slowly while it
//! has both.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dalsegno_core::{Class, Nanos};
use dalsegno_policy::schedule::{Ask, Direction, Next};

use crate::order::{Order, Queue, ask};
use crate::{Cell, Served};

/// Bytes of a request.
const PIECE: u64 = 1 << 20;

fn real(value: u64) -> f64 {
    // Sizes and times of a run are far below 2^52.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let value = value as f64;
    value
}

fn nanos(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds.max(0.0)).as_nanos()).expect("a short run")
}

/// What a disk works on.
struct Disk {
    cell: Cell,
    queue: Queue,
    known: HashMap<u64, (Ask, u32)>,
    /// By direction: requests in flight with the bytes that are left.
    flights: [VecDeque<(u64, f64)>; 2],
    now: f64,
    saved: u64,
}

impl Disk {
    fn at(&self) -> Nanos {
        Nanos(nanos(self.now))
    }

    fn submit(&mut self, layer: u32, ask: Ask) {
        self.known.insert(ask.id, (ask, layer));
        if let Some(id) = self.queue.arrive(ask, self.at()) {
            self.begin(id);
        }
    }

    fn begin(&mut self, id: u64) {
        let (ask, _) = self.known[&id];
        self.flights[ask.direction as usize].push_back((id, real(ask.bytes)));
    }

    /// Starts what may start; returns when to look again.
    fn start(&mut self) -> f64 {
        loop {
            match self.queue.next(self.at()) {
                Next::Go(id) => self.begin(id),
                Next::WaitUntil(at) => return real(at.0) / 1e9,
                Next::Wait => return f64::INFINITY,
            }
        }
    }

    fn rate(&self, direction: usize) -> f64 {
        let alone = [self.cell.read_bytes_per_s, self.cell.write_bytes_per_s][direction];
        let has_both = self.flights.iter().all(|flights| !flights.is_empty());
        if has_both { alone * self.cell.beside } else { alone }
    }

    /// When the first request in flight ends, if nothing else changes.
    fn next_end(&self) -> f64 {
        let end = |at: usize| Some(self.now + self.flights[at].front()?.1 / self.rate(at));
        [0, 1].into_iter().filter_map(end).fold(f64::INFINITY, f64::min)
    }

    /// Lets time pass up to the next change; returns the layers of the reads that ended.
    fn run_to(&mut self, moment: f64) -> Vec<u32> {
        let rates = [self.rate(0), self.rate(1)];
        let passed = moment - self.now;
        self.now = moment;
        let mut read = Vec::new();
        for (flights, rate) in self.flights.iter_mut().zip(rates) {
            let Some((id, left)) = flights.front_mut() else { continue };
            *left -= passed * rate;
            // A byte is far less than the rounding of a nanosecond.
            if *left > 1.0 {
                continue;
            }
            let (ask, layer) = self.known.remove(id).expect("each ends once");
            flights.pop_front();
            self.queue.done(&ask, Nanos(nanos(moment)));
            match ask.direction {
                Direction::Read => read.push(layer),
                Direction::Write => self.saved += ask.bytes,
            }
        }
        read
    }
}

/// The engine: which layers have come, and how far it has computed.
struct Engine {
    cell: Cell,
    /// What it says of its times, as a part of what they are.
    predicted: f64,
    /// Bytes by layer that are still to come.
    missing: Vec<u64>,
    computed: u32,
    /// When the layer that computes ends; `None` while it waits for its bytes.
    ends: Option<f64>,
    first_token: Option<f64>,
}

impl Engine {
    /// Says that it computes for so long.
    fn say(&self, seconds: f64, disk: &mut Disk) {
        disk.queue.say_prefill(Duration::from_secs_f64(self.predicted * seconds), disk.at());
    }

    /// Begins what can compute, and ends what has.
    fn advance(&mut self, disk: &mut Disk) {
        if self.ends.is_some_and(|end| end <= disk.now) {
            self.ends = None;
            self.computed += 1;
            if self.computed == self.cell.layers {
                self.say(self.cell.later_s, disk);
                self.ends = Some(disk.now + self.cell.later_s);
            } else if self.computed > self.cell.layers {
                self.first_token = Some(disk.now);
                disk.queue.say_idle(disk.at());
            }
        }
        let has_bytes = self.missing.get(self.computed as usize) == Some(&0);
        if self.ends.is_none() && has_bytes {
            self.ends = Some(disk.now + self.cell.layer_s);
        }
    }
}

/// Serves a cell.
pub fn serve(cell: &Cell, order: Order) -> Served {
    let mut disk = Disk {
        cell: *cell,
        queue: Queue::new(order),
        known: HashMap::new(),
        flights: Default::default(),
        now: 0.0,
        saved: 0,
    };
    let mut ids = 1_u64..;
    let mut id = || ids.next().expect("endless");
    let save_bytes = if order == Order::Alone { 0 } else { cell.save_bytes };
    let step_s = f64::from(cell.layers) * cell.layer_s;
    let missing = vec![cell.layer_bytes; cell.layers as usize];
    let predicted = order.predicted(cell);
    let mut engine =
        Engine { cell: *cell, predicted, missing, computed: 0, ends: None, first_token: None };
    // Some saves are in flight when the request comes.
    for _ in 0..save_bytes / PIECE {
        disk.submit(0, ask(id(), Class::Save, PIECE, None));
    }
    disk.start();
    engine.say(step_s, &mut disk);
    for layer in 0..cell.layers {
        let due = Nanos(nanos(f64::from(layer) * predicted * cell.layer_s));
        let mut left = cell.layer_bytes;
        while left > 0 {
            let bytes = left.min(PIECE);
            disk.submit(layer, ask(id(), Class::Need, bytes, Some(due)));
            left -= bytes;
        }
    }
    let (mut first, mut saved, mut said_s) = (0.0, 0, 0.0);
    loop {
        engine.advance(&mut disk);
        if let Some(at) = engine.first_token.take() {
            (first, saved) = (at, disk.saved);
        }
        if engine.first_token.is_none()
            && engine.computed <= cell.layers
            && disk.now >= said_s + 1.0
        {
            // As engines do at each step, and while they wait.
            said_s = disk.now;
            let left = if engine.computed < cell.layers { step_s } else { cell.later_s };
            engine.say(left, &mut disk);
        }
        let wake = disk.start();
        let says = if engine.computed <= cell.layers { said_s + 1.0 } else { f64::INFINITY };
        let next = [wake, disk.next_end(), says, engine.ends.unwrap_or(f64::INFINITY)];
        let next = next.into_iter().fold(f64::INFINITY, f64::min);
        if next.is_infinite() {
            break;
        }
        for layer in disk.run_to(next.max(disk.now)) {
            let missing = &mut engine.missing[layer as usize];
            *missing -= PIECE.min(*missing);
        }
    }
    assert_eq!(disk.saved, save_bytes / PIECE * PIECE, "{order:?} leaves saves behind");
    Served { first_token_s: first, saved_bytes: saved, all_saved_s: disk.now }
}
