//! Status of clusters and members, from a snapshot.

use std::collections::BTreeMap;

use etcd_guard_api::{ClusterStatus, MemberStatus, ReservationStatus, Role};
use etcd_guard_core::{
    assess::{cluster_summary::ClusterSummary, unreached_cause},
    etcd::{
        member::{ListedMember, MemberId, Status},
        probe_result::ProbeResult,
        release::{stale_read_fix, wrong_list_fix},
    },
    membership::Member,
    policy::PolicySetting,
    reservation::Reservation,
    snapshot::{Departure, MemberPod, Snapshot},
};

/// Returns the status of a cluster.
pub(crate) fn cluster_status(
    snapshot: &Snapshot,
    summary: &ClusterSummary<'_>,
    reserved: &[Reservation],
    policy: Vec<PolicySetting>,
    warnings: Vec<String>,
) -> ClusterStatus {
    let tally = summary.tally.as_ref();
    let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let prefix = format!("{}/", snapshot.namespace);
    let name = snapshot.cluster.strip_prefix(&prefix).unwrap_or(&snapshot.cluster).to_owned();
    let is_of_cluster = |reservation: &&Reservation| {
        summary.list.iter().any(|member| member.id.to_string() == reservation.member)
            || snapshot.pods.iter().any(|pod| pod.uid == reservation.uid)
    };
    let reservations = reserved.iter().filter(is_of_cluster).map(|reservation| ReservationStatus {
        pod: reservation.pod.clone(),
        at: reservation.at.clone(),
        by: reservation.by.clone(),
    });
    ClusterStatus {
        namespace: snapshot.namespace.clone(),
        name,
        id: snapshot.cluster_id().map(|id| id.to_string()),
        voters: tally.map(|tally| tally.voters),
        healthy: tally.map(|tally| tally.healthy),
        quorum: tally.map(|tally| tally.quorum),
        spare: tally.map(|tally| signed(tally.remaining) - signed(tally.quorum)),
        term: tally.map(|tally| tally.term),
        members: members(snapshot, summary),
        reservations: reservations.collect(),
        policy,
        problems: problems(summary).into_iter().chain(warnings).collect(),
        traps: Vec::new(),
        last_backup: None,
    }
}

fn problems(summary: &ClusterSummary<'_>) -> Vec<String> {
    let obstacle = summary.obstacle.iter().map(|(reason, text)| format!("{reason}: {text}"));
    let missing = summary.missing.iter().map(|voter| format!("{}: {}", voter.name, voter.cause));
    let corrupt = summary.corrupt.iter().map(|id| match id.0 {
        0 => String::from("data is corrupt at a member that etcd cannot determine (alarm CORRUPT)"),
        _ => format!("member {id}: its data is corrupt (alarm CORRUPT)"),
    });
    let stale_reads = affected_releases(
        summary.members(),
        stale_read_fix,
        "can confirm a linearizable read at a deposed leader (etcd issue 20418)",
    );
    let wrong_lists = affected_releases(
        summary.members(),
        wrong_list_fix,
        "can list a learner as a voter, or a voter as a learner (etcd issues 21694, 19557)",
    );
    obstacle.chain(missing).chain(corrupt).chain(stale_reads).chain(wrong_lists).collect()
}

/// Returns one sentence per release with a defect that the release in `fix` corrects.
fn affected_releases(members: &[Member<'_>], fix: fn(&str) -> Option<String>, defect: &str) -> Vec<String> {
    let mut by_release: BTreeMap<&str, (String, Vec<String>)> = BTreeMap::new();
    for member in members {
        let Some(status) = member.reply().and_then(ProbeResult::status) else { continue };
        if let Some(fixed) = fix(&status.version) {
            let (_, names) = by_release.entry(&status.version).or_insert((fixed, Vec::new()));
            names.push(member.name());
        }
    }
    let sentence = |(version, (fixed, names)): (&str, (String, Vec<String>))| {
        format!("etcd {version} ({}) {defect}: upgrade to {fixed} or later", names.join(", "))
    };
    by_release.into_iter().map(sentence).collect()
}

/// Returns the status of each pod, then of each member without a pod.
fn members(snapshot: &Snapshot, summary: &ClusterSummary<'_>) -> Vec<MemberStatus> {
    let leader = summary.tally.as_ref().and_then(|tally| tally.leader);
    let max_applied = snapshot.statuses().map(|status| status.applied_index).max();
    let with_member = |status: MemberStatus, member: &ListedMember| MemberStatus {
        id: Some(member.id.to_string()),
        name: Some(member.name.clone()).filter(|_| member.has_started()),
        role: role(member, leader),
        ..status
    };
    let in_pod = |pod: &MemberPod| {
        let mut status = MemberStatus {
            pod: Some(pod.name.clone()),
            owner_kind: Some(pod.owner_kind.clone()).filter(|kind| !kind.is_empty()),
            address: Some(pod.ip.clone()).filter(|address| !address.is_empty()),
            storage: Some(pod.storage.as_str().to_owned()),
            leaving: leaving(pod.departure()),
            ..member_status(&pod.reply, max_applied)
        };
        // A reply contains the member's id. A member that is not listed was removed.
        if pod.reply.status().is_some() && !summary.list.is_empty() {
            status.role = Role::NotListed;
        }
        match summary.member_of_pod(&pod.name) {
            Some(member) => with_member(status, member),
            None => status,
        }
    };
    let without_pod = |member: &Member<'_>| {
        let status = match member.external {
            Some(external) => MemberStatus {
                leaving: leaving(member.departure()),
                ..member_status(&external.reply, max_applied)
            },
            None => {
                MemberStatus { cause: Some(unreached_cause(member).to_owned()), ..MemberStatus::default() }
            }
        };
        let status = MemberStatus { address: member.listed.client_urls.first().cloned(), ..status };
        with_member(status, &member.listed)
    };
    snapshot.pods.iter().map(in_pod).chain(summary.without_pod().map(without_pod)).collect()
}

fn leaving(departure: Option<Departure>) -> Option<String> {
    departure.map(|departure| departure.as_str().to_owned())
}

/// The facts of a reply, without the entry of the member list.
fn member_status(reply: &ProbeResult, max_applied: Option<u64>) -> MemberStatus {
    let status = reply.status();
    let lag = |status: &Status| Some(max_applied?.saturating_sub(status.applied_index));
    MemberStatus {
        id: status.map(|status| status.member_id.to_string()),
        serving: reply.is_healthy(),
        cause: reply.cause().map(ToString::to_string),
        version: status.map(|status| status.version.clone()),
        lag: status.and_then(lag),
        database_bytes: status.map(|status| status.database.bytes),
        free_bytes: status.map(|status| status.database.free()),
        quota_bytes: status.map(|status| status.database.quota).filter(|quota| *quota > 0),
        downgrade: status.and_then(|status| status.downgrade.clone()),
        ..MemberStatus::default()
    }
}

fn role(member: &ListedMember, leader: Option<MemberId>) -> Role {
    if member.is_learner {
        Role::Learner
    } else if leader == Some(member.id) {
        Role::Leader
    } else {
        Role::Follower
    }
}
