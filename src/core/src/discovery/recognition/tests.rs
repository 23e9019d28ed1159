//! Tables of containers that run members, and of containers that mention etcd and run none.

use serde_json::{Value, json};

use super::*;
use crate::discovery::fail_closed::may_run_etcd;

/// Returns a pod with one container, without a controller.
fn pod(container: &Value) -> Pod {
    let mut container = container.clone();
    container["name"] = json!("main");
    serde_json::from_value(json!({"metadata": {"name": "p-0"}, "spec": {"containers": [container]}})).unwrap()
}

fn with_controller(container: &Value, api_version: &str, kind: &str) -> Pod {
    let mut pod = pod(container);
    let owner =
        json!([{"apiVersion": api_version, "kind": kind, "name": "p", "uid": "u", "controller": true}]);
    pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
    pod
}

fn recognize_own(pod: &Pod) -> Recognition {
    let recognition = recognize(pod, &pod.metadata.annotations);
    // The deletion of a pod that the guard recognizes fails closed.
    assert!(recognition.container.is_none() || may_run_etcd(pod), "{pod:?}");
    recognition
}

fn script(text: &str) -> Value {
    json!({"image": "registry.example/base", "command": ["/bin/sh", "-ec", text]})
}

fn argv(words: &[&str]) -> Value {
    json!({"image": "registry.example/base", "command": words})
}

fn rule(container: &Value) -> Option<RecognitionRule> {
    recognize_own(&pod(container)).rule
}

fn veto(container: &Value) -> Option<Veto> {
    let recognition = recognize_own(&pod(container));
    assert_eq!(recognition.container, None, "{container}");
    recognition.vetoes.first().map(|(_, veto)| *veto)
}

#[test]
fn recognizes_etcd_in_command_position() {
    for words in [
        &["etcd"][..],
        &["/usr/local/bin/etcd", "--name=a"],
        &["$(BIN)/etcd"],
        &["/opt/etcd-v3.5.1/etcd"],
        &["/usr/bin/etcd-3.4.13"],
        &["tini", "--", "etcd"],
        &["/usr/bin/env", "-i", "A=b", "etcd"],
        &["nice", "-n", "-20", "/usr/bin/etcd"],
        &["gosu", "nobody", "etcd"],
        &["timeout", "-k", "5", "10", "etcd"],
        &["/docker-entrypoint.sh", "etcd"],
        &["/run", "etcd", "--data-dir=/data"],
        &["/run", "/usr/local/bin/etcd"],
        &["/tools/shell", "-c", "exec etcd --name=a"],
        &["bash", "-euo", "pipefail", "-c", "etcd"],
        &["sh", "-c", "exec \"$@\"", "--", "etcd", "--name=a"],
        &["su", "etcd", "-s", "/bin/sh", "-c", "exec etcd --name a"],
        &["tini", "--", "sh", "-c", "sh -c 'etcd --name=a'"],
    ] {
        assert_eq!(rule(&argv(words)), Some(RecognitionRule::Command), "{words:?}");
    }
    for text in [
        "etcd",
        "exec etcd --name ${HOSTNAME}",
        "ulimit -n 65536\nexec /usr/local/bin/etcd \\\n  --name a",
        "mkdir -p /x; etcd",
        "test -d /x && etcd --name=a || exit 1",
        "A=b C=\"d e\" etcd",
        "if true; then\n  exec \"${BIN}/etcd\" $ARGS\nfi",
        "echo x | tee y & etcd",
        "(etcd --name a)",
        "start() {\n  etcd\n}\nstart",
        "case $1 in\nstart) etcd;;\nesac",
        "exec >/log 2>&1 etcd",
        "eval \"exec etcd\"",
        "etcdctl member list; exec etcd",
        "etcdctl endpoint health\n# wait\netcd --name=a",
        "cat > /run.sh <<EOF\nexec etcd --name=a\nEOF\nsh /run.sh",
        "echo \"don't\"; cat <<EOF\nit's\nEOF\nexec etcd",
    ] {
        assert_eq!(rule(&script(text)), Some(RecognitionRule::Command), "{text}");
    }
    let arguments = |words: Value| rule(&json!({"image": "base", "args": words}));
    assert_eq!(arguments(json!(["etcd", "--name=a"])), Some(RecognitionRule::Command));
    assert_eq!(arguments(json!(["etcd", "2379"])), None, "a host and its port");
}

