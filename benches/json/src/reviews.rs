//! The measured reviews, with the fields and sizes of those that an API server sends.

use serde_json::{Value, json};

/// Variables of each container.
const VARIABLES: usize = 10;

/// Returns the deletion of a pod without etcd, of at least this size in bytes.
pub(crate) fn deletion(bytes: usize) -> String {
    smallest(bytes, |containers| review("DELETE", &Value::Null, &stored_pod(containers)))
}

/// Returns the creation of a pod that gets lxcfs and a sidecar, of at least this size in bytes.
pub(crate) fn creation(bytes: usize) -> String {
    smallest(bytes, |containers| review("CREATE", &new_pod(containers), &Value::Null))
}

/// Adds containers until the review has the size.
fn smallest(bytes: usize, review: impl Fn(usize) -> Value) -> String {
    let mut reviews = (1..).map(|containers| review(containers).to_string());
    reviews.find(|text| text.len() >= bytes).unwrap_or_default()
}

fn review(operation: &str, new: &Value, stored: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web-0",
            "namespace": "default",
            "operation": operation,
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": new,
            "oldObject": stored,
            "dryRun": false,
            "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 30},
        },
    })
}

fn new_pod(containers: usize) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "web-0",
            "generateName": "web-",
            "namespace": "default",
            "labels": {"app": "web", "pod-template-hash": "6d4cf56db6"},
            "annotations": {"etcd-guard.io/inject": "lxcfs,agent"},
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "web-6d4cf56db6",
                "uid": "d9607e19-f88f-11e6-a518-42010a800195",
                "controller": true,
                "blockOwnerDeletion": true,
            }],
            "managedFields": [managed_fields(containers)],
        },
        "spec": {
            "containers": (0..containers).map(container).collect::<Vec<_>>(),
            "volumes": [{"name": "token", "projected": {
                "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}],
                "defaultMode": 420,
            }}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [{
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }],
        },
        "status": {},
    })
}

fn stored_pod(containers: usize) -> Value {
    let mut pod = new_pod(containers);
    pod["spec"]["nodeName"] = json!("node-1");
    let statuses = (0..containers).map(|number| {
        json!({
            "name": format!("web-{number}"),
            "state": {"running": {"startedAt": "2026-11-24T08:00:00Z"}},
            "lastState": {},
            "ready": true,
            "restartCount": 0,
            "image": "registry.example/web:1",
            "imageID": "registry.example/web@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "started": true,
        })
    });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(|condition| {
        json!({"type": condition, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-11-24T08:00:00Z"})
    });
    pod["status"] = json!({
        "phase": "Running",
        "conditions": conditions,
        "hostIP": "192.0.2.1",
        "podIP": "198.51.100.7",
        "podIPs": [{"ip": "198.51.100.7"}],
        "startTime": "2026-11-24T08:00:00Z",
        "containerStatuses": statuses.collect::<Vec<_>>(),
        "qosClass": "Burstable",
    });
    pod
}

fn container(number: usize) -> Value {
    let variables = (0..VARIABLES).map(|variable| {
        json!({
            "name": format!("VARIABLE_{variable}"),
            "value": format!("the value of the environment variable {variable}, some words"),
        })
    });
    json!({
        "name": format!("web-{number}"),
        "image": "registry.example/web:1",
        "command": ["/usr/bin/web", "--listen=0.0.0.0:8080"],
        "env": variables.collect::<Vec<_>>(),
        "resources": {"limits": {"cpu": "1", "memory": "256Mi"}},
        "volumeMounts": [{
            "name": "token",
            "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    })
}

fn managed_fields(containers: usize) -> Value {
    let variables = (0..VARIABLES).map(|variable| {
        (format!(r#"k:{{"name":"VARIABLE_{variable}"}}"#), json!({".": {}, "f:name": {}, "f:value": {}}))
    });
    let variables: Value = variables.collect::<serde_json::Map<_, _>>().into();
    let containers = (0..containers).map(|number| {
        let fields = json!({
            ".": {},
            "f:command": {},
            "f:env": variables,
            "f:image": {},
            "f:imagePullPolicy": {},
            "f:name": {},
            "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}}},
            "f:terminationMessagePath": {},
        });
        (format!(r#"k:{{"name":"web-{number}"}}"#), fields)
    });
    json!({
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-24T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}, "f:ownerReferences": {".": {}}},
            "f:spec": {"f:containers": containers.collect::<serde_json::Map<_, _>>(), "f:dnsPolicy": {}},
        },
    })
}
