//! The configuration file: how it is read and how errors are reported, and the sections that concern the guard.
//!
//! All errors of a file are reported at once, each with its path and line. The sections for pods and nodes, and the whole
//! file, are in the crate `inject`.

pub mod diagnostic;
pub mod document;
pub mod owner_kinds;
pub mod policies;
pub mod probe;
pub mod quantities;
pub mod selector;
pub mod syntax;
