//! Reads from the API server with the rights of the user, and reviews of access.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, bail};
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use serde_json::Value;

use super::manifest::{InspectionTarget, ReadObject, annotated, inspected_object, metadata};
use crate::{
    cli::kube_client::guard_flags::{ClusterClient, ClusterFlags},
    config::{Config, OwnerKind},
    escape::{MAX_ERROR_CHARS, MAX_NAME_CHARS, to_bounded_line},
    guard::{
        AnnotatedObject, GuardAccount, Inspection, MAX_OWNER_LEVELS, ObjectContent, ObjectState, Relation,
    },
    guard_client::CALL_TIMEOUT,
    k8s::{
        ApiReader, DataObject, LookupError, OptInLabel, OwnerResource, SecretReader, is_subdomain,
        pod::OwnerReference,
    },
};

/// Description of the configuration if there is none.
pub(super) const BUILT_IN: &str = "built-in defaults";

/// Name and key of the `ConfigMap` with the guard's configuration file, as the manifests and the chart create it.
const CONFIG_MAP: (&str, &str) = ("etcd-guard-config", "config.yaml");

/// Reads from the API server with the rights of the user.
pub(super) struct LiveReader {
    client: Client,
    namespace: String,
    secrets: SecretReader,
    owners: ApiReader,
}

// === impl LiveReader ===

impl LiveReader {
    pub(super) async fn connect(flags: ClusterFlags) -> anyhow::Result<Self> {
        let ClusterClient { client, namespace, server: _ } = flags.connect_within(CALL_TIMEOUT).await?;
        let (secrets, owners) = (SecretReader::new(client.clone()), ApiReader::new(client.clone()));
        Ok(Self { client, namespace, secrets, owners })
    }

    /// Reads an object and returns its pod.
    pub(super) async fn read(&self, target: &InspectionTarget) -> anyhow::Result<ReadObject> {
        let InspectionTarget { workload, name } = target;
        let namespace = &self.namespace;
        let subject = format!("{} {namespace}/{name}", workload.kind);
        // The names are parts of a path.
        if !is_subdomain(name) || !is_subdomain(namespace) {
            bail!("{subject}: the name is not valid");
        }
        let object = self.get(&target.path(namespace)).await;
        let object = object.with_context(|| format!("failed to read {subject}"))?;
        let object = object.with_context(|| format!("{subject} does not exist"))?;
        inspected_object(workload, &object, namespace).context(subject)
    }

    /// Adds the namespace and the owners of the pod, as far as they can be read. Returns whether the namespace has this
    /// label, which opts it in, or `None` if it could not be read.
    pub(super) async fn add_owners(
        &self,
        read: &mut ReadObject,
        config: &Config,
        label: &OptInLabel,
    ) -> Option<bool> {
        let namespace = &self.namespace;
        let chain = self.owner_chain(read, config).await;
        // The weakest source is the first.
        let owners = &mut read.inspected.owners;
        owners.splice(0..0, chain.into_iter().rev());
        let path = format!("/api/v1/namespaces/{namespace}");
        let of_namespace = self.get(&path).await.and_then(|read| read.as_ref().map(metadata).transpose());
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
            let owner = match config.guard.owner_kind(reference.group(), &reference.kind) {
                _ if reference.is_stateful_set() => {
                    let metadata = self.owners.stateful_set_metadata(&self.namespace, &reference.name).await;
                    metadata.map(|mut metadata| {
                        if metadata.uid != reference.uid {
                            metadata.owner_references.clear();
                        }
                        metadata
                    })
                }
                Some(OwnerKind { group, version, resource, .. }) => {
                    let resource = OwnerResource { group, version, resource };
                    let owner = self.owners.owner_of_resource(&self.namespace, &reference, resource).await;
                    owner.map(|owner| owner.metadata)
                }
                None => break,
            };
            let is_set = reference.is_stateful_set() && is_nearest;
            let relation = if is_set { Relation::StatefulSet } else { Relation::Owner };
            let [kind, name] =
                [&reference.kind, &reference.name].map(|text| to_bounded_line(text, MAX_NAME_CHARS));
            let annotations = match owner {
                Ok(metadata) => {
                    next = OwnerReference::controller_of(&metadata.owner_references).cloned();
                    Ok(metadata.annotations)
                }
                Err(LookupError::NotFound { .. }) => break,
                Err(error) => Err(error.to_string()),
            };
            chain.push(AnnotatedObject { object: format!("{kind} {name}"), relation, annotations });
        }
        chain
    }

    /// Returns the configuration in the guard's `ConfigMap`, and its description. Without a `ConfigMap`, the guard uses its
    /// built-in defaults.
    pub(super) async fn config(&self, guard_namespace: &str) -> anyhow::Result<(Config, String)> {
        let (name, key) = CONFIG_MAP;
        let path = format!("/api/v1/namespaces/{guard_namespace}/configmaps/{name}");
        let description = format!("ConfigMap {guard_namespace}/{name}");
        let object = match self.get(&path).await {
            Ok(Some(object)) => object,
            Ok(None) => return Ok((Config::default(), BUILT_IN.to_owned())),
            Err(error) => {
                let description = format!("{BUILT_IN}, because {}", unread(&description, &error));
                return Ok((Config::default(), description));
            }
        };
        let text = object.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
        match text.map(Config::read) {
            Some(Ok(config)) => Ok((config, description)),
            // The guard uses the last valid file.
            Some(Err(_)) => {
                bail!("{description} is not valid; pass --config, or correct it: etcd-guard config check")
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
        problems.dedup();
        inspection.warnings.extend(problems);
    }

    /// Returns the access to an object and its content, and the failures.
    async fn state(
        &self,
        account: &GuardAccount,
        object: DataObject,
    ) -> (DataObject, ObjectState, Vec<String>) {
        let (own, of_guard) = tokio::join!(self.can_read(&object), self.account_can_read(account, &object));
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
        match self.secrets.get(&self.namespace, &object).await.map_err(Arc::unwrap_or_clone) {
            Ok(content) => state.content = Some(ObjectContent::Found(content)),
            Err(LookupError::NotFound { .. }) => state.content = Some(ObjectContent::Missing),
            Err(LookupError::Forbidden { .. }) => state.caller_can_read = Some(false),
            Err(error) => problems.push(error.to_string()),
        }
        (object, state, problems)
    }

    async fn can_read(&self, object: &DataObject) -> anyhow::Result<bool> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(self.reading(object)),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        review.status.map(|status| status.allowed).context("the review has no status")
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
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        review.status.map(|status| status.allowed).context("the review has no status")
    }

    /// Returns the attributes of a read of this object.
    fn reading(&self, object: &DataObject) -> ResourceAttributes {
        ResourceAttributes {
            namespace: Some(self.namespace.clone()),
            verb: Some(String::from("get")),
            resource: Some(object.kind.resource().to_owned()),
            name: Some(object.name.clone()),
            ..ResourceAttributes::default()
        }
    }

    /// Returns an object, or `None` if it does not exist.
    async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let request = http::Request::get(path).body(Vec::new())?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn unread(object: &str, error: &anyhow::Error) -> String {
    to_bounded_line(&format!("{object} could not be read: {error:#}"), MAX_ERROR_CHARS)
}
