//! Lifetimes of reservations, and the knowledge of a replica about a ledger.

use super::*;

fn reservation(uid: &str, at: &str) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: String::from("prod"),
        pod: String::from("etcd-0"),
        member: String::new(),
        at: at.to_owned(),
        by: String::new(),
        of_node: false,
        cluster: None,
        by_name: false,
        image_id: None,
    }
}

/// Returns pods with these uids and the name that the reservations of these tests have.
fn live_pods<const N: usize>(uids: [&str; N]) -> [LivePod<'_>; N] {
    uids.map(|uid| LivePod { namespace: "prod", name: "etcd-0", uid, serves: false, image_id: "" })
}

fn is_active(known: &Sightings, ledger: &[Reservation], now: Instant) -> bool {
    known.active(ledger, now).next().is_some()
}

fn observe(known: &mut Sightings, read: &[Reservation], now: Instant) {
    known.observe(Some("uid"), read.to_vec(), now);
}

/// Pod garbage collection deletes the pods of a deleted node up to 80 s later.
#[test]
fn reservation_of_deleted_node_expires_later() {
    let (mut known, start) = (Sightings::default(), Instant::now());
    let ledger = [Reservation { of_node: true, ..reservation("a", "1") }];
    observe(&mut known, &ledger, start);
    assert!(is_active(&known, &ledger, start + Duration::from_secs(119)));
    assert!(!is_active(&known, &ledger, start + NODE_RESERVATION_TTL));
}

#[test]
fn lifetime_starts_at_the_first_read() {
    let start = Instant::now();
    let ledger = [reservation("a", "time of another replica")];
    let mut known = Sightings::default();
    observe(&mut known, &ledger, start);
    observe(&mut known, &ledger, start + Duration::from_secs(30));
    assert!(is_active(&known, &ledger, start + RESERVATION_TTL - Duration::from_millis(1)));
    assert!(!is_active(&known, &ledger, start + RESERVATION_TTL));
    assert!(!is_active(&known, &[], start));
}

#[test]
fn restarted_replica_restarts_the_lifetime() {
    let start = Instant::now();
    let ledger = [reservation("a", "1")];
    let mut restarted = Sightings::default();
    observe(&mut restarted, &ledger, start + Duration::from_secs(59));
    assert!(is_active(&restarted, &ledger, start + Duration::from_secs(118)));
}

#[test]
fn second_approval_restarts_the_lifetime() {
    let start = Instant::now();
    let first = [reservation("a", "1")];
    let mut known = Sightings::default();
    observe(&mut known, &first, start);
    let later = start + Duration::from_secs(50);
    let ledger = known.with(&first, &[reservation("a", "2")], &live_pods(["a"]), later);
    assert_eq!(ledger, [reservation("a", "2")]);
    observe(&mut known, &ledger, later);
    assert!(is_active(&known, &ledger, start + Duration::from_secs(100)));
}

/// The pod is evicted while its node is deleted, and no member reports an id.
#[test]
fn renewal_keeps_what_is_known() {
    let now = Instant::now();
    let known = Sightings::default();
    let cluster = Some(String::from("c1"));
    let of_node =
        [Reservation { of_node: true, member: String::from("1a"), cluster, ..reservation("a", "1") }];
    let record = known.with(&of_node, &[reservation("a", "2")], &live_pods(["a"]), now);
    assert_eq!(record, [Reservation { at: String::from("2"), ..of_node[0].clone() }]);
    let other = Reservation { member: String::from("2b"), ..reservation("a", "3") };
    assert_eq!(known.with(&record, &[other], &[], now)[0].member, "2b");
    let other = known.with(&of_node, &[reservation("b", "2")], &[], now);
    assert!(!other[1].of_node && other[1].cluster.is_none(), "another pod");
}

#[test]
fn longest_reservation_starts_at_the_first_approval() {
    let start = Instant::now();
    let mut known = Sightings::default();
    assert_eq!(known.longest_reservation(start), Duration::ZERO);
    for seconds in (0..=300_u32).step_by(50) {
        let now = start + Duration::from_secs(seconds.into());
        observe(&mut known, &[reservation("a", &seconds.to_string())], now);
        assert_eq!(known.longest_reservation(now), Duration::from_secs(seconds.into()));
    }
    let end = start + Duration::from_secs(300);
    assert_eq!(known.longest_reservation(end + RESERVATION_TTL), Duration::ZERO, "it has expired");
    observe(&mut known, &[reservation("b", "1")], end);
    assert_eq!(known.longest_reservation(end), Duration::ZERO, "another pod is counted separately");
}

#[test]
fn write_omits_expired_reservations() {
    let (mut known, start) = (Sightings::default(), Instant::now());
    observe(&mut known, &[reservation("old", "1")], start);
    let ledger = [reservation("old", "1"), reservation("young", "1")];
    observe(&mut known, &ledger, start + Duration::from_secs(40));
    let next = known.with(&ledger, &[reservation("new", "1")], &[], start + RESERVATION_TTL);
    assert_eq!(next, [reservation("new", "1"), reservation("young", "1")]);
}

