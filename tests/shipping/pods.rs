//! The shipped pods: their permissions, their confinement and their placement.

mod confinement;
mod lxcfs_label;
mod permissions;
mod placement;
