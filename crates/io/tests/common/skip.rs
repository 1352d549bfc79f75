//! Skips a test that the machine does not allow, and reports it. The store's tests use this file as well.

use std::io::Write;

/// Names, separated by commas, of the checks that CI may skip on this machine.
const MAY_SKIP: &str = "DALSEGNO_MAY_SKIP";

/// Reports what is not tested, and why. Writes to the process's standard error directly, because the output of a
/// passing test is never shown.
///
/// # Panics
///
/// In CI, which sets `CI`, unless `DALSEGNO_MAY_SKIP` names `what`: nobody reads the output of passing tests there.
pub fn skip(what: &str, why: &str) {
    say(what, why);
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    let is_allowed = allowed.split(',').any(|name| name.trim() == what);
    assert!(!is_set("CI") || is_allowed, "CI skips nothing unless {MAY_SKIP} names {what:?}");
}

/// Like [`skip`], for checks that CI may always skip.
pub fn say(what: &str, why: &str) {
    // One write, so that lines of concurrent tests do not mix.
    let line = format!("skipped ({what}): {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
