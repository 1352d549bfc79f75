use super::*;
use crossbeam_channel::{Sender, unbounded};
use dalsegno_core::{Clock, Stopped};

use crate::SystemClock;

const WAIT: Duration = Duration::from_secs(30);
const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

fn lane(threads: u32, queue: usize) -> JobLane {
    JobLane::start("lane", Executor::Threads, threads, queue).unwrap()
}

fn threads_of(lane: &JobLane) -> u32 {
    lane.queue.state.lock().threads
}

/// Starts a job that reports its start and hangs until the test releases it.
fn hang(lane: &JobLane, held: &Receiver<()>, started: &Sender<()>) {
    let (held, started) = (held.clone(), started.clone());
    lane.keep_place(NO_WAIT).unwrap().start(move |permission| {
        if permission.is_ok() {
            started.send(()).unwrap();
            assert!(held.recv().is_err());
        }
    });
}

/// Starts a job that answers.
fn quick(lane: &JobLane) -> Receiver<Result<(), IoError>> {
    lane.keep_place(NO_WAIT).unwrap().ask(|| Ok(()))
}

fn ended(answer: &Receiver<Result<(), IoError>>) -> Result<(), IoError> {
    answer.recv_timeout(WAIT).expect("every job ends")
}

#[test]
fn threads_start_on_demand_up_to_the_bound() {
    let lane = lane(3, 100);
    assert_eq!(threads_of(&lane), 1);
    let (release, held) = bounded(0);
    let (starts, started) = unbounded();
    for _ in 0..5 {
        hang(&lane, &held, &starts);
    }
    for _ in 0..3 {
        started.recv_timeout(WAIT).unwrap();
    }
    assert!(started.recv_timeout(Duration::from_millis(50)).is_err());
    assert_eq!(threads_of(&lane), 3);
    drop(release);
}

#[test]
fn jobs_begin_in_the_order_in_which_they_were_queued() {
    let lane = lane(1, 100);
    let (order, begun) = unbounded();
    for number in 0..100 {
        let order = order.clone();
        let place = lane.keep_place(Some(WAIT)).unwrap();
        place.start(move |_| order.send(number).unwrap());
    }
    lane.close();
    lane.join(WAIT);
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_full_queue_refuses_and_gives_a_place_when_one_is_free() {
    let lane = lane(1, 2);
    let (release, held) = bounded(0);
    let (starts, started) = unbounded();
    hang(&lane, &held, &starts);
    started.recv_timeout(WAIT).unwrap();
    let queued = quick(&lane);
    let kept = lane.keep_place(NO_WAIT).unwrap();
    assert!(matches!(lane.keep_place(NO_WAIT), Err(IoError::Stopped(Stopped::Busy))));
    drop(kept);
    let kept = lane.keep_place(NO_WAIT).unwrap();
    assert!(matches!(
        lane.keep_place(Some(Duration::from_millis(1))),
        Err(IoError::Stopped(Stopped::Busy))
    ));
    drop(release);
    assert!(lane.keep_place(Some(WAIT)).is_ok());
    ended(&kept.ask(|| Ok(()))).unwrap();
    ended(&queued).unwrap();
}

#[test]
fn a_panic_ends_one_job_and_no_thread() {
    let lane = lane(1, 10);
    lane.keep_place(None).unwrap().start(|_| panic!("meant to be"));
    ended(&quick(&lane)).unwrap();
}

#[test]
fn a_closed_lane_runs_queued_jobs_and_that_of_a_kept_place() {
    let lane = lane(2, 10);
    let (release, held) = bounded(0);
    let (starts, started) = unbounded();
    for _ in 0..2 {
        hang(&lane, &held, &starts);
        started.recv_timeout(WAIT).unwrap();
    }
    let queued: Vec<_> = (0..4).map(|_| quick(&lane)).collect();
    let kept = lane.keep_place(NO_WAIT).unwrap();
    lane.close();
    assert!(matches!(lane.keep_place(None), Err(IoError::Closed)));
    drop(release);
    assert!(queued.iter().all(|answer| ended(answer).is_ok()));
    ended(&kept.ask(|| Ok(()))).unwrap();
    lane.join(WAIT);
    assert_eq!(Arc::strong_count(&lane.queue), 1, "no thread is left");
}

#[test]
fn an_aborted_lane_refuses_queued_jobs_and_leaves_a_hanging_one_behind() {
    let lane = lane(1, 10);
    let (release, held) = bounded(0);
    let (starts, started) = unbounded();
    hang(&lane, &held, &starts);
    started.recv_timeout(WAIT).unwrap();
    let waiting = [quick(&lane), quick(&lane)];
    lane.abort();
    assert!(waiting.iter().all(|answer| matches!(ended(answer), Err(IoError::Closed))));
    lane.join(Duration::from_millis(20));
    assert!(matches!(lane.keep_place(NO_WAIT), Err(IoError::Closed)));
    let clock = SystemClock::default();
    let before = clock.now();
    drop(lane);
    assert!(clock.now().since(before) < CLOSE_TIMEOUT / 2, "it is not waited for again");
    drop(release);
}

#[test]
fn an_inline_lane_runs_a_job_before_its_start_returns() {
    let lane = JobLane::start("lane", Executor::Inline, 1, 1).unwrap();
    let here = std::thread::current().id();
    for _ in 0..2 {
        let answer = lane.keep_place(None).unwrap().ask(move || {
            assert_eq!(std::thread::current().id(), here);
            Err::<(), _>(IoError::Stopped(Stopped::Deadline))
        });
        assert!(matches!(answer.try_recv(), Ok(Err(IoError::Stopped(Stopped::Deadline)))));
    }
    lane.close();
    assert!(matches!(lane.keep_place(None), Err(IoError::Closed)));
}

#[test]
fn each_job_is_called_exactly_once_while_the_lane_ends() {
    for round in 0..100 {
        let lane = Arc::new(lane(3, 2));
        let (calls, called) = unbounded();
        let (starts, started) = unbounded();
        let mut callers = Workers::new();
        for _ in 0..4 {
            let (lane, calls, starts) = (Arc::clone(&lane), calls.clone(), starts.clone());
            let body = move || {
                while let Ok(place) = lane.keep_place(None) {
                    starts.send(()).unwrap();
                    let calls = calls.clone();
                    place.start(move |permission| calls.send(permission.is_ok()).unwrap());
                }
            };
            callers.start("caller", body).unwrap();
        }
        drop((calls, starts));
        for _ in 0..20 {
            started.recv_timeout(WAIT).unwrap();
        }
        if round % 2 == 0 {
            lane.close();
        } else {
            lane.abort();
        }
        callers.join(WAIT);
        lane.join(WAIT);
        assert_eq!(Arc::strong_count(&lane.queue), 1, "no thread is left");
        let permissions: Vec<bool> = called.try_iter().collect();
        assert_eq!(permissions.len(), 20 + started.try_iter().count());
        assert!(round % 2 == 1 || permissions.iter().all(|may_run| *may_run));
    }
}
