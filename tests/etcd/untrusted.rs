//! Pods and members that the guard must not trust.

pub(crate) mod fan_out;
mod impostors;
mod texts;
