//! Guards that apply and remove their own webhook configurations.

mod component_failures;
pub(crate) mod end;
mod start;
mod uninstall;
