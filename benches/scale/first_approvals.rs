//! The first two approvals of a cluster: at the first one, the guard lists the pods and does not know the cluster id. At the second
//! one, the record of reservations is not complete, so that the guard also reads the provisional record.

use std::time::{Duration, Instant};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use test_support::{
    bench_table::{Times, median_and_p99, ms},
    http_client::Connection,
    kubernetes::api_proxy::{ApiServerProxy, Call},
};
use tokio::time::sleep;

use super::guard::review;

/// Longer than the interval in which the API server requests the revision of etcd for consistent lists (0.1 s). A list that follows
/// another one without a pause can wait for the rest of the interval.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// The time without reads of pods after which the reads of all namespaces have ended: the guard repeats a failed read after 10 s.
const IDLE_TIME: Duration = Duration::from_secs(12);

/// The longest wait for the end of these reads.
const MAX_SCAN_TIME: Duration = Duration::from_secs(180);

/// The namespace of the guard.
const NAMESPACE: &str = "etcd-guard";

/// The annotation of a Lease with reservations.
const RESERVATIONS: &str = "etcd-guard.io/reservations";

/// The annotation of a Lease with the names of its cluster.
const CLUSTER: &str = "etcd-guard.io/cluster";

/// The metric of the API server for the time that lists wait for its watch cache.
const WAITS: &str = "apiserver_watch_cache_read_wait_seconds";

/// Approvals of one kind, and the waits of the API server during them.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstApprovals {
    times: Vec<Duration>,
    pods: Waits,
    leases: Waits,
}

/// Consistent reads of one resource by all clients of the API server, and the sum of their waits for the watch cache. Each page of a
/// list is a read.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    reads: f64,
    seconds: f64,
}

/// Measures first and second approvals.
pub(crate) struct FirstApprovalsBench {
    client: Client,
}

/// Whether an evaluation in this namespace made the call. A background task reads the owners of all namespaces after the start.
pub(crate) fn is_of_cluster(call: &Call, namespace: &str) -> bool {
    let is_of_namespace = call.path.contains(&format!("/namespaces/{namespace}/"));
    let is_of_records = call.path.contains("/leases/etcd-guard.c")
        || call.path.ends_with("/leases/etcd-guard.unknown")
        || call.path.ends_with("/leases");
    !call.is_background() && (is_of_namespace || is_of_records)
}

// === impl FirstApprovals ===

impl FirstApprovals {
    /// The number of approvals.
    pub(crate) const fn len(&self) -> usize {
        self.times.len()
    }

    /// Returns a text with the times, and the mean waits of one approval.
    pub(crate) fn describe(&self) -> String {
        if self.times.is_empty() {
            return String::from("not applicable");
        }
        let approvals = f64::from(u32::try_from(self.times.len()).unwrap());
        let mean = |waits: Waits| {
            let seconds = Duration::from_secs_f64(waits.seconds / approvals);
            format!("{:.1} reads, {}", waits.reads / approvals, ms(seconds))
        };
        let times = median_and_p99(&Times::new(self.times.clone()));
        format!(
            "{times} ({}; waits, mean: pods {}; Leases {})",
            self.times.len(),
            mean(self.pods),
            mean(self.leases)
        )
    }
}

// === impl FirstApprovalsBench ===

impl FirstApprovalsBench {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Deletes the records of reservations.
    pub(crate) async fn delete_records(&self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        for lease in leases.list(&ListParams::default()).await.expect("Leases") {
            let annotations = lease.metadata.annotations.unwrap_or_default();
            if annotations.contains_key(RESERVATIONS) {
                let name = lease.metadata.name.expect("a name");
                leases.delete(&name, &DeleteParams::default()).await.expect("the record is deleted");
            }
        }
    }

