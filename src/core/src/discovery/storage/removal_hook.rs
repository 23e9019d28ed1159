//! Hooks before the end of a container that remove the member from the member list.
//!
//! A hook removes the member with `etcdctl member remove`, or with the script of older Bitnami charts. A script that is not
//! part of the specification is a doubt, until its content is read, and so is a program of etcd's container that is not
//! known. A request is no doubt, neither of `curl` nor of an HTTP hook: etcd removes no member by GET.

use std::collections::BTreeSet;

use crate::{
    discovery::{
        credential_sources::key_for_file,
        member_settings::MemberSettings,
        recognition::{programs, shell},
    },
    objects::pod::{Container, Pod},
    snapshot::StopScript,
};

/// The commands that open and close the branches of a shell script.
const CLOSING: [&str; 3] = ["fi", "else", "elif"];

/// Shells, which read code after `-c`.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Other programs that read a script from the file that their first operand names. Their languages are not parsed.
const INTERPRETERS: [&str; 4] = ["python", "python3", "perl", "ruby"];

/// Names of scripts end with these texts.
const SCRIPT_SUFFIXES: [&str; 5] = [".sh", ".bash", ".py", ".pl", ".rb"];

/// Programs that remove no member, in addition to [`programs::is_tool`]. In another container than that of etcd, every
/// program that is no script counts as one of them: it belongs to another product.
const HARMLESS_PROGRAMS: [&str; 18] = [
    "declare", "egrep", "expr", "fgrep", "hash", "let", "logger", "pgrep", "pidof", "pkill", "killall",
    "printenv", "stat", "type", "typeset", "uname", "uniq", "which",
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

/// Finds the scripts that commands run, and the programs whose effect is unknown.
struct Search<'a> {
    pod: &'a Pod,
    container: &'a Container,
    /// Whether the container runs etcd.
    is_of_etcd: bool,
    /// The names of the functions that a script defines.
    functions: BTreeSet<String>,
    found: BTreeSet<String>,
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
        let command: Vec<String> = hook.command.iter().map(|word| executed(word, pod, container)).collect();
        if is_removal(&command) {
            return HookEffect::RemovesMember;
        }
        let mut search = Search::new(pod, container, container.name == etcd.name);
        search.read(&command);
        scripts.extend(search.found.into_iter().map(|path| StopScript {
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
pub(super) fn effect_of_script(
    pod: &Pod,
    container: &Container,
    is_of_etcd: bool,
    content: &str,
) -> HookEffect {
    let content = executed(content, pod, container);
    if has_removal(&content) {
        return HookEffect::RemovesMember;
    }
    let mut search = Search::new(pod, container, is_of_etcd);
    search.read_script(&content);
    let nested = search.found.into_iter().map(|path| StopScript {
        container: container.name.clone(),
        path,
        source: None,
        problem: Some(String::from("another script runs it")),
    });
    let nested: Vec<StopScript> = nested.collect();
    if nested.is_empty() { HookEffect::KeepsMember } else { HookEffect::Unknown(nested) }
}

// === impl Search ===

impl<'a> Search<'a> {
    fn new(pod: &'a Pod, container: &'a Container, is_of_etcd: bool) -> Self {
        Self { pod, container, is_of_etcd, functions: BTreeSet::new(), found: BTreeSet::new() }
    }

    fn read_script(&mut self, script: &str) {
        let commands = commands(script);
        let pairs = commands.iter().flat_map(|command| command.windows(2));
        let names = pairs.filter_map(|pair| match pair {
            [function, name] if function == "function" => Some(name.clone()),
            _ => None,
        });
        self.functions.extend(names);
        for command in &commands {
            self.read(command);
        }
    }

    fn read(&mut self, command: &[String]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut command = words.as_slice();
        while let ["function", _, body @ ..] = command {
            command = body;
        }
        // The end of a condition such as `[[ a && b ]]`.
        if command.last() == Some(&"]]") {
            return;
        }
        let [program, operands @ ..] = programs::without_prefix(command) else { return };
        let found = match base_name(program) {
            "." | "source" => operands.first(),
            "trap" => return operands.first().into_iter().for_each(|code| self.read_script(code)),
            name if SHELLS.contains(&name) || INTERPRETERS.contains(&name) => {
                match interpreted(name, operands) {
                    Some((code, true)) if SHELLS.contains(&name) => return self.read_script(code),
                    Some((file, false)) => Some(file),
                    // The code of another language, or the script that another program writes.
                    _ => Some(program),
                }
            }
            name => Some(program).filter(|_| name == "eval" || self.is_doubt(program)),
        };
        self.found.extend(found.map(|found| String::from(*found)));
    }

    /// Whether a program can remove the member: it is a script by its name, because a Secret or a `ConfigMap` provides it,
    /// or because it is not where programs are; or it is an unknown program in etcd's container.
    fn is_doubt(&self, program: &str) -> bool {
        let name = base_name(program);
        // `kubectl exec` runs any program.
        let is_harmless = programs::is_tool(name) && name != "kubectl"
            || HARMLESS_PROGRAMS.contains(&name)
            || self.functions.contains(program);
        let folder = program.rsplit_once('/').map(|(folder, _)| folder);
        let is_elsewhere = folder.is_some_and(|folder| !matches!(base_name(folder), "bin" | "sbin"));
        SCRIPT_SUFFIXES.iter().any(|suffix| program.ends_with(suffix))
            || key_for_file(self.pod, self.container, program).is_some()
            || !is_harmless && (self.is_of_etcd || is_elsewhere)
    }
}

/// Returns the words of the simple commands of a script.
fn commands(script: &str) -> Vec<Vec<String>> {
    shell::commands(&without_arithmetic(script))
}

/// Replaces arithmetic, which contains no programs, with a number.
fn without_arithmetic(script: &str) -> String {
    let mut parts = script.split("((");
    let mut text = String::from(parts.next().unwrap_or_default());
    for part in parts {
        match part.split_once("))") {
            Some((inner, rest)) if !inner.contains(['(', ')', '"', '\'', '\n']) => {
                text.extend(["true ", rest]);
            }
            _ => text.extend(["((", part]),
        }
    }
    text
}

/// Returns the script that an interpreter runs, and whether it is code instead of the name of a file.
fn interpreted<'a, 'w>(interpreter: &str, operands: &'a [&'w str]) -> Option<(&'a &'w str, bool)> {
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

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a command removes the pod's member, as far as its words show it. They can be scripts.
fn is_removal(words: &[String]) -> bool {
    let deletes = words.iter().any(|word| word.ends_with("DELETE"));
    words.iter().skip_while(|word| word.rsplit('=').next() != Some("member")).any(|word| word == "remove")
        || words.iter().any(|word| {
            word.ends_with("/etcd/prestop.sh")
                // The paths in etcd's gateway for JSON, and in the API of version 2.
                || word.contains("cluster/member/remove")
                || deletes && word.contains("v2/members/")
                || has_removal(word)
        })
}

fn has_removal(script: &str) -> bool {
    // A word without quotes is its only command.
    commands(script).iter().any(|words| words.as_slice() != [script] && is_removal(words))
}

/// Returns a script without the branches that are not executed for this pod: its ordinal is below the value with which
/// the branch compares it. In doubt, the whole script is executed.
fn executed(script: &str, pod: &Pod, container: &Container) -> String {
    let script = script.replace("\\\r\n", " ").replace("\\\n", " ");
    // Whether each open branch is skipped for this pod.
    let mut branches: Vec<bool> = Vec::new();
    let mut executed = String::new();
    let lines = script.lines().flat_map(|line| line.split(';')).map(str::trim);
    let mut is_skipped = false;
    for line in lines {
        let first = line.split_whitespace().next().unwrap_or_default();
        if first == "if" {
            branches.push(is_false(line, &script, pod, container));
        } else if CLOSING.contains(&first) {
            if branches.pop().is_none() {
                return script;
            }
            if first != "fi" {
                branches.push(false);
            }
        }
        if branches.contains(&true) {
            is_skipped = true;
        } else {
            executed.extend([line, " \n"]);
        }
    }
    if is_skipped && branches.is_empty() { executed } else { script }
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
        EPS=""
        for i in $(seq 0 $((${INITIAL_CLUSTER_SIZE} - 1))); do
            EPS="${EPS}${EPS:+,}http://${SET_NAME}-${i}.${SET_NAME}:2379"
        done
        HOSTNAME=$(hostname)
        member_hash() {
            etcdctl member list | grep http://${HOSTNAME}.${SET_NAME}:2380 | cut -d':' -f1 | cut -d'[' -f1
        }
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
        let continued = BEYOND_SIZE.replace("member remove", "member \\\n remove");
        assert!(!removes("etcd-0", "3", &continued) && removes("etcd-3", "3", &continued));
    }

    #[test]
    fn doubtful_hook_removes_the_member() {
        for script in [
            "etcdctl member remove $ID",
            "etcdctl member \\\n  remove $ID",
            "etcdctl member --endpoints $EPS 'remove' $ID",
            "curl -X DELETE http://127.0.0.1:2379/v2/members/$ID",
            "COMMAND='member remove'; etcdctl $COMMAND $ID",
            "su etcd -c \"etcdctl member remove $ID\"",
            &BEYOND_SIZE.replace("member remove", "member \\\n remove").replace("-ge", "-le"),
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
            (json!(["sh", "-c", ". /opt/lib.sh && sleep 5"]), "/opt/lib.sh", None),
            (json!(["timeout", "10s", "/opt/leave"]), "/opt/leave", None),
            (json!(["/usr/local/bin/prestop"]), "/usr/local/bin/prestop", None),
            (json!(["/bin/sh", "-c", "/usr/local/bin/prestop"]), "/usr/local/bin/prestop", None),
            (json!(["sh", "-c", "sleep 5 && leave-cluster"]), "leave-cluster", None),
            (json!(["sh", "-c", "tini -- /x.sh"]), "/x.sh", None),
            (json!(["sh", "-c", "cat /scripts/x | sh"]), "sh", None),
            (json!(["sh", "-c", "bash -s < /scripts/x"]), "bash", None),
            (json!(["sh", "-c", "eval \"$(cat /scripts/x)\""]), "eval", None),
            (json!(["sh", "-c", "$(cat /scripts/x)"]), "$()", None),
            (json!(["sh", "-c", "echo '(('; leave-cluster; echo '))'"]), "leave-cluster", None),
            (json!(["sh", "-c", "trap leave-cluster EXIT"]), "leave-cluster", None),
            (json!(["sh", "-c", "echo 1 | xargs -n 1 leave-cluster"]), "leave-cluster", None),
            (json!(["bash", "-c", "function stop { leave-cluster; }; stop"]), "leave-cluster", None),
            (json!(["sh", "-c", "stop() { leave-cluster; }\nstop"]), "leave-cluster", None),
            (json!(["python3", "-c", "import leave"]), "python3", None),
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
            json!(["sh", "-c", "leave() { sleep 5; }; leave"]),
            json!(["bash", "-c", "function leave {\nsleep 5\n}\nif [[ -n $A && $B == c ]]; then leave; fi"]),
            json!(["bash", "-c", "i=0; while ((i < 5)); do sleep 1; i=$((i + 1)); done"]),
            json!(["sh", "-c", "case $(hostname) in\n*-0) sleep 9;;\n*) exit 0;;\nesac"]),
            json!(["tini", "--", "sleep", "5"]),
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
        let effect = |content: &str| effect_of_script(&pod, &pod.spec.containers[0], true, content);
        assert_eq!(effect("#!/bin/sh\nsleep 5\netcdctl move-leader $ID\n"), HookEffect::KeepsMember);
        assert_eq!(effect(BEYOND_SIZE), HookEffect::KeepsMember);
        assert_eq!(effect("#!/bin/bash\netcdctl member remove $ID\n"), HookEffect::RemovesMember);
        let HookEffect::Unknown(nested) = effect("#!/bin/bash\n. /opt/scripts/lib.sh\nleave\n") else {
            panic!()
        };
        assert_eq!(nested[0].to_string(), "/opt/scripts/lib.sh (another script runs it)");
    }
}
