//! The program under test: started, called as an admission webhook, and used as a command.

pub mod certificate_manager;
pub mod check_comparison;
pub mod cli;
pub mod load;
pub mod process;
pub mod reference;
pub mod review;
pub mod self_managed;
