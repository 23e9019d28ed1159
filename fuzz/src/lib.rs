//! Code that the fuzzers in `fuzz_targets` share.

pub mod mutator;
