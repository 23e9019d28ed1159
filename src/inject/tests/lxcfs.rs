//! The files of lxcfs.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, lxcfs_pod, mount_paths, names, pod};
use crate::{
    config::{Config, Labels},
    inject::{Reason, Surroundings},
};

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
fn a_pod_that_asks_gets_single_files_read_only_and_checked_by_the_kubelet() {
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
fn a_pod_that_does_not_ask_or_refuses_stays_as_it_is() {
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
fn a_word_that_is_neither_yes_nor_no_is_warned_of_and_leaves_the_choice_to_the_rest() {
    let before = pod(json!({"sidecar-injector.lxcfs/inject": "maybe"}));
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    let warning = injection.notes[0].warning.as_deref().unwrap();
    assert_eq!(warning, "sidecar-injector.lxcfs/inject: \"maybe\" is neither true nor false");
    assert!(injection.is_empty());
}

#[test]
fn pods_that_it_would_mislead_or_harm_are_left_alone_with_a_warning() {
    let cases: [(Reason, &str, Value, Labelled); 8] = [
        (
            Reason::SharedProcessNamespace,
            "shareProcessNamespace",
            with(|it| it["spec"]["shareProcessNamespace"] = json!(true)),
            &[],
        ),
        (Reason::Windows, "Windows", with(|it| it["spec"]["os"] = json!({"name": "windows"})), &[]),
        (
            Reason::Windows,
            "Windows",
            with(|it| it["spec"]["nodeSelector"] = json!({"kubernetes.io/os": "windows"})),
            &[],
        ),
        (
            Reason::MirrorPod,
            "mirrors a static",
            with(|it| it["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x")),
            &[],
        ),
        (
            Reason::RuntimeClass,
            "kata-qemu",
            with(|it| it["spec"]["runtimeClassName"] = json!("kata-qemu")),
            &[],
        ),
        (Reason::RuntimeClass, "gvisor", with(|it| it["spec"]["runtimeClassName"] = json!("gvisor")), &[]),
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
fn a_namespace_that_cannot_be_read_gets_nothing_that_its_pod_security_might_forbid() {
    let surroundings =
        Surroundings { namespace: "prod", namespace_labels: Err("no answer"), native_sidecars: true };
    let injection = Injected::of(lxcfs_pod().into(), &surroundings, &Config::default()).unwrap();
    assert!(injection.is_empty());
    assert_eq!(injection.notes[0].reason, Reason::NamespaceUnknown);
}

#[test]
fn a_pod_that_sees_the_nodes_processes_is_told_whose_uptime_it_shows() {
    let (after, reasons) = injected(&with(|it| it["spec"]["hostPID"] = json!(true)), &[], &Config::default());
    assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL);
    assert_eq!(reasons, [Reason::HostProcesses, Reason::Lxcfs]);
}

#[test]
fn containers_that_share_processes_get_the_files_if_configured_and_are_told_whose_limits_they_show() {
    // lxc/lxcfs#543
    let before = with(|it| it["spec"]["shareProcessNamespace"] = json!(true));
    let inject = config("lxcfs: {sharedProcessNamespace: inject}");
    let (after, reasons) = injected(&before, &[], &inject);
    assert_eq!(mount_paths(&after["spec"]["containers"][0]), ALL);
    assert_eq!(reasons, [Reason::SharedProcessNamespace, Reason::Lxcfs]);
    let injection = inject_with(&before, &[], &inject).unwrap();
    let warning = injection.notes[0].warning.as_deref().unwrap();
    assert!(warning.contains("shows the pod's limits") && warning.len() <= 120, "{warning}");
}

#[test]
fn native_sidecars_get_the_files_and_init_containers_only_if_configured() {
    let before = with(|it| {
        it["spec"]["initContainers"] =
            json!([{"name": "early"}, {"name": "native", "restartPolicy": "Always"}]);
        it["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    });
    let (after, _) = injected(&before, &[], &Config::default());
    assert_eq!(mount_paths(&after["spec"]["initContainers"][0]), [""; 0]);
    assert_eq!(mount_paths(&after["spec"]["initContainers"][1]), ALL);
    assert_eq!(after["spec"]["ephemeralContainers"], before["spec"]["ephemeralContainers"]);
    let (after, _) = injected(&before, &[], &config("lxcfs: {initContainers: true}"));
    assert_eq!(mount_paths(&after["spec"]["initContainers"][0]), ALL);
}

#[test]
fn files_and_containers_can_be_chosen_per_pod() {
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
fn only_containers_with_limits_get_them_where_that_is_configured() {
    let before = with(|it| {
        it["spec"]["containers"] =
            json!([{"name": "a"}, {"name": "b", "resources": {"limits": {"memory": "1Gi"}}}]);
    });
    let (after, _) = injected(&before, &[], &config("lxcfs: {onlyWithLimits: true}"));
    assert_eq!(mount_paths(&after["spec"]["containers"][0]).len(), 0);
    assert_eq!(mount_paths(&after["spec"]["containers"][1]), ALL);
}

#[test]
fn profiles_have_the_files_of_their_release() {
    for (profile, count) in [("lxcfs-3.0", 6), ("lxcfs-4", 8), ("lxcfs-5", 8), ("lxcfs-6", 8), ("lxcfs-7", 8)]
    {
        let (after, _) = injected(&lxcfs_pod(), &[], &config(&format!("lxcfs: {{profile: {profile}}}")));
        let paths = mount_paths(&after["spec"]["containers"][0]);
        assert_eq!(paths.len(), count, "{profile}: {paths:?}");
        assert!(!paths.iter().any(|it| it.starts_with("/proc/pressure")), "runc refuses them");
    }
}

#[test]
fn what_the_user_mounts_stays_and_a_hidden_proc_leaves_the_container_out() {
    let before = with(|it| {
        it["spec"]["volumes"] = json!([{"name": "mine", "emptyDir": {}}]);
        it["spec"]["containers"] = json!([
            {"name": "a", "volumeMounts": [{"name": "mine", "mountPath": "/proc//meminfo/"}]},
            {"name": "b", "volumeMounts": [{"name": "mine", "mountPath": "/proc"}]},
        ]);
    });
    let (after, reasons) = injected(&before, &[], &Config::default());
    assert_eq!(reasons, [Reason::Conflict, Reason::Lxcfs]);
    let containers = after["spec"]["containers"].as_array().unwrap();
    assert_eq!(mount_paths(&containers[0]).iter().filter(|it| it.contains("meminfo")).count(), 1);
    assert_eq!(containers[1], before["spec"]["containers"][1]);
}

#[test]
fn a_volume_of_the_users_over_the_cpu_directory_leaves_the_container_out_and_lxcfss_own_does_not() {
    const DIRECTORY: &str = "/sys/devices/system/cpu";
    let mounting = |mut volume: Value| {
        volume["name"] = json!("cpu");
        with(|it| {
            it["spec"]["volumes"] = json!([volume]);
            it["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "cpu", "mountPath": DIRECTORY}]);
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
        assert_eq!(warning, "container web has its own /sys/devices/system/cpu: lxcfs was left out of it");
    }
    let (after, reasons) =
        injected(&mounting(host("/var/lib/lxcfs/sys/devices/system/cpu/")), &[], &Config::default());
    assert_eq!(reasons, [Reason::Lxcfs]);
    assert!(mount_paths(&after["spec"]["containers"][0]).contains(&"/proc/meminfo"));
}

#[test]
fn a_taken_volume_name_is_shared_if_it_is_the_same_and_avoided_if_not() {
    let same = json!({"name": "lxcfs-proc-meminfo", "hostPath": {"path": "/var/lib/lxcfs/proc/meminfo", "type": "File"}});
    let other = json!({"name": "lxcfs-proc-meminfo", "emptyDir": {}});
    let files = config("lxcfs: {files: [meminfo]}");
    for (volume, expected) in [
        (same, vec!["lxcfs-proc-meminfo"]),
        (other, vec!["lxcfs-proc-meminfo", "etcd-guard-lxcfs-proc-meminfo"]),
    ] {
        let (after, _) = injected(&with(|it| it["spec"]["volumes"] = json!([volume])), &[], &files);
        assert_eq!(names(&after["spec"]["volumes"]), expected);
        assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], *expected.last().unwrap());
    }
}

#[test]
fn the_autoscalers_list_is_extended_and_never_replaced() {
    // istio/istio#19395
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    let before = with(|it| it["metadata"]["annotations"][key] = json!("mine,lxcfs-proc-uptime"));
    let (after, _) = injected(&before, &[], &config("lxcfs: {files: [meminfo, uptime]}"));
    assert_eq!(after["metadata"]["annotations"][key], "mine,lxcfs-proc-uptime,lxcfs-proc-meminfo");
}

#[test]
fn a_required_node_is_required_by_each_of_the_pods_alternatives() {
    let terms =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let ours = json!({"key": "etcd-guard.io/lxcfs-ready", "operator": "In", "values": ["true"]});
    let require = config("lxcfs: {nodeAffinity: require}");
    let (after, _) = injected(&lxcfs_pod(), &[], &require);
    assert_eq!(after.pointer(terms).unwrap(), &json!([{"matchExpressions": [ours]}]));

    let theirs = json!({"key": "disk", "operator": "Exists"});
    let before = with(|it| {
        it["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
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

    let (after, _) = injected(&with(|it| it["spec"]["nodeName"] = json!("n")), &[], &require);
    assert_eq!(after.pointer(terms), None, "the kubelet would refuse it");
}

#[test]
fn a_preferred_node_is_one_more_preference() {
    let (after, _) = injected(&lxcfs_pod(), &[], &config("lxcfs: {nodeAffinity: prefer}"));
    let preferred =
        &after["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(preferred[0]["weight"], 100);
}

#[test]
fn the_repairable_profile_mounts_the_roots_parent_for_propagation() {
    let repairable = config("lxcfs: {root: /var/lib/lxcfs-root/lxcfs, repairable: true, files: [meminfo]}");
    let (after, _) = injected(&lxcfs_pod(), &[], &repairable);
    assert_eq!(
        after["spec"]["containers"][0]["volumeMounts"][1],
        json!({"name": "lxcfs-root", "mountPath": "/var/lib/lxcfs-root", "readOnly": true, "mountPropagation": "HostToContainer"})
    );
}

#[test]
fn system_namespaces_are_left_alone_whoever_asks() {
    let labels = Labels::new();
    let surroundings =
        Surroundings { namespace: "kube-system", namespace_labels: Ok(&labels), native_sidecars: true };
    let injection = Injected::of(lxcfs_pod().into(), &surroundings, &Config::default()).unwrap();
    assert_eq!((injection.is_empty(), injection.notes[0].reason), (true, Reason::SkippedNamespace));
}
