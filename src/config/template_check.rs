//! What is wrong with a template: whatever the apiserver would refuse or drop in every pod that gets it.

use std::{collections::BTreeSet, net::IpAddr};

use json_patch::jsonptr::Token;
use k8s_openapi::api::core::v1;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Check,
    document::Part,
    quantities,
    syntax::{
        LONGEST_NAME, check_annotation_key, check_key, check_label_value, check_name, check_toleration,
        check_word,
    },
    template::Template,
};
use crate::json::Shared;

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
        let variables = self.app_containers.env.iter().map(Shared::value);
        check_variables(variables, &mut check.at("appContainers").at("env"));
        for (index, toleration) in self.tolerations.iter().enumerate() {
            check_toleration(toleration, known, &mut check.at("tolerations").at(index));
        }
        for (key, value) in &self.labels {
            let mut check = check.at("labels");
            let mut check = check.at(Token::new(key).into_owned());
            check_key(key, &mut check);
            check_label_value(value, &mut check);
        }
        for key in self.annotations.keys() {
            check_annotation_key(key, &mut check.at("annotations").at(Token::new(key).into_owned()));
        }
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
            if let Some(ip) = text(alias, "ip").filter(|ip| !is_address(ip)) {
                let text = format!("{ip:?} is no IP address");
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
                if let Some(name) = text(container, "name") {
                    check_name(name, &mut check.at("name"));
                    if !name.is_empty() && !names.insert(name) {
                        check.at("name").say(format!("{name} is the name of another container"));
                    }
                }
                match text(container, "image") {
                    Some("") => check.at("image").say("is empty"),
                    Some(image) if image.trim() != image => {
                        check.at("image").say(format!("{image:?} begins or ends with a blank"));
                    }
                    _ => {}
                }
                if !self.allow_unknown_fields {
                    check_words(container, &mut check);
                }
                check_variables(items(container, "env"), &mut check.at("env"));
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
            let Some(name) = text(volume, "name") else { continue };
            check_name(name, &mut check.at("name"));
            if !name.is_empty() && !volumes.insert(name) {
                check.at("name").say(format!("{name} is the name of another volume"));
            }
        }
        let check_mounts = |mounts: &mut dyn Iterator<Item = &Value>, mut check: Check<'_>| {
            let mut paths = BTreeSet::new();
            for (index, mount) in mounts.enumerate() {
                if let Some(name) = text(mount, "name").filter(|it| !volumes.contains(it)) {
                    let text =
                        format!("there is no volume {name:?}; one of the pod is named in externalVolumes");
                    check.at(index).at("name").say(text);
                }
                let Some(path) = text(mount, "mountPath") else { continue };
                if !path.starts_with('/') {
                    check.at(index).at("mountPath").say(format!("{path:?} is no absolute path"));
                } else if path.contains(':') {
                    check
                        .at(index)
                        .at("mountPath")
                        .say(format!("{path:?} has a ':', which no mount's path may"));
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
                check_mounts(&mut items(container, "volumeMounts").iter(), check.at("volumeMounts"));
            }
        }
        let mut mounts = self.app_containers.volume_mounts.iter().map(Shared::value);
        check_mounts(&mut mounts, check.at("appContainers").at("volumeMounts"));
    }
}

/// The words that a container may choose of (`pkg/apis/core/types.go`).
fn check_words(container: &Value, check: &mut Check<'_>) {
    check_word(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], check);
    check_word(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], check);
    for (index, port) in items(container, "ports").iter().enumerate() {
        check_word(port, "protocol", &["TCP", "UDP", "SCTP"], &mut check.at("ports").at(index));
    }
}

fn check_variables<'a>(variables: impl IntoIterator<Item = &'a Value>, check: &mut Check<'_>) {
    for (index, variable) in variables.into_iter().enumerate() {
        match text(variable, "name") {
            Some("") => check.at(index).at("name").say("is empty"),
            Some(name) if name.contains('=') => {
                check.at(index).at("name").say(format!("{name:?} has a '=', which no variable's name may"));
            }
            _ => {}
        }
    }
}

/// A field's text: empty where there is none; `None` where it is no text, which its type has said.
fn text<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    match part.as_object()?.get(key) {
        None | Some(Value::Null) => Some(""),
        Some(field) => field.as_str(),
    }
}

/// The list of this key; none where it is none.
fn items<'a>(part: &'a Value, key: &str) -> &'a [Value] {
    part.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn check_items<T: Serialize + DeserializeOwned>(items: &[Shared], known: bool, check: &mut Check<'_>) {
    for (index, item) in items.iter().enumerate() {
        check_typed::<T>(item, known, &mut check.at(index));
    }
}

/// Whether a part of a pod is what its type says. A field that the type does not know would vanish in the apiserver.
fn check_typed<T: Serialize + DeserializeOwned>(value: &Value, known: bool, check: &mut Check<'_>) {
    let mut value = value.clone();
    quantities::write_as_texts(&mut value);
    quantities::check(&mut value, check);
    let mut part = Part::from(value);
    let fitted = part.fit::<T>(|part, place, text| check.at_place(&part.in_text(place).0).say(text));
    if let Some(typed) = fitted.and_then(|it| serde_json::to_value(it).ok()).filter(|_| known) {
        let mut unknown = Vec::new();
        check_known(&part.value(), &typed, &mut Check::new(&mut unknown));
        for (place, text) in unknown {
            check.at_place(&part.in_text(&place).0).say(text);
        }
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
