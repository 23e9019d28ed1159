//! Validation of a template: everything that an API server would reject or drop in every pod that gets the template.

use std::{collections::BTreeSet, net::IpAddr};

use json_patch::jsonptr::Token;
use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::Template;
use crate::{
    config::validation::{
        MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS, Validator,
        pod_parts::{check_container_enums, check_items, check_typed, check_variables, items, text},
        syntax::{
            MAX_NAME_LENGTH, check_annotation_key, check_key, check_label_value, check_name, check_toleration,
        },
    },
    json::SharedJson,
};

/// Prefixes of the keys that control injection. A template with such a key would control its own injection.
const RESERVED_KEYS: [&str; 2] = ["etcd-guard.io/", "sidecar-injector.lxcfs/"];

// === impl Template ===

impl Template {
    pub(in crate::config) fn validate(&self, validator: &mut Validator<'_>) {
        check_name(&self.name, &mut validator.at("name"));
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !self.version.bytes().all(is_allowed) || self.version.len() > MAX_NAME_LENGTH {
            let message = format!(
                "{:?} is not a version: expected at most {MAX_NAME_LENGTH} letters, digits, -, . and _",
                self.version
            );
            validator.at("version").report(message);
        }
        for (key, selector) in [("match", &self.always), ("never", &self.never)] {
            if let Some(selector) = selector {
                selector.validate(&mut validator.at(key));
            }
        }
        let known_fields_only = !self.allow_unknown_fields;
        check_items::<v1::Volume>(&self.volumes, known_fields_only, &mut validator.at("volumes"));
        check_items::<v1::Container>(&self.containers, known_fields_only, &mut validator.at("containers"));
        check_items::<v1::Container>(
            &self.init_containers,
            known_fields_only,
            &mut validator.at("initContainers"),
        );
        check_items::<v1::EnvVar>(
            &self.app_containers.env,
            known_fields_only,
            &mut validator.at("appContainers").at("env"),
        );
        check_items::<v1::VolumeMount>(
            &self.app_containers.volume_mounts,
            known_fields_only,
            &mut validator.at("appContainers").at("volumeMounts"),
        );
        check_items::<v1::LocalObjectReference>(
            &self.image_pull_secrets,
            known_fields_only,
            &mut validator.at("imagePullSecrets"),
        );
        check_items::<v1::Toleration>(&self.tolerations, known_fields_only, &mut validator.at("tolerations"));
        if let Some(affinity) = &self.affinity {
            check_typed::<v1::Affinity>(affinity, known_fields_only, &mut validator.at("affinity"));
            let terms = affinity
                .pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
            if terms.and_then(Value::as_array).is_some_and(|terms| terms.len() > 1) {
                validator
                    .at("affinity")
                    .at("nodeAffinity")
                    .report("has more than one entry in nodeSelectorTerms");
            }
        }
        if let Some(context) = &self.security_context {
            check_typed::<v1::PodSecurityContext>(
                context,
                known_fields_only,
                &mut validator.at("securityContext"),
            );
        }
        self.validate_name_resolution(known_fields_only, validator);
        for (index, transfer) in self.transfer_env.iter().enumerate() {
            transfer.validate(self.container_names(), &mut validator.at("transferEnv").at(index));
        }
        self.validate_containers(validator);
        self.validate_volumes(validator);
        let variables = self.app_containers.env.iter().map(SharedJson::value);
        check_variables(variables, &mut validator.at("appContainers").at("env"));
        for (index, toleration) in self.tolerations.iter().enumerate() {
            check_toleration(toleration, known_fields_only, &mut validator.at("tolerations").at(index));
        }
        for (key, value) in &self.labels {
            let mut validator = validator.at("labels");
            let mut validator = validator.at(Token::new(key).into_owned());
            check_key(key, &mut validator);
            check_label_value(value, &mut validator);
        }
        for key in self.annotations.keys() {
            check_annotation_key(key, &mut validator.at("annotations").at(Token::new(key).into_owned()));
        }
        for (section, map) in [("annotations", &self.annotations), ("labels", &self.labels)] {
            for key in map.keys().filter(|key| RESERVED_KEYS.iter().any(|reserved| key.contains(reserved))) {
                let message = "controls injection and is not allowed in a template";
                validator.at(section).at(Token::new(key).into_owned()).report(message);
            }
        }
    }

