//! Evidence about the size of a cluster if the only visible member does not answer.

/// Facts from which the number of voters follows without a member list. All of them are required: `single-member=allow` may
/// be inherited from the namespace, and silence must never approve the deletion of one of several voters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SingleMemberEvidence {
    /// Number of replicas of the StatefulSet that controls the pod; `None` if it is not known.
    pub replicas: Option<u32>,
    /// Number of members that the pod's `--initial-cluster` names; 0 if it is absent or cannot be read.
    pub initial_members: usize,
    /// Whether another etcd pod has the same owner, or names this member in its `--initial-cluster`.
    pub has_peer_pod: bool,
    /// Whether a member list of this cluster ever contained more than one voter, as far as a replica has recorded it.
    pub had_more_voters: bool,
}

// === impl SingleMemberEvidence ===

impl SingleMemberEvidence {
    /// Whether the pod runs the only voter of its cluster.
    pub fn is_conclusive(self) -> bool {
        let Self { replicas, initial_members, has_peer_pod, had_more_voters } = self;
        replicas == Some(1) && initial_members == 1 && !has_peer_pod && !had_more_voters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_all_facts() {
        let complete = SingleMemberEvidence {
            replicas: Some(1),
            initial_members: 1,
            has_peer_pod: false,
            had_more_voters: false,
        };
        assert!(complete.is_conclusive());
        for incomplete in [
            SingleMemberEvidence::default(),
            SingleMemberEvidence { replicas: None, ..complete },
            SingleMemberEvidence { replicas: Some(3), ..complete },
            SingleMemberEvidence { initial_members: 0, ..complete },
            SingleMemberEvidence { initial_members: 3, ..complete },
            SingleMemberEvidence { has_peer_pod: true, ..complete },
            SingleMemberEvidence { had_more_voters: true, ..complete },
        ] {
            assert!(!incomplete.is_conclusive(), "{incomplete:?}");
        }
    }
}
