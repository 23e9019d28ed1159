//! Voters that are not healthy, and the causes.

use crate::{
    membership::{Member, Membership},
    snapshot::{MemberPod, Snapshot},
};

/// Cause of a voter that runs in no pod of the snapshot and was not reached at its client URLs.
const NO_POD: &str = "no visible pod runs this member, and none of its client URLs replies";

/// Cause of a voter that runs in no pod of the snapshot and is not probed at its client URLs.
const DENIED: &str =
    "no visible pod runs this member, and guard.probe.deniedNetworks rejects its client URLs";

/// A voter that is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingVoter {
    /// Name of the pod or, without a pod, of the member.
    pub name: String,
    /// Kind of the controller of this pod; empty without a pod or a controller.
    pub owner_kind: String,
    /// Why the voter is not healthy.
    pub cause: String,
}

/// Returns the voters that are not healthy.
pub(super) fn missing_voters(membership: &Membership<'_>) -> Vec<MissingVoter> {
    let missing = membership.voters().filter(|voter| !voter.is_healthy());
    let owner_kind = |voter: &Member<'_>| voter.pod.map(|pod| pod.owner_kind.clone()).unwrap_or_default();
    missing
        .map(|voter| MissingVoter { name: voter.name(), owner_kind: owner_kind(voter), cause: cause(voter) })
        .collect()
}

/// Returns all pods of a snapshot in which no member proved a quorum.
pub(super) fn silent_pods(snapshot: &Snapshot) -> Vec<MissingVoter> {
    let pods = snapshot.pods.iter();
    pods.map(|pod| MissingVoter {
        name: pod.name.clone(),
        owner_kind: pod.owner_kind.clone(),
        cause: pod_cause(pod),
    })
    .collect()
}

/// Returns `; not healthy: etcd-2 (connection refused)`, or an empty text. A pod whose controller has another kind than
/// `owner_kind` is listed with this kind: `etcd-2 of EtcdMember (connection refused)`.
pub fn describe_missing(missing: &[MissingVoter], owner_kind: &str) -> String {
    match describe_broken(missing, owner_kind) {
        Some(voters) => format!("; not healthy: {voters}"),
        None => String::new(),
    }
}

/// Returns `etcd-2 (connection refused)`, or `None` without missing voters.
pub fn describe_broken(missing: &[MissingVoter], owner_kind: &str) -> Option<String> {
    // A cause that several voters share, such as a missing Secret, is stated once.
    let mut groups: Vec<(Vec<String>, &str)> = Vec::new();
    for MissingVoter { name, owner_kind: kind, cause } in missing {
        let name =
            if kind.is_empty() || kind == owner_kind { name.clone() } else { format!("{name} of {kind}") };
        match groups.iter_mut().find(|(_, known)| known == cause) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], cause)),
        }
    }
    let groups: Vec<String> =
        groups.iter().map(|(names, cause)| format!("{} ({cause})", names.join(", "))).collect();
    (!groups.is_empty()).then(|| groups.join(", "))
}

/// Returns the first pod of a missing voter that `contributes` to a denial and may be healthy, because the guard may lack
/// access to its member.
pub fn inaccessible_pod<'a>(
    snapshot: &'a Snapshot,
    missing: &[MissingVoter],
    contributes: impl Fn(&MemberPod) -> bool,
) -> Option<&'a MemberPod> {
    let mut pods = missing.iter().filter_map(|voter| snapshot.pod(&voter.name));
    pods.find(|pod| contributes(pod) && pod.may_lack_access())
}

/// Returns the cause of a voter that runs in no pod of the snapshot and did not reply at its client URLs.
pub fn unreached_cause(voter: &Member<'_>) -> &'static str {
    if voter.is_address_denied { DENIED } else { NO_POD }
}

fn cause(voter: &Member<'_>) -> String {
    match voter.pod {
        _ if voter.is_corrupt => String::from("its data is corrupt"),
        _ if voter.is_disputed => String::from("the members do not agree that it is a voter"),
        Some(pod) if voter.is_serving() && !voter.listed.advertises(pod.scheme) => {
            String::from("the member advertises no client URL with the scheme at which its pod replies")
        }
        _ if let Some(status) = voter.outdated() => format!("it reports the former term {}", status.term),
        Some(pod) => pod_cause(pod),
        None if !voter.listed.has_started() => String::from("it has never started"),
        None => match voter.external.and_then(|member| member.reply.cause()) {
            Some(cause) => cause.to_string(),
            None => unreached_cause(voter).to_owned(),
        },
    }
}

fn pod_cause(pod: &MemberPod) -> String {
    match pod.reply.cause() {
        None => String::from("its pod replies as another member"),
        Some(cause) => cause.to_string(),
    }
}
