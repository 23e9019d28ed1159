//! The files of lxcfs.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, lxcfs_pod, mount_paths, names, pod};
use crate::{
    config::Config,
    pods::{InjectionContext, Reason},
};
use etcd_guard_core::config::selector::Labels;

/// The labels of a namespace.
type Labelled = &'static [(&'static str, &'static str)];

const ALL: [&str; 8] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/sys/devices/system/cpu/online",
];

fn with(change: impl Fn(&mut Value)) -> Value {
    let mut pod = lxcfs_pod();
    change(&mut pod);
    pod
}

#[test]
fn mounts_single_read_only_files_of_type_file() {
    for (key, value) in [
        ("sidecar-injector.lxcfs/inject", "true"),
        ("sidecar-injector.lxcfs/inject", "yes"),
        ("etcd-guard.io/inject", "lxcfs"),
        ("etcd-guard.io/inject", " lxcfs ,nobody"),
    ] {
        let (after, _) = injected(&pod(json!({key: value})), &[], &Config::default());
        assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL);
        for (volume, path) in after["spec"]["volumes"].as_array().unwrap().iter().zip(ALL) {
            assert_eq!(volume["hostPath"], json!({"path": format!("/var/lib/lxcfs{path}"), "type": "File"}));
        }
        for mount in after["spec"]["containers"][0]["volumeMounts"].as_array().unwrap() {
            assert_eq!(mount["readOnly"], true);
        }
        let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
        assert!(status.starts_with(r#"{"lxcfs":["cpu-online","cpuinfo","#), "{status}");
    }
}

#[test]
fn leaves_pods_without_request_or_with_refusal_unchanged() {
    let default = config("sidecars: {default: [lxcfs]}");
    for annotations in
        [json!({}), json!({"sidecar-injector.lxcfs/inject": "false"}), json!({"etcd-guard.io/inject": "no"})]
    {
        let before = pod(annotations);
        assert_eq!(injected(&before, &[], &default), (before, vec![]));
    }
    let refuses = pod(json!({"sidecar-injector.lxcfs/inject": "off"}));
    assert_eq!(injected(&refuses, &[("sidecar-injector", "enabled")], &default).0, refuses);
    let silent = pod(json!({}));
    assert_ne!(injected(&silent, &[("sidecar-injector", "enabled")], &default).0, silent);
}

#[test]
fn warns_of_unknown_value_and_applies_the_other_rules() {
    let before = pod(json!({"sidecar-injector.lxcfs/inject": "maybe"}));
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    let warning = injection.notes[0].warning.as_deref().unwrap();
    assert_eq!(warning, "sidecar-injector.lxcfs/inject: \"maybe\" is neither true nor false");
    assert!(injection.is_empty());
}

#[test]
fn excludes_unsuitable_pods_with_a_warning() {
    let cases: [(Reason, &str, Value, Labelled); 10] = [
        (Reason::UserNamespace, "hostUsers: false", with(|pod| pod["spec"]["hostUsers"] = json!(false)), &[]),
        (
            Reason::SharedProcessNamespace,
            "shareProcessNamespace",
            with(|pod| pod["spec"]["shareProcessNamespace"] = json!(true)),
            &[],
        ),
        (
            Reason::Windows,
            "Windows",
            with(|pod| {
                pod["spec"]["affinity"] = windows_affinity(&json!([{"matchExpressions": [windows_nodes()]}]));
            }),
            &[],
        ),
        (Reason::Windows, "Windows", with(|pod| pod["spec"]["os"] = json!({"name": "windows"})), &[]),
        (
            Reason::Windows,
            "Windows",
            with(|pod| pod["spec"]["nodeSelector"] = json!({"kubernetes.io/os": "windows"})),
            &[],
        ),
        (
            Reason::MirrorPod,
            "mirror of a static pod",
            with(|pod| pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x")),
            &[],
        ),
        (
            Reason::RuntimeClass,
            "kata-qemu",
            with(|pod| pod["spec"]["runtimeClassName"] = json!("kata-qemu")),
            &[],
        ),
        (Reason::RuntimeClass, "gvisor", with(|pod| pod["spec"]["runtimeClassName"] = json!("gvisor")), &[]),
        (
            Reason::PodSecurity,
            "restricted",
            lxcfs_pod(),
            &[("pod-security.kubernetes.io/enforce", "restricted")],
        ),
        (Reason::PodSecurity, "baseline", lxcfs_pod(), &[("pod-security.kubernetes.io/enforce", "baseline")]),
    ];
    for (reason, word, before, namespace) in cases {
        let injection = inject_with(&before, namespace, &Config::default()).unwrap();
        assert!(injection.is_empty(), "{reason:?}");
        assert_eq!(injection.notes[0].reason, reason);
        let warning = injection.notes[0].warning.as_deref().unwrap();
        assert!(warning.contains(word) && warning.len() <= 120, "{warning}");
    }
}

#[test]
fn injects_no_files_if_namespace_labels_are_unknown() {
    let context =
        InjectionContext { namespace: "prod", namespace_labels: Err("no answer"), native_sidecars: true };
    let injection = Injected::new(lxcfs_pod(), &context, &Config::default()).unwrap();
    assert!(injection.is_empty());
    assert_eq!(injection.notes[0].reason, Reason::NamespaceUnknown);
}

#[test]
fn warns_pods_with_host_pid_about_uptime() {
    let (after, reasons) =
        injected(&with(|pod| pod["spec"]["hostPID"] = json!(true)), &[], &Config::default());
    assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL);
    assert_eq!(reasons, [Reason::HostProcesses, Reason::Lxcfs]);
}

#[test]
fn injects_into_user_namespaces_only_if_configured() {
    let (skipped, reasons) =
        injected(&with(|pod| pod["spec"]["hostUsers"] = json!(false)), &[], &Config::default());
    assert_eq!((skipped["spec"].get("volumes"), reasons), (None, vec![Reason::UserNamespace]));
    let supported = config("lxcfs: {userNamespaces: true}");
    for (host_users, config) in
        [(json!(false), &supported), (json!(true), &Config::default()), (Value::Null, &Config::default())]
    {
        let before = with(|pod| pod["spec"]["hostUsers"] = host_users.clone());
        let (after, reasons) = injected(&before, &[], config);
        assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL, "{host_users}");
        assert_eq!(reasons, [Reason::Lxcfs]);
    }
}

