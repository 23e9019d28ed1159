//! What is wrong with a template: whatever the apiserver would refuse or drop in every pod that gets it.

use std::{collections::BTreeSet, net::IpAddr};

use json_patch::jsonptr::Token;
use k8s_openapi::api::core::v1;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::{Check, template::Template};
use crate::json::Shared;

/// The longest name of a container or a volume: a DNS label.
const LONGEST_NAME: usize = 63;

/// Keys that decide what is injected: a template that wrote them would decide about itself.
const OWN_KEYS: [&str; 2] = ["etcd-guard.io/", "sidecar-injector.lxcfs/"];

/// The most name servers that the apiserver takes (`pkg/apis/core/validation/validation.go`).
pub const MOST_NAME_SERVERS: usize = 3;
/// The most search domains that it takes.
pub const MOST_SEARCHES: usize = 32;

// === impl Template ===

impl Template {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        check_name(&self.name, &mut check.at("name"));
        let can_be = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !self.version.bytes().all(can_be) || self.version.len() > LONGEST_NAME {
            let text = format!("{:?} is no version: letters, digits, -, . and _ are expected", self.version);
            check.at("version").say(text);
        }
        for (key, selector) in [("match", &self.always), ("never", &self.never)] {
            if let Some(selector) = selector {
                selector.check(&mut check.at(key));
            }
        }
        let known = !self.allow_unknown_fields;
        check_items::<v1::Volume>(&self.volumes, known, &mut check.at("volumes"));
        check_items::<v1::Container>(&self.containers, known, &mut check.at("containers"));
        check_items::<v1::Container>(&self.init_containers, known, &mut check.at("initContainers"));
        check_items::<v1::EnvVar>(&self.app_containers.env, known, &mut check.at("appContainers").at("env"));
        check_items::<v1::VolumeMount>(
            &self.app_containers.volume_mounts,
            known,
            &mut check.at("appContainers").at("volumeMounts"),
        );
        check_items::<v1::LocalObjectReference>(
            &self.image_pull_secrets,
            known,
            &mut check.at("imagePullSecrets"),
        );
        check_items::<v1::Toleration>(&self.tolerations, known, &mut check.at("tolerations"));
        if let Some(affinity) = &self.affinity {
            check_typed::<v1::Affinity>(affinity, known, &mut check.at("affinity"));
            let terms = affinity
                .pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
            if terms.and_then(Value::as_array).is_some_and(|it| it.len() > 1) {
                check.at("affinity").at("nodeAffinity").say("has more than one of nodeSelectorTerms");
            }
        }
        if let Some(context) = &self.security_context {
            check_typed::<v1::PodSecurityContext>(context, known, &mut check.at("securityContext"));
        }
        self.check_names(known, check);
        for (index, transfer) in self.transfer_env.iter().enumerate() {
            transfer.check(self.container_names(), &mut check.at("transferEnv").at(index));
        }
        self.check_containers(check);
        self.check_volumes(check);
        for (section, map) in [("annotations", &self.annotations), ("labels", &self.labels)] {
            for key in map.keys().filter(|key| OWN_KEYS.iter().any(|own| key.contains(own))) {
                let text = "decides what is injected, which a template cannot";
                check.at(section).at(Token::new(key).into_owned()).say(text);
            }
        }
    }

    /// How names become addresses.
    fn check_names(&self, known: bool, check: &mut Check<'_>) {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        if let Some(dns) = &self.dns_config {
            let mut check = check.at("dnsConfig");
            check_typed::<v1::PodDNSConfig>(dns, known, &mut check);
            for (key, most) in [("nameservers", MOST_NAME_SERVERS), ("searches", MOST_SEARCHES)] {
                let items = dns.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                if items.len() > most {
                    check.at(key).say(format!("has more than {most}, which no pod may have"));
                }
                for (index, item) in items.iter().enumerate().filter(|_| key == "nameservers") {
                    if item.as_str().is_some_and(|it| !is_address(it)) {
                        check.at(key).at(index).say(format!("{item} is no IP address"));
                    }
                }
            }
        }
        check_items::<v1::HostAlias>(&self.host_aliases, known, &mut check.at("hostAliases"));
        for (index, alias) in self.host_aliases.iter().enumerate() {
            if !is_address(text(alias, "ip")) {
                let text = format!("{:?} is no IP address", text(alias, "ip"));
                check.at("hostAliases").at(index).at("ip").say(text);
            }
        }
    }

    fn check_containers(&self, check: &mut Check<'_>) {
        let mut names = BTreeSet::new();
        for (list, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let mut check = check.at(list);
                let mut check = check.at(index);
                let name = text(container, "name");
                check_name(name, &mut check.at("name"));
                if !name.is_empty() && !names.insert(name) {
                    check.at("name").say(format!("{name} is the name of another container"));
                }
                if text(container, "image").is_empty() {
                    check.at("image").say("is empty");
                }
                match container.get("restartPolicy").filter(|it| !it.is_null()) {
                    None => {}
                    Some(_) if list == "containers" => {
                        check.at("restartPolicy").say("is for initContainers only; see native");
                    }
                    Some(policy) if policy == "Always" => {}
                    Some(_) => check.at("restartPolicy").say("can only be Always"),
                }
            }
        }
    }

    /// Every mount has its volume, and no two mounts of a container are at one path.
    fn check_volumes(&self, check: &mut Check<'_>) {
        let mut volumes: BTreeSet<&str> = self.external_volumes.iter().map(String::as_str).collect();
        for (index, volume) in self.volumes.iter().enumerate() {
            let mut check = check.at("volumes");
            let mut check = check.at(index);
            let name = text(volume, "name");
            check_name(name, &mut check.at("name"));
            if !name.is_empty() && !volumes.insert(name) {
                check.at("name").say(format!("{name} is the name of another volume"));
            }
        }
        let check_mounts = |mounts: Option<&Value>, mut check: Check<'_>| {
            let mut paths = BTreeSet::new();
            for (index, mount) in mounts.and_then(Value::as_array).into_iter().flatten().enumerate() {
                let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
                if !volumes.contains(name) {
                    let text =
                        format!("there is no volume {name:?}; one of the pod is named in externalVolumes");
                    check.at(index).at("name").say(text);
                }
                if !path.starts_with('/') {
                    check.at(index).at("mountPath").say(format!("{path:?} is no absolute path"));
                } else if !paths.insert(path) {
                    check.at(index).at("mountPath").say(format!("{path} is mounted twice"));
                }
            }
        };
        for (list, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let mut check = check.at(list);
                let mut check = check.at(index);
                check_mounts(container.get("volumeMounts"), check.at("volumeMounts"));
            }
        }
        let mounts: Value = self.app_containers.volume_mounts.iter().map(|it| it.value().clone()).collect();
        check_mounts(Some(&mounts), check.at("appContainers").at("volumeMounts"));
    }
}

