//! The settings of a member, from the flags and the `ETCD_` environment variables of its container, or from its
//! configuration file.
//!
//! Source: etcd `server/etcdmain/config.go`: each flag has a variable with its name in capitals, and the flag
//! takes precedence. With a configuration file, etcd ignores all flags and variables.

mod config_file;

use std::collections::BTreeMap;

use crate::{
    discovery::recognition::command_words,
    objects::pod::{Container, EnvVar, Pod},
};

/// Maximum number of bytes that references expand to, in total. Linux does not start a process with more arguments and
/// environment by default (`execve(2)`: a quarter of a stack of 8 MiB). Without a limit, variables that each reference the
/// previous one twice grow exponentially.
pub const MAX_EXPANDED_BYTES: usize = 2 << 20;

/// Maximum length of a variable name in bytes, which bounds the search for a closing bracket. Without a limit, a text of
/// opening brackets costs quadratic time.
const MAX_NAME_BYTES: usize = 256;

/// The settings of one member.
pub struct MemberSettings {
    flags: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
}

// === impl MemberSettings ===

impl MemberSettings {
    /// Reads the command, the arguments and the environment of the container that runs etcd.
    pub fn read(pod: &Pod, container: &Container) -> Self {
        let mut remaining = MAX_EXPANDED_BYTES;
        let environment = environment(pod, container, &mut remaining);
        let mut flags = BTreeMap::new();
        let mut words = command_words(container).into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, words.next_if(|next| !next.starts_with('-'))),
            };
            flags.insert(name.to_owned(), expand(value.unwrap_or("true"), &environment, &mut remaining));
        }
        Self { flags, environment }
    }

    /// Reads the content of etcd's configuration file. The error states the reason why it cannot be read.
    pub fn from_config_file(content: &str) -> Result<Self, String> {
        Ok(Self { flags: config_file::read(content)?, environment: BTreeMap::new() })
    }

    /// Returns the path of etcd's configuration file.
    pub fn config_file(&self) -> Option<&str> {
        self.get("config-file")
    }

    /// Whether the member issues its own certificate for clients, which no CA verifies. A configured certificate takes
    /// precedence.
    pub fn issues_own_certificate(&self) -> bool {
        self.is_enabled("auto-tls") && self.get("cert-file").is_none()
    }

    /// Whether a setting that is true or false is true, in one of the forms of Go's `strconv.ParseBool`.
    pub fn is_enabled(&self, flag: &str) -> bool {
        self.get(flag).is_some_and(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    /// Returns the value of a setting by the name of its flag without dashes. An empty value counts as unset.
    pub fn get(&self, flag: &str) -> Option<&str> {
        let variable = || format!("ETCD_{}", flag.replace('-', "_").to_uppercase());
        let value = self.flags.get(flag).or_else(|| self.environment.get(&variable()))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of an environment variable of the container.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Returns the names of the members in `--initial-cluster`, without duplicates. Returns no names if the setting is
    /// absent or has no effect, or if the pod's specification does not contain its whole value.
    pub fn initial_members(&self) -> Vec<String> {
        // With a configuration file, etcd ignores all flags and variables.
        if ["config-file", "discovery", "discovery-srv", "discovery-endpoints"]
            .iter()
            .any(|flag| self.get(flag).is_some())
        {
            return Vec::new();
        }
        let mut names: Vec<String> = Vec::new();
        for entry in self.get("initial-cluster").unwrap_or_default().split(',') {
            match entry.split_once('=') {
                Some((name, url))
                    if !name.is_empty() && url.contains("://") && !entry.contains(['$', '`']) =>
                {
                    // A member with several peer URLs has an entry for each of them.
                    if names.iter().all(|known| known != name) {
                        names.push(name.to_owned());
                    }
                }
                _ => return Vec::new(),
            }
        }
        names
    }

    /// Returns the values of all flags and variables.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.flags.values().chain(self.environment.values()).map(String::as_str)
    }
}

fn environment(pod: &Pod, container: &Container, remaining: &mut usize) -> BTreeMap<String, String> {
    let hostname = if pod.spec.hostname.is_empty() { &pod.metadata.name } else { &pod.spec.hostname };
    let mut known = BTreeMap::from([(String::from("HOSTNAME"), hostname.clone())]);
    for variable in &container.env {
        if let Some(value) = value(pod, variable) {
            let value = expand(&value, &known, remaining);
            known.insert(variable.name.clone(), value);
        }
    }
    known
}

/// Returns the value of a variable if the pod's specification contains it. References to Secrets and `ConfigMaps` are not read.
fn value(pod: &Pod, variable: &EnvVar) -> Option<String> {
    if let Some(value) = &variable.value {
        return Some(value.clone());
    }
    let field = &variable.value_from.as_ref()?.field_ref.as_ref()?.field_path;
    match field.as_str() {
        "metadata.name" => Some(pod.metadata.name.clone()),
        "metadata.namespace" => Some(pod.metadata.namespace.clone()),
        "metadata.uid" => Some(pod.metadata.uid.clone()),
        "status.podIP" => Some(pod.status.pod_ip.clone()),
        _ => None,
    }
}

/// Expands `$(NAME)` as Kubernetes does, and `${NAME}` and `$NAME` as a shell does. References to unknown variables
/// remain, and so do references whose value is longer than `remaining` bytes.
fn expand(text: &str, known: &BTreeMap<String, String>, remaining: &mut usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (name, tail) = split_reference(after);
        match known.get(name) {
            Some(value) if !name.is_empty() && value.len() <= *remaining => {
                out.push_str(value);
                *remaining -= value.len();
                rest = tail;
            }
            _ => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

/// Splits the text after a dollar sign into the name of the variable and the remaining text.
fn split_reference(after: &str) -> (&str, &str) {
    for (open, close) in [('(', b')'), ('{', b'}')] {
        let Some(inner) = after.strip_prefix(open) else { continue };
        let end = inner.bytes().take(MAX_NAME_BYTES).position(|byte| byte == close);
        if let Some((name, tail)) = end.and_then(|end| inner.split_at_checked(end)) {
            return (name, tail.get(1..).unwrap_or_default());
        }
    }
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
    after.split_at(end)
}
