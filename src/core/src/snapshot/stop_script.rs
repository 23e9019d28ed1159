//! A script of a preStop hook that the specification of the pod does not contain.

use std::fmt;

use crate::discovery::credential_sources::DataKey;

/// A script that a preStop hook runs and that can remove the member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopScript {
    /// The container whose hook runs it.
    pub container: String,
    /// Its path in the container, or the name of the program.
    pub path: String,
    /// The key that provides it; absent for a file of the image, or of a volume without keys.
    pub source: Option<DataKey>,
    /// The reason why its effect is unknown, after an attempt to read it.
    pub problem: Option<String>,
}

// === impl StopScript ===

impl StopScript {
    /// Whether the guard can read the script, which it has not tried yet.
    pub fn is_unread(&self) -> bool {
        self.source.is_some() && self.problem.is_none()
    }
}

/// Returns for example `/scripts/stop.sh (ConfigMap prod/scripts does not exist)`.
impl fmt::Display for StopScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match (&self.problem, &self.source) {
            (Some(problem), _) => problem,
            (None, Some(_)) => "it was not read",
            (None, None) => "it is in no ConfigMap that the pod mounts",
        };
        write!(f, "{} ({problem})", self.path)
    }
}
