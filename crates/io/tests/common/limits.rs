//! Limits of this process. They are permanent, so each test that sets one runs in a child. The store's tests use this
//! file as well; it is here because this crate may contain unsafe code.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

/// Makes one system call fail with `errno` in all threads of this process.
pub fn forbid(call: libc::c_long, errno: i32) {
    let code = |parts: &[u32]| u16::try_from(parts.iter().sum::<u32>()).unwrap();
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let load = code(&[libc::BPF_LD, libc::BPF_W, libc::BPF_ABS]);
    let jump = code(&[libc::BPF_JMP, libc::BPF_JEQ, libc::BPF_K]);
    let verdict = code(&[libc::BPF_RET, libc::BPF_K]);
    let errno = u32::try_from(errno).unwrap();
    let mut filter = [
        // The call's number is the first word of the data.
        step(load, 0, 0, 0),
        step(jump, 0, 1, u32::try_from(call).unwrap()),
        step(verdict, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(verdict, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live until the calls return; the kernel copies them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
    }
}

/// Forbids this process to open a file whose descriptor is `count` or more. Open files stay open.
pub fn limit_open_files(count: u64) {
    // SAFETY: plain system calls with a struct of our own.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = count;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Like [`limit_open_files`], but the limit cannot be raised again.
pub fn limit_open_files_for_good(count: u64) {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: a plain system call with a struct of our own.
    unsafe { assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0) };
}

/// Limits the length of this process's files to so many bytes; `None` for no limit. Exceeding it is an error, not a
/// signal.
pub fn limit_file_bytes(bytes: Option<u64>) {
    // SAFETY: plain system calls with a struct of our own; nothing of the test depends on this signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit), 0);
        limit.rlim_cur = bytes.unwrap_or(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

/// Limits the memory that this process may lock. No limit applies to root, so root becomes nobody. Returns `false` if
/// that fails.
pub fn limit_locked_memory(bytes: u64) -> bool {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: plain system calls with a struct of our own.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        libc::geteuid() != 0 || libc::setuid(65_534) == 0
    }
}
