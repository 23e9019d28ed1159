//! Clusters with members that fail, restart, leave or run different releases.

mod alarms;
mod faults;
mod leadership;
mod leaving;
mod lingering;
mod upgrade;
