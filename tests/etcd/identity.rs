//! The relation between pods and members of the member list.

mod addresses;
mod external_members;
mod membership;
mod names;
