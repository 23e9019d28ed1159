//! Handovers of leadership: the signals that trigger them, and their entries in the shared record.

use std::{ops::Not, time::Duration};

use serde::{Deserialize, Serialize};

/// Declares each trigger once: its value in metrics, logs and events, and its documentation.
macro_rules! triggers {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// The kind of the signal that triggers a handover.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Trigger {
            $($(#[$doc])* $name,)*
        }

        impl Trigger {
            /// All triggers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Value of the metric label and of the log field.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

triggers! {
    /// A person requested the move by an annotation.
    Request => "request",
    /// The node is cordoned.
    Cordon => "cordon",
    /// The cluster autoscaler removes the node.
    ClusterAutoscaler => "cluster_autoscaler",
    /// Karpenter removes the node.
    Karpenter => "karpenter",
    /// The cloud provider terminates the instance, or is about to.
    Termination => "termination",
    /// The node is out of service, or its machine is off.
    Shutdown => "shutdown",
    /// A condition of the node reports a drain, maintenance or a shutdown.
    Condition => "condition",
    /// A taint of the configuration.
    Configured => "configured",
    /// A rollout of the StatefulSet has updated all other members.
    Rollout => "rollout",
}

impl Trigger {
    /// Whether the source of the signal is a node.
    const fn is_of_node(self) -> bool {
        !matches!(self, Self::Request | Self::Rollout)
    }
}

/// The signal of a move before an approved deletion. An entry with it limits the rate of such moves, and announces nothing.
pub const REVIEW: &str = "review";

/// The beginning of the signal of a request to defragment. An entry with it says that a replica acts, or that the request is answered.
/// It announces no transferee.
pub const DEFRAGMENTATION: &str = "defragment";

/// The beginning of the signal of a step of a replacement. An entry with it has the meaning of one with [`DEFRAGMENTATION`].
pub const REPLACEMENT: &str = "replace";

/// Returns the name of the node in the id of a node's signal (`TRIGGER/DETAIL/NODE/UID`), or `None` for other signals. The detail
/// can contain slashes, so that the id is split from the end.
pub fn node_of_signal(id: &str) -> Option<&str> {
    let (trigger, _) = id.split_once('/')?;
    Trigger::ALL.iter().find(|known| known.is_of_node() && known.as_str() == trigger)?;
    let mut parts = id.rsplitn(3, '/').skip(1);
    parts.next().filter(|name| !name.is_empty())
}

/// One handover in a ledger. Each signal has at most one per cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handover {
    /// The signal, see [`Signal::id`]. It distinguishes two signals of one kind.
    pub signal: String,
    /// Id of the etcd cluster in hexadecimal: a namespace can contain several.
    pub cluster: String,
    /// Uid of the transferee; empty if leadership was not moved.
    #[serde(default)]
    pub uid: String,
    /// Name of the transferee, for display.
    #[serde(default)]
    pub pod: String,
    /// Term before the transfer. Each move of leadership increases it.
    #[serde(default)]
    pub term: u64,
    /// Whether the replica that wrote the entry has finished, so that no other replica has to act.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub ended: bool,
    /// Time of the entry by the wall clock of the replica that wrote the entry. The lifetime is not measured from this time.
    pub at: String,
}

/// A signal that triggers a handover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// The kind of the signal.
    pub trigger: Trigger,
    /// Identifies the signal in the record: the kind, the object with its uid and, if known, the time.
    pub id: String,
    /// The signal in words, for events and log lines.
    pub text: String,
}

/// The state of a handover in the record, as one replica sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverState {
    /// A replica acts, or acted a moment ago. Contains the rest of the lifetime of the entry.
    InProgress(Duration),
    /// The lifetime of the entry has expired. If the cluster still has this term, the replica ended before the transfer.
    Expired {
        /// The term before the transfer.
        term: u64,
    },
    /// No replica has to act.
    Ended,
}
