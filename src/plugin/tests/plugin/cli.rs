//! The commands `check`, `conformance`, `doctor`, `inspect`, `status` and `version`.

mod check;
mod check_answer;
mod check_operations;
mod check_targets;
mod conformance;
mod doctor;
mod inspect;
mod status;
mod status_of_cluster;
mod terminal;
mod traps;
mod version;
