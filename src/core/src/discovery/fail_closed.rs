//! Selects the pods that nobody can delete while no replica of the guard answers.
//!
//! The API server evaluates the same rule, as the condition `may-run-etcd` of `deploy/base/webhooks.yaml`: the deletion of
//! such a pod goes to a webhook that fails closed, any other one to a webhook that fails open. The rule therefore covers all that
//! [`recognize`](super::recognition::recognize) finds in a pod itself. A test compares both at a real API server.

use crate::{
    annotations::MEMBER,
    discovery::recognition::declares_etcd_port,
    escape::to_shell_word,
    objects::pod::{Container, Pod},
};

/// The beginning of the warning about members whose deletion fails open.
pub const OWNER_ONLY: &str = "members only by an annotation of their owner";

/// The prefix of etcd's environment variables.
const VARIABLE_PREFIX: &str = "ETCD_";

/// Parts of an image, a command or an argument without which a container without variables of etcd is no member.
const WORDS: [&str; 3] = ["etcd", "-peer-urls", "-cluster-"];

// A condition that exceeds the cost limit of the API server fails, so that the pod could not be deleted at all. The largest
// pods therefore count as members before their parts are examined. With these limits, a pod of 3 MiB, the largest request,
// costs 630,000 of 1,000,000 units.

/// Maximum number of containers that are examined.
const MAX_CONTAINERS: usize = 100;

/// Maximum number of variables and ports that are examined.
const MAX_VARIABLES_AND_PORTS: usize = 5000;

/// Maximum number of characters of images, commands and arguments that are examined.
const MAX_CHARACTERS: usize = 500_000;

/// Whether a pod may run etcd, as far as the pod alone shows it. Annotations of its owners do not count.
pub fn may_run_etcd(pod: &Pod) -> bool {
    let own = pod.metadata.annotations.get(MEMBER).filter(|_| !pod.metadata.inherits_member);
    own.is_some_and(|value| value != "false") || is_large(pod) || containers(pod).any(mentions_etcd)
}

/// Returns a warning if some of these members can be deleted while no replica of the guard answers: only their StatefulSet
/// or their namespace declares them. `pods` are recognized, and have the annotations that they inherit.
pub fn owner_only_warning<'a>(namespace: &str, pods: impl IntoIterator<Item = &'a Pod>) -> Option<String> {
    let pods: Vec<&Pod> = pods.into_iter().filter(|pod| !may_run_etcd(pod)).collect();
    let value = pods.first()?.metadata.annotations.get(MEMBER)?;
    let names: Vec<&str> = pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
    let words: Vec<_> = names.iter().map(|name| to_shell_word(name)).collect();
    Some(format!(
        "{OWNER_ONLY}: {}. While no replica of the guard runs, they can be deleted. Set {MEMBER} in their pod template as well, \
         and on the running pods: kubectl -n {} annotate pod {} {MEMBER}={}",
        names.join(", "),
        to_shell_word(namespace),
        words.join(" "),
        to_shell_word(value)
    ))
}

/// The containers and all init containers.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.containers.iter().chain(&pod.spec.init_containers)
}

fn is_large(pod: &Pod) -> bool {
    let variables_and_ports = containers(pod).map(|container| container.env.len() + container.ports.len());
    // The parts of a container are joined by blanks.
    let characters = containers(pod)
        .map(|container| parts(container).map(|part| part.chars().count() + 1).sum::<usize>() - 1);
    containers(pod).count() > MAX_CONTAINERS
        || variables_and_ports.sum::<usize>() > MAX_VARIABLES_AND_PORTS
        || characters.sum::<usize>() > MAX_CHARACTERS
}

fn mentions_etcd(container: &Container) -> bool {
    container.env.iter().any(|variable| variable.name.starts_with(VARIABLE_PREFIX))
        || declares_etcd_port(container)
        || parts(container).any(|part| WORDS.iter().any(|word| part.contains(word)))
}

/// The image, the command and the arguments.
fn parts(container: &Container) -> impl Iterator<Item = &str> {
    let words = container.command.iter().chain(&container.args).map(String::as_str);
    std::iter::once(container.image.as_str()).chain(words)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value, spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn of_containers(containers: &Value) -> bool {
        may_run_etcd(&pod(&json!({}), &json!({"containers": containers})))
    }

    #[test]
    fn selects_pods_that_mention_etcd() {
        for container in [
            json!({"image": "x/etcd-tools"}),
            json!({"image": "x", "args": ["--etcd-servers=http://etcd:2379"]}),
            json!({"image": "x", "command": ["run", "--listen-peer-urls=http://a"]}),
            json!({"image": "x", "args": ["a --initial-cluster-state=new"]}),
            json!({"image": "x", "env": [{"name": "ETCD_ENDPOINTS"}]}),
            json!({"image": "x", "ports": [{"containerPort": 2380}]}),
        ] {
            assert!(of_containers(&json!([{"image": "proxy"}, container])), "{container}");
            let spec = json!({"containers": [{"image": "proxy"}], "initContainers": [container]});
            assert!(may_run_etcd(&pod(&json!({}), &spec)), "{container}");
        }
        let web = json!({"image": "nginx", "args": ["--cluster=a"], "env": [{"name": "ETCDCTL_API"}, {"name": "MY_ETCD_"}],
            "ports": [{"containerPort": 80}]});
        assert!(!of_containers(&json!([web])));
    }

    #[test]
    fn own_annotation_counts_and_inherited_one_does_not() {
        let spec = json!({"containers": [{"image": "k3s"}]});
        let annotated = |value: &str| pod(&json!({"annotations": {MEMBER: value}}), &spec);
        for (value, expected) in [("true", true), ("k3s", true), ("", true), ("false", false)] {
            assert_eq!(may_run_etcd(&annotated(value)), expected, "{value}");
        }
        let mut inherits = pod(&json!({}), &spec);
        inherits.inherit(&annotated("true").metadata.annotations, &[MEMBER], |_, _, _| true);
        assert!(inherits.metadata.annotations.contains_key(MEMBER) && !may_run_etcd(&inherits));
        inherits.metadata.name = String::from("k3s-0");
        assert_eq!(owner_only_warning("prod", [&annotated("true")]), None);
        let warning = owner_only_warning("prod", [&annotated("true"), &inherits]).unwrap();
        assert!(warning.starts_with("members only by an annotation of their owner: k3s-0. "), "{warning}");
        assert!(
            warning.ends_with(": kubectl -n prod annotate pod k3s-0 etcd-guard.io/member=true"),
            "{warning}"
        );
    }

    #[test]
    fn pods_beyond_a_limit_count() {
        let repeated = |value: Value, count: usize| vec![value; count];
        let of = |field: &str, values: Vec<Value>| of_containers(&json!([{"image": "x", field: values}]));
        assert!(!of("args", vec![json!("ä".repeat(MAX_CHARACTERS - 2))]));
        assert!(of("args", vec![json!("ä".repeat(MAX_CHARACTERS - 1))]));
        assert!(!of("args", repeated(json!("a"), 100_000)));
        for (field, value) in [("env", json!({"name": "A"})), ("ports", json!({"containerPort": 80}))] {
            assert!(!of(field, repeated(value.clone(), MAX_VARIABLES_AND_PORTS)));
            assert!(of(field, repeated(value, MAX_VARIABLES_AND_PORTS + 1)));
        }
        let containers = |count: usize| of_containers(&json!(repeated(json!({"image": "x"}), count)));
        assert!(!containers(MAX_CONTAINERS) && containers(MAX_CONTAINERS + 1));
    }
}