fn text<'a>(part: &'a Value, key: &str) -> &'a str {
    part.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn check_name(name: &str, check: &mut Check<'_>) {
    let fits = name.len() <= LONGEST_NAME
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-');
    if name.is_empty() {
        check.say("is empty");
    } else if !fits {
        check.say(format!("{name:?} is no name: a-z, 0-9 and -, at most {LONGEST_NAME}, are expected"));
    }
}

fn check_items<T: Serialize + DeserializeOwned>(items: &[Shared], known: bool, check: &mut Check<'_>) {
    for (index, item) in items.iter().enumerate() {
        check_typed::<T>(item, known, &mut check.at(index));
    }
}

/// Whether a part of a pod is what its type says. A field that the type does not know would vanish in the apiserver.
fn check_typed<T: Serialize + DeserializeOwned>(value: &Value, known: bool, check: &mut Check<'_>) {
    let typed = match serde_path_to_error::deserialize::<_, T>(value) {
        Ok(typed) => typed,
        Err(error) => {
            let steps: Vec<Token<'static>> = error.path().iter().filter_map(step).collect();
            say_at(check, &steps, error.inner().to_string());
            return;
        }
    };
    if let Some(typed) = serde_json::to_value(&typed).ok().filter(|_| known) {
        check_known(value, &typed, check);
    }
}

fn step(segment: &Segment) -> Option<Token<'static>> {
    match segment {
        Segment::Seq { index } => Some(Token::from(*index)),
        Segment::Map { key } => Some(Token::new(key.as_str()).into_owned()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

fn say_at(check: &mut Check<'_>, steps: &[Token<'static>], text: String) {
    match steps.split_first() {
        None => check.say(text),
        Some((first, rest)) => say_at(&mut check.at(first.clone()), rest, text),
    }
}

/// Every field of `value` must have survived in what its type wrote back.
fn check_known(value: &Value, typed: &Value, check: &mut Check<'_>) {
    match (value, typed) {
        (Value::Object(fields), Value::Object(typed)) => {
            for (key, field) in fields.iter().filter(|(_, field)| !field.is_null()) {
                let mut check = check.at(Token::new(key).into_owned());
                match typed.get(key) {
                    Some(typed) => check_known(field, typed, &mut check),
                    None => check.say("is no field that Kubernetes knows; see allowUnknownFields"),
                }
            }
        }
        (Value::Array(items), Value::Array(typed)) => {
            for (index, (item, typed)) in items.iter().zip(typed).enumerate() {
                check_known(item, typed, &mut check.at(index));
            }
        }
        _ => {}
    }
}
