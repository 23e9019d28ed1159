//! Reads, comparisons and additions of parts of an untyped pod.

pub(crate) mod affinity;
pub(crate) mod equality;
mod paths;
mod view;
pub(crate) mod volumes;

pub(super) use self::{
    paths::{is_below, normalized},
    view::{ContainerView, PodView, items, mount_path, with_member},
};