#[test]
fn recognizes_flags_and_variables_of_members() {
    let flag = "initial-advertise-peer-urls";
    for container in [
        argv(&["/launcher", "run", "--initial-advertise-peer-urls=http://a:2380"]),
        argv(&["/launcher", "-initial-advertise-peer-urls", "http://a:2380"]),
        json!({"image": "x", "args": ["--initial-advertise-peer-urls=http://a:2380"]}),
        script("ARGS=\"--name a --initial-advertise-peer-urls=http://a:2380\"\n$BIN $ARGS"),
        script("ARGS=(--name a --initial-advertise-peer-urls=http://a)\nexec \"$BIN\" \"${ARGS[@]}\""),
    ] {
        assert_eq!(rule(&container), Some(RecognitionRule::Flag(flag)), "{container}");
    }
    assert_eq!(
        veto(&argv(&["etcdutl", "snapshot", "restore", "x", "--initial-advertise-peer-urls=http://a:2380"])),
        Some(Veto::Tool("etcdutl"))
    );
    let with_env = |names: &[&str], command: &[&str]| {
        let env: Vec<Value> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        json!({"image": "registry.example/base", "env": env, "command": command})
    };
    let listen = "ETCD_LISTEN_CLIENT_URLS";
    assert_eq!(rule(&with_env(&[listen], &[])), Some(RecognitionRule::Variable(listen)));
    assert_eq!(rule(&with_env(&[listen], &["/start"])), Some(RecognitionRule::Variable(listen)));
    assert_eq!(
        rule(&with_env(&["ETCD_NAME", "ETCD_DATA_DIR"], &[])),
        Some(RecognitionRule::Variable("ETCD_NAME"))
    );
    for names in [&["ETCD_NAME"][..], &["ETCD_ENDPOINTS", "ETCD_DATA_DIR"], &["ETCDCTL_API"]] {
        assert_eq!(rule(&with_env(names, &[])), None, "{names:?}");
    }
    let waits = "until etcdctl endpoint health; do sleep 1; done; exec /start";
    assert_eq!(
        rule(&with_env(&[listen], &["sh", "-c", waits])),
        Some(RecognitionRule::Variable(listen)),
        "/start is unknown"
    );
}

#[test]
fn recognizes_images_by_word() {
    for image in
        ["quay.io/coreos/etcd:v3.6.16", "rancher/mirrored-coreos-etcd", "x/etcd-amd64", "x/etcd-launcher:1"]
    {
        assert_eq!(rule(&json!({"image": image})), Some(RecognitionRule::Image), "{image}");
        assert_eq!(rule(&json!({"image": image, "args": ["--name=a"]})), Some(RecognitionRule::Image));
        assert_eq!(rule(&json!({"image": image, "command": ["/start"]})), None, "nothing confirms a member");
        let exposed = json!({"image": image, "command": ["/start"], "ports": [{"containerPort": 2380}]});
        assert_eq!(rule(&exposed), Some(RecognitionRule::PossibleImage));
    }
    let wrapper = json!({"image": "x/etcd-wrapper:1", "args": ["start-etcd"]});
    for (api_version, kind, is_member) in [
        ("apps/v1", "StatefulSet", true),
        ("operator.etcd.io/v1alpha1", "EtcdCluster", true),
        ("batch.volcano.sh/v1alpha1", "Task", true),
        ("apps/v1", "ReplicaSet", false),
    ] {
        let pod = with_controller(&wrapper, api_version, kind);
        assert_eq!(recognize_own(&pod).container.is_some(), is_member, "{kind}");
    }
    assert_eq!(rule(&json!({"image": "x/etcd-manager"})), None);
    assert_eq!(veto(&json!({"image": "x/etcd-operator"})), Some(Veto::OtherImage("operator")));
    let peer = json!({"image": "x/etcd-backup", "ports": [{"containerPort": 2380}]});
    assert_eq!(rule(&peer), Some(RecognitionRule::PossibleImage), "a program with a peer port");
    let program =
        json!({"image": "x", "command": ["/scripts/start-etcd.sh"], "ports": [{"containerPort": 2379}]});
    assert_eq!(rule(&program), Some(RecognitionRule::PossibleProgram));
}

