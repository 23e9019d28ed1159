//! What any input must come to, however odd: called by the fuzzers in `fuzz/`, and by a test that replays their seeds and
//! changes them.
//!
//! Each function takes the bytes of one input and panics where a promise is broken. Only tests and builds with
//! `--cfg fuzzing` have this room: no user of the library does.

pub mod mutation;
#[cfg(test)]
mod tests;

pub use crate::{
    config::fuzzing::config,
    guard::fuzzing::{pod, settings},
    inject::fuzzing::patch,
    server::fuzzing::review,
};
