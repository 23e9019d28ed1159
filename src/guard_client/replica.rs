//! Single replicas of the guard, and connections to their ports.

use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use tokio::io::{AsyncRead, AsyncWrite};

/// The admin port of a guard pod that has no container port named `admin`.
const ADMIN_PORT: u16 = 8080;

/// The webhook port of a guard pod that has no container port named `webhook`.
const WEBHOOK_PORT: u16 = 8443;

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

/// Whether a pod is ready and not terminating.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn port(pod: &Pod, name: &str) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name));
    port.and_then(|port| port.container_port.try_into().ok())
}
