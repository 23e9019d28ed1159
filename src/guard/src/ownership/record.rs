//! The record of a namespace. Pure: reads and times are arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Maximum number of pairs in a record. With uids of 36 bytes, a full record has 160 KB; the annotations of an object
/// may have 256 KiB.
const MAX_PAIRS: usize = 4000;

use etcd_guard_core::objects::owner_reference::OwnerReference;
use etcd_guard_kubernetes::Existence;

/// Maximum number of controllers of clusters with several voters. They have 40 KB.
const MAX_SEVERAL_VOTERS: usize = 1000;

/// Maximum number of owners with an accepted deletion.
const MAX_ACCEPTED: usize = 500;

/// The owners in a namespace. Dependents are identified by their uid, owners by [`OwnerReference::key`].
///
/// [`OwnerReference::key`]: etcd_guard_core::objects::owner_reference::OwnerReference::key
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnershipRecord {
    /// The dependents of each owner. A dependent is here if it was read with this owner while both existed.
    #[serde(default)]
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Owners whose deletion the guard accepted by a break-glass annotation or in audit mode.
    #[serde(default)]
    accepted: BTreeSet<String>,
    /// Uids of the controllers of clusters with several voters in the member list at any time.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    several_voters: BTreeSet<String>,
}

// === impl OwnershipRecord ===

impl OwnershipRecord {
    /// Whether this dependent and this owner existed at the same time.
    pub(crate) fn has_pair(&self, dependent: &str, owner: &str) -> bool {
        self.dependents.get(owner).is_some_and(|dependents| dependents.contains(dependent))
    }

    /// Whether the deletion of this owner was accepted.
    pub(crate) fn is_accepted(&self, owner: &str) -> bool {
        self.accepted.contains(owner)
    }

    /// Whether an owner that no longer exists was deleted while this dependent existed, or its deletion was accepted. In both
    /// cases the owner existed, so that the reference to it is not dangling. An accepted deletion needs no pair: it includes
    /// the dependents, also those that were created too shortly before it to be recorded.
    pub(crate) fn proves_owner(&self, dependent: &str, owner: &OwnerReference) -> bool {
        let owner = owner.key();
        self.has_pair(dependent, &owner) || self.is_accepted(&owner)
    }

    /// Whether an owner in this state was deleted, so that the dependent is deleted next. This is the only definition: the
    /// absence of an owner without a record proves nothing.
    pub(crate) fn shows_deletion(&self, dependent: &str, owner: &OwnerReference, state: Existence) -> bool {
        match state {
            Existence::Alive => false,
            Existence::Terminating => true,
            Existence::Gone => self.proves_owner(dependent, owner),
        }
    }

    /// Whether the cluster of this controller may have had several voters: it is recorded, or the record is full.
    pub(crate) fn may_have_had_more_voters(&self, controller: &str) -> bool {
        self.several_voters.contains(controller) || self.several_voters.len() >= MAX_SEVERAL_VOTERS
    }

    /// Records that the clusters of these controllers had several voters. They remain recorded: a cluster that lost all of
    /// its pods still has its voters. In a full record, those without a dependent are replaced.
    pub(crate) fn insert_several_voters(&mut self, controllers: &BTreeSet<String>) {
        if controllers.is_subset(&self.several_voters) {
            return;
        }
        self.several_voters.extend(controllers.iter().cloned());
        if self.several_voters.len() > MAX_SEVERAL_VOTERS {
            let has_dependent = |uid: &String| self.dependents.keys().any(|owner| owner.ends_with(uid));
            self.several_voters.retain(|uid| controllers.contains(uid) || has_dependent(uid));
        }
    }

    /// Returns the owners with an accepted deletion.
    pub(crate) fn accepted(&self) -> impl Iterator<Item = &str> {
        self.accepted.iter().map(String::as_str)
    }

    /// Adds a dependent and an owner that exist at the same time. Returns false if the record is full.
    pub(crate) fn insert(&mut self, dependent: &str, owner: &str) -> bool {
        if self.has_pair(dependent, owner) {
            return true;
        }
        let has_space = self.dependents.values().map(BTreeSet::len).sum::<usize>() < MAX_PAIRS;
        if has_space {
            self.dependents.entry(owner.to_owned()).or_default().insert(dependent.to_owned());
        }
        has_space
    }

