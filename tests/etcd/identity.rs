//! The relation between pods and members of the member list.

mod external_members;
mod membership;
mod names;
