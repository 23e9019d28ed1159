//! Hooks before the end of a container that remove the member from the member list.

use crate::{
    discovery::member_settings::MemberSettings,
    objects::pod::{Container, Pod},
};

/// The commands that open and close the branches of a shell script.
const CLOSING: [&str; 3] = ["fi", "else", "elif"];

/// Whether the preStop hook of a container removes the pod's member: with `etcdctl member remove`, or with the script of
/// older Bitnami charts. A hook that removes only members beyond the initial size of the cluster does not remove the
/// others: the hook runs at every deletion, and such a member returns with its data.
pub(super) fn removes_member(pod: &Pod, container: &Container) -> bool {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()?.exec.as_ref());
    let Some(hook) = hook else { return false };
    let mut scripts = hook.command.iter().filter(|part| has_removal(part)).peekable();
    // The words of the command can be separate arguments, and are then no script.
    let has_script = scripts.peek().is_some();
    has_removal(&hook.command.join(" "))
        && !(has_script && scripts.all(|script| keeps_member(script, pod, container)))
}

fn has_removal(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| matches!(pair, ["member", "remove"]))
        || words.iter().any(|word| word.ends_with("/etcd/prestop.sh"))
}

/// Whether each removal in a shell script is in a branch that is not executed for this pod: its ordinal is below the
/// value with which the branch compares it. Every doubt is a removal.
fn keeps_member(script: &str, pod: &Pod, container: &Container) -> bool {
    // Whether each open branch is skipped for this pod.
    let mut branches: Vec<bool> = Vec::new();
    let lines = script.lines().flat_map(|line| line.split(';')).map(str::trim);
    for line in lines {
        let first = line.split_whitespace().next().unwrap_or_default();
        if first == "if" {
            branches.push(is_false(line, script, pod, container));
        } else if CLOSING.contains(&first) {
            if branches.pop().is_none() {
                return false;
            }
            if first != "fi" {
                branches.push(false);
            }
        }
        if has_removal(line) && !branches.contains(&true) {
            return false;
        }
    }
    branches.is_empty()
}

/// Whether the condition is `if [ "${VARIABLE}" -ge ${SIZE} ]`, where the script assigns the pod's ordinal to VARIABLE, and
/// the environment of the container sets SIZE to a greater number.
fn is_false(condition: &str, script: &str, pod: &Pod, container: &Container) -> bool {
    let words: Vec<&str> = condition.split_whitespace().collect();
    let ["if", "[" | "[[", left, "-ge", right, "]" | "]]"] = words.as_slice() else { return false };
    let (Some(variable), Some(size)) = (variable_name(left), variable_name(right)) else { return false };
    // `${HOSTNAME##*[^0-9]}` and `${HOSTNAME##*-}` are the digits at the end of the name.
    let assignments: Vec<&str> = script
        .split(&format!("{variable}="))
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next())
        .collect();
    let is_ordinal = |value: &&str| {
        matches!(
            value.trim_matches(['"', ';']),
            "${HOSTNAME##*[^0-9]}" | "${HOSTNAME##*-}" | "${HOSTNAME##*[!0-9]}"
        )
    };
    let has_own_name = pod.spec.hostname.is_empty() || pod.spec.hostname == pod.metadata.name;
    let is_reassigned = script.contains(&format!("{size}="));
    let ordinal = pod.metadata.name.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<u32>().ok());
    let size = MemberSettings::read(pod, container).variable(size).and_then(|size| size.parse::<u32>().ok());
    matches!(assignments.as_slice(), [value] if is_ordinal(value))
        && has_own_name
        && !is_reassigned
        && ordinal.zip(size).is_some_and(|(ordinal, size)| ordinal < size)
}

/// Returns the name in `$NAME` or `${NAME}`, with or without double quotes.
fn variable_name(word: &str) -> Option<&str> {
    let name = word.trim_matches('"').strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    (is_name && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// After the conventions of the former `incubator/etcd` chart.
    const BEYOND_SIZE: &str = r#"
        SET_ID=${HOSTNAME##*[^0-9]}
        if [ "${SET_ID}" -ge ${INITIAL_CLUSTER_SIZE} ]; then
            echo "Removing ${HOSTNAME}"
            ETCDCTL_ENDPOINT=${EPS} etcdctl member remove $(member_hash)
            if [ $? -eq 0 ]; then
                rm -rf /var/run/etcd/*
            fi
        fi
    "#;

    fn removes(pod: &str, size: &str, script: &str) -> bool {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": pod},
            "spec": {"containers": [{
                "name": "etcd",
                "env": [{"name": "INITIAL_CLUSTER_SIZE", "value": size}],
                "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-ec", script]}}},
            }]},
        }))
        .unwrap();
        removes_member(&pod, &pod.spec.containers[0])
    }

    #[test]
    fn hook_beyond_initial_size_keeps_initial_members() {
        for (pod, removed) in [("etcd-0", false), ("etcd-2", false), ("etcd-3", true), ("etcd", true)] {
            assert_eq!(removes(pod, "3", BEYOND_SIZE), removed, "{pod}");
        }
        assert!(removes("etcd-0", "$(REPLICAS)", BEYOND_SIZE), "the size is unknown");
    }

    #[test]
    fn doubtful_hook_removes_the_member() {
        for script in [
            "etcdctl member remove $ID",
            &BEYOND_SIZE.replace("-ge", "-le"),
            &BEYOND_SIZE.replace("${HOSTNAME##*[^0-9]}", "9"),
            &BEYOND_SIZE.replace("SET_ID=", "SET_ID=7\n SET_ID="),
            &BEYOND_SIZE.replace("SET_ID=", "INITIAL_CLUSTER_SIZE=0\n SET_ID="),
            &BEYOND_SIZE.replace("echo", "else"),
            &BEYOND_SIZE.replace(" ]; then", " ] || true; then"),
            &format!("{BEYOND_SIZE}\n etcdctl member remove $ID"),
            &format!("{BEYOND_SIZE}\n /opt/bitnami/scripts/etcd/prestop.sh"),
        ] {
            assert!(removes("etcd-0", "3", script), "{script}");
        }
        assert!(!removes("etcd-0", "3", "etcdctl member list"));
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [{"lifecycle": {"preStop": {"exec": {"command": ["etcdctl", "member", "remove", "1"]}}}}]},
        }))
        .unwrap();
        assert!(removes_member(&pod, &pod.spec.containers[0]), "separate arguments");
    }
}
