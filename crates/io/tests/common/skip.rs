//! What a machine does not allow is left out, and says so. The store's tests use this file, too.

use std::io::Write;

/// Names, separated by commas, of what CI may leave out on this machine.
const MAY_SKIP: &str = "DALSEGNO_MAY_SKIP";

/// Says what is not tested, and why. The line goes to the process's standard error itself, because what a passing test
/// prints is never shown.
///
/// # Panics
///
/// In CI, which sets `CI`, unless `DALSEGNO_MAY_SKIP` names `what`: there nobody reads what a passing test says.
pub fn skip(what: &str, why: &str) {
    say(what, why);
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let allowed = std::env::var(MAY_SKIP).unwrap_or_default();
    let is_allowed = allowed.split(',').any(|name| name.trim() == what);
    assert!(!is_set("CI") || is_allowed, "CI leaves nothing out unless {MAY_SKIP} names {what:?}");
}

/// As [`skip`], for what CI may always leave out.
pub fn say(what: &str, why: &str) {
    // One write: lines of tests that run at the same time do not mix.
    let line = format!("skipped ({what}): {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
