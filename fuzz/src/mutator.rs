//! Mutators: libFuzzer produces half of the inputs, structural mutations the other half. The mutations of libFuzzer
//! rarely result in valid JSON.

use etcd_guard_server::{fuzzing::mutation, fuzzing::mutation::Random};
use libfuzzer_sys::fuzzer_mutate;

/// Applies `change` to the first `size` bytes of `data`, if the result fits. Returns the new size.
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

/// Mutates parts of a JSON text.
pub fn json(data: &mut [u8], size: usize, limit: usize, seed: u32) -> usize {
    mutate(data, size, limit, seed, mutation::json)
}

/// Mutates lines of a text.
pub fn lines(data: &mut [u8], size: usize, limit: usize, seed: u32) -> usize {
    mutate(data, size, limit, seed, |text, random| {
        Some(mutation::lines(std::str::from_utf8(text).ok()?, random).into_bytes())
    })
}
