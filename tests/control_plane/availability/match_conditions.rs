//! The conditions by which the API server selects the webhook for the deletion of a pod: one fails closed, for pods that may run
//! etcd, and one fails open, for all others.
//!
//! No guard answers, and both webhooks fail closed in this test. Each rejected deletion then names the webhook that the API server
//! selected, or the condition that it could not evaluate.

use std::{collections::BTreeMap, mem::discriminant, path::Path};

use etcd_guard_core::{
    annotations::MEMBER,
    discovery::{
        fail_closed::may_run_etcd,
        recognition::{Recognition, recognize},
    },
    objects::pod::{ALWAYS, Pod as GuardedPod},
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use test_support::{
    guard::process::make_certificate,
    guarded_cluster::START_TIMEOUT,
    kubernetes::{
        control_plane::ControlPlane,
        pods::{create_pod, new_namespace},
        webhook::register_at,
    },
    project,
    wait::wait_until,
};

/// Number of generated pods for each group: of the sample, and of the test of `scripts/prove tests`.
const SAMPLE: usize = 30;
const ALL: usize = 300;

/// Rules of recognition, and no rule for pods that the conditions select nevertheless, and for all others.
const GROUPS: usize = 11;

/// Number of generated pods after which each rule must have matched often enough.
const MAX_GENERATED: usize = 1_000_000;

const CONCURRENT_REQUESTS: usize = 16;

/// The address of no server.
const NOWHERE: &str = "127.0.0.1:1";

#[tokio::test]
async fn conditions_select_every_pod_that_may_run_etcd() {
    check_conditions(SAMPLE).await;
}

#[tokio::test]
#[ignore = "thousands of pods; scripts/prove tests runs it"]
async fn conditions_select_each_of_many_pods_that_may_run_etcd() {
    check_conditions(ALL).await;
}

async fn check_conditions(pods_per_group: usize) {
    let control_plane = ControlPlane::shared();
    let client = control_plane.client().await;
    let namespace = new_namespace(&client, true).await;
    let ca = make_certificate(tempfile::tempdir_in(&control_plane.dir).unwrap().path());
    let closed = |webhook: &mut Value| webhook["failurePolicy"] = json!("Fail");
    register_at(&client, &namespace, NOWHERE.parse().unwrap(), &ca, closed).await;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    create_pod(&pods, "first").await;
    wait_until("the webhooks are registered", START_TIMEOUT, async || {
        rejection(&pods, "first").await.is_some()
    })
    .await;

    let all = [corpus(), generated(pods_per_group), large()].concat();
    let (mut fail_closed, mut recognized) = (0, 0);
    let mut results = stream::iter(all.iter().enumerate())
        .map(async |(number, (pod, is_recognized))| {
            let is_selected = is_selected(&pods, &format!("pod-{number}"), pod).await;
            let expected = may_run_etcd(&serde_json::from_value(pod.clone()).unwrap());
            let start: String = pod.to_string().chars().take(2000).collect();
            assert_eq!(is_selected, expected, "the program has the same rule: {start}");
            assert!(is_selected || !is_recognized, "the guard recognizes {start}");
            (is_selected, *is_recognized)
        })
        .buffer_unordered(CONCURRENT_REQUESTS);
    while let Some((is_selected, is_recognized)) = results.next().await {
        fail_closed += usize::from(is_selected);
        recognized += usize::from(is_recognized);
    }
    eprintln!("{} pods, {recognized} recognized, {fail_closed} selected", all.len());
    assert!(recognized > (GROUPS - 2) * pods_per_group && fail_closed + pods_per_group < all.len());
}

/// Creates a pod, and returns whether its deletion goes to the webhook that fails closed.
async fn is_selected(pods: &Api<Pod>, name: &str, pod: &Value) -> bool {
    let mut pod = pod.clone();
    pod["metadata"]["name"] = json!(name);
    pod["spec"]["schedulerName"] = json!("no-scheduler");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    let text = pod.to_string();
    let pod: Pod = serde_json::from_value(pod).unwrap();
    if let Err(error) = pods.create(&PostParams::default(), &pod).await {
        panic!("creating {}: {error}", text.chars().take(2000).collect::<String>());
    }
    let message = rejection(pods, name).await.expect("one of the webhooks rejects the deletion");
    let is_called = |webhook: &str| message.contains(&format!("failed calling webhook \"{webhook}\""));
    match (is_called("guard.etcd-guard.io"), is_called("others.guard.etcd-guard.io")) {
        (true, false) => true,
        (false, true) => false,
        _ => panic!("{name}: {message}"),
    }
}

/// Returns why the API server rejects the deletion of a pod.
async fn rejection(pods: &Api<Pod>, name: &str) -> Option<String> {
    let parameters = DeleteParams { dry_run: true, ..DeleteParams::default() };
    match pods.delete(name, &parameters).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message),
        Err(error) => panic!("deleting {name}: {error}"),
    }
}

