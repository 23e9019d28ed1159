//! Pods and members that the guard must not trust.

mod fan_out;
mod impostors;
mod texts;
