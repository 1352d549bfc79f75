//! State per thread and per process: the current context, `cuInit`, forks and the environment.

use crate::support::{Session, ok, result, violations};
use fake_cuda::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUcontext, controls,
};
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::thread;

/// Runs a closure in a forked child and returns the signal that ended the child, or 0.
pub(crate) fn signal_of_child(body: impl Fn()) -> i32 {
    // SAFETY: The child only runs the body, which takes no lock, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: The test harness' handler would print; the default ends the child.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        body();
        // SAFETY: It has no preconditions.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: The child exists, and the status is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) {
        return libc::WTERMSIG(status);
    }
    assert_eq!(libc::WEXITSTATUS(status), 0);
    0
}

fn alloc() -> i32 {
    let mut address = 0;
    result!(cuMemAlloc_v2(&raw mut address, 1))
}

#[test]
fn the_current_context_is_per_thread() {
    let _session = Session::new();
    let mut context: CUcontext = null_mut();
    ok!(cuCtxGetCurrent(&raw mut context));
    let handle = context.expose_provenance();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut context = null_mut();
            ok!(cuCtxGetCurrent(&raw mut context));
            assert!(context.is_null());
            assert_eq!(alloc(), CUDA_ERROR_INVALID_CONTEXT);
            let wrong = std::ptr::with_exposed_provenance_mut(handle + 1);
            assert_eq!(result!(cuCtxSetCurrent(wrong)), CUDA_ERROR_INVALID_CONTEXT);
            ok!(cuCtxSetCurrent(std::ptr::with_exposed_provenance_mut(handle)));
            ok!(cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
            ok!(cuCtxSetCurrent(null_mut()));
            assert_eq!(alloc(), CUDA_ERROR_INVALID_CONTEXT);
        });
    });
}

fn current() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&raw mut context));
    context
}

/// Runs a closure on a thread whose stack of contexts is empty. The closure gets the context.
fn on_another_thread(body: impl FnOnce(CUcontext) + Send) {
    let context = current().expose_provenance();
    thread::scope(|scope| {
        scope.spawn(|| body(std::ptr::with_exposed_provenance_mut(context)));
    });
}

#[test]
fn a_popped_context_uncovers_the_one_below() {
    let _session = Session::new();
    on_another_thread(|context| {
        ok!(cuCtxPushCurrent_v2(context));
        ok!(cuCtxPushCurrent_v2(context));
        let mut popped = null_mut();
        ok!(cuCtxPopCurrent_v2(&raw mut popped));
        assert_eq!((popped, current()), (context, context));
        ok!(cuCtxPopCurrent_v2(null_mut()));
        assert!(current().is_null());
        assert_eq!(alloc(), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(result!(cuCtxPopCurrent_v2(&raw mut popped)), CUDA_ERROR_INVALID_CONTEXT);
    });
    assert!(!current().is_null(), "each thread has its own stack");
}

#[test]
fn setting_the_context_replaces_the_top_of_the_stack() {
    let _session = Session::new();
    on_another_thread(|context| {
        ok!(cuCtxSetCurrent(null_mut()));
        ok!(cuCtxSetCurrent(context));
        ok!(cuCtxSetCurrent(context));
        ok!(cuCtxPopCurrent_v2(null_mut()));
        assert!(current().is_null(), "it was set, not pushed");
        ok!(cuCtxPushCurrent_v2(context));
        ok!(cuCtxPushCurrent_v2(context));
        ok!(cuCtxSetCurrent(null_mut()));
        assert_eq!(current(), context, "null pops one context");
        ok!(cuCtxPopCurrent_v2(null_mut()));
    });
}

#[test]
fn only_a_retained_context_can_be_pushed() {
    let _session = Session::new();
    let context = current();
    assert_eq!(result!(cuCtxPushCurrent_v2(null_mut())), CUDA_ERROR_INVALID_VALUE);
    let wrong = context.wrapping_byte_add(1);
    assert_eq!(result!(cuCtxPushCurrent_v2(wrong)), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(result!(cuCtxPushCurrent_v2(context)), CUDA_ERROR_INVALID_CONTEXT);
    let mut again = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut again, 0));
}

#[test]
fn a_released_context_cannot_be_used() {
    let _session = Session::new();
    assert_eq!(controls::fake_cuda_alive(6), 1);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(alloc(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(result!(cuDevicePrimaryCtxRelease_v2(0)), CUDA_ERROR_INVALID_CONTEXT);
    let mut context = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
    ok!(cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
}

#[test]
fn a_forked_child_cannot_use_the_driver() {
    let _session = Session::new();
    let signal = signal_of_child(|| {
        let is_refused = alloc() == CUDA_ERROR_NOT_INITIALIZED
            && result!(cuInit(0)) == CUDA_ERROR_NOT_INITIALIZED;
        if !is_refused {
            // SAFETY: It has no preconditions.
            unsafe { libc::_exit(1) };
        }
    });
    assert_eq!(signal, 0);
}

/// Runs a test of this binary, which is ignored otherwise, in a process with that environment.
fn run_ignored(test: &str, fake_cuda: &str) -> Output {
    Command::new(std::env::current_exe().expect("a path"))
        .args([&format!("process::{test}"), "--exact", "--ignored", "--nocapture"])
        .env("FAKE_CUDA", fake_cuda)
        .output()
        .expect("the test binary starts")
}

#[test]
fn calls_before_cu_init_are_refused() {
    let output = run_ignored("child_before_cu_init", "");
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "calls_before_cu_init_are_refused runs it in its own process"]
fn child_before_cu_init() {
    let mut count = 0;
    assert_eq!(result!(cuDeviceGetCount(&raw mut count)), CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(alloc(), CUDA_ERROR_NOT_INITIALIZED);
    ok!(cuDriverGetVersion(&raw mut count));
    ok!(cuInit(0));
    ok!(cuDeviceGetCount(&raw mut count));
    assert_eq!(alloc(), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(violations(), Vec::<String>::new());
}

#[test]
fn the_environment_breaks_the_driver_of_a_process() {
    let settings = "version=12040,memlock=4096,attribute:113=0,fail:cuDeviceGetCount=46,ptx=7.8";
    let output = run_ignored("child_with_environment", settings);
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "the_environment_breaks_the_driver_of_a_process runs it in its own process"]
fn child_with_environment() {
    let (mut version, mut attribute, mut count) = (0, -1, 0);
    ok!(cuInit(0));
    ok!(cuDriverGetVersion(&raw mut version));
    ok!(cuDeviceGetAttribute(&raw mut attribute, 113, 0));
    assert_eq!((version, attribute), (12_040, 0));
    for _ in 0..3 {
        assert_eq!(result!(cuDeviceGetCount(&raw mut count)), 46);
    }
    controls::fake_cuda_reset(1, 0);
    ok!(cuDeviceGetCount(&raw mut count));
    assert_eq!(count, CUDA_SUCCESS + 1);
}

#[test]
fn a_bad_environment_aborts_with_a_message() {
    let output = run_ignored("child_before_cu_init", "seed=1,sed=2");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("FakeCuda: FAKE_CUDA is invalid") && text.contains("\"sed=2\""),
        "{text}"
    );
}
