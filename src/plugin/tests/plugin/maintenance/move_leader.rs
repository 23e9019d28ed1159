//! `kubectl etcd-guard move-leader`.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Event};
use kube::{Api, api::PostParams, config::Kubeconfig};
use serde_json::{Value, json};
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::pods::new_namespace,
    layout::{Layout, Topology},
    processes::child::run_to_end,
    wait::{wait_for, wait_until},
};

/// The annotation of a request.
const MOVE_LEADER: &str = "etcd-guard.io/move-leader";

/// Creates a StatefulSet without pods in a namespace that no guard watches.
async fn unguarded_set(etcd: &GuardedCluster) -> (String, Api<StatefulSet>) {
    let namespace = new_namespace(&etcd.client, false).await;
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &namespace);
    let set = json!({
        "metadata": {"name": "etcd"},
        "spec": {
            "replicas": 0, "serviceName": "etcd", "selector": {"matchLabels": {"app": "etcd"}},
            "template": {
                "metadata": {"labels": {"app": "etcd"}},
                "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
            },
        },
    });
    sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    (namespace, sets)
}

/// Answers the request of the StatefulSet as the guard does.
async fn answer(etcd: &GuardedCluster, namespace: &str, sets: &Api<StatefulSet>, reason: &str) -> String {
    let value = wait_for("the request", START_TIMEOUT, async || {
        sets.get("etcd").await.ok()?.metadata.annotations?.get(MOVE_LEADER).cloned()
    })
    .await;
    let event = json!({
        "metadata": {"generateName": "etcd."},
        "involvedObject": {
            "apiVersion": "apps/v1", "kind": "StatefulSet", "namespace": namespace, "name": "etcd",
        },
        "reason": reason,
        "message": format!("move-leader {value}: text of the guard"),
    });
    let events: Api<Event> = Api::namespaced(etcd.client.clone(), namespace);
    events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    value
}

#[tokio::test]
async fn move_leader_prints_the_answer_of_the_guard() {
    let etcd = GuardedCluster::start().await;
    for (reason, status, printed) in [
        ("LeaderMoved", 0, "complete: text of the guard"),
        ("LeaderMoveRejected", 1, "aborted: LeaderMoveRejected: text of the guard"),
    ] {
        let (namespace, sets) = unguarded_set(&etcd).await;
        // An impersonated user needs the rights of the documentation only.
        let user = grant(&etcd, &namespace).await;
        let arguments = ["statefulset/etcd", "--to", "etcd-1", "--namespace", &namespace, "--as", &user];
        let mut program = cli::program(&etcd, "move-leader", &[]);
        // The namespace of the cluster is another one.
        program = without_namespace(&program);
        program.args(arguments);
        let (output, value) = tokio::join!(run_to_end(program), answer(&etcd, &namespace, &sets, reason));
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(stdout.contains(printed), "{stdout}");
        assert!(value.starts_with("etcd-1@2") && value.ends_with('Z'), "{value}");
    }
}

/// Returns the command without `-n NAMESPACE`.
fn without_namespace(program: &std::process::Command) -> std::process::Command {
    let arguments: Vec<_> = program.get_args().map(ToOwned::to_owned).collect();
    let position = arguments.iter().position(|argument| argument == "-n").unwrap();
    let mut other = std::process::Command::new(program.get_program());
    other.args(&arguments[..position]).args(&arguments[position + 2..]).stdin(std::process::Stdio::null());
    other
}

/// Grants the rights that `move-leader` needs, and returns the user.
async fn grant(etcd: &GuardedCluster, namespace: &str) -> String {
    let user = format!("mover-{namespace}");
    let kubectl = etcd.kubectl_everywhere();
    for arguments in [
        &["create", "role", "mover", "--verb=get,patch", "--resource=statefulsets.apps", "-n", namespace][..],
        &["create", "role", "reader", "--verb=list", "--resource=events,pods", "-n", namespace],
        &["create", "rolebinding", "mover", "--role=mover", &format!("--user={user}"), "-n", namespace],
        &["create", "rolebinding", "reader", "--role=reader", &format!("--user={user}"), "-n", namespace],
    ] {
        let output = kubectl.run(arguments).await;
        assert!(output.success, "{output:?}");
    }
    user
}

#[tokio::test]
async fn move_leader_times_out_without_an_answer() {
    let etcd = GuardedCluster::start().await;
    let (namespace, _) = unguarded_set(&etcd).await;
    let mut program = without_namespace(&cli::program(&etcd, "move-leader", &[]));
    program.args(["sts/etcd", "-n", &namespace, "--timeout", "1s"]);
    let output = run_to_end(program).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr
            .contains("within 1s; check the guard, and the clock of this machine: kubectl etcd-guard doctor"),
        "{stderr}"
    );
}

