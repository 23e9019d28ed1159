//! Which pods a decision reads once a look has told.
//!
//! A list of pods that is of now waits for the apiserver's cache of pods to come as far as etcd, which after any write that is
//! none of a pod takes up to a tenth of a second. A pod that is asked for by its name comes from etcd itself. So where the last
//! look found a pod for every voter, the next decision reads these pods, and lists only if they are not all that it takes
//! any more: docs/decisions/0048-pods-by-their-names.md.

use std::sync::Arc;

use futures::future::try_join_all;

use super::{
    NoLook,
    assess::union_of_lists,
    deadline::Deadline,
    etcd_pod,
    family::Family,
    identity,
    look::{Looker, Siblings},
    request::Request,
    snapshot::Snapshot,
};
use crate::k8s::{LookupError, Pods, pod::Pod};

/// The most pods that are read one by one: etcd's own advice is to have no more than seven members.
const MOST_PODS: usize = 9;

/// The names of a family's etcd pods when they ran every voter of their cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roster(Arc<[String]>);

// === impl Roster ===

impl Roster {
    /// Of a look; `None` unless every listed voter runs in one of these pods, so that no other pod can make a difference to
    /// who is counted.
    pub(super) fn of(snapshot: &Snapshot, siblings: &Siblings) -> Option<Self> {
        let list = union_of_lists(snapshot);
        let members = identity::resolve(snapshot, &list).ok()?;
        let names = siblings.pods.iter().map(|(pod, _)| &pod.metadata.name);
        let seen: Vec<_> = names.clone().filter_map(|name| members.of(name)).collect();
        let mut voters = list.iter().filter(|member| !member.is_learner).peekable();
        voters.peek()?;
        let is_whole = siblings.pods.len() <= MOST_PODS
            && snapshot.cluster_id().is_some()
            && voters.all(|voter| seen.contains(&voter.id));
        is_whole.then(|| Self(names.cloned().collect()))
    }

    /// Its pods as they are now, each read by itself; `None` if one of them is gone or cannot be read: a list may do.
    async fn read(&self, pods: &Pods, namespace: &str) -> Result<Option<Vec<Pod>>, LookupError> {
        match try_join_all(self.0.iter().map(|name| pods.get(namespace, name))).await {
            Ok(pods) => Ok(Some(pods)),
            // A list would be waited for as long once more.
            Err(error @ LookupError::TimedOut { .. }) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

// === impl Looker ===

impl Looker {
    /// The pods of the family's roster as they are now; `None` if one of them is gone or runs no etcd of the family any more,
    /// or the request's is none of them.
    pub(super) async fn pods_of_roster(
        &self,
        roster: &Roster,
        request: &Request,
        family: &Family,
        deadline: Deadline,
    ) -> Result<Option<Vec<Pod>>, NoLook> {
        if !roster.0.contains(&request.name) {
            return Ok(None);
        }
        let read = roster.read(&self.pods, &request.namespace);
        let pods = deadline.within("reading the pods from the apiserver", read).await?;
        let Some(mut pods) = pods.map_err(NoLook::Lookup)? else { return Ok(None) };
        self.inherit(&request.namespace, &mut pods);
        Ok(pods.iter().all(|pod| runs_etcd_of(family, pod)).then_some(pods))
    }
}

fn runs_etcd_of(family: &Family, pod: &Pod) -> bool {
    !pod.is_finished()
        && family.has(family.namespace(), pod)
        && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        etcd::Reply,
        guard::assess::tests::cluster,
        k8s::fake::{apiserver, failure},
    };

    fn pod(n: usize) -> Value {
        json!({
            "metadata": {
                "name": format!("etcd-{n}"), "namespace": "prod", "uid": format!("uid-{n}"),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "etcd",
                    "controller": true}],
            },
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {"phase": "Running"},
        })
    }

    /// The pods `etcd-0` to `etcd-N` of one StatefulSet.
    fn siblings(size: usize) -> Siblings {
        let pods: Vec<Pod> = (0..size).map(|n| serde_json::from_value(pod(n)).unwrap()).collect();
        Siblings::of(&Family::of("prod", &pods[0]), pods)
    }

    fn names(roster: &Roster) -> Vec<&str> {
        roster.0.iter().map(String::as_str).collect()
    }

