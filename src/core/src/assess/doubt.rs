//! Doubts about the member list that neither a contradiction nor the members' own evidence removes, in releases of etcd with
//! defects of the list.

use crate::{
    etcd::{member::Suffrage, release::wrong_list_fix},
    membership::{Member, Membership},
    snapshot::MemberPod,
    tally,
    tally::Tally,
};

/// Returns the doubts about the approval of a deletion: a wrong list could make it cost the quorum.
pub(super) fn doubts(
    membership: &Membership<'_>,
    tally: &Tally,
    is_deleted: impl Fn(&Member<'_>) -> bool,
) -> Vec<String> {
    let mut doubts = doubt_about_learners(membership, tally, &is_deleted);
    // A learner costs no vote, whatever the others are.
    if membership.voters().any(&is_deleted) {
        doubts.extend(doubt_about_voters(membership, tally, is_deleted));
    }
    doubts
}

/// Voters that remain may be learners, if the proven ones are no quorum without them.
fn doubt_about_voters(
    membership: &Membership<'_>,
    tally: &Tally,
    is_deleted: impl Fn(&Member<'_>) -> bool,
) -> Option<String> {
    let remaining =
        membership.voters().filter(|voter| voter.is_healthy() && !voter.is_leaving() && !is_deleted(voter));
    let unproven = |voter: &Member<'_>| {
        let status = voter.reply()?.status().filter(|status| status.suffrage != Some(Suffrage::Voter))?;
        Some((voter.name(), status.version.clone(), wrong_list_fix(&status.version)?))
    };
    let (mut names, mut release) = (Vec::new(), None);
    for (name, version, fixed) in remaining.filter_map(unproven) {
        names.push(name);
        release = Some((version, fixed));
    }
    let (version, fixed) = release.filter(|_| tally.remaining < tally.quorum + names.len())?;
    Some(format!(
        "etcd {version} can list a learner as a voter (fixed in {fixed}): nothing proves that {} votes",
        names.join(" or ")
    ))
}

/// Learners that do not remain may be voters, if the listed voters that do are no quorum of both. A learner that responds and stays
/// makes no difference: as a voter, it adds to the votes at least what it adds to the quorum.
fn doubt_about_learners(
    membership: &Membership<'_>,
    tally: &Tally,
    is_deleted: impl Fn(&Member<'_>) -> bool,
) -> Vec<String> {
    let stays = |member: &Member<'_>| member.is_responding() && !member.is_leaving() && !is_deleted(member);
    let learners = membership.members().iter().filter(|member| member.listed.is_learner);
    let names: Vec<String> = learners.filter(|learner| !stays(learner)).map(Member::name).collect();
    // A read passed without a member that does not run: its deletion costs nothing.
    let mut deleted = membership.members().iter().filter(|member| is_deleted(member));
    let costs_vote = deleted.any(|member| member.pod.is_some_and(MemberPod::is_running));
    let costs_quorum = tally.has_quorum() && tally.remaining < tally::quorum(tally.voters + names.len());
    let Some((version, fixed)) = membership.lost_promotions().filter(|_| costs_vote && costs_quorum) else {
        return Vec::new();
    };
    vec![
        format!(
            "{} may be a voter that the list shows as a learner: if so, the cluster loses its quorum",
            names.join(" or ")
        ),
        format!(
            "etcd {version} can list a voter as a learner (fixed in {fixed}): its log names raft's voters"
        ),
    ]
}
