//! The relation between pods and members of the member list.

mod addresses;
mod external_members;
mod late_labels;
mod membership;
mod names;
mod wrong_lists;
