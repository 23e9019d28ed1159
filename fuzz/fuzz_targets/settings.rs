#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};

#[path = "../mutator.rs"]
#[allow(dead_code, reason = "shared with the other fuzzers")]
mod mutator;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutator::lines(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| etcd_guard::fuzzing::settings(data));
