//! Lifetimes of reservations, and the knowledge of a replica about records.

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
    }
}

/// Returns pods with these uids and the name that the reservations of these tests have.
fn live_pods<const N: usize>(uids: [&str; N]) -> [LivePod<'_>; N] {
    uids.map(|uid| LivePod { name: "etcd-0", uid })
}

fn is_active(ledger: &Ledger, record: &[Reservation], now: Instant) -> bool {
    ledger.active(record, now).next().is_some()
}

/// Returns the ledger of a replica that read this record and found no pod of it.
fn missing(record: &[Reservation], now: Instant) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.observe(record, now);
    ledger.observe_pods(record, "prod", &[], now);
    ledger
}

/// Pod garbage collection deletes the pods of a deleted node up to 80 s later.
#[test]
fn reservation_of_deleted_node_expires_later() {
    let (mut ledger, start) = (Ledger::default(), Instant::now());
    let record = [Reservation { of_node: true, ..reservation("a", "1") }];
    ledger.observe(&record, start);
    assert!(is_active(&ledger, &record, start + Duration::from_secs(119)));
    assert!(!is_active(&ledger, &record, start + NODE_RESERVATION_TTL));
}

/// Edge case 28.
#[test]
fn lifetime_starts_at_the_first_read() {
    let start = Instant::now();
    let record = [reservation("a", "time of another replica")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    ledger.observe(&record, start + Duration::from_secs(30));
    assert!(is_active(&ledger, &record, start + RESERVATION_TTL - Duration::from_millis(1)));
    assert!(!is_active(&ledger, &record, start + RESERVATION_TTL));
    assert!(!is_active(&ledger, &[], start));
}

#[test]
fn restarted_replica_restarts_the_lifetime() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut restarted = Ledger::default();
    restarted.observe(&record, start + Duration::from_secs(59));
    assert!(is_active(&restarted, &record, start + Duration::from_secs(118)));
}

#[test]
fn second_approval_restarts_the_lifetime() {
    let start = Instant::now();
    let first = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&first, start);
    let later = start + Duration::from_secs(50);
    let record = ledger.record_with(&first, reservation("a", "2"), &live_pods(["a"]), later);
    assert_eq!(record, [reservation("a", "2")]);
    ledger.observe(&record, later);
    assert!(is_active(&ledger, &record, start + Duration::from_secs(100)));
}

#[test]
fn longest_reservation_starts_at_the_first_approval() {
    let start = Instant::now();
    let mut ledger = Ledger::default();
    assert_eq!(ledger.longest_reservation(start), Duration::ZERO);
    for seconds in (0..=300_u32).step_by(50) {
        let now = start + Duration::from_secs(seconds.into());
        ledger.observe(&[reservation("a", &seconds.to_string())], now);
        assert_eq!(ledger.longest_reservation(now), Duration::from_secs(seconds.into()));
    }
    let end = start + Duration::from_secs(300);
    assert_eq!(ledger.longest_reservation(end + RESERVATION_TTL), Duration::ZERO, "it has expired");
    ledger.observe(&[reservation("b", "1")], end);
    assert_eq!(ledger.longest_reservation(end), Duration::ZERO, "another pod is counted separately");
}

#[test]
fn next_record_omits_obsolete_reservations() {
    let start = Instant::now();
    let mut ledger = Ledger::default();
    ledger.observe(&[reservation("gone", "1"), reservation("old", "1")], start);
    let later = start + Duration::from_secs(40);
    let record = [reservation("gone", "1"), reservation("old", "1"), reservation("young", "1")];
    ledger.observe(&record, later);
    let live_pods = live_pods(["old", "young", "new"]);
    let record = ledger.record_with(&record, reservation("new", "1"), &live_pods, start + RESERVATION_TTL);
    assert_eq!(record, [reservation("young", "1"), reservation("new", "1")]);
}

#[test]
fn reservation_of_missing_pod_remains_until_replaced() {
    let start = Instant::now();
    let gone = [Reservation { pod: String::from("etcd-1"), ..reservation("gone", "1") }];
    let mut ledger = Ledger::default();
    ledger.observe(&gone, start);
    let mut next =
        |live_pods: &[LivePod<'_>], now| ledger.record_with(&gone, reservation("a", "1"), live_pods, now);
    let held = [reservation("a", "1"), gone[0].clone()];
    let sorted = |mut record: Vec<Reservation>| {
        record.sort_by(|one, other| one.uid.cmp(&other.uid));
        record
    };
    assert_eq!(sorted(next(&live_pods(["a"]), start)), held);
    assert_eq!(sorted(next(&live_pods(["a"]), start + GONE_TTL)), held, "its process can still run");
    let replaced = [live_pods(["a"]).as_slice(), &[LivePod { name: "etcd-1", uid: "successor" }]].concat();
    // Another replica can have listed the pod before it disappeared, and read the record later.
    let soon = start + GONE_TTL.saturating_sub(Duration::from_millis(1));
    assert_eq!(sorted(next(&replaced, soon)), held);
    assert_eq!(next(&replaced, start + GONE_TTL), [reservation("a", "1")]);
    assert_eq!(ledger.gone.keys().collect::<Vec<_>>(), ["gone"]);
}

/// The pod was not among the pods that the replica read by name.
#[test]
fn listed_pod_is_no_longer_considered_gone() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = missing(&record, start);
    assert_eq!(ledger.record_without(&record, "prod", "b", &live_pods(["a"]), start + GONE_TTL), record);
}

