//! etcd's settings as a container hands them over: flags, then `ETCD_` variables.
//!
//! Source: etcd `server/etcdmain/config.go`: every flag has a variable of its name in capitals, and the flag wins.

use std::collections::BTreeMap;

use super::program::words_of;
use crate::k8s::pod::{Container, EnvVar, Pod};

/// The most bytes that are put in the place of all names together: Linux by default starts no process with more arguments
/// and environment (`execve(2)`: a quarter of a stack of 8 MiB). Without a limit variables that each name the one before
/// twice have no end.
pub(super) const MOST_PUT_IN: usize = 2 << 20;

/// No variable has a longer name. How far a closing bracket is looked for: without a limit a text of opening ones costs the
/// square of its length.
const LONGEST_NAME: usize = 256;

/// The settings of one member.
pub(super) struct Settings {
    flags: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
}

// === impl Settings ===

impl Settings {
    /// Reads command, arguments and environment of the container that runs etcd.
    pub(super) fn read(pod: &Pod, container: &Container) -> Self {
        let mut left = MOST_PUT_IN;
        let environment = environment(pod, container, &mut left);
        let mut flags = BTreeMap::new();
        let mut words = words_of(container).into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, words.next_if(|next| !next.starts_with('-'))),
            };
            flags.insert(name.to_owned(), expand(value.unwrap_or("true"), &environment, &mut left));
        }
        Self { flags, environment }
    }

    /// The value of a setting, by the name of its flag without dashes.
    pub(super) fn get(&self, flag: &str) -> Option<&str> {
        let variable = || format!("ETCD_{}", flag.replace('-', "_").to_uppercase());
        let value = self.flags.get(flag).or_else(|| self.environment.get(&variable()))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// All values there are.
    #[cfg(any(test, fuzzing))]
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.flags.values().chain(self.environment.values()).map(String::as_str)
    }
}

fn environment(pod: &Pod, container: &Container, left: &mut usize) -> BTreeMap<String, String> {
    let mut known = BTreeMap::from([(String::from("HOSTNAME"), pod.metadata.name.clone())]);
    for variable in &container.env {
        if let Some(value) = value(pod, variable) {
            let value = expand(&value, &known, left);
            known.insert(variable.name.clone(), value);
        }
    }
    known
}

/// A variable's value where the pod tells it; what comes from a `Secret` or a `ConfigMap` is not read.
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

/// Puts in `$(NAME)` as Kubernetes does, and `${NAME}` and `$NAME` as a shell does. What is unknown stays as it is, and
/// so does what is longer than what is `left` to be put in.
fn expand(text: &str, known: &BTreeMap<String, String>, left: &mut usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let (name, tail) = reference(after);
        match known.get(name) {
            Some(value) if !name.is_empty() && value.len() <= *left => {
                out.push_str(value);
                *left -= value.len();
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

/// The name that follows a dollar sign, and what follows the name.
fn reference(after: &str) -> (&str, &str) {
    for (open, close) in [('(', b')'), ('{', b'}')] {
        let Some(inner) = after.strip_prefix(open) else { continue };
        let end = inner.bytes().take(LONGEST_NAME).position(|byte| byte == close);
        if let Some((name, tail)) = end.and_then(|end| inner.split_at_checked(end)) {
            return (name, tail.get(1..).unwrap_or_default());
        }
    }
    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
    after.split_at(end)
}