#[test]
fn warns_pods_with_shared_process_namespace_about_limits() {
    // lxc/lxcfs#543
    let before = with(|pod| pod["spec"]["shareProcessNamespace"] = json!(true));
    let inject = config("lxcfs: {sharedProcessNamespace: inject}");
    let (after, reasons) = injected(&before, &[], &inject);
    assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL);
    assert_eq!(reasons, [Reason::SharedProcessNamespace, Reason::Lxcfs]);
    let injection = inject_with(&before, &[], &inject).unwrap();
    let warning = injection.notes[0].warning.as_deref().unwrap();
    assert!(warning.contains("shows the pod's limits") && warning.len() <= 120, "{warning}");
}

#[test]
fn mounts_into_native_sidecars_but_not_init_containers() {
    let before = with(|pod| {
        pod["spec"]["initContainers"] =
            json!([{"name": "early"}, {"name": "native", "restartPolicy": "Always"}]);
        pod["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    });
    let (after, _) = injected(&before, &[], &Config::default());
    assert_eq!(mount_paths(&after["spec"]["initContainers"][0]), [""; 0]);
    assert_eq!(mount_paths(&after["spec"]["initContainers"][1]), ALL);
    assert_eq!(after["spec"]["ephemeralContainers"], before["spec"]["ephemeralContainers"]);
    let (after, _) = injected(&before, &[], &config("lxcfs: {initContainers: true}"));
    assert_eq!(mount_paths(&after["spec"]["initContainers"][0]), ALL);
}

#[test]
fn annotations_select_files_and_containers() {
    let mut before = pod(json!({
        "etcd-guard.io/inject": "lxcfs",
        "etcd-guard.io/lxcfs-files": "meminfo, uptime,pressure-cpu,none-such",
        "etcd-guard.io/lxcfs-containers": "a,b",
        "etcd-guard.io/lxcfs-exclude-containers": "b",
    }));
    before["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]);
    let (after, reasons) = injected(&before, &[], &Config::default());
    assert_eq!(reasons, [Reason::UnknownFile, Reason::UnknownFile, Reason::Lxcfs]);
    let containers = after["spec"]["containers"].as_array().unwrap();
    assert_eq!(mount_paths(&containers[0]), ["/proc/meminfo", "/proc/uptime"]);
    assert_eq!(mount_paths(&containers[1]).len() + mount_paths(&containers[2]).len(), 0);
}

#[test]
fn mounts_only_into_containers_with_limits_if_configured() {
    let before = with(|pod| {
        pod["spec"]["containers"] =
            json!([{"name": "a"}, {"name": "b", "resources": {"limits": {"memory": "1Gi"}}}]);
    });
    let (after, _) = injected(&before, &[], &config("lxcfs: {onlyWithLimits: true}"));
    assert_eq!(mount_paths(&after["spec"]["containers"][0]).len(), 0);
    assert_eq!(mount_paths(&after["spec"]["containers"][1]), ALL);
}

#[test]
fn profiles_contain_the_files_of_their_release() {
    for (profile, count) in [("lxcfs-3.0", 6), ("lxcfs-4", 8), ("lxcfs-5", 8), ("lxcfs-6", 8), ("lxcfs-7", 8)]
    {
        let (after, _) = injected(&lxcfs_pod(), &[], &config(&format!("lxcfs: {{profile: {profile}}}")));
        let paths = mount_paths(&after["spec"]["containers"][0]);
        assert_eq!(paths.len(), count, "{profile}: {paths:?}");
        assert!(
            !paths.iter().any(|path| path.starts_with("/proc/pressure")),
            "runc rejects mounts over them"
        );
    }
}

#[test]
fn preserves_user_mounts_and_skips_hidden_proc() {
    let before = with(|pod| {
        pod["spec"]["volumes"] = json!([{"name": "mine", "emptyDir": {}}]);
        pod["spec"]["containers"] = json!([
            {"name": "a", "volumeMounts": [{"name": "mine", "mountPath": "/proc//meminfo/"}]},
            {"name": "b", "volumeMounts": [{"name": "mine", "mountPath": "/proc"}]},
        ]);
    });
    let (after, reasons) = injected(&before, &[], &Config::default());
    assert_eq!(reasons, [Reason::Conflict, Reason::Lxcfs]);
    let containers = after["spec"]["containers"].as_array().unwrap();
    assert_eq!(mount_paths(&containers[0]).iter().filter(|path| path.contains("meminfo")).count(), 1);
    assert_eq!(containers[1], before["spec"]["containers"][1]);
}

#[test]
fn skips_container_with_a_foreign_cpu_directory() {
    const DIRECTORY: &str = "/sys/devices/system/cpu";
    let mounting = |mut volume: Value| {
        volume["name"] = json!("cpu");
        with(|pod| {
            pod["spec"]["volumes"] = json!([volume]);
            pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "cpu", "mountPath": DIRECTORY}]);
        })
    };
    let host = |path: &str| json!({"hostPath": {"path": path, "type": "Directory"}});
    for theirs in [json!({"emptyDir": {}}), host(DIRECTORY), host("/var/lib/other/sys/devices/system/cpu")] {
        let before = mounting(theirs);
        let (after, reasons) = injected(&before, &[], &Config::default());
        assert_eq!(after, before);
        assert_eq!(reasons, [Reason::Conflict, Reason::NoContainer]);
        let injection = inject_with(&before, &[], &Config::default()).unwrap();
        let warning = injection.notes[0].warning.as_deref().unwrap();
        assert_eq!(
            warning,
            "container web has its own mount at /sys/devices/system/cpu: lxcfs was not injected into it"
        );
    }
    let (after, reasons) =
        injected(&mounting(host("/var/lib/lxcfs/sys/devices/system/cpu/")), &[], &Config::default());
    assert_eq!(reasons, [Reason::Lxcfs]);
    assert!(mount_paths(&after["spec"]["containers"][0]).contains(&"/proc/meminfo"));
}

#[test]
fn reuses_equal_volume_and_renames_conflicting_one() {
    let same = json!({"name": "lxcfs-proc-meminfo", "hostPath": {"path": "/var/lib/lxcfs/proc/meminfo", "type": "File"}});
    let other = json!({"name": "lxcfs-proc-meminfo", "emptyDir": {}});
    let files = config("lxcfs: {files: [meminfo]}");
    for (volume, expected) in [
        (same, vec!["lxcfs-proc-meminfo"]),
        (other, vec!["lxcfs-proc-meminfo", "etcd-guard-lxcfs-proc-meminfo"]),
    ] {
        let (after, _) = injected(&with(|pod| pod["spec"]["volumes"] = json!([volume])), &[], &files);
        assert_eq!(names(&after["spec"]["volumes"]), expected);
        assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], *expected.last().unwrap());
    }
}

