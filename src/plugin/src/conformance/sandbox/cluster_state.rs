//! The state of the etcd clusters in the namespace, as reported by the guard and the API server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};

use super::{POLL_INTERVAL, PROPAGATION_TIMEOUT, Sandbox};
use crate::{api_server::is_ready, conformance::manifests::SET, maintenance::health::unschedulable};
use etcd_guard_api::{ClusterStatus, Role, Survey};

/// The number of members of the example.
pub(crate) const MEMBERS: u32 = 3;

/// The pods of the members.
const PODS: [&str; 3] = ["etcd-0", "etcd-1", "etcd-2"];

/// Approved deletions: the name of the pod and the time of the approval.
pub(crate) type Reservations = BTreeSet<(String, String)>;

/// A cluster in which all members serve and no pod is being deleted.
pub(crate) struct HealthyCluster {
    /// The name of the leader's pod.
    pub(crate) leader: String,
    /// The names of the followers' pods.
    pub(crate) followers: [String; 2],
    /// The member ids by pod name.
    pub(crate) member_ids: BTreeMap<String, String>,
    /// The uids of the pods by name.
    pub(crate) uids: BTreeMap<String, String>,
}

/// The properties of a pod that the cases use.
pub(crate) struct PodState {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) terminating: bool,
    pub(crate) ready: bool,
    /// The reason why the pod does not run, as a suffix of a message. Empty if it is unknown.
    reason: String,
}

// === impl Sandbox ===

impl Sandbox {
    /// Waits until all members serve, their pods are ready and no pod is being deleted.
    pub(crate) async fn wait_until_healthy(&self) -> anyhow::Result<HealthyCluster> {
        let end = Instant::now() + self.timeout;
        loop {
            let obstacle = match self.observe().await {
                Ok(Ok(healthy)) => return Ok(healthy),
                Ok(Err(obstacle)) => obstacle,
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() > end {
                let timeout = crate::durations::text(self.timeout);
                bail!("etcd cluster in namespace {} not healthy after {timeout}: {obstacle}", self.namespace);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn observe(&self) -> anyhow::Result<Result<HealthyCluster, String>> {
        self.check_health(&self.cluster().await?).await
    }

    /// Returns the healthy cluster for a status that was read just now. The inner error is the reason why it is not
    /// healthy.
    pub(crate) async fn check_health(
        &self,
        cluster: &ClusterStatus,
    ) -> anyhow::Result<Result<HealthyCluster, String>> {
        let pods = self.pods(SET).await?;
        for name in PODS {
            match pods.iter().find(|pod| pod.name == name) {
                None => return Ok(Err(format!("pod {name} does not exist"))),
                Some(pod) if pod.terminating => return Ok(Err(format!("pod {name} is terminating"))),
                Some(pod) if !pod.ready => return Ok(Err(format!("pod {name} is not ready{}", pod.reason))),
                Some(_) => {}
            }
        }
        let mut healthy = HealthyCluster {
            leader: String::new(),
            followers: [String::new(), String::new()],
            member_ids: BTreeMap::new(),
            uids: pods.into_iter().map(|pod| (pod.name, pod.uid)).collect(),
        };
        let mut followers = Vec::new();
        for member in &cluster.members {
            let name = member.pod.as_deref().or(member.name.as_deref()).unwrap_or_default();
            if let Some(leaving) = &member.leaving {
                return Ok(Err(format!("member {name} is {leaving}")));
            }
            let (Some(pod), Some(id), true) = (&member.pod, &member.id, member.serving) else {
                return Ok(Err(format!("member {name} does not serve")));
            };
            healthy.member_ids.insert(pod.clone(), id.clone());
            match member.role {
                Role::Leader => healthy.leader.clone_from(pod),
                _ => followers.push(pod.clone()),
            }
        }
        match followers.try_into() {
            Ok(followers) if !healthy.leader.is_empty() => Ok(Ok(HealthyCluster { followers, ..healthy })),
            _ => Ok(Err(String::from("no leader"))),
        }
    }

    /// The guard's status of the cluster of the example.
    pub(crate) async fn cluster(&self) -> anyhow::Result<ClusterStatus> {
        self.cluster_of(SET).await
    }

    /// The guard's status of the cluster in the pods of this StatefulSet.
    pub(crate) async fn cluster_of(&self, set: &str) -> anyhow::Result<ClusterStatus> {
        let Survey { clusters, problems, .. } = self.guard.status(Some(&self.namespace)).await?;
        // Without reservations the status does not show the pods that are about to be deleted.
        let is_about_reservations = |problem: &String| {
            ["the reservations are unknown: ", "the reservations: "]
                .iter()
                .any(|text| problem.starts_with(text))
        };
        let is_incomplete = problems.iter().any(is_about_reservations);
        let problems = problems.join("; ");
        if is_incomplete {
            bail!("status of the guard incomplete: {problems}");
        }
        clusters
            .into_iter()
            .find(|cluster| cluster.name == set)
            .with_context(|| format!("etcd cluster {set} is not in the status of the guard: {problems}"))
    }

    /// The approved deletions that the guard reports. A second approval of the same pod has another time.
    pub(crate) async fn reservations(&self) -> anyhow::Result<Reservations> {
        let end = Instant::now() + PROPAGATION_TIMEOUT;
        loop {
            match self.cluster().await {
                Ok(cluster) => {
                    let reservations = cluster.reservations.into_iter();
                    return Ok(reservations.map(|reservation| (reservation.pod, reservation.at)).collect());
                }
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// The pods of a StatefulSet.
    pub(crate) async fn pods(&self, set: &str) -> anyhow::Result<Vec<PodState>> {
        let pods = self.api.pods_in(&self.namespace, &format!("app={set}")).await?;
        Ok(pods.iter().map(PodState::from_pod).collect())
    }
}

// === impl PodState ===

impl PodState {
    fn from_pod(pod: &Pod) -> Self {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let first =
            containers.into_iter().next().and_then(|container| container.state.as_ref()?.waiting.as_ref());
        let waiting = first.and_then(|waiting| waiting.reason.as_deref());
        let reason = unschedulable(pod).or(waiting);
        Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            ready: is_ready(pod),
            reason: reason.map(|reason| format!(": {reason}")).unwrap_or_default(),
        }
    }
}
