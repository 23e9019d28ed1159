use serde_json::json;

use super::*;
use crate::guard::assess::tests::cluster;

#[test]
fn a_cluster_is_counted_by_the_voters_that_could_go() {
    assert_eq!(judge(&cluster(3)).state, State::Spare);
    assert_eq!(judge(&cluster(3).crash(1)).state, State::NoSpare);
    assert_eq!(judge(&cluster(5).crash(1)).state, State::Spare);
    assert_eq!(judge(&cluster(5).crash(1).crash(2)).state, State::NoSpare);
    assert_eq!(judge(&cluster(2)).state, State::NoSpare, "two voters survive the loss of none");
}

#[test]
fn the_first_pod_that_is_silent_does_not_hide_the_numbers() {
    let found = judge(&cluster(3).crash(0));
    let tally = found.tally.expect("the others serve");
    assert_eq!((found.state, tally.voters, tally.healthy, tally.quorum), (State::NoSpare, 3, 2, 2));
}

#[test]
fn one_voter_that_serves_is_as_its_owners_want_it() {
    assert_eq!(judge(&cluster(1)).state, State::SingleMember);
}

#[test]
fn a_cluster_of_which_nobody_answers_is_unknown_and_one_that_proves_nothing_has_no_quorum() {
    assert_eq!(judge(&cluster(3).crash(0).crash(1).crash(2)).state, State::Unknown);
    assert_eq!(judge(&cluster(3).crash(0).starve(1).starve(2)).state, State::NoQuorum);
}

#[test]
fn each_cluster_of_a_namespace_is_looked_at_once_and_what_runs_no_etcd_never() {
    let pod = |name: &str, owner: &str, image: &str, phase: &str| -> Pod {
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "prod", "uid": name,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner,
                    "controller": true}],
            },
            "spec": {"containers": [{"name": "main", "image": image}]},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    };
    let etcd = "quay.io/coreos/etcd:v3.6.16";
    let pods = [
        pod("a-0", "a", etcd, "Running"),
        pod("a-1", "a", etcd, "Running"),
        pod("b-0", "b", etcd, "Pending"),
        pod("c-0", "c", etcd, "Failed"),
        pod("web-0", "web", "nginx", "Running"),
    ];
    let names: Vec<_> = families("prod", &pods).iter().map(Family::name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn every_state_has_a_word_of_its_own() {
    let words: BTreeSet<_> = State::ALL.iter().map(|it| it.word()).collect();
    assert_eq!(words.len(), State::ALL.len());
}