    /// Returns the number of calls of each of the first three approvals of a pod's cluster by a guard that has evaluated no deletion. The
    /// cluster has no record, and the other clusters keep theirs. The guard reaches the API server through the proxy.
    pub(crate) async fn calls(
        &self,
        connection: &mut Connection,
        proxy: &ApiServerProxy,
        pod: &Pod,
    ) -> [usize; 3] {
        let namespace = pod.metadata.namespace.as_deref().expect("a namespace");
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        for lease in leases.list(&ListParams::default()).await.expect("Leases") {
            let cluster = lease.metadata.annotations.as_ref().and_then(|all| all.get(CLUSTER));
            if cluster.is_some_and(|names| names.starts_with(&format!("{namespace}/"))) {
                let name = lease.metadata.name.expect("a name");
                leases.delete(&name, &DeleteParams::default()).await.expect("the record is deleted");
            }
        }
        let mut counts = [0; 3];
        for count in &mut counts {
            proxy.take_calls();
            assert!(review(connection, pod).await.1, "the deletion of a follower is approved");
            // The watch of claims may not have synchronized yet.
            let is_counted = |call: &&Call| {
                is_of_cluster(call, namespace) && !call.path.contains("/persistentvolumeclaims/")
            };
            *count = proxy.take_calls().iter().filter(is_counted).count();
        }
        counts
    }

    /// Waits until the guard has read the pods of all namespaces, which it does after its start and every five minutes. Returns `false`
    /// if it still reads them after [`MAX_SCAN_TIME`]: with some thousand clusters, these reads do not end.
    pub(crate) async fn wait_until_idle(&self) -> bool {
        let (started, mut changed, mut reads) = (Instant::now(), Instant::now(), 0.0);
        while changed.elapsed() < IDLE_TIME && started.elapsed() < MAX_SCAN_TIME {
            sleep(Duration::from_secs(1)).await;
            let [pods, _] = self.waits().await;
            let before = std::mem::replace(&mut reads, pods.unwrap_or_default().reads);
            if reads > before {
                changed = Instant::now();
            }
        }
        changed.elapsed() >= IDLE_TIME
    }

    /// Adds one approval for each pod, each after a pause. A pod stands for its cluster. The API server reports its waits before the
    /// first pause and after the last approval, because a report takes processor time.
    pub(crate) async fn measure(
        &self,
        connection: &mut Connection,
        pods: &[&Pod],
        pause: Duration,
        approvals: &mut FirstApprovals,
    ) {
        // Also without pauses, the first approval does not follow another one.
        sleep(PAUSE.saturating_sub(pause)).await;
        let before = self.waits().await;
        for pod in pods {
            // A pause of zero would last up to a millisecond.
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let (time, allowed) = review(connection, pod).await;
            assert!(allowed, "the deletion of a follower is approved");
            approvals.times.push(time);
        }
        let after = self.waits().await;
        // The guard may list no Leases.
        assert!(after[0].is_some(), "the API server reports the waits for its watch cache");
        for (waits, (before, after)) in
            [&mut approvals.pods, &mut approvals.leases].into_iter().zip(before.into_iter().zip(after))
        {
            let before = before.unwrap_or_default();
            let after = after.unwrap_or_default();
            waits.reads += after.reads - before.reads;
            waits.seconds += after.seconds - before.seconds;
        }
    }

    /// Returns the waits for pods and for Leases since the start of the API server. `None` means that no consistent read of
    /// the resource was counted.
    async fn waits(&self) -> [Option<Waits>; 2] {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let page = self.client.request_text(request).await.expect("metrics of the API server");
        ["pods", "leases"].map(|resource| {
            let value = |kind: &str| {
                let is_of_resource = |line: &&str| {
                    line.starts_with(&format!("{WAITS}_{kind}{{"))
                        && line.contains(&format!("resource=\"{resource}\""))
                };
                let line = page.lines().find(is_of_resource);
                line.map(|line| line.rsplit_once(' ').unwrap().1.parse().expect("a number"))
            };
            Some(Waits { reads: value("count")?, seconds: value("sum")? })
        })
    }
}