#[test]
fn newly_approved_pod_is_not_considered_gone() {
    let start = Instant::now();
    let mut ledger = missing(&[reservation("a", "1")], start);
    let renewed = [reservation("a", "2")];
    ledger.observe(&renewed, start + RESERVATION_TTL);
    assert!(ledger.may_be_newer_than(&renewed, "prod", &[], start + RESERVATION_TTL));
}

#[test]
fn missing_pod_is_known_until_its_reservation_ends() {
    let start = Instant::now();
    let record = [reservation("gone", "1")];
    let mut ledger = missing(&record, start);
    ledger.observe(&record, start);
    assert!(ledger.gone.contains_key("gone"));
    ledger.observe(&[reservation("other", "1")], start);
    assert!(!ledger.gone.contains_key("gone"), "no record contains the pod");
}

#[test]
fn reservations_of_other_namespaces_remain() {
    let start = Instant::now();
    let external = Reservation { namespace: String::from("other"), ..reservation("far", "1") };
    let mut ledger = Ledger::default();
    ledger.observe(std::slice::from_ref(&external), start);
    let record =
        ledger.record_with(std::slice::from_ref(&external), reservation("a", "1"), &live_pods(["a"]), start);
    assert_eq!(record, [external, reservation("a", "1")]);
}

#[test]
fn cancelled_reservation_is_removed() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    assert_eq!(ledger.record_without(&record, "prod", "a", &live_pods(["a"]), start), []);
}

#[test]
fn record_can_be_newer_than_list_without_reserved_pod() {
    let now = Instant::now();
    let record = [reservation("a", "1"), reservation("b", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, now);
    let may_be_newer = |uids: &[LivePod<'_>]| ledger.may_be_newer_than(&record, "prod", uids, now);
    assert!(!may_be_newer(&live_pods(["a", "b"])));
    assert!(!may_be_newer(&live_pods(["b", "c", "a"])));
    assert!(may_be_newer(&live_pods(["a"])), "one of the two is missing");
    assert!(may_be_newer(&live_pods(["b", "successor"])), "the successor is another pod");
    assert!(may_be_newer(&[]));
    assert!(!ledger.may_be_newer_than(&[], "prod", &[], now), "nothing is reserved");
}

#[test]
fn list_does_not_cover_other_namespaces() {
    let now = Instant::now();
    let record = [reservation("a", "1")];
    let ledger = Ledger::default();
    assert!(ledger.may_be_newer_than(&record, "prod", &[], now));
    assert!(!ledger.may_be_newer_than(&record, "other", &[], now));
}

#[test]
fn expired_reservation_does_not_outdate_a_list() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    let soon = start + RESERVATION_TTL.saturating_sub(Duration::from_millis(1));
    assert!(ledger.may_be_newer_than(&record, "prod", &[], soon));
    assert!(!ledger.may_be_newer_than(&record, "prod", &[], start + RESERVATION_TTL));
}

#[test]
fn pod_known_to_be_gone_does_not_outdate_a_list() {
    let now = Instant::now();
    let gone = [reservation("gone", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&gone, now);
    ledger.observe_pods(&gone, "other", &[], now);
    assert!(ledger.may_be_newer_than(&gone, "prod", &[], now), "the pod belongs to another namespace");
    ledger.observe_pods(&gone, "prod", &live_pods(["gone"]), now);
    assert!(ledger.may_be_newer_than(&gone, "prod", &[], now), "the pod was listed");
    ledger.observe_pods(&gone, "prod", &[], now);
    assert!(!ledger.may_be_newer_than(&gone, "prod", &[], now));
    let more = [reservation("gone", "1"), reservation("b", "1")];
    ledger.observe(&more, now);
    assert!(ledger.may_be_newer_than(&more, "prod", &[], now), "the other pod is unknown");
}

/// Two reads of one record are concurrent, and the result of the older one is observed last.
#[test]
fn older_record_observed_late_removes_no_reservation() {
    let start = Instant::now();
    let (older, newer) = ([], [reservation("a", "1")]);
    let mut ledger = Ledger::default();
    ledger.observe(&newer, start);
    ledger.observe(&older, start);
    assert!(is_active(&ledger, &newer, start));
    let record = ledger.record_with(&newer, reservation("b", "1"), &live_pods(["a", "b"]), start);
    assert_eq!(record, [reservation("a", "1"), reservation("b", "1")]);
}
