//! State of a cluster as the metric and the log of surveys report it.

/// State of a cluster at the last survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// One healthy voter or more can be lost without losing the quorum.
    Spare,
    /// Every healthy voter is needed for the quorum.
    NoSpare,
    /// The cluster has one voter, which is always needed. Its owners chose this size.
    SingleMember,
    /// Fewer healthy voters than the quorum were proven.
    NoQuorum,
    /// The members could not be probed, or their replies do not suffice to count voters.
    Unknown,
}

// === impl ClusterState ===

impl ClusterState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Spare, Self::NoSpare, Self::SingleMember, Self::NoQuorum, Self::Unknown];

    /// Value of the metric's label and of the log field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::NoSpare => "no_spare",
            Self::SingleMember => "single_member",
            Self::NoQuorum => "no_quorum",
            Self::Unknown => "unknown",
        }
    }
}
