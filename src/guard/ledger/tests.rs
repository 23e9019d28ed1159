//! How notes outlive their reservations, and what a record is worth without them.

use super::*;

fn reservation(uid: &str, at: &str) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: String::from("prod"),
        pod: String::from("etcd-0"),
        member: String::new(),
        at: at.to_owned(),
        by: String::new(),
    }
}

/// Pods of these uids, all of the name that reservations have here.
fn living<const N: usize>(uids: [&str; N]) -> [Living<'_>; N] {
    uids.map(|uid| Living { name: "etcd-0", uid })
}

fn lives(ledger: &Ledger, record: &[Reservation], now: Instant) -> bool {
    ledger.live(record, now).next().is_some()
}

/// Of a replica that read this record, and found none of its pods.
fn missing(record: &[Reservation], now: Instant) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.observe(record, now);
    ledger.note_living(record, "prod", &[], now);
    ledger
}

/// Edge case 28.
#[test]
fn a_reservation_lives_from_when_it_was_first_seen() {
    let start = Instant::now();
    let record = [reservation("a", "whatever the clock of another replica says")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    ledger.observe(&record, start + Duration::from_secs(30));
    assert!(lives(&ledger, &record, start + RESERVATION_LIFE - Duration::from_millis(1)));
    assert!(!lives(&ledger, &record, start + RESERVATION_LIFE));
    assert!(!lives(&ledger, &[], start));
}

#[test]
fn a_replica_that_starts_again_counts_anew() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut restarted = Ledger::default();
    restarted.observe(&record, start + Duration::from_secs(59));
    assert!(lives(&restarted, &record, start + Duration::from_secs(118)));
}

#[test]
fn a_second_yes_for_the_same_pod_starts_its_life_anew() {
    let start = Instant::now();
    let first = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&first, start);
    let later = start + Duration::from_secs(50);
    let record = ledger.with(&first, reservation("a", "2"), &living(["a"]), later);
    assert_eq!(record, [reservation("a", "2")]);
    ledger.observe(&record, later);
    assert!(lives(&ledger, &record, start + Duration::from_secs(100)));
}

#[test]
fn a_pod_that_is_allowed_again_and_again_counts_from_its_first_yes() {
    let start = Instant::now();
    let mut ledger = Ledger::default();
    assert_eq!(ledger.longest(start), Duration::ZERO);
    for seconds in (0..=300_u32).step_by(50) {
        let now = start + Duration::from_secs(seconds.into());
        ledger.observe(&[reservation("a", &seconds.to_string())], now);
        assert_eq!(ledger.longest(now), Duration::from_secs(seconds.into()));
    }
    let end = start + Duration::from_secs(300);
    assert_eq!(ledger.longest(end + RESERVATION_LIFE), Duration::ZERO, "it has expired");
    ledger.observe(&[reservation("b", "1")], end);
    assert_eq!(ledger.longest(end), Duration::ZERO, "another pod is another matter");
}

#[test]
fn what_is_over_is_left_out_of_the_next_record() {
    let start = Instant::now();
    let mut ledger = Ledger::default();
    ledger.observe(&[reservation("gone", "1"), reservation("old", "1")], start);
    let later = start + Duration::from_secs(40);
    let record = [reservation("gone", "1"), reservation("old", "1"), reservation("young", "1")];
    ledger.observe(&record, later);
    let living = living(["old", "young", "new"]);
    let record = ledger.with(&record, reservation("new", "1"), &living, start + RESERVATION_LIFE);
    assert_eq!(record, [reservation("young", "1"), reservation("new", "1")]);
}

#[test]
fn a_pod_that_is_gone_holds_until_a_successor_is_there_and_nobody_can_have_it_in_a_list() {
    let start = Instant::now();
    let gone = [Reservation { pod: String::from("etcd-1"), ..reservation("gone", "1") }];
    let mut ledger = Ledger::default();
    ledger.observe(&gone, start);
    let mut next = |living: &[Living<'_>], now| ledger.with(&gone, reservation("a", "1"), living, now);
    let held = [reservation("a", "1"), gone[0].clone()];
    let sorted = |mut record: Vec<Reservation>| {
        record.sort_by(|one, other| one.uid.cmp(&other.uid));
        record
    };
    assert_eq!(sorted(next(&living(["a"]), start)), held);
    assert_eq!(sorted(next(&living(["a"]), start + GONE_FOR)), held, "its process may live on");
    let replaced = [living(["a"]).as_slice(), &[Living { name: "etcd-1", uid: "successor" }]].concat();
    // Another replica may have listed the pod while it was there, and reads the record last.
    let soon = start + GONE_FOR.saturating_sub(Duration::from_millis(1));
    assert_eq!(sorted(next(&replaced, soon)), held);
    assert_eq!(next(&replaced, start + GONE_FOR), [reservation("a", "1")]);
    assert_eq!(ledger.gone.keys().collect::<Vec<_>>(), ["gone"]);
}

/// It was not among the pods that were read by their names.
#[test]
fn a_pod_that_is_there_after_all_is_not_gone() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = missing(&record, start);
    assert_eq!(ledger.without(&record, "prod", "b", &living(["a"]), start + GONE_FOR), record);
}