#[test]
fn extends_the_autoscaler_annotation() {
    // istio/istio#19395
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    let before = with(|pod| pod["metadata"]["annotations"][key] = json!("mine,lxcfs-proc-uptime"));
    let (after, _) = injected(&before, &[], &config("lxcfs: {files: [meminfo, uptime]}"));
    assert_eq!(after["metadata"]["annotations"][key], "mine,lxcfs-proc-uptime,lxcfs-proc-meminfo");
}

#[test]
fn adds_required_affinity_to_each_term() {
    let terms =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let label = |key: &str| json!({"key": key, "operator": "In", "values": ["true"]});
    let ours = label("node-restriction.kubernetes.io/lxcfs-ready");
    let require = config("lxcfs: {nodeAffinity: require}");
    let (after, _) = injected(&lxcfs_pod(), &[], &require);
    assert_eq!(after.pointer(terms).unwrap(), &json!([{"matchExpressions": [ours]}]));
    let own = config("lxcfs: {nodeAffinity: require, nodeLabel: {key: example.com/lxcfs}}");
    let (after, _) = injected(&lxcfs_pod(), &[], &own);
    assert_eq!(after.pointer(terms).unwrap(), &json!([{"matchExpressions": [label("example.com/lxcfs")]}]));

    let theirs = json!({"key": "disk", "operator": "Exists"});
    let before = with(|pod| {
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [theirs]}, {"matchFields": [theirs]}, {}]
        }}});
    });
    let (after, _) = injected(&before, &[], &require);
    let expected = json!([
        {"matchExpressions": [theirs, ours]},
        {"matchFields": [theirs], "matchExpressions": [ours]},
        {},
    ]);
    assert_eq!(
        after.pointer(terms).unwrap(),
        &expected,
        "a term without a condition selects nothing, and stays so"
    );

    let (after, _) = injected(&with(|pod| pod["spec"]["nodeName"] = json!("n")), &[], &require);
    assert_eq!(after.pointer(terms), None, "the kubelet would reject the pod");
}