    /// Whatever these members list, each of them says of it what `change` makes of it.
    fn relist(mut snapshot: Snapshot, change: impl Fn(&mut Vec<crate::etcd::ListedMember>)) -> Snapshot {
        for pod in &mut snapshot.pods {
            if let Reply::Serving { members, .. } = &mut pod.reply {
                change(members);
            }
        }
        snapshot
    }

    #[test]
    fn the_pods_that_run_all_voters_are_a_roster() {
        let roster = Roster::of(&cluster(3), &siblings(3)).unwrap();
        assert_eq!(names(&roster), ["etcd-0", "etcd-1", "etcd-2"]);
    }

    /// It is known by its peer URL.
    #[test]
    fn a_voter_that_does_not_run_has_its_pod_all_the_same() {
        assert!(Roster::of(&cluster(3).crash(1), &siblings(3)).is_some());
    }

    #[test]
    fn a_voter_without_a_pod_among_them_leaves_no_roster() {
        let whole = cluster(3);
        let mut seen = whole.clone();
        seen.pods.pop();
        assert_eq!(Roster::of(&seen, &siblings(2)), None);
        // It was found in a pod of another owner.
        assert_eq!(Roster::of(&whole, &siblings(2)), None);
    }

    #[test]
    fn a_voter_that_never_started_leaves_no_roster_and_a_learner_does() {
        let added = |is_learner: bool| {
            relist(cluster(3), |members| {
                let mut new = members[2].clone();
                new.id.0 += 1;
                (new.name, new.peer_urls) =
                    (String::new(), vec![String::from("http://etcd-3.etcd.prod.svc:2380")]);
                new.is_learner = is_learner;
                members.push(new);
            })
        };
        assert_eq!(Roster::of(&added(false), &siblings(3)), None);
        assert!(Roster::of(&added(true), &siblings(3)).is_some());
    }

    #[test]
    fn where_nobody_serves_or_two_pods_look_like_one_member_there_is_no_roster() {
        assert_eq!(Roster::of(&cluster(3).silence(0).silence(1).silence(2), &siblings(3)), None);
        let mut twice = cluster(3);
        twice.pods[1].reply = twice.pods[0].reply.clone();
        assert_eq!(Roster::of(&twice, &siblings(3)), None);
    }

    #[test]
    fn more_pods_than_anybody_should_have_are_listed() {
        assert!(Roster::of(&cluster(MOST_PODS), &siblings(MOST_PODS)).is_some());
        assert_eq!(Roster::of(&cluster(MOST_PODS + 1), &siblings(MOST_PODS + 1)), None);
    }

    #[tokio::test]
    async fn a_roster_of_which_one_pod_is_gone_or_may_not_be_read_is_none() {
        let path = |n: usize| format!("/api/v1/namespaces/prod/pods/etcd-{n}");
        let (first, second) = (path(0), path(1));
        let roster = Roster::of(&cluster(2), &siblings(2)).unwrap();
        let all = Pods::new(apiserver([(&first, 200, pod(0)), (&second, 200, pod(1))]));
        let read = roster.read(&all, "prod").await.unwrap().unwrap();
        assert_eq!(read.iter().map(|pod| pod.metadata.name.as_str()).collect::<Vec<_>>(), names(&roster));
        let one_gone = Pods::new(apiserver([(&first, 200, pod(0))]));
        assert!(roster.read(&one_gone, "prod").await.unwrap().is_none());
        let forbidden = failure(403, "no");
        let forbidden = Pods::new(apiserver([(&first, 200, pod(0)), (&second, 403, forbidden)]));
        assert!(roster.read(&forbidden, "prod").await.unwrap().is_none());
    }

    #[test]
    fn a_pod_that_has_ended_or_changed_its_owner_is_none_of_the_family() {
        let family = Family::of("prod", &serde_json::from_value(pod(0)).unwrap());
        let fits = |pod: Value| runs_etcd_of(&family, &serde_json::from_value(pod).unwrap());
        assert!(fits(pod(0)));
        let mut ended = pod(0);
        ended["status"]["phase"] = json!("Failed");
        assert!(!fits(ended));
        let mut adopted = pod(0);
        adopted["metadata"]["ownerReferences"][0]["uid"] = json!("another");
        assert!(!fits(adopted));
        let mut other = pod(0);
        other["spec"]["containers"][0]["image"] = json!("nginx");
        assert!(!fits(other));
    }
}
