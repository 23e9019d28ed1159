//! Half of all inputs are made by libFuzzer, half of whole parts: what libFuzzer makes of JSON is seldom JSON.

use etcd_guard::fuzzing::mutation::{self, Random};
use libfuzzer_sys::fuzzer_mutate;

/// Changes the first `size` bytes of `data` by `change`, where it can and they fit; returns how many there are then.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    limit: usize,
    seed: u32,
    change: impl Fn(&[u8], &mut Random) -> Option<Vec<u8>>,
) -> usize {
    let mut random = Random::new(seed.into());
    if random.below(2) == 0
        && let Some(changed) = change(&data[..size], &mut random)
        && changed.len() <= limit
    {
        data[..changed.len()].copy_from_slice(&changed);
        return changed.len();
    }
    fuzzer_mutate(data, size, limit)
}

/// Parts of JSON.
pub fn json(data: &mut [u8], size: usize, limit: usize, seed: u32) -> usize {
    mutate(data, size, limit, seed, mutation::json)
}

/// Lines of a text.
pub fn lines(data: &mut [u8], size: usize, limit: usize, seed: u32) -> usize {
    mutate(data, size, limit, seed, |text, random| {
        Some(mutation::lines(std::str::from_utf8(text).ok()?, random).into_bytes())
    })
}
