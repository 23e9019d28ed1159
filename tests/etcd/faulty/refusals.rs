//! Connections that are refused while the members serve: they listen on the loopback address only, or a network policy rejects
//! the packets of the guard.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    guarded_cluster::{GuardedPods, pod},
};

/// Time from the request until the kubelet reports the restart.
const REPORT_DELAY: Duration = Duration::from_millis(1_500);

/// Three members that serve at their own addresses, while the guard is refused at the addresses of their pods. The first
/// follower is frozen, and the second has just restarted.
struct Refusing {
    cluster: Cluster,
    pods: Vec<Value>,
    restarted: usize,
}

impl Refusing {
    async fn start(listen: &str, is_ready: bool) -> Self {
        let mut cluster = Cluster::three_members("3.6").await;
        let [frozen, restarted] = cluster.followers().await[..] else { panic!("two followers") };
        let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
        for (n, pod) in pods.iter_mut().enumerate() {
            // No process listens there.
            pod["status"]["podIP"] = json!(format!("127.255.2.{n}"));
            let command = ["etcd", &format!("--name=etcd-{n}"), listen, "--data-dir=/data"];
            pod["spec"]["containers"][0]["command"] = json!(command);
            let ready = if is_ready { "True" } else { "False" };
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
        }
        pods[restarted]["status"] = json!({
            "phase": "Running",
            "podIP": pods[restarted]["status"]["podIP"],
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{
                "name": "etcd",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1}},
                "restartCount": 1,
            }]
        });
        cluster.kill(restarted);
        cluster.freeze(frozen).await;
        cluster.restart(restarted);
        cluster.wait_until_serving(restarted).await;
        Self { cluster, pods, restarted }
    }

    /// Expects that the deletion of the restarted member is denied: the quorum consists of it and the leader.
    async fn expect_denial(&self, guarded: &GuardedPods) {
        let (reason, message) = guarded.delete(&self.pods[self.restarted]).await;
        assert_eq!(reason, "EtcdUnreachable", "{message}");
        self.cluster.wait_until_serving(self.restarted).await;
    }
}

#[tokio::test]
async fn member_on_loopback_is_no_stopped_member() {
    let members = Refusing::start("--listen-client-urls=http://127.0.0.1:2379", false).await;
    members.expect_denial(&GuardedPods::start(&members.pods).await).await;
}

#[tokio::test]
async fn member_behind_rejecting_policy_is_no_stopped_member() {
    let members = Refusing::start("--listen-client-urls=http://0.0.0.0:2379", true).await;
    members.expect_denial(&GuardedPods::start(&members.pods).await).await;
}

/// The readiness probes fail still, and the kubelet reports the restart late.
#[tokio::test]
async fn late_report_is_no_stopped_member() {
    let members = Refusing::start("--listen-client-urls=http://0.0.0.0:2379", false).await;
    let guarded = GuardedPods::start(&members.pods).await;
    let mut reported = members.pods.clone();
    let status = &mut reported[members.restarted]["status"]["containerStatuses"][0];
    (status["state"], status["restartCount"]) = (json!({"running": {}}), json!(2));
    let report = async {
        tokio::time::sleep(REPORT_DELAY).await;
        guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": reported}));
    };
    tokio::join!(members.expect_denial(&guarded), report);
}
