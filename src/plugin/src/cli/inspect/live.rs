//! Reads from the API server with the rights of the user, and reviews of access.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, bail};
use futures::future::join_all;
use k8s_openapi::{
    ByteString,
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        core::v1::{ConfigMap, Secret as StoredSecret},
    },
};
use serde_json::Value;

use super::manifest::{InspectionTarget, ReadObject, annotated, inspected_object, metadata};
use crate::api_server::{ApiServer, CallError};
use etcd_guard_core::{
    config::owner_kinds::OwnerKind,
    escape::{MAX_ERROR_CHARS, MAX_NAME_CHARS, to_bounded_line},
    inspect::{
        AnnotatedObject, Inspection, Relation,
        access::{ObjectContent, ObjectState},
        role::GuardAccount,
    },
    objects::{
        data_object::{DataKind, DataObject, Secret, is_subdomain},
        owner_reference::{MAX_OWNER_LEVELS, OwnerReference},
        pod::Metadata,
    },
    opt_in_label::OptInLabel,
};
use etcd_guard_inject::config::Config;

/// Description of the configuration if there is none.
pub(super) const BUILT_IN: &str = "built-in defaults";

/// Name and key of the `ConfigMap` with the guard's configuration file, as the manifests and the chart create it.
const CONFIG_MAP: (&str, &str) = ("etcd-guard-config", "config.yaml");

/// Reads from the API server with the rights of the user.
pub(crate) struct LiveReader {
    api_server: ApiServer,
}

// === impl LiveReader ===

impl LiveReader {
    pub(super) fn new(api_server: ApiServer) -> Self {
        Self { api_server }
    }

    /// Reads an object and returns its pod.
    pub(super) async fn read(&self, target: &InspectionTarget) -> anyhow::Result<ReadObject> {
        let InspectionTarget { workload, name } = target;
        let namespace = &self.api_server.namespace;
        let subject = format!("{} {namespace}/{name}", workload.kind);
        let operation = format!("failed to read {subject}");
        let object = self.api_server.object(&operation, &target.path(namespace)).await?;
        let object = object.with_context(|| format!("{subject} does not exist"))?;
        inspected_object(workload, &object, namespace, None).context(subject)
    }

    /// Adds the namespace and the owners of the pod, as far as they can be read. Returns whether the namespace has this
    /// label, which opts it in, or `None` if it could not be read.
    pub(super) async fn add_owners(
        &self,
        read: &mut ReadObject,
        config: &Config,
        label: &OptInLabel,
    ) -> Option<bool> {
        let namespace = &self.api_server.namespace;
        let chain = self.owner_chain(read, config).await;
        // The weakest source is the first.
        let owners = &mut read.inspected.owners;
        owners.splice(0..0, chain.into_iter().rev());
        let path = format!("/api/v1/namespaces/{namespace}");
        let of_namespace = self.metadata(&format!("failed to read namespace {namespace}"), &path).await;
        let (is_guarded, object) = match of_namespace {
            Ok(None) => return None,
            Ok(Some(metadata)) => {
                let is_guarded = label.matches(&metadata.labels);
                (Some(is_guarded), annotated("namespace", Relation::Namespace, metadata))
            }
            Err(error) => {
                let object = format!("namespace {namespace}");
                let annotations = Err(to_bounded_line(&format!("{error:#}"), MAX_ERROR_CHARS));
                (None, AnnotatedObject { object, relation: Relation::Namespace, annotations })
            }
        };
        owners.insert(0, object);
        is_guarded
    }