    /// Validates the settings of name resolution.
    fn validate_name_resolution(&self, known_fields_only: bool, validator: &mut Validator<'_>) {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        if let Some(dns) = &self.dns_config {
            let mut validator = validator.at("dnsConfig");
            check_typed::<v1::PodDNSConfig>(dns, known_fields_only, &mut validator);
            for (key, max) in [("nameservers", MAX_NAME_SERVERS), ("searches", MAX_SEARCH_DOMAINS)] {
                let items = dns.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                if items.len() > max {
                    validator.at(key).report(format!("has more than {max} items, the maximum of a pod"));
                }
                for (index, item) in items.iter().enumerate().filter(|_| key == "nameservers") {
                    if item.as_str().is_some_and(|address| !is_address(address)) {
                        validator.at(key).at(index).report(format!("{item} is not an IP address"));
                    }
                }
            }
        }
        check_items::<v1::HostAlias>(&self.host_aliases, known_fields_only, &mut validator.at("hostAliases"));
        for (index, alias) in self.host_aliases.iter().enumerate() {
            if let Some(ip) = text(alias, "ip").filter(|ip| !is_address(ip)) {
                let message = format!("{ip:?} is not an IP address");
                validator.at("hostAliases").at(index).at("ip").report(message);
            }
        }
    }

    fn validate_containers(&self, validator: &mut Validator<'_>) {
        let mut names = BTreeSet::new();
        for (list, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let mut validator = validator.at(list);
                let mut validator = validator.at(index);
                if let Some(name) = text(container, "name") {
                    check_name(name, &mut validator.at("name"));
                    if !name.is_empty() && !names.insert(name) {
                        validator.at("name").report(format!("container name {name} is used more than once"));
                    }
                }
                match text(container, "image") {
                    Some("") => validator.at("image").report("is empty"),
                    Some(image) if image.trim() != image => {
                        validator.at("image").report(format!("{image:?} starts or ends with white space"));
                    }
                    _ => {}
                }
                if !self.allow_unknown_fields {
                    check_container_enums(container, &mut validator);
                }
                check_variables(items(container, "env"), &mut validator.at("env"));
                match container.get("restartPolicy").filter(|policy| !policy.is_null()) {
                    None => {}
                    Some(_) if list == "containers" => {
                        validator.at("restartPolicy").report("is valid only in initContainers; see native");
                    }
                    Some(policy) if policy == "Always" => {}
                    Some(_) => validator.at("restartPolicy").report("must be Always"),
                }
            }
        }
    }

    /// Checks that every mount has a volume and that the mount paths of a container are unique.
    fn validate_volumes(&self, validator: &mut Validator<'_>) {
        let mut volumes: BTreeSet<&str> = self.external_volumes.iter().map(String::as_str).collect();
        for (index, volume) in self.volumes.iter().enumerate() {
            let mut validator = validator.at("volumes");
            let mut validator = validator.at(index);
            let Some(name) = text(volume, "name") else { continue };
            check_name(name, &mut validator.at("name"));
            if !name.is_empty() && !volumes.insert(name) {
                validator.at("name").report(format!("volume name {name} is used more than once"));
            }
        }
        let check_mounts = |mounts: &mut dyn Iterator<Item = &Value>, mut validator: Validator<'_>| {
            let mut paths = BTreeSet::new();
            for (index, mount) in mounts.enumerate() {
                if let Some(name) = text(mount, "name").filter(|name| !volumes.contains(name)) {
                    let message = format!(
                        "unknown volume {name:?}: add it to volumes, or to externalVolumes if the pod defines it"
                    );
                    validator.at(index).at("name").report(message);
                }
                let Some(path) = text(mount, "mountPath") else { continue };
                if !path.starts_with('/') {
                    validator.at(index).at("mountPath").report(format!("{path:?} is not an absolute path"));
                } else if path.contains(':') {
                    validator
                        .at(index)
                        .at("mountPath")
                        .report(format!("{path:?} contains ':', which is not allowed in a mount path"));
                } else if !paths.insert(path) {
                    validator
                        .at(index)
                        .at("mountPath")
                        .report(format!("mount path {path} is used more than once"));
                }
            }
        };
        for (list, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let mut validator = validator.at(list);
                let mut validator = validator.at(index);
                check_mounts(&mut items(container, "volumeMounts").iter(), validator.at("volumeMounts"));
            }
        }
        let mut mounts = self.app_containers.volume_mounts.iter().map(SharedJson::value);
        check_mounts(&mut mounts, validator.at("appContainers").at("volumeMounts"));
    }
}
