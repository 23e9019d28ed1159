//! The removal of pairs, and the intervals of the reads.

use serde_json::json;

use super::*;

fn dependent(uid: &str, owner: &str) -> Metadata {
    let owners = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": owner}]);
    serde_json::from_value(json!({"name": uid, "uid": uid, "ownerReferences": owners})).unwrap()
}

fn key(owner: &str) -> String {
    dependent("", owner).owner_references[0].key()
}

/// The collector retries for as long as its dependent exists, at intervals of up to 1,000 s.
#[test]
fn pairs_last_as_long_as_the_dependent() {
    let (mut state, mut record) = (NamespaceState::default(), OwnershipRecord::default());
    record.insert("pod", &key("set"));
    record.accept(&key("set"));
    let start = Instant::now();
    for hours in 0..48 {
        let now = start + Duration::from_secs(hours * 3600);
        state.remove_missing(&mut record, &[dependent("pod", "set")], &BTreeSet::new(), now);
    }
    assert!(record.has_pair("pod", &key("set")) && record.is_accepted(&key("set")));
}

#[test]
fn pairs_of_missing_dependents_end_after_a_minute() {
    let (mut state, mut record) = (NamespaceState::default(), OwnershipRecord::default());
    record.insert("pod", &key("set"));
    record.accept(&key("set"));
    let start = Instant::now();
    state.remove_missing(&mut record, &[], &BTreeSet::new(), start);
    state.remove_missing(&mut record, &[], &BTreeSet::new(), start + MISSING_TTL / 2);
    assert!(record.has_pair("pod", &key("set")) && record.is_accepted(&key("set")));
    // It was only missing from one read.
    state.remove_missing(&mut record, &[dependent("pod", "set")], &BTreeSet::new(), start + MISSING_TTL);
    state.remove_missing(&mut record, &[], &BTreeSet::new(), start + MISSING_TTL * 2);
    assert!(record.has_pair("pod", &key("set")) && record.is_accepted(&key("set")));
    state.remove_missing(&mut record, &[], &BTreeSet::new(), start + MISSING_TTL * 3);
    assert_eq!(record, OwnershipRecord::default());
}

#[test]
fn a_lost_reference_ends_its_pair_at_once() {
    let (mut state, mut record) = (NamespaceState::default(), OwnershipRecord::default());
    record.insert("pod", &key("set"));
    state.remove_missing(&mut record, &[dependent("pod", "other")], &BTreeSet::new(), Instant::now());
    assert!(!record.has_pair("pod", &key("set")), "the pod was orphaned and adopted");
}

#[test]
fn namespaces_are_read_when_they_change_and_periodically() {
    let now = Instant::now();
    let mut state = NamespaceState::default();
    assert!(state.is_due(1, now), "the first read");
    state.scanned_at = Some(now);
    state.version = Some(1);
    state.rescan = RESCAN_INTERVAL;
    assert!(!state.is_due(1, now + RESCAN_INTERVAL / 2));
    assert!(state.is_due(1, now + RESCAN_INTERVAL));
    assert!(!state.is_due(2, now + MIN_SCAN_INTERVAL / 2));
    assert!(state.is_due(2, now + MIN_SCAN_INTERVAL));
    (state.version, state.has_failed) = (None, true);
    assert!(!state.is_due(1, now + MIN_SCAN_INTERVAL));
    assert!(state.is_due(1, now + RETRY_INTERVAL));
}

/// A StatefulSet that was scaled to zero, and its claims.
#[test]
fn pairs_remain_while_the_dependent_exists_without_pods() {
    let (mut state, mut record) = (NamespaceState::default(), OwnershipRecord::default());
    record.insert("set", &key("custom"));
    record.insert("claim", &key("set"));
    record.insert("pod", &key("set"));
    let existing = ["set", "claim"].map(str::to_owned).into();
    let start = Instant::now();
    for minutes in 0..10 {
        state.remove_missing(&mut record, &[], &existing, start + MISSING_TTL * minutes);
    }
    assert!(record.has_pair("set", &key("custom")) && record.has_pair("claim", &key("set")));
    assert!(!record.has_pair("pod", &key("set")));
}