#[test]
fn vetoes_programs_that_are_no_members() {
    let image = "quay.io/coreos/etcd:v3.6.16";
    for (words, expected) in [
        (&["etcdctl", "watch", "x"][..], Veto::Tool("etcdctl")),
        (&["/usr/local/bin/etcdutl", "defrag"], Veto::Tool("etcdutl")),
        (&["etcd", "grpc-proxy", "start"], Veto::Proxy("grpc-proxy")),
        (&["sh", "-c", "exec etcd gateway start --endpoints=etcd:2379"], Veto::Proxy("gateway")),
        (&["etcd", "--version"], Veto::Prints),
        (&["sleep", "1d"], Veto::Sleeps),
        (&["sh"], Veto::Sleeps),
        (&["tail", "-f", "/dev/null"], Veto::Sleeps),
        (&["sh", "-c", "while true; do sleep 3600; done"], Veto::Sleeps),
        (&["sh", "-c", "trap : TERM INT; sleep infinity & wait"], Veto::Sleeps),
        (&["sh", "-c", "cp -r /var/lib/etcd /backup"], Veto::OtherCommands),
        (
            &["sh", "-c", "# starts etcd\nwhile true; do etcdctl defrag; sleep 60; done"],
            Veto::Tool("etcdctl"),
        ),
        (&["sh", "-c", "etcdctl snapshot save /x && aws s3 cp /x s3://b/etcd"], Veto::Tool("etcdctl")),
    ] {
        let container = json!({
            "image": image,
            "command": words,
            "ports": [{"containerPort": 2379}, {"containerPort": 2380}]
        });
        assert_eq!(veto(&container), Some(expected), "{words:?}");
        let pod = with_controller(&container, "apps/v1", "StatefulSet");
        let is_member = recognize_own(&pod).rule == Some(RecognitionRule::Asleep);
        assert_eq!(is_member, expected == Veto::Sleeps, "{words:?}: the next pod starts the member again");
    }
    let unknown =
        json!({"image": image, "command": ["sh", "-c", "curl x | sh"], "ports": [{"containerPort": 2380}]});
    assert!(rule(&unknown).is_some(), "the script is unknown");
}

#[test]
fn ignores_applications_that_mention_etcd() {
    for words in [
        &["confd", "-backend", "etcd", "-node", "http://etcd:2379"][..],
        &["/confd", "--backend", "etcd"],
        &["/app", "-c", "etcd"],
        &["nc", "-z", "etcd", "2379"],
        &["serve", "-s", "etcd"],
        &["/app", "etcd"],
        &["/app", "--storage", "etcd", "--data-dir=/data"],
        &["/app", "--etcd-servers=http://etcd:2379"],
        &["sh", "-c", "until nc -z etcd 2379; do sleep 1; done; exec /app"],
        &["sh", "-c", "# etcd must run\nexec /app"],
        &["sh", "-c", "echo 'start; etcd'; exec /app"],
        &["sh", "-c", "for host in etcd-0 etcd; do ping $host; done; exec /app"],
        &["sh", "-c", "/app > etcd 2>&1"],
        &["cp", "/usr/local/bin/etcd", "/shared"],
        &["gosu", "etcd", "/app"],
        &["sudo", "-u", "etcd", "/app"],
    ] {
        assert_eq!(rule(&argv(words)), None, "{words:?}");
        let exposed = json!({"image": "app", "command": words, "ports": [{"containerPort": 2379}]});
        assert_eq!(rule(&exposed), None, "{words:?}");
    }
}

