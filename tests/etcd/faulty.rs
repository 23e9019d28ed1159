//! Clusters with members that fail, restart, leave or run different releases.

mod alarms;
mod budgets;
mod faults;
mod handover;
mod leadership;
mod leaving;
mod lingering;
mod recordings;
mod refusals;
mod single_member;
mod upgrade;
