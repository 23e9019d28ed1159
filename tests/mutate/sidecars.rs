//! Sidecar templates.

use serde_json::{Value, json};

use crate::mutated_cluster::{MutatedCluster, mount_paths, pod};
use test_support::project::plugin_program;

const AGENT: &str = "
sidecars:
  default: [agent]
  templates:
  - name: agent
    containers: [{name: agent, image: 'agent:1', volumeMounts: [{name: data, mountPath: /data}]}]
    volumes: [{name: data, emptyDir: {}}]
    appContainers: {env: [{name: AGENT, value: here}]}
";

#[tokio::test]
async fn injects_native_sidecar_with_token() {
    let mut cluster = MutatedCluster::start(AGENT, &["sidecar-injector=enabled"], &["inject"]).await;
    let (stored, _) = cluster.applied(&pod(json!({}))).await;
    // The API server calls the webhook again, because in-tree plugins changed the injected container.
    assert_eq!(
        cluster.guard.new_verdicts().await,
        ["CREATE allowed AlreadyInjected", "CREATE allowed Injected"]
    );
    let agent = &stored["spec"]["initContainers"][0];
    assert_eq!((&agent["name"], &agent["restartPolicy"]), (&json!("agent"), &json!("Always")));
    let token = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert!(mount_paths(agent).contains(&token), "the in-tree plugins ran again");
    assert_eq!(stored["spec"]["containers"][0]["env"], json!([{"name": "AGENT", "value": "here"}]));
}

#[tokio::test]
async fn stores_every_part_of_a_template() {
    let mut cluster = MutatedCluster::start(
        "
sidecars:
  native: false
  templates:
  - name: agent
    containers: [{name: agent, image: 'agent:1'}]
    shareVolumes: true
    transferEnv: [{names: [REGION]}]
    overrides: {image: true, resources: true, env: [LEVEL]}
    terminationGracePeriodSeconds: 60
    dnsConfig: {nameservers: [192.0.2.1], options: [{name: ndots, value: '1'}]}
    hostAliases: [{ip: 192.0.2.2, hostnames: [agent.example]}]
    securityContext: {fsGroup: 2000}
",
        &[],
        &["inject"],
    )
    .await;
    let mut requesting = pod(json!({
        "etcd-guard.io/inject": "agent",
        "agent.inject.etcd-guard.io/image": "agent:2",
        "agent.inject.etcd-guard.io/memory-limit": "64Mi",
        "agent.inject.etcd-guard.io/env.LEVEL": "debug",
    }));
    requesting["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]);
    requesting["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "logs", "mountPath": "/logs"}]);
    requesting["spec"]["containers"][0]["env"] = json!([{"name": "REGION", "value": "north"}]);
    let (stored, _) = cluster.applied(&requesting).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    let (spec, agent) = (&stored["spec"], &stored["spec"]["containers"][1]);
    assert_eq!(spec["terminationGracePeriodSeconds"], 60, "the API server had set the default of 30");
    assert_eq!(spec["dnsConfig"]["nameservers"], json!(["192.0.2.1"]));
    assert_eq!(spec["hostAliases"], json!([{"ip": "192.0.2.2", "hostnames": ["agent.example"]}]));
    assert_eq!(spec["securityContext"]["fsGroup"], 2000);
    assert_eq!(
        (&agent["image"], &agent["resources"]["limits"]["memory"]),
        (&json!("agent:2"), &json!("64Mi"))
    );
    let env = json!([{"name": "LEVEL", "value": "debug"}, {"name": "REGION", "value": "north"}]);
    assert_eq!(agent["env"], env);
    assert!(mount_paths(agent).contains(&"/logs"));
}

#[tokio::test]
async fn excluded_pod_is_injected_only_on_request() {
    let never = format!("{AGENT}    never: {{podSelector: {{matchLabels: {{tier: batch}}}}}}\n");
    let mut cluster = MutatedCluster::start(&never, &["sidecar-injector=enabled"], &["inject"]).await;
    let batch = |name: &str, annotations: Value| {
        let mut batch = pod(annotations);
        batch["metadata"]["name"] = json!(name);
        batch["metadata"]["labels"] = json!({"tier": "batch"});
        batch
    };
    let (stored, _) = cluster.applied(&batch("silent", json!({}))).await;
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed NothingToInject"]);
    assert_eq!(stored["spec"].get("initContainers"), None);
    let (stored, _) = cluster.applied(&batch("asking", json!({"etcd-guard.io/inject": "agent"}))).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    assert_eq!(stored["spec"]["initContainers"][0]["name"], "agent");
}

#[tokio::test]
async fn warns_about_unknown_template() {
    let mut cluster = MutatedCluster::start(AGENT, &[], &["inject"]).await;
    let (_, output) = cluster.applied(&pod(json!({"etcd-guard.io/inject": "nobody"}))).await;
    assert!(output.stderr.contains("Warning: there is no template \"nobody\" to inject"), "{output:?}");
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed UnknownTemplate"]);
}

#[tokio::test]
async fn offline_command_matches_webhook() {
    let mut cluster = MutatedCluster::start(AGENT, &["sidecar-injector=enabled"], &["inject"]).await;
    let plain = pod(json!({"etcd-guard.io/inject": "agent,lxcfs"}));
    let file = cluster.files.join("plain.json");
    std::fs::write(&file, plain.to_string()).unwrap();
    let output = std::process::Command::new(plugin_program())
        .args(["inject", "-o", "json", "--namespace-label", "sidecar-injector=enabled", "--config"])
        .arg(cluster.files.join("config.yaml"))
        .arg("-f")
        .arg(&file)
        .output()
        .unwrap();
    let offline: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (stored, _) = cluster.applied(&plain).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    for place in [
        "/metadata/annotations/etcd-guard.io~1injected",
        "/spec/initContainers/0/image",
        "/spec/containers/0/env",
    ] {
        assert_eq!(stored.pointer(place), offline.pointer(place), "{place}");
    }
    let own_mounts = |pod: &Value| {
        let paths = mount_paths(&pod["spec"]["containers"][0]).into_iter().map(str::to_owned);
        paths.filter(|path| !path.contains("serviceaccount")).collect::<Vec<_>>()
    };
    assert_eq!(own_mounts(&stored), own_mounts(&offline));
}
