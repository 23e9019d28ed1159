//! Templates.

use serde_json::{Value, json};

use crate::mutated_cluster::{MutatedCluster, mount_paths, pod};

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
async fn pods_of_a_labelled_namespace_get_a_native_sidecar_with_its_service_account_token() {
    let mut cluster = MutatedCluster::start(AGENT, &["sidecar-injector=enabled"], &["inject"]).await;
    let (stored, _) = cluster.applied(&pod(json!({}))).await;
    // Asked again, because the in-tree plugins changed what it had made.
    assert_eq!(cluster.guard.news().await, ["CREATE allowed AlreadyInjected", "CREATE allowed Injected"]);
    let agent = &stored["spec"]["initContainers"][0];
    assert_eq!((&agent["name"], &agent["restartPolicy"]), (&json!("agent"), &json!("Always")));
    let token = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert!(mount_paths(agent).contains(&token), "the in-tree plugins ran again");
    assert_eq!(stored["spec"]["containers"][0]["env"], json!([{"name": "AGENT", "value": "here"}]));
}

#[tokio::test]
async fn what_a_template_asks_of_a_pod_and_takes_from_it_is_what_the_apiserver_stores() {
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
    let mut asking = pod(json!({
        "etcd-guard.io/inject": "agent",
        "agent.inject.etcd-guard.io/image": "agent:2",
        "agent.inject.etcd-guard.io/memory-limit": "64Mi",
        "agent.inject.etcd-guard.io/env.LEVEL": "debug",
    }));
    asking["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]);
    asking["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "logs", "mountPath": "/logs"}]);
    asking["spec"]["containers"][0]["env"] = json!([{"name": "REGION", "value": "north"}]);
    let (stored, _) = cluster.applied(&asking).await;
    assert!(cluster.guard.news().await.contains(&String::from("CREATE allowed Injected")));
    let (spec, agent) = (&stored["spec"], &stored["spec"]["containers"][1]);
    assert_eq!(spec["terminationGracePeriodSeconds"], 60, "the apiserver had filled in 30");
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
async fn a_pod_that_a_template_never_goes_to_is_stored_as_it_came_unless_it_asks() {
    let never = format!("{AGENT}    never: {{podSelector: {{matchLabels: {{tier: batch}}}}}}\n");
    let mut cluster = MutatedCluster::start(&never, &["sidecar-injector=enabled"], &["inject"]).await;
    let batch = |name: &str, annotations: Value| {
        let mut batch = pod(annotations);
        batch["metadata"]["name"] = json!(name);
        batch["metadata"]["labels"] = json!({"tier": "batch"});
        batch
    };
    let (stored, _) = cluster.applied(&batch("silent", json!({}))).await;
    assert_eq!(cluster.guard.news().await, ["CREATE allowed NothingToInject"]);
    assert_eq!(stored["spec"].get("initContainers"), None);
    let (stored, _) = cluster.applied(&batch("asking", json!({"etcd-guard.io/inject": "agent"}))).await;
    assert!(cluster.guard.news().await.contains(&String::from("CREATE allowed Injected")));
    assert_eq!(stored["spec"]["initContainers"][0]["name"], "agent");
}

#[tokio::test]
async fn an_unknown_template_is_warned_of_and_the_pod_admitted() {
    let mut cluster = MutatedCluster::start(AGENT, &[], &["inject"]).await;
    let (_, said) = cluster.applied(&pod(json!({"etcd-guard.io/inject": "nobody"}))).await;
    assert!(said.stderr.contains("Warning: there is no template \"nobody\" to inject"), "{said:?}");
    assert_eq!(cluster.guard.news().await, ["CREATE allowed UnknownTemplate"]);
}

#[tokio::test]
async fn the_offline_command_shows_what_the_webhook_makes() {
    let mut cluster = MutatedCluster::start(AGENT, &["sidecar-injector=enabled"], &["inject"]).await;
    let plain = pod(json!({"etcd-guard.io/inject": "agent,lxcfs"}));
    let file = cluster.files.join("plain.json");
    std::fs::write(&file, plain.to_string()).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_etcd-guard"))
        .args(["inject", "-o", "json", "--namespace-label", "sidecar-injector=enabled", "--config"])
        .arg(cluster.files.join("config.yaml"))
        .arg("-f")
        .arg(&file)
        .output()
        .unwrap();
    let offline: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (stored, _) = cluster.applied(&plain).await;
    assert!(cluster.guard.news().await.contains(&String::from("CREATE allowed Injected")));
    for place in [
        "/metadata/annotations/etcd-guard.io~1injected",
        "/spec/initContainers/0/image",
        "/spec/containers/0/env",
    ] {
        assert_eq!(stored.pointer(place), offline.pointer(place), "{place}");
    }
    let ours = |pod: &Value| {
        let paths = mount_paths(&pod["spec"]["containers"][0]).into_iter().map(str::to_owned);
        paths.filter(|it| !it.contains("serviceaccount")).collect::<Vec<_>>()
    };
    assert_eq!(ours(&stored), ours(&offline));
}
