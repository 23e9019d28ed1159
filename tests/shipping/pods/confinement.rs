//! Restrictions of a replica: its permissions and resources on the node, its network policy and its disruption budget.
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

#[test]
fn unready_replica_does_not_block_drain() {
    assert_eq!(shipped("PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
}