#[test]
fn debugging_copy_that_sleeps_is_no_member() {
    let container = json!({
        "image": "docker.io/bitnami/etcd:3.6.4",
        "command": ["sleep", "infinity"],
        "env": [{"name": "ETCD_LISTEN_PEER_URLS", "value": "http://0.0.0.0:2380"}],
        "ports": [{"containerPort": 2379}, {"containerPort": 2380}],
    });
    assert_eq!(veto(&container), Some(Veto::Sleeps), "a copy has no controller");
    let of_set = with_controller(&container, "apps/v1", "StatefulSet");
    assert_eq!(
        recognize_own(&of_set).rule,
        Some(RecognitionRule::Configured("ETCD_LISTEN_PEER_URLS")),
        "the data of the member remains"
    );
}

#[test]
fn pods_of_jobs_are_members_only_with_annotation() {
    let container = json!({"image": "quay.io/coreos/etcd:v3.6.16", "command": ["etcd"]});
    let mut job = with_controller(&container, "batch/v1", "Job");
    let recognition = recognize_own(&job);
    assert_eq!((recognition.container, recognition.rule), (None, None));
    assert_eq!(recognition.vetoes, [(String::from("main"), Veto::Job)]);
    assert!(!is_evident(&job));
    job.metadata.annotations.insert(MEMBER.to_owned(), String::from("true"));
    assert_eq!(recognize_own(&job).rule, Some(RecognitionRule::Annotation));
    let other_api = with_controller(&container, "batch.volcano.sh/v1alpha1", "Job");
    assert_eq!(recognize_own(&other_api).rule, Some(RecognitionRule::Command));
}

/// Returns a pod with these containers and this annotation.
fn annotated(containers: &Value, value: &str) -> Pod {
    let metadata = json!({"name": "p-0", "annotations": {"etcd-guard.io/member": value}});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}})).unwrap()
}

#[test]
fn annotation_names_the_container() {
    let containers = json!([{"name": "proxy", "image": "envoy"}, {"name": "k3s", "image": "rancher/k3s"}]);
    let named = recognize_own(&annotated(&containers, "k3s"));
    assert_eq!((named.container.as_deref(), named.is_container_unclear), (Some("k3s"), false));
    let declared = recognize_own(&annotated(&containers, "true"));
    assert_eq!((declared.container.as_deref(), declared.is_container_unclear), (Some("proxy"), true));
    let missing = recognize_own(&annotated(&containers, "k3"));
    assert!(missing.is_container_unclear, "a wrong name must not exclude a member");
    assert_eq!(missing.vetoes, [(String::from("k3"), Veto::NoSuchContainer)]);
    for value in ["", "?", "K3S"] {
        assert_eq!(recognize_own(&annotated(&containers, value)).container, None, "{value}");
    }
    let with_port = json!([
        {"name": "proxy", "image": "envoy"},
        {"name": "k3s", "image": "rancher/k3s", "ports": [{"containerPort": 2379}]}
    ]);
    let declared = recognize_own(&annotated(&with_port, "true"));
    assert_eq!((declared.container.as_deref(), declared.is_container_unclear), (Some("k3s"), false));
    let excluded = recognize_own(&annotated(&json!([{"name": "etcd", "image": "etcd"}]), "false"));
    assert_eq!((excluded.container, excluded.vetoes), (None, vec![(String::from("etcd"), Veto::Excluded)]));
}

