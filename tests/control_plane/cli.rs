//! The commands `check`, `conformance` and `status`.

mod check;
mod check_answer;
mod check_operations;
mod conformance;
mod status;
mod terminal;
