//! Which member a pod runs: who answers at its address, then the host of a peer URL, then a name. One, or none, never
//! a guess between two.
//!
//! Client URLs decide nothing: some charts advertise one Service for all members.

use std::collections::HashMap;

use super::{
    etcd_pod::is_own_host,
    snapshot::{MemberPod, Snapshot},
};
use crate::etcd::{ListedMember, MemberId};

/// The member of each pod that has one.
#[derive(Debug)]
pub(super) struct Identity {
    by_pod: HashMap<String, MemberId>,
}

/// Two answers where there should be one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ambiguity {
    /// The pod in question.
    pub pod: String,
    /// What it could be.
    pub why: String,
}

/// Matches all pods of a snapshot with the listed members.
pub(super) fn resolve(snapshot: &Snapshot, list: &[ListedMember]) -> Result<Identity, Ambiguity> {
    let mut by_pod = HashMap::new();
    let mut pod_of: HashMap<MemberId, &str> = HashMap::new();
    for pod in &snapshot.pods {
        let Some(id) = member_of(pod, list)? else { continue };
        if let Some(other) = pod_of.insert(id, &pod.name) {
            let why = format!("both it and {other} look like member {id}");
            return Err(Ambiguity { pod: pod.name.clone(), why });
        }
        by_pod.insert(pod.name.clone(), id);
    }
    Ok(Identity { by_pod })
}

fn member_of(pod: &MemberPod, list: &[ListedMember]) -> Result<Option<MemberId>, Ambiguity> {
    if let Some(status) = pod.reply.status() {
        // Whoever answers knows who it is: if its id is not listed, it was removed, and no name brings it back.
        let listed = list.iter().any(|member| member.id == status.member_id);
        return Ok(listed.then_some(status.member_id));
    }
    let by_peer_host = |member: &&ListedMember| has_peer_at(member, &pod.name, &pod.ip);
    if let Some(id) = single(pod, "peer URLs", list.iter().filter(by_peer_host))? {
        return Ok(Some(id));
    }
    let is_named = |member: &&ListedMember| {
        member.has_started() && (member.name == pod.name || Some(&member.name) == pod.member_name.as_ref())
    };
    single(pod, "names", list.iter().filter(is_named))
}

fn single<'a>(
    pod: &MemberPod,
    what: &str,
    mut matches: impl Iterator<Item = &'a ListedMember>,
) -> Result<Option<MemberId>, Ambiguity> {
    match (matches.next(), matches.next()) {
        (None, _) => Ok(None),
        (Some(member), None) => Ok(Some(member.id)),
        (Some(one), Some(other)) => Err(Ambiguity {
            pod: pod.name.clone(),
            why: format!("the {what} of members {} and {} both fit it", one.id, other.id),
        }),
    }
}

/// Whether a peer URL of the member leads to a pod of this name or address.
pub(super) fn has_peer_at(member: &ListedMember, pod: &str, ip: &str) -> bool {
    member.peer_urls.iter().any(|url| {
        let Ok(uri) = url.parse::<http::Uri>() else { return false };
        let Some(host) = uri.host() else { return false };
        is_own_host(pod, ip, host.trim_start_matches('[').trim_end_matches(']'))
    })
}

// === impl Identity ===

impl Identity {
    /// The member that this pod runs.
    #[must_use]
    pub(super) fn of(&self, pod: &str) -> Option<MemberId> {
        self.by_pod.get(pod).copied()
    }
}
