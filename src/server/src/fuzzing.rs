//! Invariants for arbitrary inputs. The fuzzers in `fuzz/` call these functions, and so does a test that replays and
//! mutates the fuzzers' seeds.
//!
//! Each function takes the bytes of one input and panics if an invariant is violated. The module exists only in tests
//! and in builds with `--cfg fuzzing`.

pub mod mutation;
#[cfg(test)]
mod tests;

pub use crate::webhook::fuzzing::review;
