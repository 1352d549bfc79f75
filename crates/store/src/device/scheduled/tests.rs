use std::collections::VecDeque;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dalsegno_core::{Class, Deadline, ManualClock, SECTOR_BYTES};
use dalsegno_io::{
    BufferPool, Completion, DirectoryOptions, LocalDirectory, Memory, Purpose, Request, SystemClock,
};
use dalsegno_policy::schedule::{EngineId, Phase, WindowRules};

use super::*;

/// Keeps requests until they are answered.
#[derive(Debug, Default)]
struct Held {
    requests: Mutex<VecDeque<Request>>,
    /// Whether it answers at once.
    is_quick: bool,
}

impl Source for Held {
    fn submit(&self, requests: Vec<Request>) {
        if self.is_quick {
            return requests.into_iter().for_each(|request| request.complete(Ok(())));
        }
        self.requests.lock().extend(requests);
    }

    fn geometry(&self) -> Geometry {
        Geometry { memory_align: 1, engine: "held", direct: true, places: 64 }
    }
}

/// Admits all but requests with the tag 99.
#[derive(Debug, Default)]
struct Door(Held);

impl Guarded for Door {
    fn admit(&self, request: Request) -> Option<(Request, Admission)> {
        match request.tag {
            99 => {
                request.complete(Err(IoError::Suspended));
                None
            }
            98 => Some((request, Admission::Trial)),
            _ => Some((request, Admission::Regular)),
        }
    }

    fn begin(&self, _: &mut Request) {}

    fn source(&self) -> &dyn Source {
        &self.0
    }
}

struct Rig {
    scheduled: Scheduled<Door>,
    clock: Arc<ManualClock>,
    reply: Sender<Completion>,
    answers: Receiver<Completion>,
}

fn rules() -> ScheduleRules {
    let bytes = 4 * SECTOR_BYTES;
    let window = WindowRules { least: bytes, first: bytes, most: bytes, requests: 64 };
    ScheduleRules { window, most_waiting: 8, ..ScheduleRules::default() }
}

impl Rig {
    fn new(executor: Executor) -> Self {
        Self::before(Door::default(), executor)
    }

    fn before(door: Door, executor: Executor) -> Self {
        let clock = Arc::new(ManualClock::default());
        let (reply, answers) = unbounded();
        let as_clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let scheduled = Scheduled::start(Arc::new(door), rules(), &as_clock, executor).unwrap();
        Self { scheduled, clock, reply, answers }
    }

    fn submit(&self, tag: u64, class: Class, operation: Operation) {
        self.submit_until(tag, class, operation, Deadline::Never);
    }

    fn submit_until(&self, tag: u64, class: Class, operation: Operation, deadline: Deadline) {
        let bytes = if operation == Operation::Sync { 0 } else { 4096 };
        let memory = if bytes == 0 { Vec::new() } else { vec![Memory::zeroed(bytes)] };
        self.scheduled.submit(vec![Request {
            operation,
            // The one with the tag 60 must not be left half-way.
            purpose: Purpose { is_refusable: tag != 60, ..Purpose::of(class) },
            file: FileId(1),
            offset: 0,
            memory,
            tag,
            deadline,
            guard: None,
            watch: None,
            reply: self.reply.clone(),
        }]);
    }

    /// The tags of the requests at the device.
    fn started(&self) -> Vec<u64> {
        self.scheduled.order.device.0.requests.lock().iter().map(|request| request.tag).collect()
    }

    /// Answers the first request at the device.
    fn answer(&self) {
        let request = self.scheduled.order.device.0.requests.lock().pop_front().unwrap();
        request.complete(Ok(()));
    }

    fn say(&self, phase: Phase) {
        self.scheduled.set_phase(EngineId { process: 1, number: 0 }, phase, &[1.0]);
    }
}

const PREFILL: Phase = Phase::Prefill { slack: Duration::ZERO };

