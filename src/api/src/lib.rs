//! What the server returns to people, as JSON: the status of clusters and the preview of a verdict.
//!
//! The guard and the server build these types, and commands that people run read them. They have no logic.

mod preview;
mod status;

pub use self::{
    preview::Preview,
    status::{
        ClusterStatus, MemberStatus, PRIORITY_WARNING, RecognitionGap, ReservationStatus, Role, Survey,
    },
};
