//! One round of questions: each pod's member at its own address.

use tokio::time::Instant;

use super::{credentials::Credentials, etcd_pod::EtcdPod, metrics::Metrics};
use crate::etcd::{self, Cause, Connections, Reply};

/// Asks the members of all these pods; one reply per pod, in their order.
pub(super) async fn ask<P>(
    connections: &Connections,
    credentials: &Credentials,
    metrics: &Metrics,
    namespace: &str,
    pods: &[(P, EtcdPod)],
    deadline: Instant,
) -> Vec<Reply> {
    let endpoints: Vec<_> = pods.iter().filter_map(|(_, it)| it.endpoint.clone()).collect();
    let started = Instant::now();
    let replies = etcd::probe(connections, &endpoints, deadline).await;
    metrics.record_round(started.elapsed(), &replies);
    let mut replies = replies.into_iter();
    let reply_of = |pod: &EtcdPod| match pod.endpoint.as_ref().and_then(|_| replies.next()) {
        Some(reply) => pod.with_gap(reply),
        None => {
            let why = pod.gap.clone().unwrap_or_else(|| String::from("it was not asked"));
            Reply::Silent { cause: Cause::Unreachable(why) }
        }
    };
    let replies: Vec<Reply> = pods.iter().map(|(_, pod)| pod).map(reply_of).collect();
    for ((_, pod), reply) in pods.iter().zip(&replies) {
        if let Some(Cause::CredentialsRejected(_) | Cause::Tls(_)) = reply.cause() {
            credentials.forget(namespace, pod);
        }
    }
    replies
}
