//! A template: what a pod gets together under one name.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::Value;

use super::{Labels, Match, Overrides, TransferEnv, quantities, schema};
use crate::json::Shared;

/// What a pod gets under one name. Parts of a pod are written as in a pod.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Template {
    /// The name by which pods ask for it. Required.
    pub name: String,
    /// Tells templates of one name apart: pods ask for `name:version`. Of several, one has none, and a bare name means it.
    pub version: String,
    /// Templates are applied from the lowest order to the highest, and among equals by name.
    pub order: i64,
    /// Pods that get it without asking.
    #[serde(rename = "match")]
    #[schemars(extend("default" = null))]
    pub always: Option<Match>,
    /// Pods that get it only if they ask themselves.
    #[schemars(extend("default" = null))]
    pub never: Option<Match>,
    /// Whether pods in their node's network are left alone.
    pub skip_host_network: bool,
    /// Whether `containers` become native sidecars. Absent: as `sidecars.native` says.
    #[schemars(extend("default" = null))]
    pub native: Option<Native>,
    /// Where `containers` go among those of the pod.
    pub position: Position,
    /// What to do where the pod has a container or a volume of the same name.
    pub on_conflict: OnConflict,
    /// Containers that run beside those of the pod.
    #[schemars(with = "Vec<schema::Container>")]
    pub containers: Vec<Shared>,
    /// Init containers; with `restartPolicy: Always` native sidecars.
    #[schemars(with = "Vec<schema::Container>")]
    pub init_containers: Vec<Shared>,
    /// Volumes for all of these containers.
    #[schemars(with = "Vec<schema::Named>")]
    pub volumes: Vec<Shared>,
    /// Names of volumes that mounts may use and that the pod brings itself.
    pub external_volumes: Vec<String>,
    /// What the pod's own containers get.
    pub app_containers: AppContainers,
    /// Variables of the pod's own containers that the template's get as well, unless they have them.
    pub transfer_env: Vec<TransferEnv>,
    /// Whether the template's containers get the mounts of the pod's own that `appContainers` means, at the same paths; never
    /// the service account's token, nor what is below /proc and /sys.
    pub share_volumes: bool,
    /// What a pod may say otherwise of the template's containers.
    pub overrides: Overrides,
    /// Secrets of the pod's namespace for pulling images.
    #[schemars(with = "Vec<schema::Named>")]
    pub image_pull_secrets: Vec<Shared>,
    /// Annotations that the pod gets where it has none of the key.
    pub annotations: Labels,
    /// Labels that the pod gets where it has none of the key.
    pub labels: Labels,
    /// Tolerations.
    #[schemars(with = "Vec<schema::Anything>")]
    pub tolerations: Vec<Shared>,
    /// Affinity, as in a pod; of `nodeSelectorTerms` at most one, which is joined to each of the pod's.
    #[schemars(with = "schema::Anything", extend("default" = null))]
    pub affinity: Option<Shared>,
    /// How long the pod's end may take at least, in seconds: a pod that gives itself less gets this.
    #[schemars(extend("default" = null))]
    pub termination_grace_period_seconds: Option<u32>,
    /// Name servers, search domains and options beside the pod's own, as in a pod.
    #[schemars(with = "schema::Anything", extend("default" = null))]
    pub dns_config: Option<Shared>,
    /// Names for /etc/hosts, where the pod has no address for them.
    #[schemars(with = "Vec<schema::Anything>")]
    pub host_aliases: Vec<Shared>,
    /// The pod's `securityContext`, as far as it does not say otherwise.
    #[schemars(with = "schema::Anything", extend("default" = null))]
    pub security_context: Option<Shared>,
    /// Take parts of a pod also with fields that Kubernetes 1.33 does not know.
    pub allow_unknown_fields: bool,
    /// Identifies this template's content.
    #[serde(skip)]
    pub hash: String,
}

/// What the pod's own containers get. A variable or a mount of their own goes before.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AppContainers {
    /// The containers of these names only. Empty: all.
    pub only: Vec<String>,
    /// Not the containers of these names.
    pub except: Vec<String>,
    /// Environment variables.
    #[schemars(with = "Vec<schema::Named>")]
    pub env: Vec<Shared>,
    /// Mounts.
    #[schemars(with = "Vec<schema::VolumeMount>")]
    pub volume_mounts: Vec<Shared>,
}

/// Whether containers become native sidecars: init containers that run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Native {
    /// If every kubelet that the apiserver's version supports knows them.
    #[default]
    Auto,
    /// Always.
    True,
    /// Never.
    False,
}

/// Where containers go among those of the pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Position {
    /// Before them; `kubectl exec` and `kubectl logs` still mean the pod's first.
    First,
    /// Behind them.
    #[default]
    Last,
}

/// What to do where a name is taken. The pod's own is never touched.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum OnConflict {
    /// A container is left out, with a warning; a volume gets another name.
    #[default]
    Adapt,
    /// The whole template is left out, with a warning.
    Skip,
}

// === impl Template ===

impl Template {
    /// The name and, if it has one, the version: `log-agent:2`.
    #[must_use]
    pub fn full_name(&self) -> Cow<'_, str> {
        if self.version.is_empty() {
            Cow::Borrowed(&self.name)
        } else {
            Cow::Owned(format!("{}:{}", self.name, self.version))
        }
    }

    /// The names of all its containers.
    pub fn container_names(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().chain(&self.init_containers).filter_map(|it| it.get("name")?.as_str())
    }

    /// The names of the variables of a pod's own containers that it looks at.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        let given = self.app_containers.env.iter().filter_map(|it| it.get("name")?.as_str());
        let taken = self.transfer_env.iter().flat_map(|it| &it.names).map(String::as_str);
        given.chain(taken).map(str::to_owned)
    }

    /// Works out what is the same for each pod.
    pub(super) fn settle(&mut self, native: Native) {
        self.native = self.native.or(Some(native));
        for part in self.parts() {
            let mut value = part.value().clone();
            drop_nulls(&mut value);
            *part = value.into();
        }
        let parts = [
            &mut self.containers,
            &mut self.init_containers,
            &mut self.volumes,
            &mut self.app_containers.env,
        ];
        for part in parts.into_iter().flatten() {
            let mut value = part.value().clone();
            quantities::write_as_texts(&mut value);
            *part = value.into();
        }
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
        // Twelve digits tell versions of one template apart.
        let digits = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.hash = digits.take(12).filter_map(|digit| char::from_digit(digit.into(), 16)).collect();
    }

    /// All that is written as in a pod.
    fn parts(&mut self) -> impl Iterator<Item = &mut Shared> {
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

/// Takes out members that are null. That is as good as absent, as in Go; and what counts as absent would be given to a pod in each pass.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, it| !it.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

// === impl Native ===

impl<'de> Deserialize<'de> for Native {
    /// YAML reads `true` as a boolean.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(true) => Ok(Self::True),
            Value::Bool(false) => Ok(Self::False),
            Value::String(word) if word == "auto" => Ok(Self::Auto),
            other => Err(D::Error::custom(format!("{other} is not known: auto, true and false are"))),
        }
    }
}

impl JsonSchema for Native {
    fn schema_name() -> Cow<'static, str> {
        "Native".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Whether containers become native sidecars: init containers that run on. `auto`: if every \
                            kubelet that the apiserver's version supports knows them.",
            "enum": ["auto", true, false],
        })
    }
}
