//! Restrictions of the shipped pods: permissions and resources on the node, network policies, the disruption budget, and
//! the pod that keeps the certificates.
//! The chart has the same objects, and the strict validation checks Pod Security's restricted level.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{kustomize, objects};

/// Returns the shipped object of this kind with the name `etcd-guard`.
fn shipped(kind: &str) -> Value {
    let all = objects(&kustomize("deploy/base"));
    let matches = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == "etcd-guard";
    all.iter().find(matches).unwrap_or_else(|| panic!("no {kind}")).clone()
}

/// Returns a field of all objects of a list.
fn fields(list: &Value, field: &str) -> BTreeSet<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list with {field}"));
    list.iter().map(|object| object[field].as_str().unwrap().to_owned()).collect()
}

#[test]
fn replica_is_read_only_with_fixed_resources() {
    let pod = &shipped("Deployment")["spec"]["template"]["spec"];
    for container in pod["containers"].as_array().unwrap() {
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        for mount in container["volumeMounts"].as_array().unwrap() {
            assert_eq!(mount["readOnly"], true, "{mount}");
        }
        let resources = &container["resources"];
        for amount in
            [&resources["requests"]["cpu"], &resources["requests"]["memory"], &resources["limits"]["memory"]]
        {
            assert!(amount.is_string(), "{resources}");
        }
    }
    let namespace = shipped("Namespace");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn network_policy_allows_only_two_ports() {
    let (policy, template) = (shipped("NetworkPolicy"), shipped("Deployment")["spec"]["template"].take());
    let spec = &policy["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    assert_eq!(spec["podSelector"]["matchLabels"], template["metadata"]["labels"]);
    let rules = spec["ingress"].as_array().unwrap();
    // A rule without ports would allow all of them.
    let allowed: BTreeSet<_> = rules.iter().flat_map(|rule| fields(&rule["ports"], "port")).collect();
    assert_eq!(allowed, fields(&template["spec"]["containers"][0]["ports"], "name"));
}

/// The account of this pod can change webhook configurations, so that no caller may reach it.
#[test]
fn certificate_manager_has_no_listener() {
    const NAME: &str = "etcd-guard-certificates";
    for overlay in ["self-managed", "register", "lxcfs", "nodes", "fail-open", "minikube"] {
        let all = objects(&kustomize(&format!("deploy/overlays/{overlay}")));
        let named = |kind: &str, name: &str| {
            let matches = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            all.iter().find(matches).unwrap_or_else(|| panic!("{overlay}: no {kind} {name}")).clone()
        };
        let template = named("Deployment", NAME)["spec"]["template"].take();
        let pod = &template["spec"];
        assert_eq!(pod["serviceAccountName"], NAME);
        for container in pod["containers"].as_array().unwrap() {
            assert_eq!(container["args"][0], "certificates", "{overlay}");
            assert!(container["ports"].is_null() && container["volumeMounts"].is_null(), "{container}");
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        }
        let labels = &template["metadata"]["labels"];
        for service in all.iter().filter(|object| object["kind"] == "Service") {
            assert_ne!(&service["spec"]["selector"], labels, "{service}");
        }
        let policy = named("NetworkPolicy", NAME)["spec"].take();
        assert_eq!(policy["podSelector"]["matchLabels"], *labels);
        assert_eq!(policy["policyTypes"], json!(["Ingress"]));
        assert!(policy["ingress"].is_null(), "{policy}");

        // The servers mount the certificate and its key, but not the next ones.
        let server = named("Deployment", "etcd-guard")["spec"]["template"]["spec"].take();
        assert_eq!(server["serviceAccountName"], "etcd-guard");
        let volumes = server["volumes"].as_array().unwrap();
        let secrets: Vec<_> = volumes.iter().filter(|volume| volume["secret"].is_object()).collect();
        assert_eq!(secrets.len(), 2, "{overlay}");
        assert_eq!(secrets[0]["secret"]["secretName"], format!("{NAME}-2"));
        assert_eq!(secrets[0]["secret"]["optional"], true);
        assert_eq!(secrets[1]["secret"]["secretName"], NAME);
        for volume in secrets {
            let keys = fields(&volume["secret"]["items"], "key");
            assert_eq!(keys, ["tls.crt", "tls.key"].map(str::to_owned).into(), "{volume}");
        }
    }
}

#[test]
fn unready_replica_does_not_block_drain() {
    assert_eq!(shipped("PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
}
