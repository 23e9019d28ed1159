//! Validation of a template: everything that an API server would reject or drop in every pod that gets the template.

use json_patch::jsonptr::Token;
use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::{Native, Template};
use crate::config::{
    pod::{
        Container, ContainerKind, check_affinity, check_containers, check_mounts, check_name_resolution,
        check_pod_security_context, check_variables, check_volumes,
    },
    pod_parts::{check_items, check_typed, text},
};
use etcd_guard_core::config::{
    diagnostic::Validator,
    syntax::{
        MAX_NAME_LENGTH, check_annotation_key, check_key, check_label_value, check_name, check_toleration,
    },
};

/// Prefixes of the keys that control injection. A template with such a key would control its own injection.
const RESERVED_KEYS: [&str; 2] = ["etcd-guard.io/", "sidecar-injector.lxcfs/"];

// === impl Template ===

impl Template {
    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
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
        if let Some(dns) = &self.dns_config {
            check_typed::<v1::PodDNSConfig>(dns, known_fields_only, &mut validator.at("dnsConfig"));
        }
        check_items::<v1::HostAlias>(&self.host_aliases, known_fields_only, &mut validator.at("hostAliases"));
        self.validate_pod_parts(known_fields_only, validator);
        for (index, transfer) in self.transfer_env.iter().enumerate() {
            transfer.validate(self.container_names(), &mut validator.at("transferEnv").at(index));
        }
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

    /// Validates the parts by the rules of an API server.
    fn validate_pod_parts(&self, known_fields_only: bool, validator: &mut Validator<'_>) {
        let external = self.external_volumes.iter().map(String::as_str);
        let volumes = check_volumes(&self.volumes, external, known_fields_only, validator);
        let container_kind = match self.native {
            Some(Native::True) => ContainerKind::NativeSidecar,
            _ => ContainerKind::Ordinary,
        };
        let kind = |container: &Value| match text(container, "restartPolicy") {
            Some("Always") => ContainerKind::NativeSidecar,
            _ => ContainerKind::Init,
        };
        let containers = self.containers.iter().enumerate().map(|(index, container)| Container {
            position: ("containers", index),
            value: container,
            kind: container_kind,
        });
        let init_containers = self.init_containers.iter().enumerate().map(|(index, container)| Container {
            position: ("initContainers", index),
            value: container,
            kind: kind(container),
        });
        let containers: Vec<_> = containers.chain(init_containers).collect();
        check_containers(&containers, &volumes, known_fields_only, validator);
        let variables = self.app_containers.env.iter();
        check_variables(variables, known_fields_only, &mut validator.at("appContainers").at("env"));
        let mounts = self.app_containers.volume_mounts.iter();
        let mut app = validator.at("appContainers");
        check_mounts(mounts, &volumes, false, known_fields_only, &mut app.at("volumeMounts"));
        if let Some(affinity) = &self.affinity {
            check_affinity(affinity, known_fields_only, &mut validator.at("affinity"));
        }
        if let Some(context) = &self.security_context {
            check_pod_security_context(context, known_fields_only, &mut validator.at("securityContext"));
        }
        check_name_resolution(self.dns_config.as_ref(), &self.host_aliases, validator);
    }
}