// === Pods, each with whether the guard recognizes it ===

fn recognition(pod: &Value) -> Recognition {
    let pod: GuardedPod = serde_json::from_value(pod.clone()).unwrap();
    recognize(&pod, &pod.metadata.annotations)
}

/// The pods as distributions of etcd create them, with the fields on which the conditions depend.
fn corpus() -> Vec<(Value, bool)> {
    let files =
        std::fs::read_dir(project::path("tests/data/corpus")).unwrap().map(|file| file.unwrap().path());
    let is_pod = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_suffix(".yaml").is_some_and(|name| !name.ends_with(".expected"))
    };
    let pods: Vec<_> = files
        .filter(|path| is_pod(path))
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let pod: Value = serde_saphyr::from_str(&text).unwrap();
            (reduced(&pod), recognition(&pod).container.is_some())
        })
        .collect();
    assert!(pods.iter().filter(|(_, is_recognized)| *is_recognized).count() > 40, "{} pods", pods.len());
    pods
}

/// Returns a pod that an API server accepts without its owner, its node and its volumes.
fn reduced(pod: &Value) -> Value {
    let containers = |field: &str| -> Vec<Value> {
        let containers = pod["spec"][field].as_array().into_iter().flatten();
        containers
            .map(|container| {
                let list = |field: &str| container[field].as_array().cloned().unwrap_or_default();
                let named = |value: &Value| json!({"name": value["name"], "value": "1"});
                let port = |value: &Value| json!({"containerPort": value["containerPort"]});
                let mut reduced = json!({
                    "name": container["name"],
                    "image": container["image"].as_str().unwrap_or("none"),
                    "command": list("command"),
                    "args": list("args"),
                    "env": list("env").iter().map(named).collect::<Vec<_>>(),
                    "ports": list("ports").iter().map(port).collect::<Vec<_>>(),
                });
                if let Some(policy) = container["restartPolicy"].as_str() {
                    reduced["restartPolicy"] = json!(policy);
                }
                reduced
            })
            .collect()
    };
    let mut annotations = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.retain(|name, _| name == MEMBER);
    json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": containers("containers"), "initContainers": containers("initContainers")},
    })
}

/// Random pods: as many for each group.
fn generated(pods_per_group: usize) -> Vec<(Value, bool)> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut groups = BTreeMap::new();
    let mut pods = Vec::new();
    for _ in 0..MAX_GENERATED {
        let pod = random_pod(&mut random);
        let Recognition { container, rule, .. } = recognition(&pod);
        let may_run = may_run_etcd(&serde_json::from_value(pod.clone()).unwrap());
        let rule = rule.map(|rule| format!("{:?}", discriminant(&rule)));
        let count = groups.entry((rule, may_run)).or_insert(0_usize);
        if *count < pods_per_group {
            *count += 1;
            pods.push((reduced(&pod), container.is_some()));
        }
        if pods.len() == GROUPS * pods_per_group {
            return pods;
        }
    }
    panic!("not all rules matched: {groups:?}");
}

fn random_pod(random: &mut fastrand::Rng) -> Value {
    let container = random_container(random);
    let plain = json!({"name": "app", "image": "nginx", "args": ["-g", "daemon off;"]});
    let mut pod = json!({"metadata": {}, "spec": {"containers": [container.clone()]}});
    if random.u8(..4) == 0 {
        pod["spec"] = json!({"containers": [plain], "initContainers": [container]});
        pod["spec"]["initContainers"][0]["restartPolicy"] = json!(ALWAYS);
    } else if random.bool() {
        pod["spec"]["containers"] = json!([plain, container]);
    }
    let owners = [
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "ReplicaSet"),
        ("operator.etcd.io/v1alpha1", "EtcdCluster"),
        ("batch/v1", "Job"),
    ];
    if let Some((version, kind)) = owners.get(random.usize(..owners.len() + 2)) {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": "owner", "uid": "u", "controller": true}]);
    }
    let values = ["true", "main", "other", "false", "overruled", ""];
    if let Some(value) = values.get(random.usize(..values.len() * 4)) {
        pod["metadata"]["annotations"] = json!({MEMBER: value});
    }
    pod
}

