//! The commands that act on guarded clusters: `backup`, `defrag`, `move-leader`, `replace`, `restart` and `restore`.

pub(crate) mod backup;
pub(crate) mod defrag;
pub(crate) mod move_leader;
pub(crate) mod replace;
pub(crate) mod restart;
pub(crate) mod restore;

use std::{fmt, future::pending, str::FromStr};

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

use super::guard_flags::parse_name;
use etcd_guard_api::{ClusterStatus, MemberStatus};

/// Output format of commands that report events
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventFormat {
    /// Human-readable lines
    Text,
    /// One line of JSON for the plan and for each event
    Json,
}

/// Completes when the user or the system requests the end of the process.
async fn interrupted() {
    let wait = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        // Without a handler, the signal ends the process at once.
        Err(_) => pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
        // The terminal was closed.
        () = wait(SignalKind::hangup()) => {}
    }
}

/// The object of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Pod(String),
    StatefulSet(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        match (kind, parse_name(name)) {
            ("pod" | "pods" | "po", Ok(name)) => Ok(Self::Pod(name)),
            ("statefulset" | "statefulsets" | "sts" | "statefulset.apps", Ok(name)) => {
                Ok(Self::StatefulSet(name))
            }
            _ => Err(String::from("expected POD or statefulset/NAME")),
        }
    }
}

impl Target {
    /// Whether the target is this cluster or one of its pods.
    fn is_of(&self, cluster: &ClusterStatus) -> bool {
        match self {
            Self::Pod(pod) => cluster.members.iter().any(|member| member.pod.as_ref() == Some(pod)),
            Self::StatefulSet(set) => {
                let is_of_set = |member: &MemberStatus| member.owner_kind.as_deref() == Some("StatefulSet");
                // A cluster of several owners has all their names.
                cluster.name.split(',').any(|name| name == set) && cluster.members.iter().any(is_of_set)
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "pod {name}"),
            Self::StatefulSet(name) => write!(f, "StatefulSet {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_type_is_a_pod() {
        assert_eq!("etcd-1".parse(), Ok(Target::Pod(String::from("etcd-1"))));
        assert_eq!("pod/etcd-1".parse(), Ok(Target::Pod(String::from("etcd-1"))));
        assert_eq!("sts/etcd".parse(), Ok(Target::StatefulSet(String::from("etcd"))));
        for text in ["", "sts/", "deployment/etcd"] {
            assert_eq!(text.parse::<Target>().unwrap_err(), "expected POD or statefulset/NAME");
        }
    }
}
