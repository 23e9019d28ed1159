//! Members whose settings are not in their pods: in a wrapper, a script or a configuration file.

use std::time::{Duration, Instant};

use etcd_guard_core::etcd::{endpoint::Endpoint, member::Scheme};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::SCHEME_TIMEOUT;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout},
    guarded_cluster::{GuardedPods, forbidden, pod, secret},
    snapshots::probe_deadline,
};

/// Returns the scheme of a member's endpoint, and the time that its detection took.
async fn detect(cluster: &Cluster, n: usize) -> (Option<Scheme>, Duration) {
    let url = format!("http://{}:2379", cluster.address(n));
    let endpoint = Endpoint { url, other_urls: Vec::new(), tls: None, user: None };
    let started = Instant::now();
    let found = etcd::detect_schemes(&[&endpoint], probe_deadline()).await;
    (found[0], started.elapsed())
}

on_every_version! {
    /// Neither attempt carries credentials.
    async fn detects_scheme_of_members(version) {
        for (tls, expected) in [(false, Scheme::Http), (true, Scheme::Https)] {
            let cluster = Cluster::start(Layout { version, members: 1, spare: 0, tls }).await;
            let (found, took) = detect(&cluster, 0).await;
            println!("{version}: {expected:?} after {took:?}");
            assert_eq!(found, Some(expected));
            cluster.freeze(0).await;
            let (found, took) = detect(&cluster, 0).await;
            assert_eq!(found, None);
            assert!(took < SCHEME_TIMEOUT * 3, "a frozen member delays the probe by {took:?}");
        }
    }
}

/// Returns the pods of a cluster with this command and these mounted objects.
fn pods_with(cluster: &Cluster, command: &Value, objects: &[(&str, Value)]) -> Vec<Value> {
    let mut pods: Vec<Value> = (0..3).map(|n| pod(cluster, n)).collect();
    for pod in &mut pods {
        let spec = &mut pod["spec"];
        spec["containers"][0]["command"] = command.clone();
        for (name, volume) in objects {
            let mount = json!({"name": name, "mountPath": format!("/{name}")});
            spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
            let mut volume = volume.clone();
            volume["name"] = json!(name);
            spec["volumes"].as_array_mut().unwrap().push(volume);
        }
    }
    pods
}

#[tokio::test]
async fn reaches_tls_members_behind_a_wrapper() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let certificates = json!({"secret": {"secretName": "apiserver-etcd-client-certificate"}});
    let authority = json!({"secret": {"secretName": "ca"}});
    let pods =
        pods_with(&cluster, &json!(["/etcd-wrapper"]), &[("client", certificates), ("pki", authority)]);
    let (leader, follower) = (&pods[cluster.leader().await], &pods[cluster.followers().await[0]]);
    let guarded = GuardedPods::start(&pods).await;

    let message = guarded.expect_dry_run(follower, "CredentialsRejected").await;
    assert!(message.contains("Secret prod/apiserver-etcd-client-certificate does not exist"), "{message}");

    let (ca, certificate, key) = cluster.client_files();
    let path = |name: &str| format!("/api/v1/namespaces/prod/secrets/{name}");
    let pair = [("apiserver-etcd-client.crt", certificate), ("apiserver-etcd-client.key", key)];
    guarded.objects.put(&path("apiserver-etcd-client-certificate"), 200, secret(&pair));
    guarded.objects.put(&path("ca"), 200, secret(&[("ca.crt", ca), ("ca.key", key)]));
    guarded.expect_dry_run(leader, "LeaderProtected").await;
    guarded.expect_dry_run(follower, "SafeToDelete").await;
}

/// Without a CA, a reply over TLS proves nothing, and a member without TLS is reached as before.
#[tokio::test]
async fn reaches_plain_members_behind_a_wrapper() {
    let cluster = Cluster::three_members("3.5").await;
    let pods = pods_with(&cluster, &json!(["/etcd-wrapper"]), &[]);
    let guarded = GuardedPods::start(&pods).await;
    guarded.expect_dry_run(&pods[cluster.followers().await[0]], "SafeToDelete").await;
}

/// The file names the CA, which is in a `ConfigMap`, and a log on a volume that is deleted with the pod.
#[tokio::test]
async fn reads_configuration_file_and_ca_from_config_maps() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let command = json!(["etcd", "--config-file=/settings/etcd.yaml"]);
    let objects = [
        ("settings", json!({"configMap": {"name": "etcd-config"}})),
        ("trust", json!({"configMap": {"name": "etcd-trust"}})),
        ("server", json!({"secret": {"secretName": "etcd-server"}})),
        ("wal", json!({"emptyDir": {}})),
    ];
    let pods = pods_with(&cluster, &command, &objects);
    let follower = &pods[cluster.followers().await[0]];
    let (ca, certificate, key) = cluster.client_files();
    let file = "
        data-dir: /data
        wal-dir: /wal
        listen-client-urls: https://0.0.0.0:2379
        client-transport-security:
          cert-file: /server/tls.crt
          key-file: /server/tls.key
          trusted-ca-file: /trust/root.pem
          client-cert-auth: true
    ";
    let path = |name: &str| format!("/api/v1/namespaces/prod/configmaps/{name}");
    let put_credentials = |guarded: &GuardedPods| {
        let root = json!({"data": {"root.pem": std::str::from_utf8(ca).unwrap()}});
        guarded.objects.put(&path("etcd-trust"), 200, root);
        let pair = secret(&[("tls.crt", certificate), ("tls.key", key)]);
        guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, pair);
    };

    let guarded = GuardedPods::start(&pods).await;
    put_credentials(&guarded);
    guarded.objects.put(&path("etcd-config"), 403, forbidden());
    let message = guarded.expect_dry_run(follower, "CredentialsRejected").await;
    let expected =
        "the settings of etcd are unknown: the guard is not allowed to read ConfigMap prod/etcd-config";
    assert!(message.contains(expected), "{message}");

    // After the Role is applied, the next request reads the file again.
    guarded.objects.put(&path("etcd-config"), 200, json!({"data": {"etcd.yaml": file}}));
    let message = guarded.expect_dry_run(follower, "PermanentLoss").await;
    assert!(message.contains("3 of 3 voters healthy"), "{message}");
}

/// The script of the hook is in a `ConfigMap`, as in charts 4 to 6 of Bitnami.
#[tokio::test]
async fn unreadable_script_of_a_pre_stop_hook_counts_as_removal() {
    let cluster = Cluster::three_members("3.6").await;
    let objects = [("scripts", json!({"configMap": {"name": "etcd-scripts"}}))];
    let mut pods = pods_with(&cluster, &json!(["etcd"]), &objects);
    for pod in &mut pods {
        pod["spec"]["containers"][0]["lifecycle"] =
            json!({"preStop": {"exec": {"command": ["/scripts/prestop-hook.sh"]}}});
    }
    let follower = &pods[cluster.followers().await[0]];
    let guarded = GuardedPods::start(&pods).await;
    let path = "/api/v1/namespaces/prod/configmaps/etcd-scripts";
    guarded.objects.put(path, 403, forbidden());
    let message = guarded.expect_dry_run(follower, "PermanentLoss").await;
    assert!(message.contains("the guard is not allowed to read ConfigMap prod/etcd-scripts"), "{message}");
    assert!(message.contains(" --role | kubectl apply -f -"), "{message}");
}
