//! `config check --server`: a dry run of the creation of a pod with each template.

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use etcd_guard_cli::printing::print_warning;
use etcd_guard_core::{config::selector::Labels, objects::api_server_version::ApiServerVersion};
use etcd_guard_inject::{
    config::{Config, Template},
    pods::{INJECT, InjectionContext, Note, Outcome, inject},
};

/// The result for one template.
#[derive(Debug, Serialize)]
pub(super) struct TemplateResult {
    /// The name of the template, with its version.
    pub(super) name: String,
    /// The error of the API server, or the reason why no pod was created.
    pub(super) error: Option<String>,
}

/// Creates a pod with each template of a configuration as a dry run.
pub(super) async fn check_templates(
    config: &Config,
    api_server: &ApiServer,
) -> anyhow::Result<Vec<TemplateResult>> {
    let namespace = &api_server.namespace;
    if config.skip_namespaces.contains(namespace) {
        anyhow::bail!(
            "namespace {namespace} is in skipNamespaces, where no pod gets a template; select another one with --namespace"
        );
    }
    let read = api_server.all::<Namespace>();
    let object =
        api_server.call(format!("failed to read namespace {namespace}"), read.get(namespace)).await?;
    let labels: Labels = object.metadata.labels.unwrap_or_default().into_iter().collect();
    let native_sidecars = has_native_sidecars(api_server).await?;
    let context = InjectionContext { namespace, namespace_labels: Ok(&labels), native_sidecars };
    let resources = admitted_resources(config, api_server).await?;
    let mut results = Vec::new();
    for template in &config.sidecars.templates {
        let name = template.full_name().into_owned();
        let error = match pod_with_template(template, config, &context, &resources) {
            Ok(pod) => create(api_server, &pod).await.err(),
            Err(error) => Some(error),
        };
        results.push(TemplateResult { name, error });
    }
    Ok(results)
}

/// Whether the API server and all kubelets have native sidecars, as the guard determines it.
async fn has_native_sidecars(api_server: &ApiServer) -> anyhow::Result<bool> {
    let operation = "failed to read the version of the API server";
    let version = api_server.call(operation, api_server.client.apiserver_version()).await?;
    let version = ApiServerVersion::parse(&version.major, &version.minor)
        .with_context(|| format!("{operation}: {}.{}", version.major, version.minor))?;
    let nodes = api_server.nodes().await;
    let oldest = nodes.map(|nodes| {
        let infos = nodes.iter().filter_map(|node| node.status.as_ref()?.node_info.as_ref());
        infos.filter_map(|info| ApiServerVersion::parse_full(&info.kubelet_version)).min()
    });
    if let Err(error) = &oldest {
        print_warning(&format!(
            "the versions of the kubelets follow from that of the API server, because they are unknown: {error}"
        ));
    }
    Ok(version.has_native_sidecars(oldest.as_ref().ok().copied()))
}

/// Creates a pod as a dry run. The error is that of the API server. Unknown fields are errors as well.
async fn create(api_server: &ApiServer, pod: &Value) -> Result<(), String> {
    let namespace = &api_server.namespace;
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict");
    let cause = match api_server.post(&path, pod).await {
        Ok(response) if response.is_success() => return Ok(()),
        Ok(response) => response.cause(),
        Err(error) => error.to_string(),
    };
    Err(format!("a dry run of the creation of a pod in namespace {namespace} failed: {cause}"))
}

/// Returns resources with which the namespace admits a pod without a template, so that a later rejection is caused by a
/// template: minimal ones, those of the templates' containers, or none.
///
/// A quota may require limits, and a limit range may have a minimum.
async fn admitted_resources(config: &Config, api_server: &ApiServer) -> anyhow::Result<Value> {
    let minimal = json!({"cpu": "1m", "memory": "1Mi"});
    let mut candidates = vec![json!({"limits": minimal, "requests": minimal})];
    let templates = config.sidecars.templates.iter();
    let containers =
        templates.flat_map(|template| template.containers.iter().chain(&template.init_containers));
    for resources in containers.filter_map(|container| container.get("resources")).chain([&json!({})]) {
        if !candidates.contains(resources) {
            candidates.push(resources.clone());
        }
    }
    let mut first_error = None;
    for resources in candidates {
        match create(api_server, &pod("app", "false", &[], &resources)).await {
            Ok(()) => return Ok(resources),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    let rejected = "the API server rejects a pod without templates, so that templates cannot be checked in this \
                    namespace; select another one with --namespace";
    match first_error {
        Some(error) => Err(anyhow::Error::msg(error).context(rejected)),
        None => anyhow::bail!(rejected),
    }
}

/// Returns a pod with the template, or the reason why the pod does not get it.
fn pod_with_template(
    template: &Template,
    config: &Config,
    context: &InjectionContext<'_>,
    resources: &Value,
) -> Result<Value, String> {
    let container = template.app_containers.only.first().map_or("app", String::as_str);
    let plain = pod(container, &template.full_name(), &template.external_volumes, resources);
    let injection = inject(plain, context, config).map_err(|denial| denial.to_string())?;
    let is_skipped = |note: &&Note| note.reason.outcome() != Outcome::Injected && note.warning.is_some();
    match (injection.pod, injection.notes.iter().find(is_skipped)) {
        (Some(pod), None) => Ok(pod),
        (_, Some(note)) => Err(note.warning.clone().unwrap_or_default()),
        (None, None) => Err(String::from("the template changes nothing")),
    }
}

/// Returns a pod that requests a template. Every Pod Security level admits it.
fn pod(container: &str, request: &str, volumes: &[String], resources: &Value) -> Value {
    let security_context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let volumes: Vec<_> = volumes.iter().map(|name| json!({"name": name, "emptyDir": {}})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "etcd-guard-config-check-", "annotations": {INJECT: request}},
        "spec": {
            "containers": [{
                "name": container,
                "image": "config-check.invalid/app:1",
                "resources": resources,
                "securityContext": security_context,
            }],
            "volumes": volumes,
        }
    })
}