    /// Returns the owners whose annotations apply to the pod, the nearest first, without those that were read with the
    /// object. As in the guard, the chain ends before an owner of a kind that the configuration does not list.
    async fn owner_chain(&self, read: &ReadObject, config: &Config) -> Vec<AnnotatedObject> {
        let mut chain = Vec::new();
        let known = read.inspected.owners.len();
        let mut next = read.controller.clone();
        while let Some(reference) = next.take().filter(|_| known + chain.len() < MAX_OWNER_LEVELS) {
            let is_nearest = known + chain.len() == 0;
            let is_set = reference.is_stateful_set();
            let collection = match config.guard.owner_kind(reference.group(), &reference.kind) {
                _ if is_set => String::from("/apis/apps/v1/namespaces/{}/statefulsets"),
                Some(OwnerKind { group, version, resource, .. }) => {
                    format!("/apis/{group}/{version}/namespaces/{{}}/{resource}")
                }
                None => break,
            };
            let [kind, name] =
                [&reference.kind, &reference.name].map(|text| to_bounded_line(text, MAX_NAME_CHARS));
            let annotations = match self.owner(&reference, &collection).await {
                Ok(Some(metadata)) if metadata.uid == reference.uid => {
                    next = OwnerReference::controller_of(&metadata.owner_references).cloned();
                    Ok(metadata.annotations)
                }
                // A StatefulSet applies by its name, as in the guard.
                Ok(Some(metadata)) if is_set => Ok(metadata.annotations),
                Ok(None) if is_set => break,
                Ok(_) => Ok(BTreeMap::new()),
                Err(error) => Err(to_bounded_line(&format!("{error:#}"), MAX_ERROR_CHARS)),
            };
            let relation = if is_set && is_nearest { Relation::StatefulSet } else { Relation::Owner };
            chain.push(AnnotatedObject { object: format!("{kind} {name}"), relation, annotations });
        }
        chain
    }

    /// Returns the metadata of an owner, or `None` if it does not exist. `collection` is the path of its resource.
    async fn owner(&self, owner: &OwnerReference, collection: &str) -> anyhow::Result<Option<Metadata>> {
        let (OwnerReference { kind, name, .. }, namespace) = (owner, &self.api_server.namespace);
        let operation = format!("failed to read {kind} {namespace}/{name}");
        // The name is a part of the path.
        anyhow::ensure!(is_subdomain(name), "{operation}: the name is not valid");
        let path = format!("{}/{name}", collection.replace("{}", namespace));
        self.metadata(&operation, &path).await
    }

    async fn metadata(&self, operation: &str, path: &str) -> anyhow::Result<Option<Metadata>> {
        self.api_server.object(operation, path).await?.as_ref().map(metadata).transpose()
    }

    /// Returns the configuration in the guard's `ConfigMap`, and its description. Without a `ConfigMap`, the guard uses its
    /// built-in defaults.
    pub(super) async fn config(&self, guard_namespace: &str) -> anyhow::Result<(Config, String)> {
        let (name, key) = CONFIG_MAP;
        let path = format!("/api/v1/namespaces/{guard_namespace}/configmaps/{name}");
        let description = format!("ConfigMap {guard_namespace}/{name}");
        let operation = format!("{description} could not be read");
        let object = match self.api_server.object(&operation, &path).await {
            Ok(Some(object)) => object,
            Ok(None) => return Ok((Config::default(), BUILT_IN.to_owned())),
            Err(error) => {
                let description = format!("{BUILT_IN}, because {error}");
                return Ok((Config::default(), description));
            }
        };
        let text = object.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
        match text.map(Config::read) {
            Some(Ok(config)) => Ok((config, description)),
            // The guard uses the last valid file.
            Some(Err(_)) => {
                bail!(
                    "{description} is not valid; pass --config, or correct it: kubectl etcd-guard config check"
                )
            }
            None => bail!("{description} has no key {key}; pass --config"),
        }
    }