#[test]
fn reads_that_an_engine_waits_for_overtake_others() {
    let rig = Rig::new(Executor::Threads);
    for (tag, class) in [(1, Class::Upkeep), (2, Class::Upkeep), (3, Class::Save), (4, Class::Save)]
    {
        rig.submit(tag, class, Operation::Read);
    }
    assert!(
        rig.scheduled.is_full(Operation::Read, Class::Need)
            && !rig.scheduled.is_full(Operation::Write, Class::Need)
    );
    for (tag, class) in
        [(5, Class::Upkeep), (6, Class::Save), (7, Class::Prefetch), (8, Class::Need)]
    {
        rig.submit(tag, class, Operation::Read);
    }
    assert_eq!(rig.started(), [1, 2, 3, 4]);
    for last in [8, 7, 6, 5] {
        rig.answer();
        assert_eq!(rig.started().last(), Some(&last));
    }
    (0..4).for_each(|_| rig.answer());
    assert_eq!(rig.answers.try_iter().count(), 8);
    assert!(!rig.scheduled.is_full(Operation::Read, Class::Upkeep));
}

#[test]
fn writes_are_durable_when_they_end_while_engines_say_what_they_do() {
    let rig = Rig::new(Executor::Threads);
    rig.submit(0, Class::Save, Operation::Write);
    rig.say(PREFILL);
    // It waits, and is marked when it starts.
    rig.submit(1, Class::Save, Operation::Write);
    rig.say(Phase::Idle);
    for (tag, operation) in [(2, Operation::Write), (3, Operation::Read), (4, Operation::Sync)] {
        rig.submit(tag, Class::Save, operation);
    }
    rig.scheduled.end_phases();
    rig.submit(5, Class::Save, Operation::Write);
    assert_eq!(rig.started(), [0, 1, 2, 3, 4, 5]);
    let held = rig.scheduled.order.device.0.requests.lock();
    let durable = held.iter().filter(|request| request.purpose.is_durable);
    assert_eq!(durable.map(|request| request.tag).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_is_refused_completes_once_and_a_trial_waits_for_nothing() {
    let rig = Rig::new(Executor::Threads);
    for tag in 0..12 {
        rig.submit(tag, Class::Need, Operation::Read);
    }
    rig.submit(12, Class::Need, Operation::Read);
    rig.submit(99, Class::Need, Operation::Read);
    rig.submit(98, Class::Need, Operation::Read);
    assert_eq!(rig.started(), [0, 1, 2, 3, 98]);
    let refused: Vec<_> = rig.answers.try_iter().collect();
    assert_eq!(refused.iter().map(|done| done.tag).collect::<Vec<_>>(), [12, 99]);
    assert!(matches!(refused[0].result, Err(IoError::Stopped(Stopped::Busy))));
    assert!(matches!(refused[1].result, Err(IoError::Suspended)));
}

#[test]
fn a_request_that_must_not_be_left_half_way_is_never_refused() {
    let rig = Rig::new(Executor::Threads);
    for tag in 0..12 {
        rig.submit(tag, Class::Save, Operation::Write);
    }
    rig.submit(12, Class::Save, Operation::Write);
    rig.submit(60, Class::Save, Operation::Write);
    assert_eq!(rig.started(), [0, 1, 2, 3, 60]);
    assert_eq!(rig.answers.try_iter().map(|done| done.tag).collect::<Vec<_>>(), [12]);
}

#[test]
fn a_request_whose_deadline_passes_while_it_waits_is_completed_then() {
    let rig = Rig::new(Executor::Threads);
    rig.say(PREFILL);
    let end = rig.clock.now().after(Duration::from_millis(20));
    rig.submit_until(1, Class::Save, Operation::Write, Deadline::At(end));
    rig.submit(2, Class::Save, Operation::Write);
    rig.clock.advance(Duration::from_millis(20));
    let late = rig.answers.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(late.result, Err(IoError::Stopped(Stopped::Deadline))));
    assert_eq!(late.tag, 1);
    assert_eq!(rig.scheduled.view().classes[Class::Save as usize].waiting, 1);
}

#[test]
fn the_thread_starts_what_has_waited_for_long_enough() {
    let rig = Rig::new(Executor::Threads);
    rig.say(PREFILL);
    rig.submit(1, Class::Save, Operation::Write);
    assert!(rig.started().is_empty());
    // The thread looks when its real time is over, and at the clock, which is a virtual one here.
    rig.clock.advance(rules().patience[Class::Save as usize]);
    for _ in 0..1000 {
        if rig.started() == [1] {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never started");
}

#[test]
fn without_a_thread_what_only_waits_for_time_starts_at_once() {
    let rig = Rig::before(Door(Held { is_quick: true, ..Held::default() }), Executor::Inline);
    rig.say(PREFILL);
    for tag in 0..100 {
        rig.submit(tag, Class::Save, Operation::Write);
    }
    assert_eq!(rig.answers.try_iter().count(), 100);
}

#[test]
fn a_device_that_hangs_holds_up_nothing_without_a_thread() {
    let rig = Rig::new(Executor::Inline);
    for tag in 0..12 {
        rig.submit(tag, Class::Save, Operation::Write);
    }
    assert_eq!(rig.started().len(), 12, "none waits for those that hang");
}

#[test]
fn what_waits_is_closed_with_the_device_and_what_is_in_flight_is_not() {
    let rig = Rig::new(Executor::Threads);
    for tag in 0..6 {
        rig.submit(tag, Class::Need, Operation::Read);
    }
    let device = Arc::clone(&rig.scheduled.order.device);
    let order = Arc::downgrade(&rig.scheduled.order);
    drop(rig.scheduled);
    assert!(order.upgrade().is_none(), "what is in flight does not keep it");
    let mut closed: Vec<_> = rig.answers.try_iter().map(|done| done.tag).collect();
    closed.sort_unstable();
    assert_eq!(closed, [4, 5]);
    for request in std::mem::take(&mut *device.0.requests.lock()) {
        request.complete(Ok(()));
    }
    assert_eq!(rig.answers.try_iter().filter(|done| done.result.is_ok()).count(), 4);
}

#[test]
fn many_threads_get_one_completion_for_each_request() {
    let rig = Rig::before(Door(Held { is_quick: true, ..Held::default() }), Executor::Threads);
    let classes = [Class::Need, Class::Prefetch, Class::Save, Class::Upkeep];
    std::thread::scope(|scope| {
        for (number, class) in classes.into_iter().enumerate() {
            let rig = &rig;
            scope.spawn(move || {
                for at in 0..500 {
                    let operation = [Operation::Read, Operation::Write][at % 2];
                    rig.submit(at as u64 % 90, class, operation);
                    if number == 0 {
                        let slack = Duration::from_millis(at as u64 % 3);
                        let phases = [Phase::Prefill { slack }, Phase::Decode, Phase::Idle];
                        rig.say(phases[at % 3]);
                    }
                }
            });
        }
    });
    rig.say(Phase::Idle);
    let done: Vec<_> =
        std::iter::from_fn(|| rig.answers.recv_timeout(Duration::from_secs(20)).ok())
            .take(2000)
            .collect();
    assert_eq!(done.len(), 2000);
    let busy = done.iter().filter(|done| done.result.is_err()).count();
    assert!(busy < 2000, "some were done");
    assert!(!rig.scheduled.order.state.lock().requests.schedule.has_waiting());
}

#[test]
fn regression_every_watch_of_a_request_to_a_real_directory_sees_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let pool = BufferPool::new(16 << 20, 1 << 20).unwrap();
    let options = DirectoryOptions::default();
    let files = LocalDirectory::open(dir.path(), options, &pool, Arc::clone(&clock)).unwrap();
    let watched = Arc::new(Watched::new(Arc::new(files), &clock, None));
    let scheduled =
        Scheduled::start(Arc::clone(&watched), rules(), &clock, Executor::Threads).unwrap();
    let opened = scheduled.open("file", OpenMode::Create { bytes: SECTOR_BYTES }).unwrap();
    let (reply, answers) = crossbeam_channel::bounded(1);
    scheduled.submit(vec![Request {
        operation: Operation::Sync,
        purpose: Purpose::of(Class::Need),
        file: opened.file,
        offset: 0,
        memory: Vec::new(),
        tag: 0,
        deadline: Deadline::Never,
        guard: None,
        watch: None,
        reply,
    }]);
    answers.recv().unwrap().result.unwrap();
    assert_eq!(watched.stats().owed_requests, 0);
    let state = scheduled.order.state.lock();
    assert_eq!(state.requests.schedule.in_flight(Direction::Write), 0);
}
