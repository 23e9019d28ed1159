//! Doubts about the member list that neither a contradiction nor the members' own evidence removes, in releases of etcd with
//! defects of the list.

use crate::{
    etcd::{
        member::Suffrage,
        release::{lost_promotion_fix, wrong_list_fix},
    },
    membership::{Member, Membership},
    tally,
    tally::Tally,
};

/// Returns the doubt about an approval: a wrong list could make the deletion of `target` cost the quorum.
pub(super) fn doubt(
    membership: &Membership<'_>,
    tally: &Tally,
    target: Option<&Member<'_>>,
) -> Option<String> {
    match target {
        Some(learner) if learner.listed.is_learner => doubt_about_learner(learner, tally),
        Some(_) => doubt_about_voters(membership, tally, target),
        None => None,
    }
}

/// Voters that remain may be learners, if the proven ones are no quorum without them.
fn doubt_about_voters(
    membership: &Membership<'_>,
    tally: &Tally,
    target: Option<&Member<'_>>,
) -> Option<String> {
    let remaining = membership.voters().filter(|voter| {
        voter.is_healthy() && !voter.is_leaving() && Some(voter.id()) != target.map(Member::id)
    });
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

/// A listed learner may be a voter, if the listed voters are no quorum together with it.
fn doubt_about_learner(learner: &Member<'_>, tally: &Tally) -> Option<String> {
    let status = learner.reply()?.status()?;
    let fixed = lost_promotion_fix(&status.version)?;
    let is_needed = tally.remaining < tally::quorum(tally.voters + 1);
    is_needed.then(|| {
        format!(
            "etcd {} can list a voter as a learner (fixed in {fixed}): {} may be needed for the quorum",
            status.version,
            learner.name()
        )
    })
}
