//! A template: parts that a pod gets together under one name.

mod from_pod;
mod shapes;
mod validate;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;

pub use self::from_pod::{Overrides, TransferEnv};
use crate::config::pod::{RestrictedParts, security_level::PodSecurity};
use etcd_guard_core::config::{
    quantities,
    selector::{Labels, Match},
};

/// Parts that a pod gets together under one name, written as in Kubernetes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Template {
    /// The name by which pods ask for the template. Required.
    pub name: String,
    /// For several templates of one name: pods ask for `name:version`. One of them has no version and is the default.
    pub version: String,
    /// Templates with a smaller number are applied first, those with the same number by name.
    pub order: i64,
    /// Pods that get the template without asking.
    #[serde(rename = "match")]
    #[schemars(extend("default" = null))]
    pub always: Option<Match>,
    /// Pods that get the template only if they ask themselves.
    #[schemars(extend("default" = null))]
    pub never: Option<Match>,
    /// Leave out pods with `hostNetwork`.
    pub skip_host_network: bool,
    /// Whether `containers` become native sidecars. Not set: `sidecars.native` decides.
    #[schemars(extend("default" = null))]
    pub native: Option<Native>,
    /// Whether `containers` come before or after the pod's own.
    pub position: Position,
    /// The pod has a container or volume of the same name. `adapt`: leave out the container, rename the volume. `skip`: leave
    /// out the template, with a warning.
    pub on_conflict: OnConflict,
    /// Containers to add.
    #[schemars(with = "Vec<shapes::Container>")]
    pub containers: Vec<Value>,
    /// Init containers to add. With `restartPolicy: Always` they are native sidecars.
    #[schemars(with = "Vec<shapes::Container>")]
    pub init_containers: Vec<Value>,
    /// Volumes to add.
    #[schemars(with = "Vec<shapes::Named>")]
    pub volumes: Vec<Value>,
    /// Names of volumes that the pod itself defines and that mounts of the template may use.
    pub external_volumes: Vec<String>,
    /// Additions to the pod's own containers. Existing variables and mounts stay.
    pub app_containers: AppContainers,
    /// Environment variables to copy from the pod to the template's containers that do not have them.
    pub transfer_env: Vec<TransferEnv>,
    /// Give the template's containers the mounts of the pod's containers that `appContainers` selects, except the service
    /// account's token and paths below /proc and /sys.
    pub share_volumes: bool,
    /// What a pod may override by annotations `CONTAINER.inject.etcd-guard.io/...`.
    pub overrides: Overrides,
    /// Secrets in the pod's namespace for pulling images.
    #[schemars(with = "Vec<shapes::Named>")]
    pub image_pull_secrets: Vec<Value>,
    /// Annotations to add. Existing ones stay.
    pub annotations: Labels,
    /// Labels to add. Existing ones stay.
    pub labels: Labels,
    /// Tolerations to add.
    #[schemars(with = "Vec<shapes::Anything>")]
    pub tolerations: Vec<Value>,
    /// Affinity to add. It can have one of `nodeSelectorTerms`, which is merged into each term of the pod.
    #[schemars(with = "shapes::Anything", extend("default" = null))]
    pub affinity: Option<Value>,
    /// The shortest grace period in seconds. A shorter one of the pod is raised to it.
    #[schemars(extend("default" = null))]
    pub termination_grace_period_seconds: Option<u32>,
    /// Name servers, search domains and options to add.
    #[schemars(with = "shapes::Anything", extend("default" = null))]
    pub dns_config: Option<Value>,
    /// Entries for /etc/hosts. Host names that the pod defines stay.
    #[schemars(with = "Vec<shapes::Anything>")]
    pub host_aliases: Vec<Value>,
    /// Fields of the pod's `securityContext` to set where the pod does not.
    #[schemars(with = "shapes::Anything", extend("default" = null))]
    pub security_context: Option<Value>,
    /// Accept fields that are newer than Kubernetes 1.33.
    pub allow_unknown_fields: bool,
    /// A hash of the template's content.
    #[serde(skip)]
    pub hash: String,
    /// The parts that the Pod Security levels reject.
    #[serde(skip)]
    pub pod_security: PodSecurity,
}

/// Additions to the pod's own containers. Existing variables and mounts stay.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AppContainers {
    /// The containers to change. Empty: all.
    pub only: Vec<String>,
    /// The containers not to change.
    pub except: Vec<String>,
    /// Environment variables to add.
    #[schemars(with = "Vec<shapes::Named>")]
    pub env: Vec<Value>,
    /// Volume mounts to add.
    #[schemars(with = "Vec<shapes::VolumeMount>")]
    pub volume_mounts: Vec<Value>,
}