#[test]
fn adds_preferred_affinity_to_existing_preferences() {
    let (after, _) = injected(&lxcfs_pod(), &[], &config("lxcfs: {nodeAffinity: prefer}"));
    let preferred =
        &after["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(preferred[0]["weight"], 100);
}

#[test]
fn repairable_profile_mounts_the_parent_of_the_root() {
    let repairable = config("lxcfs: {root: /var/lib/lxcfs-root/lxcfs, repairable: true, files: [meminfo]}");
    let (after, _) = injected(&lxcfs_pod(), &[], &repairable);
    assert_eq!(
        after["spec"]["containers"][0]["volumeMounts"][1],
        json!({"name": "lxcfs-root", "mountPath": "/var/lib/lxcfs-root", "readOnly": true, "mountPropagation": "HostToContainer"})
    );
}

#[test]
fn excludes_system_namespaces_despite_requests() {
    let labels = Labels::new();
    let context =
        InjectionContext { namespace: "kube-system", namespace_labels: Ok(&labels), native_sidecars: true };
    let injection = Injected::new(lxcfs_pod(), &context, &Config::default()).unwrap();
    assert_eq!((injection.is_empty(), injection.notes[0].reason), (true, Reason::SkippedNamespace));
}

fn windows_nodes() -> Value {
    json!({"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]})
}

fn windows_affinity(terms: &Value) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
}

#[test]
fn injects_into_pod_that_can_run_on_linux() {
    let linux = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    let either = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux", "windows"]});
    for terms in [
        json!([{"matchExpressions": [windows_nodes()]}, {"matchExpressions": [linux]}]),
        json!([{"matchExpressions": [either]}]),
        json!([]),
    ] {
        let pod = with(|pod| pod["spec"]["affinity"] = windows_affinity(&terms));
        assert_eq!(injected(&pod, &[], &Config::default()).1, [Reason::Lxcfs], "{terms}");
    }
    let options = json!({"windowsOptions": {"runAsUserName": "ContainerUser"}});
    let on_linux = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "securityContext": options});
    let by_field = json!({"os": {"name": "linux"}, "nodeSelector": {"beta.kubernetes.io/os": "windows"}});
    for spec in [on_linux, by_field, json!({"securityContext": {"windowsOptions": {}}})] {
        assert_eq!(injected(&with_spec(&spec), &[], &Config::default()).1, [Reason::Lxcfs], "{spec}");
    }
}