    /// Records that the deletion of an owner was accepted. Returns false if the record is full.
    pub(crate) fn accept(&mut self, owner: &str) -> bool {
        let has_space = self.is_accepted(owner) || self.accepted.len() < MAX_ACCEPTED;
        if has_space {
            self.accepted.insert(owner.to_owned());
        }
        has_space
    }

    /// Removes all pairs and accepted owners for which these predicates are false.
    pub(crate) fn retain(
        &mut self,
        mut keeps_pair: impl FnMut(&str, &str) -> bool,
        mut keeps_accepted: impl FnMut(&str) -> bool,
    ) {
        for (owner, dependents) in &mut self.dependents {
            dependents.retain(|dependent| keeps_pair(dependent, owner));
        }
        self.dependents.retain(|_, dependents| !dependents.is_empty());
        self.accepted.retain(|owner| keeps_accepted(owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_only_pairs_that_were_recorded() {
        let mut record = OwnershipRecord::default();
        assert!(record.insert("pod", "set"));
        assert!(record.has_pair("pod", "set"));
        assert!(!record.has_pair("pod", "other"), "another owner of the same name");
        assert!(!record.has_pair("restored", "set"), "a pod that was created after its owner");
        assert!(!record.is_accepted("set"));
        assert!(record.accept("set") && record.is_accepted("set"));
    }

    #[test]
    fn survives_its_text_form() {
        let mut record = OwnershipRecord::default();
        record.insert("pod-0", "set");
        record.insert("pod-1", "set");
        record.accept("set");
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<OwnershipRecord>(&text).unwrap(), record);
        assert_eq!(serde_json::from_str::<OwnershipRecord>("{}").unwrap(), OwnershipRecord::default());
    }

    #[test]
    fn controllers_of_several_voters_outlast_their_dependents() {
        let uids = |range: std::ops::Range<usize>| -> BTreeSet<String> {
            range.map(|number| format!("{number:036}")).collect()
        };
        let mut record = OwnershipRecord::default();
        record.insert_several_voters(&uids(0..1));
        record.retain(|_, _| false, |_| false);
        let text = serde_json::to_string(&record).unwrap();
        let mut record: OwnershipRecord = serde_json::from_str(&text).unwrap();
        let [first, other] = [0, 5000].map(|number| format!("{number:036}"));
        assert!(record.may_have_had_more_voters(&first) && !record.may_have_had_more_voters(&other));
        record.insert_several_voters(&uids(1..MAX_SEVERAL_VOTERS));
        assert!(record.may_have_had_more_voters(&other), "the record is full");
        record.insert_several_voters(&BTreeSet::from([other.clone()]));
        assert!(record.may_have_had_more_voters(&other) && !record.may_have_had_more_voters(&first));
    }

    #[test]
    fn retains_pairs_by_dependent_and_owner() {
        let mut record = OwnershipRecord::default();
        record.insert("pod-0", "set");
        record.insert("pod-1", "set");
        record.accept("set");
        record.retain(|dependent, _| dependent == "pod-1", |_| false);
        assert!(!record.has_pair("pod-0", "set") && record.has_pair("pod-1", "set"));
        assert!(!record.is_accepted("set"));
        record.retain(|_, _| false, |_| false);
        assert_eq!(record, OwnershipRecord::default());
    }

    #[test]
    fn a_full_record_rejects_new_pairs_only() {
        let uid = |number: usize| format!("{number:036}");
        let mut record = OwnershipRecord::default();
        for number in 0..MAX_PAIRS {
            assert!(record.insert(&uid(number), &uid(number % 7)));
        }
        assert!(!record.insert("another", &uid(0)));
        assert!(record.insert(&uid(0), &uid(0)), "a known pair");
        for number in 0..MAX_ACCEPTED {
            assert!(record.accept(&uid(number)));
        }
        assert!(!record.accept("another"));
        assert!(serde_json::to_string(&record).unwrap().len() < 200_000);
    }
}
