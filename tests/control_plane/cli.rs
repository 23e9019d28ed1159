//! The commands `check`, `conformance`, `doctor`, `inspect` and `status`.

mod check;
mod check_answer;
mod check_operations;
mod conformance;
mod doctor;
mod inspect;
mod status;
mod terminal;