#[tokio::test]
async fn leadership_that_is_elsewhere_is_no_error() {
    let etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-0").await;
    let output = cli::run(&etcd, "move-leader", &["etcd-1"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("etcd-0 leads, not etcd-1"), "{}", output.stdout);
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let annotations = sets.get("etcd").await.unwrap().metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(MOVE_LEADER), "nothing is requested: {annotations:?}");
    let output = cli::run(&etcd, "move-leader", &["--to", "etcd-1", "etcd-1"]).await;
    assert_eq!(output.status, Some(2), "{output:?}");
}

/// The guard itself answers, also under the policy `deny`, which does not forbid moves that a person requests.
#[tokio::test]
async fn guard_moves_leadership_at_request() {
    let etcd = GuardedCluster::start().await;
    let moved = async || {
        etcd.make_leader("etcd-0").await;
        let stdout = move_to(&etcd, "etcd-2", &[]).await;
        // etcd-2 can lead before this guard acts: after an election on a machine that pauses, or after a move by the guard
        // of another test that ended before its answer. After an election, etcd-1 can lead.
        let led_before = stdout.contains(" already (term ");
        let moved = ["etcd-0", "etcd-1"].map(|from| format!("leadership moved from {from} to etcd-2"));
        assert!(led_before || moved.iter().any(|text| stdout.contains(text)), "{stdout}");
        !led_before
    };
    wait_until("this guard moves leadership", START_TIMEOUT, moved).await;
    let left = async || {
        etcd.make_leader("etcd-2").await;
        let output = cli::run(&etcd, "move-leader", &["etcd-2"]).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        etcd.leader().await != "etcd-2"
    };
    wait_until("leadership leaves etcd-2", START_TIMEOUT, left).await;
}

/// Moves leadership to this pod with `move-leader`. The pod leads in the term that the command prints. If there was an
/// election since, the command is repeated. Returns the output of the last one.
async fn move_to(etcd: &GuardedCluster, pod: &str, identity: &[&str]) -> String {
    wait_for("a move without a later election", START_TIMEOUT, async || {
        let arguments = [&["statefulset/etcd", "--to", pod], identity].concat();
        let output = cli::run(etcd, "move-leader", &arguments).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        let (_, terms) = output.stdout.split_once("(term ").expect("a term");
        let (terms, _) = terms.split_once(')').expect("the end of the term");
        let printed: u64 = terms.rsplit(' ').next().expect("a term").parse().expect("a number");
        let (leader, term) = etcd.leadership().await;
        if term > printed {
            eprintln!("an election followed term {printed}: {leader} leads in term {term}");
            return None;
        }
        assert_eq!((leader.as_str(), term), (pod, printed), "{output:?}");
        Some(output.stdout)
    })
    .await
}

/// The annotation is on the pod, because the members have no StatefulSet.
#[tokio::test]
async fn move_leader_annotates_pods_without_a_set() {
    let layout = Layout::new(Topology::BarePods);
    let etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    let left = async || {
        let leader = etcd.leader().await;
        let output = cli::run(&etcd, "move-leader", &[&leader]).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        let pod = etcd.pods.get(&leader).await.unwrap();
        // If an election follows the query, the command ends without a request, and the test retries.
        let is_annotated =
            pod.metadata.annotations.is_some_and(|annotations| annotations.contains_key(MOVE_LEADER));
        is_annotated && output.stdout.contains("complete: ") && etcd.leader().await != leader
    };
    wait_until("leadership leaves a pod", START_TIMEOUT, left).await;
}

/// The kubeconfig contains a client certificate as the only credential.
#[tokio::test]
async fn move_leader_works_with_certificate_and_impersonation() {
    let etcd = GuardedCluster::start().await;
    let kubeconfig = Kubeconfig::read_from(etcd.control_plane.admin_kubeconfig()).unwrap();
    let [user] = &kubeconfig.auth_infos[..] else { panic!("one user") };
    let credentials: Value = serde_json::to_value(&user.auth_info).unwrap();
    let is_certificate =
        |name: &String| name.starts_with("client-certificate") || name.starts_with("client-key");
    assert!(
        credentials.as_object().unwrap().keys().all(is_certificate),
        "the kubeconfig has other credentials"
    );

    etcd.make_leader("etcd-0").await;
    let impersonated = grant(&etcd, &etcd.namespace).await;
    for (to, identity) in [("etcd-1", &[][..]), ("etcd-2", &["--as", &impersonated])] {
        move_to(&etcd, to, identity).await;
    }
    let stranger = ["statefulset/etcd", "--to", "etcd-0", "--as", "stranger"];
    let output = cli::run(&etcd, "move-leader", &stranger).await;
    assert_eq!(output.status, Some(2), "{output:?}");
    let error = "User \"stranger\" cannot patch resource \"statefulsets\" in API group \"apps\"";
    assert!(output.stderr.contains(error), "{output:?}");
}
