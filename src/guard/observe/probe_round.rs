//! One probe round: probes the member of each pod at the pod's own address.

use tokio::time::Instant;

use crate::etcd::{self, Connections, MemberError, ProbeResult};
use crate::guard::{
    discovery::{credentials::CredentialReader, etcd_pod::EtcdPod},
    metrics::Metrics,
};

/// Probes the members of these pods in parallel. Returns one result per pod, in the order of the pods.
pub(super) async fn probe_pods<P>(
    connections: &Connections,
    credentials: &CredentialReader,
    metrics: &Metrics,
    namespace: &str,
    pods: &[(P, EtcdPod)],
    deadline: Instant,
) -> Vec<ProbeResult> {
    let endpoints: Vec<_> = pods.iter().filter_map(|(_, etcd_pod)| etcd_pod.endpoint.clone()).collect();
    let started = Instant::now();
    let results = etcd::probe(connections, &endpoints, deadline).await;
    metrics.record_probe_round(started.elapsed(), &results);
    let mut results = results.into_iter();
    let result_of = |pod: &EtcdPod| match pod.endpoint.as_ref().and_then(|_| results.next()) {
        Some(result) => pod.with_problem(result),
        None => {
            let cause = pod.problem.clone().unwrap_or_else(|| String::from("the member was not probed"));
            ProbeResult::NoStatus { cause: MemberError::Unreachable(cause) }
        }
    };
    let results: Vec<ProbeResult> = pods.iter().map(|(_, pod)| pod).map(result_of).collect();
    for ((_, pod), result) in pods.iter().zip(&results) {
        if let Some(MemberError::CredentialsRejected(_) | MemberError::Tls(_)) = result.cause() {
            credentials.invalidate(namespace, pod);
        }
    }
    results
}
