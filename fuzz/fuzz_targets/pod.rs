#![no_main]

use etcd_guard_fuzz::mutator;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutator::json(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| etcd_guard_guard::fuzzing::pod(data));
