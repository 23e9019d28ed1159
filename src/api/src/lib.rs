//! What the server says to people over its admin port, as JSON: the status of clusters and the preview of a verdict.
//!
//! It is a crate of its own so that the kubectl plugin reads the same types that the guard fills, without depending on the guard.
//! A `Survey` is the answer of `/status`, a `Preview` that of `/preview`. Most values are those of the crate `core`.
//!
//! This crate must not know how an answer was found or how it is printed: it has types and no logic.

mod preview;
mod status;

pub use self::{
    preview::Preview,
    status::{
        BackupStatus, ClusterStatus, MemberStatus, PRIORITY_WARNING, RecognitionGap, ReservationStatus, Role,
        Survey,
    },
};