fn random_container(random: &mut fastrand::Rng) -> Value {
    let flags = [
        "--initial-advertise-peer-urls=http://a:2380",
        "-listen-peer-urls http://a:2380",
        "--initial-cluster-state=new",
        "--initial-cluster-token=a",
        "--name=a",
        "--data-dir=/data",
        "--etcd-servers=http://a:2379",
    ];
    let mut pick = |from: &[&str]| (*random.choice(from).unwrap()).to_owned();
    let image = pick(&[
        "nginx",
        "rancher/k3s:v1.34.1-k3s1",
        "registry.example:5000/base@sha256:9b7a6a4a4d2f8ad8f7e1e2e3d4c5b6a79b7a6a4a4d2f8ad8f7e1e2e3d4c5b6a7",
        "quay.io/coreos/etcd:v3.6.16",
        "x/etcd-launcher:1",
        "x/etcd-manager",
        "x/etcd-backup-restore:2",
    ]);
    let flag = pick(&flags);
    let etcd = pick(&[
        "etcd",
        "/usr/local/bin/etcd",
        "\"${BIN}/etcd\"",
        "/opt/etcd-v3.5.1/etcd",
        "/usr/bin/etcd-3.4.13",
    ]);
    let script = pick(&[
        "exec ETCD FLAG",
        "mkdir -p /x; ETCD FLAG",
        "A=b ETCD \\\n  FLAG",
        "if true; then\n  ETCD FLAG\nfi",
        "(ETCD FLAG) & wait",
        "cat > /run.sh <<EOF\nexec ETCD FLAG\nEOF\nsh /run.sh",
        "ARGS=(FLAG)\nexec \"$BIN\" \"${ARGS[@]}\"",
        "until nc -z a 80; do sleep 1; done; exec /start FLAG",
        "et''cd FLAG",
        "trap : TERM; sleep infinity & wait",
    ]);
    let script = script.replace("ETCD", &etcd).replace("FLAG", &flag);
    let etcd = etcd.replace("\"${BIN}", "$(BIN)").replace('"', "");
    let command = match random.u8(..9) {
        0 => vec![etcd, flag.clone()],
        1 | 2 => ["sh", "-ec", &script].map(str::to_owned).to_vec(),
        3 => vec![String::from("tini"), String::from("--"), etcd],
        4 => vec![String::from("/start"), flag.clone()],
        5 => vec![String::from("/scripts/start-etcd.sh")],
        6 => ["sleep", "infinity"].map(str::to_owned).to_vec(),
        _ => Vec::new(),
    };
    let args = match random.u8(..4) {
        0 => vec![flag],
        1 => vec![String::from("--verbose")],
        _ => Vec::new(),
    };
    let env: &[&str] = random
        .choice([
            &["ETCD_INITIAL_ADVERTISE_PEER_URLS"][..],
            &["A", "ETCD_LISTEN_CLIENT_URLS"],
            &["ETCD_NAME", "ETCD_DATA_DIR"],
            &["ETCD_NAME"],
            &["ETCDCTL_API", "HOME"],
            &[],
            &[],
        ])
        .unwrap();
    let ports: &[u16] = random.choice([&[2379][..], &[80, 2380], &[8080], &[]]).unwrap();
    json!({
        "name": "main",
        "image": image,
        "command": command,
        "args": args,
        "env": env.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "ports": ports.iter().map(|port| json!({"containerPort": port})).collect::<Vec<_>>(),
    })
}

/// The largest pods that an API server stores, and pods on both sides of each limit of the conditions.
fn large() -> Vec<(Value, bool)> {
    let of = |fields: Value| {
        let mut container = json!({"name": "main", "image": "x"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"metadata": {}, "spec": {"containers": [container]}})
    };
    let names =
        |count: usize| (0..count).map(|number| json!({"name": format!("V{number}")})).collect::<Vec<_>>();
    let ports =
        |count: usize| (0..count).map(|number| json!({"containerPort": 10_000 + number})).collect::<Vec<_>>();
    let containers = |count: usize, argument: usize| {
        let container = |number: usize| json!({"name": format!("c{number}"), "image": "x", "args": ["a".repeat(argument)]});
        json!({"metadata": {}, "spec": {"containers": (0..count).map(container).collect::<Vec<_>>()}})
    };
    let pods = [
        of(json!({"args": ["a".repeat(1_500_000)]})),
        of(json!({"args": vec!["a".repeat(12); 100_000]})),
        of(json!({"args": vec!["a"; 100_000]})),
        of(json!({"args": vec!["a"; 249_999]})),
        of(json!({"args": ["a".repeat(499_998)]})),
        of(json!({"args": ["ä".repeat(499_998)]})),
        of(json!({"args": ["a".repeat(499_999)]})),
        of(json!({"args": ["a".repeat(400_000), "--etcd"]})),
        of(json!({"env": names(5000)})),
        of(json!({"env": names(5001)})),
        of(json!({"ports": ports(5000)})),
        of(json!({"ports": ports(5001)})),
        containers(100, 4900),
        containers(101, 1),
        containers(101, 10_000),
        containers(2000, 1),
    ];
    pods.map(|pod| (pod, false)).to_vec()
}
