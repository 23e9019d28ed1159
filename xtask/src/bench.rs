//! Inputs and reports of `scripts/bench`.

pub(crate) mod compare;
pub(crate) mod idle;
pub(crate) mod mutate;
pub(crate) mod review;
mod rows;
pub(crate) mod table;
