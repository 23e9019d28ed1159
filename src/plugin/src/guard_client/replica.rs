//! Single replicas of the guard, and connections to their ports.

use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::api_server::is_ready;

/// The admin port of a guard pod that has no container port named `admin`.
const ADMIN_PORT: u16 = 8080;

/// The webhook port of a guard pod that has no container port named `webhook`.
const WEBHOOK_PORT: u16 = 8443;

/// The series with the release in the metrics of a replica.
const BUILD_INFO: &str = "etcd_guard_build_info{version=\"";

/// Maximum number of replicas that are read one by one.
pub(crate) const MAX_REPLICAS: usize = 8;

/// A replica of the guard.
#[derive(Clone, Debug)]
pub(crate) enum Replica {
    /// The replica behind this address of an admin port.
    Url(Uri),
    /// A pod, reached by a port-forward.
    Pod {
        /// The namespace of the pod.
        namespace: String,
        /// The name of the pod.
        name: String,
        /// The number of its admin port.
        admin: u16,
        /// The number of its webhook port.
        webhook: u16,
    },
}

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to a port of a replica.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// Copies the bytes of the stream.
    pub(super) _forward: Option<Portforwarder>,
}

// === impl Replica ===

impl Replica {
    /// Returns the replica in this pod of the guard.
    pub(crate) fn from_pod(pod: &Pod) -> Self {
        Self::Pod {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            admin: port(pod, "admin").unwrap_or(ADMIN_PORT),
            webhook: port(pod, "webhook").unwrap_or(WEBHOOK_PORT),
        }
    }

    /// Returns a description for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Url(address) => format!("the replica at {address}"),
            Self::Pod { name, .. } => format!("replica {name}"),
        }
    }
}

/// Whether a pod of the guard is ready and not terminating.
pub(crate) fn serves(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && is_ready(pod)
}

/// Returns the release in the metrics of a replica.
pub(crate) fn release(metrics: &str) -> Option<String> {
    let rest = metrics.lines().find_map(|line| line.strip_prefix(BUILD_INFO))?;
    rest.split('"').next().map(str::to_owned)
}

fn port(pod: &Pod, name: &str) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name));
    port.and_then(|port| port.container_port.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_release_from_metrics() {
        let metrics = "# TYPE etcd_guard_build info\netcd_guard_build_info{version=\"0.1.0\"} 1\n";
        assert_eq!(release(metrics).as_deref(), Some("0.1.0"));
        assert_eq!(release("etcd_guard_other 1\n"), None);
    }
}