/// After a forced deletion, the process of the pod can still run.
#[test]
fn reservation_remains_until_its_successor_serves() {
    let now = Instant::now();
    let known = Sightings::default();
    let gone = [reservation("gone", "1")];
    let next = |pods: &[LivePod<'_>]| known.with(&gone, &[], pods, now);
    let [successor] = live_pods(["successor"]);
    assert_eq!(next(&[]), gone, "no successor exists");
    assert_eq!(next(&[successor]), gone);
    assert!(gone[0].takes(&successor), "the voter is leaving");
    let serving = LivePod { serves: true, ..successor };
    assert_eq!(next(&[serving]), []);
    assert!(!gone[0].takes(&serving));
    let elsewhere = LivePod { namespace: "other", ..serving };
    assert_eq!(next(&[elsewhere]), gone);
    assert!(!gone[0].takes(&elsewhere));
}

#[test]
fn eviction_by_name_reserves_the_name() {
    let now = Instant::now();
    let (mut known, ledger) =
        (Sightings::default(), [Reservation { by_name: true, ..reservation("a", "1") }]);
    observe(&mut known, &ledger, now);
    let [successor] = live_pods(["successor"]).map(|pod| LivePod { serves: true, ..pod });
    assert!(ledger[0].takes(&successor));
    assert_eq!(known.with(&ledger, &[], &[successor], now), ledger);
    let by_uid = [reservation("a", "2")];
    assert_eq!(known.with(&ledger, &by_uid, &[], now).len(), 2, "the other request can still arrive");
    assert_eq!(known.with(&ledger, &[], &[successor], now + RESERVATION_TTL), []);
}

/// The kubelet restarts the container in the same pod.
#[test]
fn reservation_of_an_update_ends_when_the_pod_serves_with_another_image() {
    let now = Instant::now();
    let known = Sightings::default();
    let old = Some(String::from("sha256:old"));
    let updated = [Reservation { image_id: old.clone(), ..reservation("a", "1") }];
    let pod = |image_id: &'static str, serves: bool| {
        let [pod] = live_pods(["a"]).map(|pod| LivePod { serves, image_id, ..pod });
        pod
    };
    for waits in [pod("sha256:old", true), pod("sha256:new", false), pod("", true)] {
        assert!(updated[0].takes(&waits), "{waits:?}");
        assert_eq!(known.with(&updated, &[], &[waits], now), updated, "{waits:?}");
    }
    let restarted = pod("sha256:new", true);
    assert!(!updated[0].takes(&restarted));
    assert_eq!(known.with(&updated, &[], &[restarted], now), []);
    let deleted = [reservation("a", "2")];
    assert!(deleted[0].takes(&restarted), "a deletion names the uid");
    // Two requests: the second one arrives when the pod has returned from the first one.
    for (first, second) in [(&updated, &deleted), (&deleted, &updated), (&updated, &updated)] {
        let both = known.with(first, second, &[pod("sha256:old", true)], now);
        assert!(both.iter().all(|known| known.takes(&restarted)), "{both:?}");
    }
}

#[test]
fn ledger_can_be_newer_than_list_without_reserved_pod() {
    let now = Instant::now();
    let ledger = [reservation("a", "1"), reservation("b", "1")];
    let mut known = Sightings::default();
    observe(&mut known, &ledger, now);
    let may_be_newer = |pods: &[LivePod<'_>]| known.may_be_newer_than(&ledger, "prod", pods, now);
    assert!(!may_be_newer(&live_pods(["a", "b"])) && !may_be_newer(&live_pods(["b", "c", "a"])));
    assert!(may_be_newer(&live_pods(["a"])), "one of the two is missing");
    assert!(may_be_newer(&live_pods(["b", "successor"])), "the successor is another pod");
    assert!(!known.may_be_newer_than(&ledger, "other", &[], now));
    assert!(!known.may_be_newer_than(&ledger, "prod", &[], now + RESERVATION_TTL), "all have expired");
    known.observe_pods(&ledger, "prod", &live_pods(["a"]));
    assert!(!known.may_be_newer_than(&ledger, "prod", &live_pods(["a"]), now), "the other one is gone");
    assert!(known.may_be_newer_than(&ledger, "prod", &[], now));
}

#[test]
fn deleted_lease_is_remembered() {
    let now = Instant::now();
    let held = [reservation("a", "1")];
    let mut known = Sightings::default();
    observe(&mut known, &held, now);
    assert_eq!(known.observe(None, Vec::new(), now), held);
    let other = reservation("b", "1");
    for _ in 0..2 {
        let read = known.observe(Some("another"), vec![other.clone()], now);
        assert_eq!(read, [other.clone(), held[0].clone()]);
    }
    assert_eq!(known.observe(Some("another"), Vec::new(), now + RESERVATION_TTL), []);
}

/// Two reads of one ledger are concurrent, and the result of the older one is observed last.
#[test]
fn older_ledger_observed_late_removes_no_reservation() {
    let start = Instant::now();
    let newer = [reservation("a", "1")];
    let mut known = Sightings::default();
    observe(&mut known, &newer, start);
    observe(&mut known, &[], start);
    assert!(is_active(&known, &newer, start));
    let next = known.with(&newer, &[reservation("b", "1")], &live_pods(["a", "b"]), start);
    assert_eq!(next, [reservation("a", "1"), reservation("b", "1")]);
}
