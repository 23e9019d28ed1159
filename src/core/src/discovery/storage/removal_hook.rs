//! Hooks before the end of a container that remove the member from the member list.
//!
//! A hook removes the member with `etcdctl member remove`, or with the script of older Bitnami charts. A script that is not
//! part of the specification is a doubt, until its content is read.

use crate::{
    discovery::{credential_sources::key_for_file, member_settings::MemberSettings, recognition::shell},
    objects::pod::{Container, Pod},
    snapshot::StopScript,
};

/// The commands that open and close the branches of a shell script.
const CLOSING: [&str; 3] = ["fi", "else", "elif"];

/// Programs that read a script from the file that their first operand names.
const INTERPRETERS: [&str; 10] =
    ["sh", "bash", "dash", "ash", "ksh", "zsh", "python", "python3", "perl", "ruby"];

/// Words before the program of a command.
const PREFIXES: [&str; 17] = [
    "if", "then", "else", "elif", "while", "until", "do", "!", "{", "exec", "command", "nohup", "time",
    "timeout", "env", "sudo", "busybox",
];

/// Names of scripts end with these texts.
const SCRIPT_SUFFIXES: [&str; 5] = [".sh", ".bash", ".py", ".pl", ".rb"];

/// Programs that remove no member except by arguments that say so. In another container than that of etcd, every program
/// that is no script counts as one of them: it belongs to another product.
const HARMLESS_PROGRAMS: [&str; 18] = [
    "sleep", "true", "echo", "printf", "kill", "pkill", "killall", "etcdctl", "etcdutl", "curl", "wget",
    "test", "sync", "date", "touch", "cat", "ls", "etcd",
];

/// Effect of hooks on the pod's member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HookEffect {
    /// The member remains.
    KeepsMember,
    /// The member is removed.
    RemovesMember,
    /// These scripts may remove the member.
    Unknown(Vec<StopScript>),
}

/// Returns the effect of the preStop hooks of all containers. `etcd` is the container that runs the member. A hook that
/// removes only members beyond the initial size of the cluster does not remove the others: the hook runs at every
/// deletion, and such a member returns with its data.
pub(super) fn effect_of_hooks(pod: &Pod, etcd: &Container) -> HookEffect {
    let mut scripts: Vec<StopScript> = Vec::new();
    for container in pod.lasting_containers() {
        let hook =
            container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()?.exec.as_ref());
        let Some(hook) = hook else { continue };
        if removes_member(&hook.command, pod, container) {
            return HookEffect::RemovesMember;
        }
        let mut files = Vec::new();
        add_scripts(&hook.command, pod, container, &mut files);
        if let Some(program) = without_prefixes(&hook.command).first()
            && files.is_empty()
            && container.name == etcd.name
            && !INTERPRETERS.contains(&base_name(program))
            && !HARMLESS_PROGRAMS.contains(&base_name(program))
        {
            files.push(program.clone());
        }
        scripts.extend(files.into_iter().map(|path| StopScript {
            container: container.name.clone(),
            source: key_for_file(pod, container, &path),
            path,
            problem: None,
        }));
    }
    if scripts.is_empty() { HookEffect::KeepsMember } else { HookEffect::Unknown(scripts) }
}

/// Returns the effect of a script with this content that a hook of this container runs. The scripts that it runs in turn
/// are not read.
pub(super) fn effect_of_script(pod: &Pod, container: &Container, content: &str) -> HookEffect {
    if has_removal(content) && !keeps_member(content, pod, container) {
        return HookEffect::RemovesMember;
    }
    let mut files = Vec::new();
    for command in shell::commands(content) {
        add_scripts(&command, pod, container, &mut files);
    }
    let nested = files.into_iter().map(|path| StopScript {
        container: container.name.clone(),
        path,
        source: None,
        problem: Some(String::from("another script runs it")),
    });
    let nested: Vec<StopScript> = nested.collect();
    if nested.is_empty() { HookEffect::KeepsMember } else { HookEffect::Unknown(nested) }
}

