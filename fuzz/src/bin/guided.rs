//! A target under libFuzzer, which looks for inputs that reach new code: `make fuzz`. The target is the one that
//! `FUZZ_TARGET` names.

#![no_main]

use std::sync::OnceLock;

use dalsegno_fuzz::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let known = TARGETS.iter().find(|target| target.name == name);
        known.unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is no target"))
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| target().check(input));
