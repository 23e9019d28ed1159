//! Errors of an observation.

use crate::guard::model::{deadline::DeadlineExceeded, verdict::Verdict};
use crate::k8s::LookupError;

/// The reason why there is no snapshot of a cluster.
#[derive(Debug, thiserror::Error)]
pub(in crate::guard) enum ObserveError {
    /// A pod could not be read from the API server.
    #[error("{0}")]
    Lookup(LookupError),
    /// The deadline passed.
    #[error("{0}")]
    DeadlineExceeded(DeadlineExceeded),
    /// A voter runs in no known pod, and the namespace has more etcd pods than are probed to find it.
    #[error("a voter runs in no known pod, and {count} other etcd pods are too many to probe")]
    TooManyPods {
        /// The number of these pods.
        count: usize,
    },
    /// No snapshot is required: the pod does not exist, or its deletion was accepted earlier.
    #[error("{}", .0.message)]
    Settled(Verdict),
}

impl From<DeadlineExceeded> for ObserveError {
    fn from(error: DeadlineExceeded) -> Self {
        Self::DeadlineExceeded(error)
    }
}
