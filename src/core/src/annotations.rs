//! Names of the annotations that choose policies or describe members.

pub use crate::objects::annotations::{
    ACCEPT_AUTO_TLS, ALLOW_REASON, ALLOW_UNTIL, AUTH_SECRET, CLIENT_TLS_SECRET, DEFRAGMENT, ENDPOINTS,
    EPHEMERAL_DATA, LAST_BACKUP, LEADER, MEMBER, MIN_VOTERS, MODE, MOVE_LEADER, REPLACE, SINGLE_MEMBER,
    TOO_LONG,
};

/// Value that replaces `"false"` of [`MEMBER`] where the floor does not let annotations exclude a pod.
pub const MEMBER_OVERRULED: &str = "overruled";
