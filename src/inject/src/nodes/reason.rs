//! Reasons for the outcome of a status update, from a closed set for metrics and audit annotations.

/// The reason for the result for a node's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The node offers a multiple of its resources.
    OverCommitted,
    /// Previously raised amounts were restored.
    Restored,
    /// Neither label nor configuration raises this node.
    NotOverCommitted,
    /// The origin of the amounts is unknown: a reduced amount makes the kubelet report the machine's.
    KubeletAsked,
    /// The record, the label or the status is unreadable: the status is unchanged.
    Malformed,
    /// The patch is inconsistent.
    PatchFailed,
}

// === impl Reason ===

impl Reason {
    /// The reason code.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OverCommitted => "OverCommitted",
            Self::Restored => "Restored",
            Self::NotOverCommitted => "NotOverCommitted",
            Self::KubeletAsked => "KubeletAsked",
            Self::Malformed => "Malformed",
            Self::PatchFailed => "PatchFailed",
        }
    }
}
