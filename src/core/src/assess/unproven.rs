//! Reason if no member of a cluster could prove a quorum.

use crate::{
    etcd::{error::MemberError, probe_result::ProbeResult},
    reason::Reason,
    snapshot::{MemberPod, Snapshot},
    tally,
};

/// Returns why no member could prove a quorum.
pub(super) fn unproven(snapshot: &Snapshot) -> Reason {
    let is_running = |pod: &&MemberPod| match &pod.reply {
        ProbeResult::NoStatus { cause } => matches!(cause, MemberError::LoginTimedOut(_)),
        ProbeResult::Healthy { status, .. } | ProbeResult::StatusOnly { status, .. } => !status.is_learner,
    };
    let running = snapshot.pods.iter().filter(is_running).count();
    let is_rejected =
        |pod: &MemberPod| matches!(pod.reply.cause(), Some(MemberError::CredentialsRejected(_)));
    // The members are known, and their list cannot be evaluated.
    let is_oversized = |pod: &MemberPod| matches!(pod.reply.cause(), Some(MemberError::Oversized(_)));
    if snapshot.pods.iter().any(is_oversized) {
        Reason::AmbiguousMember
    } else if snapshot.pods.iter().any(is_rejected) {
        Reason::CredentialsRejected
    } else if running == 0 {
        Reason::EtcdUnreachable
    } else if running >= tally::quorum(snapshot.pods.len()) {
        Reason::ElectionInProgress
    } else {
        Reason::QuorumLost
    }
}
