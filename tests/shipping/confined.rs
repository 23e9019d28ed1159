//! What a replica may do on its node, how much of the node it may use, who may reach it, and what it may hold up. The chart has
//! the same objects, and Pod Security's restricted level is held against them by the strict validation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{kustomize, objects};

/// The guard's own object of this kind.
fn shipped(kind: &str) -> Value {
    let all = objects(&kustomize("deploy/base"));
    let is_it = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == "etcd-guard";
    all.iter().find(is_it).unwrap_or_else(|| panic!("no {kind}")).clone()
}

/// These fields of all objects of a list.
fn fields(list: &Value, field: &str) -> BTreeSet<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list with {field}"));
    list.iter().map(|it| it[field].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_replica_writes_nowhere_and_has_its_share_of_the_node() {
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
fn callers_come_in_by_the_guards_two_ports_and_by_no_other() {
    let (policy, template) = (shipped("NetworkPolicy"), shipped("Deployment")["spec"]["template"].take());
    let spec = &policy["spec"];
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    assert_eq!(spec["podSelector"]["matchLabels"], template["metadata"]["labels"]);
    let rules = spec["ingress"].as_array().unwrap();
    // One without ports would let everything in.
    let let_in: BTreeSet<_> = rules.iter().flat_map(|it| fields(&it["ports"], "port")).collect();
    assert_eq!(let_in, fields(&template["spec"]["containers"][0]["ports"], "name"));
}

#[test]
fn a_replica_that_is_not_ready_holds_up_no_drain() {
    assert_eq!(shipped("PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
}