    /// Adds the access of the user and of the guard to the objects that the report depends on, and the keys that the guard
    /// uses.
    pub(super) async fn add_access(&self, inspection: &mut Inspection, account: &GuardAccount) {
        let mut states = BTreeMap::new();
        let mut problems = Vec::new();
        // The configuration file of etcd names further objects, and no other object does.
        for _ in 0..2 {
            let unread = inspection.objects().into_iter().filter(|object| !states.contains_key(object));
            let read = join_all(unread.map(|object| self.state(account, object))).await;
            for (object, state, failures) in read {
                states.insert(object, state);
                problems.extend(failures);
            }
            inspection.record(&states);
        }
        inspection.warnings.extend(problems);
    }

    /// Returns the access to an object and its content, and the failures.
    async fn state(
        &self,
        account: &GuardAccount,
        object: DataObject,
    ) -> (DataObject, ObjectState, Vec<String>) {
        let (own, of_guard) = tokio::join!(
            self.api_server.is_permitted(self.reading(&object)),
            self.account_can_read(account, &object)
        );
        let mut problems = Vec::new();
        if let Err(error) = &of_guard {
            let text = format!("the permissions of {} are unknown: {error:#}", account.user());
            problems.push(to_bounded_line(&text, MAX_ERROR_CHARS));
        }
        let mut state =
            ObjectState { caller_can_read: own.ok(), guard_can_read: of_guard.ok(), content: None };
        if state.caller_can_read == Some(false) {
            return (object, state, problems);
        }
        match self.content(&object).await {
            Ok(Some(content)) => state.content = Some(ObjectContent::Found(content)),
            Ok(None) => state.content = Some(ObjectContent::Missing),
            Err(error) if error.code == Some(403) => state.caller_can_read = Some(false),
            Err(error) => problems.push(error.to_string()),
        }
        (object, state, problems)
    }

    /// Returns the data of an object, or `None` if it does not exist.
    pub(crate) async fn content(&self, object: &DataObject) -> Result<Option<Secret>, CallError> {
        let (DataObject { kind, name }, namespace) = (object, &self.api_server.namespace);
        // The name is a part of the path. No object has such a name.
        if !is_subdomain(name) {
            return Ok(None);
        }
        let operation = format!("failed to read {}", object.describe(namespace));
        let bytes =
            |(key, ByteString(value)): (String, ByteString)| -> (String, Arc<[u8]>) { (key, value.into()) };
        Ok(match kind {
            DataKind::Secret => {
                let secrets = self.api_server.namespaced::<StoredSecret>(namespace);
                let secret = self.api_server.call(operation, secrets.get_opt(name)).await?;
                secret.map(|secret| secret.data.into_iter().flatten().map(bytes).collect::<BTreeMap<_, _>>())
            }
            DataKind::ConfigMap => {
                let maps = self.api_server.namespaced::<ConfigMap>(namespace);
                let map = self.api_server.call(operation, maps.get_opt(name)).await?;
                map.map(|map| {
                    let texts = map.data.into_iter().flatten();
                    let texts = texts.map(|(key, value)| (key, value.into_bytes().into()));
                    texts.chain(map.binary_data.into_iter().flatten().map(bytes)).collect()
                })
            }
        }
        .map(Secret::from))
    }

    async fn account_can_read(&self, account: &GuardAccount, object: &DataObject) -> anyhow::Result<bool> {
        let groups = ["system:serviceaccounts", "system:authenticated"].map(str::to_owned);
        let own_group = format!("system:serviceaccounts:{}", account.namespace);
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(account.user()),
                groups: Some(groups.into_iter().chain([own_group]).collect()),
                resource_attributes: Some(self.reading(object)),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let review = self.api_server.review("cannot find out what the guard may do", &review).await?;
        review.status.map(|status| status.allowed).context("the review has no status")
    }

    /// Returns the attributes of a read of this object.
    fn reading(&self, object: &DataObject) -> ResourceAttributes {
        ResourceAttributes {
            namespace: Some(self.api_server.namespace.clone()),
            verb: Some(String::from("get")),
            resource: Some(object.kind.resource().to_owned()),
            name: Some(object.name.clone()),
            ..ResourceAttributes::default()
        }
    }
}