#[test]
fn a_pod_that_was_allowed_anew_is_not_gone() {
    let start = Instant::now();
    let mut ledger = missing(&[reservation("a", "1")], start);
    let anew = [reservation("a", "2")];
    ledger.observe(&anew, start + RESERVATION_LIFE);
    assert!(ledger.outdates(&anew, "prod", &[], start + RESERVATION_LIFE));
}

#[test]
fn a_pod_is_known_to_be_gone_for_as_long_as_its_reservation_stands() {
    let start = Instant::now();
    let record = [reservation("gone", "1")];
    let mut ledger = missing(&record, start);
    ledger.observe(&record, start);
    assert!(ledger.gone.contains_key("gone"));
    ledger.observe(&[reservation("other", "1")], start);
    assert!(!ledger.gone.contains_key("gone"), "nobody asks any more");
}

#[test]
fn members_in_other_namespaces_are_not_cleared_away() {
    let start = Instant::now();
    let elsewhere = Reservation { namespace: String::from("other"), ..reservation("far", "1") };
    let mut ledger = Ledger::default();
    ledger.observe(std::slice::from_ref(&elsewhere), start);
    let record = ledger.with(std::slice::from_ref(&elsewhere), reservation("a", "1"), &living(["a"]), start);
    assert_eq!(record, [elsewhere, reservation("a", "1")]);
}

#[test]
fn a_reservation_that_was_taken_back_no_longer_holds() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    assert_eq!(ledger.without(&record, "prod", "a", &living(["a"]), start), []);
}

#[test]
fn a_record_is_newer_than_a_list_that_lacks_a_reserved_pod() {
    let now = Instant::now();
    let record = [reservation("a", "1"), reservation("b", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, now);
    let outdates = |uids: &[Living<'_>]| ledger.outdates(&record, "prod", uids, now);
    assert!(!outdates(&living(["a", "b"])));
    assert!(!outdates(&living(["b", "c", "a"])));
    assert!(outdates(&living(["a"])), "one of the two is missing");
    assert!(outdates(&living(["b", "successor"])), "another pod of its name is another pod");
    assert!(outdates(&[]));
    assert!(!ledger.outdates(&[], "prod", &[], now), "nothing is reserved");
}

#[test]
fn a_list_says_nothing_of_pods_in_other_namespaces() {
    let now = Instant::now();
    let record = [reservation("a", "1")];
    let ledger = Ledger::default();
    assert!(ledger.outdates(&record, "prod", &[], now));
    assert!(!ledger.outdates(&record, "other", &[], now));
}

#[test]
fn a_reservation_that_is_over_makes_no_list_old() {
    let start = Instant::now();
    let record = [reservation("a", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&record, start);
    let soon = start + RESERVATION_LIFE.saturating_sub(Duration::from_millis(1));
    assert!(ledger.outdates(&record, "prod", &[], soon));
    assert!(!ledger.outdates(&record, "prod", &[], start + RESERVATION_LIFE));
}

#[test]
fn a_pod_that_is_known_to_be_gone_makes_no_list_old() {
    let now = Instant::now();
    let gone = [reservation("gone", "1")];
    let mut ledger = Ledger::default();
    ledger.observe(&gone, now);
    ledger.note_living(&gone, "other", &[], now);
    assert!(ledger.outdates(&gone, "prod", &[], now), "it is no pod of the namespace that was listed");
    ledger.note_living(&gone, "prod", &living(["gone"]), now);
    assert!(ledger.outdates(&gone, "prod", &[], now), "it was listed");
    ledger.note_living(&gone, "prod", &[], now);
    assert!(!ledger.outdates(&gone, "prod", &[], now));
    let more = [reservation("gone", "1"), reservation("b", "1")];
    ledger.observe(&more, now);
    assert!(ledger.outdates(&more, "prod", &[], now), "of the other nobody knows");
}

/// Two reads of one record go side by side, and the older one is taken note of last.
#[test]
fn a_record_that_was_read_earlier_and_noted_later_takes_nothing_from_a_newer_one() {
    let start = Instant::now();
    let (older, newer) = ([], [reservation("a", "1")]);
    let mut ledger = Ledger::default();
    ledger.observe(&newer, start);
    ledger.observe(&older, start);
    assert!(lives(&ledger, &newer, start));
    let record = ledger.with(&newer, reservation("b", "1"), &living(["a", "b"]), start);
    assert_eq!(record, [reservation("a", "1"), reservation("b", "1")]);
}