#[test]
fn recognizes_pods_for_windows_by_every_sign() {
    let terms =
        |condition: Value| json!({"affinity": windows_affinity(&json!([{"matchExpressions": [condition]}]))});
    let options = json!({"windowsOptions": {"hostProcess": true}});
    let container = json!({"name": "web", "image": "web:1", "securityContext": options});
    let agent = super::sidecars::agent();
    for spec in [
        json!({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}),
        json!({"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}}),
        json!({"nodeSelector": {"kubernetes.io/os": "windows", "beta.kubernetes.io/os": "linux"}}),
        terms(json!({"key": "beta.kubernetes.io/os", "operator": "In", "values": ["windows"]})),
        terms(json!({"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]})),
        terms(json!({"key": "node.kubernetes.io/windows-build", "operator": "Exists"})),
        json!({"securityContext": options}),
        json!({"containers": [container]}),
        json!({"containers": [{"name": "web", "image": "web:1"}], "initContainers": [container]}),
    ] {
        let mut before = with_spec(&spec);
        before["metadata"]["annotations"]["etcd-guard.io/inject"] = json!("agent,lxcfs");
        let injection = inject_with(&before, &[], &agent).unwrap();
        assert!(injection.is_empty(), "{spec}: {:?}", injection.patch);
        assert_eq!(injection.notes[0].reason, Reason::Windows, "{spec}");
        assert!(injection.notes[0].warning.is_some(), "{spec}");
    }
}

/// A pod that requests the files, with these fields in its spec.
fn with_spec(spec: &Value) -> Value {
    with(|pod| {
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
    })
}

#[test]
fn limits_of_pod_count_for_each_container() {
    let only = config("lxcfs: {onlyWithLimits: true}");
    let unlimited = with(|pod| pod["spec"]["containers"][0]["resources"] = json!({}));
    assert_eq!(injected(&unlimited, &[], &only).1, [Reason::NoContainer]);
    let limited = with(|pod| {
        pod["spec"]["containers"][0]["resources"] = json!({});
        pod["spec"]["resources"] = json!({"limits": {"memory": "256Mi"}});
    });
    assert_eq!(injected(&limited, &[], &only).1, [Reason::Lxcfs]);
}