/// Adds the scripts that a command runs.
fn add_scripts(command: &[String], pod: &Pod, container: &Container, scripts: &mut Vec<String>) {
    let Some((program, operands)) = without_prefixes(command).split_first() else { return };
    let file = match base_name(program) {
        "." | "source" => operands.first(),
        name if INTERPRETERS.contains(&name) => {
            let Some((operand, is_code)) = interpreted(name, operands) else { return };
            if is_code {
                for inner in shell::commands(operand) {
                    add_scripts(&inner, pod, container, scripts);
                }
                return;
            }
            Some(operand)
        }
        _ => Some(program).filter(|program| is_script(program, pod, container)),
    };
    if let Some(file) = file.filter(|file| !scripts.contains(file)) {
        scripts.push(file.clone());
    }
}

/// Returns the command without keywords, assignments and programs that run another program.
fn without_prefixes(command: &[String]) -> &[String] {
    let is_assignment = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| variable_name(&format!("${name}")).is_some())
    };
    // The options and durations are those of `timeout` and `env`.
    let is_prefix = |word: &String| {
        PREFIXES.contains(&base_name(word))
            || is_assignment(word)
            || word.starts_with(|first: char| first == '-' || first.is_ascii_digit())
    };
    let first = command.iter().position(|word| !is_prefix(word)).unwrap_or(command.len());
    command.get(first..).unwrap_or_default()
}

/// Returns the script that an interpreter runs, and whether it is code instead of the name of a file.
fn interpreted<'a>(interpreter: &str, operands: &'a [String]) -> Option<(&'a String, bool)> {
    let code = if matches!(interpreter, "perl" | "ruby") { 'e' } else { 'c' };
    let (mut operands, mut is_code) = (operands.iter(), false);
    while let Some(word) = operands.next() {
        if !word.starts_with(['-', '+']) {
            return Some((word, is_code));
        }
        if !word.starts_with("--") {
            is_code |= word.contains(code);
            if word.ends_with('o') {
                // `-o pipefail`.
                operands.next();
            }
        }
    }
    None
}

