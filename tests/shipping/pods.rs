//! The shipped pods: their permissions and policies, their confinement and their placement.

mod certificate_policy;
mod confinement;
mod lxcfs_label;
mod permissions;
mod placement;
