//! Reads, comparisons and additions of parts of an untyped pod.

pub(super) mod affinity;
pub(super) mod equality;
mod paths;
mod view;
pub(super) mod volumes;

pub(super) use self::{
    paths::{is_below, normalized},
    view::{ContainerView, PodView, items, mount_path, with_member},
};