#[test]
fn namespace_annotation_applies_to_matching_pods_only() {
    let web = json!({"image": "nginx"});
    let store = json!({"image": "kine", "ports": [{"containerPort": 2379}]});
    let proxy = json!({"image": "etcd", "command": ["etcd", "gateway"], "ports": [{"containerPort": 2379}]});
    for (container, value, expected) in [
        (&web, "true", false),
        (&web, "main", true),
        (&web, "etcd", false),
        (&web, "false", true),
        (&store, "true", true),
        (&proxy, "true", false),
    ] {
        assert_eq!(accepts_from_namespace(&pod(container), value), expected, "{container} {value}");
    }
    let job = with_controller(&store, "batch/v1", "Job");
    assert!(!accepts_from_namespace(&job, "true") && !accepts_from_namespace(&job, "main"));
    assert!(accepts_from_namespace(&job, "false"));
}

#[test]
fn prefers_running_etcd_to_its_helpers() {
    let env = json!([{"name": "ETCD_LISTEN_PEER_URLS", "value": "1"}]);
    let containers = json!([
        {"name": "agent", "image": "agent", "env": env},
        {"name": "defrag", "image": "etcd", "command": ["sh", "-c", "etcdctl defrag"]},
        {"name": "server", "image": "base", "command": ["etcd"]},
    ]);
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap();
    let recognition = recognize_own(&pod);
    assert_eq!(recognition.container.as_deref(), Some("server"));
    assert_eq!(recognition.vetoes, [(String::from("defrag"), Veto::Tool("etcdctl"))]);
}

#[test]
fn reports_listeners_that_are_not_recognized() {
    let ports = json!([{"containerPort": 2379}]);
    let scheduler = json!({"image": "dapr/scheduler", "ports": ports});
    assert_eq!(unrecognized_listener(&pod(&scheduler)), Some("main"));
    let proxy = json!({"image": "etcd", "command": ["etcd", "grpc-proxy"], "ports": ports});
    assert_eq!(unrecognized_listener(&pod(&proxy)), None);
    assert_eq!(unrecognized_listener(&with_controller(&scheduler, "batch/v1", "Job")), None);
}

#[test]
fn rules_and_vetoes_are_one_line() {
    assert_eq!(RecognitionRule::Command.to_string(), "the command starts etcd");
    assert_eq!(RecognitionRule::Flag("listen-peer-urls").to_string(), "member-only flag --listen-peer-urls");
    assert_eq!(Veto::Tool("etcdctl").to_string(), "the container runs etcdctl");
    assert_eq!(Veto::Job.to_string(), "pods of Jobs are members only with the annotation");
}

#[test]
fn finds_two_members_of_one_pod() {
    let etcd = |name: &str, arguments: &[&str]| {
        let command: Vec<&str> = ["etcd"].iter().chain(arguments).copied().collect();
        json!({"name": name, "image": "quay.io/coreos/etcd:v3.6.16", "command": command})
    };
    let (main, events) = (etcd("main", &[]), etcd("events", &["--listen-client-urls=http://0.0.0.0:4002"]));
    let helper = etcd("restore", &["--listen-client-urls=http://0.0.0.0:2379", "--force-new-cluster"]);
    let tool = json!({"name": "backup", "image": "quay.io/coreos/etcd:v3.6.16", "command": ["etcdctl", "watch", "x"]});
    let found = |containers: &[&Value], member: Option<&str>| {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap();
        let annotations = member.map(|member| (MEMBER.to_owned(), member.to_owned())).into_iter().collect();
        several_members(&pod, &annotations).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(found(&[&main, &events], None), ["main", "events"]);
    assert_eq!(found(&[&main, &events], Some("true")), ["main", "events"]);
    for (containers, member) in
        [(&[&main, &events][..], Some("events")), (&[&main, &helper, &tool], None), (&[&events], None)]
    {
        assert_eq!(found(containers, member), Vec::<String>::new());
    }
}

#[test]
fn pods_of_the_corpus_run_one_member() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/corpus");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if name.ends_with(".expected.yaml") || !name.ends_with(".yaml") {
            continue;
        }
        let pod: Pod = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(several_members(&pod, &pod.metadata.annotations), Vec::<&str>::new(), "{name}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