/// Whether a program is a script: by its name, because a Secret or a `ConfigMap` provides it, or because it is not where
/// programs are.
fn is_script(program: &str, pod: &Pod, container: &Container) -> bool {
    let folder = program.rsplit_once('/').map(|(folder, _)| folder);
    SCRIPT_SUFFIXES.iter().any(|suffix| program.ends_with(suffix))
        || key_for_file(pod, container, program).is_some()
        || folder.is_some_and(|folder| !matches!(base_name(folder), "bin" | "sbin"))
            && !HARMLESS_PROGRAMS.contains(&base_name(program))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether the command of a hook removes the pod's member, as far as its words show it.
fn removes_member(command: &[String], pod: &Pod, container: &Container) -> bool {
    let mut scripts = command.iter().filter(|part| has_removal(part)).peekable();
    // The words of the command can be separate arguments, and are then no script.
    let has_script = scripts.peek().is_some();
    has_removal(&command.join(" "))
        && !(has_script && scripts.all(|script| keeps_member(script, pod, container)))
}

fn has_removal(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| matches!(pair, ["member", "remove"]))
        || words.iter().any(|word| word.ends_with("/etcd/prestop.sh"))
        // The path in etcd's gateway for JSON.
        || text.contains("cluster/member/remove")
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
        effect_of_hooks(&pod, &pod.spec.containers[0]) != HookEffect::KeepsMember
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
        let effect = effect_of_hooks(&pod, &pod.spec.containers[0]);
        assert_eq!(effect, HookEffect::RemovesMember, "separate arguments");
    }

    /// Returns the effect of a hook of etcd's container, which mounts its scripts from a `ConfigMap`, or of a sidecar.
    fn effect(container: &str, command: &serde_json::Value) -> HookEffect {
        let with_hook = |name: &str| {
            let hook = json!({"preStop": {"exec": {"command": command}}});
            json!({
                "name": name,
                "lifecycle": if name == container { hook } else { json!({}) },
                "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
            })
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-0"},
            "spec": {
                "containers": [with_hook("etcd"), with_hook("proxy")],
                "volumes": [{"name": "scripts", "configMap": {"name": "etcd-scripts"}}],
            },
        }))
        .unwrap();
        effect_of_hooks(&pod, &pod.spec.containers[0])
    }

    #[test]
    fn script_outside_of_the_pod_is_a_doubt() {
        for (command, path, key) in [
            (json!(["/scripts/prestop-hook.sh"]), "/scripts/prestop-hook.sh", Some("prestop-hook.sh")),
            (json!(["/bin/bash", "/scripts/stop"]), "/scripts/stop", Some("stop")),
            (
                json!(["/bin/sh", "-ec", "sleep 5; [ -x /a ] && exec /scripts/stop"]),
                "/scripts/stop",
                Some("stop"),
            ),
            (json!(["sh", "-c", ". /opt/lib.sh && leave"]), "/opt/lib.sh", None),
            (json!(["timeout", "10s", "/opt/leave"]), "/opt/leave", None),
            (json!(["/usr/local/bin/prestop"]), "/usr/local/bin/prestop", None),
        ] {
            let HookEffect::Unknown(scripts) = effect("etcd", &command) else { panic!("{command}") };
            let found: Vec<_> = scripts
                .iter()
                .map(|script| {
                    (script.path.as_str(), script.source.as_ref().map(|source| source.key.as_str()))
                })
                .collect();
            assert_eq!(found, [(path, key)], "{command}");
        }
        let of_sidecar = effect("proxy", &json!(["/scripts/stop.sh"]));
        assert!(matches!(of_sidecar, HookEffect::Unknown(_)), "{of_sidecar:?}");
    }

    #[test]
    fn known_command_keeps_the_member() {
        for command in [
            json!(["sleep", "5"]),
            json!(["/bin/sh", "-c", "sleep 5"]),
            json!(["/bin/sleep", "15"]),
            json!(["etcdctl", "move-leader", "8e9e05c52164694d"]),
            json!(["/opt/bitnami/etcd/bin/etcdctl", "move-leader", "8e9e05c52164694d"]),
            json!([
                "sh",
                "-c",
                "ID=$(etcdctl endpoint status | cut -d, -f2); etcdctl move-leader $ID || true"
            ]),
            json!(["curl", "-s", "http://127.0.0.1:2381/drain"]),
            json!(["/bin/bash", "-ec", "while ! etcdctl endpoint health; do sleep 1; done"]),
            json!(["kill", "-TERM", "1"]),
            json!(["timeout", "5", "etcdctl", "move-leader", "8e9e05c52164694d"]),
            json!(["/bin/bash", "-o", "pipefail", "-ec", "sleep 5"]),
            json!([]),
        ] {
            assert_eq!(effect("etcd", &command), HookEffect::KeepsMember, "{command}");
        }
        for command in [json!(["pilot-agent", "drain"]), json!(["/usr/sbin/nginx", "-s", "quit"])] {
            assert_eq!(effect("proxy", &command), HookEffect::KeepsMember, "{command}");
        }
        let by_gateway = json!(["curl", "http://127.0.0.1:2379/v3/cluster/member/remove", "-d", "{}"]);
        assert_eq!(effect("etcd", &by_gateway), HookEffect::RemovesMember);
    }

    #[test]
    fn content_of_a_script_decides() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-0"},
            "spec": {"containers": [{"name": "etcd", "env": [{"name": "INITIAL_CLUSTER_SIZE", "value": "3"}]}]},
        }))
        .unwrap();
        let effect = |content: &str| effect_of_script(&pod, &pod.spec.containers[0], content);
        assert_eq!(effect("#!/bin/sh\nsleep 5\netcdctl move-leader $ID\n"), HookEffect::KeepsMember);
        assert_eq!(effect(BEYOND_SIZE), HookEffect::KeepsMember);
        assert_eq!(effect("#!/bin/bash\netcdctl member remove $ID\n"), HookEffect::RemovesMember);
        let HookEffect::Unknown(nested) = effect("#!/bin/bash\n. /opt/scripts/lib.sh\nleave\n") else {
            panic!()
        };
        assert_eq!(nested[0].to_string(), "/opt/scripts/lib.sh (another script runs it)");
    }
}
