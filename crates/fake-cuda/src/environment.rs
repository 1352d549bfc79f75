//! The environment variable `FAKE_CUDA`: a comma-separated list of settings and planted failures.
//!
//! `seed=1,delay=100,version=12040,memlock=65536,ptx=7.8,attribute:113=0,fail:cuInit=34`
//!
//! 1. It is read once, when the library is loaded, and at the latest by the first call.
//! 2. A bad entry aborts the process with a message on stderr.

use crate::abi::CUresult;
use crate::plants::{self, Plant, Shows};
use crate::settings;
use std::io::Write;
use std::str::FromStr;
use std::sync::Once;

const VARIABLE: &str = "FAKE_CUDA";

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Seed(u64),
    DelayUs(u32),
    DriverVersion(i32),
    Memlock(usize),
    Ptx(u32, u32),
    Attribute(i32, i32),
    Fail(String, CUresult),
}

fn number<T: FromStr>(text: &str, entry: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} in {entry:?} is not a number of that setting"))
}

fn parse_entry(entry: &str) -> Result<Entry, String> {
    let (key, value) =
        entry.split_once('=').ok_or_else(|| format!("{entry:?} is not KEY=VALUE"))?;
    if let Some(attribute) = key.strip_prefix("attribute:") {
        return Ok(Entry::Attribute(number(attribute, entry)?, number(value, entry)?));
    }
    if let Some(name) = key.strip_prefix("fail:") {
        if !plants::NAMES.contains(&name) {
            return Err(format!("{name:?} in {entry:?} is not an exported call"));
        }
        return Ok(Entry::Fail(name.to_owned(), number(value, entry)?));
    }
    match key {
        "seed" => Ok(Entry::Seed(number(value, entry)?)),
        "delay" => Ok(Entry::DelayUs(number(value, entry)?)),
        "version" => Ok(Entry::DriverVersion(number(value, entry)?)),
        "memlock" => Ok(Entry::Memlock(number(value, entry)?)),
        "ptx" => {
            let (major, minor) =
                value.split_once('.').ok_or_else(|| format!("{entry:?} is not ptx=X.Y"))?;
            Ok(Entry::Ptx(number(major, entry)?, number(minor, entry)?))
        }
        _ => Err(format!(
            "{key:?} in {entry:?} is not one of seed, delay, version, memlock, ptx, \
             attribute:NUMBER, fail:CALL"
        )),
    }
}

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(|entry| parse_entry(entry.trim())).collect()
}

fn apply(entry: Entry) {
    settings::change(|settings| match entry {
        Entry::Seed(seed) => settings.seed = seed,
        Entry::DelayUs(delay_us) => settings.max_delay_us = delay_us,
        Entry::DriverVersion(version) => settings.driver_version = version,
        Entry::Memlock(bytes) => settings.memlock = bytes,
        Entry::Ptx(major, minor) => settings.ptx = (major, minor),
        Entry::Attribute(number, value) => {
            settings.attributes.insert(number, value);
        }
        Entry::Fail(name, result) => {
            plants::plant(&name, Plant { after: 0, times: u32::MAX, result, shows: Shows::Now });
        }
    });
}

fn load() {
    let Some(text) = std::env::var_os(VARIABLE) else { return };
    match parse(&text.to_string_lossy()) {
        Ok(entries) => entries.into_iter().for_each(apply),
        Err(message) => {
            // Without stderr the abort has to suffice.
            let _ = writeln!(std::io::stderr(), "FakeCuda: {VARIABLE} is invalid: {message}");
            std::process::abort();
        }
    }
}

/// Reads the variable, unless that happened before.
pub(crate) fn ensure_loaded() {
    static LOADED: Once = Once::new();
    LOADED.call_once(load);
}

extern "C" fn at_load() {
    ensure_loaded();
}

// SAFETY: The loader calls each function of this section once. This one takes no arguments and needs nothing that the
// loader sets up later.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn() = at_load;

#[cfg(test)]
mod tests {
    use super::{Entry, parse};

    #[test]
    fn every_setting_is_parsed() {
        let text =
            "seed=7,delay=0, version=12040,memlock=65536,ptx=7.8,attribute:113=0,fail:cuInit=34";
        assert_eq!(
            parse(text).unwrap(),
            [
                Entry::Seed(7),
                Entry::DelayUs(0),
                Entry::DriverVersion(12_040),
                Entry::Memlock(65_536),
                Entry::Ptx(7, 8),
                Entry::Attribute(113, 0),
                Entry::Fail("cuInit".to_owned(), 34),
            ]
        );
        assert_eq!(parse(" ").unwrap(), []);
    }

    #[test]
    fn a_bad_entry_is_named_in_the_message() {
        for text in [
            "seed",
            "seed=",
            "seed=-1",
            "sed=1",
            "seed=1,,delay=1",
            "ptx=8",
            "ptx=8.x",
            "attribute:=1",
            "attribute:113=yes",
            "fail:cuInitialize=1",
            "fail:cuInit=bad",
        ] {
            let message = parse(text).unwrap_err();
            let bad = text.split(',').find(|entry| *entry != "seed=1").unwrap();
            assert!(message.contains(&format!("{bad:?}")), "{text}: {message}");
        }
    }
}