/// Whether containers become native sidecars: init containers that run until the pod ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Native {
    /// If the API server and all kubelets have native sidecars. Otherwise, pods that end do not get the template.
    #[default]
    Auto,
    /// Always.
    True,
    /// Never.
    False,
}

/// Where containers are inserted into the containers of the pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Position {
    /// Before them. `kubectl exec` and `kubectl logs` still default to the pod's first container.
    First,
    /// After them.
    #[default]
    Last,
}

/// How to resolve a conflict of names. Parts of the pod itself are never changed.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OnConflict {
    /// Omit a container, with a warning; rename a volume.
    #[default]
    Adapt,
    /// Omit the whole template, with a warning.
    Skip,
}

// === impl Template ===

impl Template {
    /// The name with the version, if there is one: `log-agent:2`.
    pub fn full_name(&self) -> Cow<'_, str> {
        if self.version.is_empty() {
            Cow::Borrowed(&self.name)
        } else {
            Cow::Owned(format!("{}:{}", self.name, self.version))
        }
    }

    /// The names of all containers of the template.
    pub(crate) fn container_names(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().chain(&self.init_containers).filter_map(|part| part.get("name")?.as_str())
    }

    /// Normalizes the content and computes its hash.
    pub(crate) fn prepare(&mut self, native: Native) {
        self.native = self.native.or(Some(native));
        self.parts().for_each(drop_nulls);
        let parts = [
            &mut self.containers,
            &mut self.init_containers,
            &mut self.volumes,
            &mut self.app_containers.env,
        ];
        parts.into_iter().flatten().for_each(quantities::convert_to_strings);
        self.pod_security = self.evaluate_pod_security();
        let content = serde_json::json!([
            self.name,
            self.version,
            self.native,
            self.position == Position::First,
            self.on_conflict == OnConflict::Skip,
            self.skip_host_network,
            self.external_volumes,
            self.app_containers.only,
            self.app_containers.except,
            self.containers,
            self.init_containers,
            self.volumes,
            self.app_containers.env,
            self.app_containers.volume_mounts,
            self.image_pull_secrets,
            self.annotations,
            self.labels,
            self.tolerations,
            self.affinity,
            self.transfer_env,
            self.share_volumes,
            self.overrides,
            self.termination_grace_period_seconds,
            self.dns_config,
            self.host_aliases,
            self.security_context,
        ]);
        let digest = ring::digest::digest(&ring::digest::SHA256, content.to_string().as_bytes());
        // Twelve digits are enough to distinguish versions of a template.
        let digits = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.hash = digits.take(12).filter_map(|digit| char::from_digit(digit.into(), 16)).collect();
    }

    /// Evaluates the parts by the Pod Security Standards.
    fn evaluate_pod_security(&self) -> PodSecurity {
        let lists = [("containers", &self.containers), ("initContainers", &self.init_containers)];
        let containers = lists.into_iter().flat_map(|(list, containers)| {
            containers.iter().enumerate().map(move |(index, container)| (list, index, container))
        });
        PodSecurity::evaluate(&RestrictedParts {
            containers: containers.collect(),
            volumes: self.volumes.iter().collect(),
            security_context: self.security_context.as_ref(),
            annotations: self.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        })
    }

    /// All parts that are stored as JSON.
    fn parts(&mut self) -> impl Iterator<Item = &mut Value> {
        let lists = [
            &mut self.containers,
            &mut self.init_containers,
            &mut self.volumes,
            &mut self.app_containers.env,
            &mut self.app_containers.volume_mounts,
            &mut self.image_pull_secrets,
            &mut self.tolerations,
            &mut self.host_aliases,
        ];
        let singles = [&mut self.affinity, &mut self.dns_config, &mut self.security_context];
        lists.into_iter().flatten().chain(singles.into_iter().flatten())
    }
}

/// Removes members that are null. Kubernetes treats them as absent, so that a template with a null member would be
/// applied to the same pod again in each pass.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

// === impl Native ===

impl<'de> Deserialize<'de> for Native {
    /// Accepts `auto` and YAML booleans.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(true) => Ok(Self::True),
            Value::Bool(false) => Ok(Self::False),
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            other => Err(D::Error::custom(format!("unknown value {other}: expected auto, true or false"))),
        }
    }
}

impl JsonSchema for Native {
    fn schema_name() -> Cow<'static, str> {
        "Native".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether containers become native sidecars: init containers that run until the pod ends. \
                            `auto`: if the API server and all kubelets have native sidecars. Otherwise, pods that \
                            end do not get the template.",
            "enum": ["auto", true, false],
        })
    }
}
