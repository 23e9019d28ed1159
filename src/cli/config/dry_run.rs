//! `config check --server`: a dry run of the creation of a pod with each template.

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    config::{Config, Template},
    escape::to_single_line,
    inject::{INJECT, InjectionContext, Note, Outcome, inject},
    k8s::{ApiReader, NamespaceReader, PodDryRun},
};

/// The result for one template.
pub(super) struct TemplateResult {
    /// The name of the template, with its version.
    pub(super) name: String,
    /// The error of the API server, or the reason why no pod was created.
    pub(super) error: Option<String>,
}

/// Creates a pod with each template of a configuration as a dry run.
pub(super) async fn check_templates(
    config: &Config,
    client: kube::Client,
    namespace: &str,
) -> anyhow::Result<Vec<TemplateResult>> {
    if config.skip_namespaces.iter().any(|skipped| skipped == namespace) {
        anyhow::bail!(
            "namespace {namespace} is in skipNamespaces, where no pod gets a template; select another one with --namespace"
        );
    }
    let namespaces = NamespaceReader::new(ApiReader::new(client.clone()));
    let labels = namespaces.labels(namespace).await?;
    let (native_sidecars, error) = namespaces.native_sidecars(namespaces.version().await?).await;
    if let Some(error) = error {
        let error = to_single_line(&error.to_string());
        eprintln!(
            "the versions of the kubelets follow from that of the API server, because they are unknown: {error}"
        );
    }
    let context = InjectionContext { namespace, namespace_labels: Ok(&labels), native_sidecars };
    let dry_run = PodDryRun::new(client, namespace);
    let resources = admitted_resources(config, &dry_run).await?;
    let mut results = Vec::new();
    for template in &config.sidecars.templates {
        let name = template.full_name().into_owned();
        let error = match pod_with_template(template, config, &context, &resources) {
            Ok(pod) => dry_run.create(&pod).await.err().map(|error| error.to_string()),
            Err(error) => Some(error),
        };
        results.push(TemplateResult { name, error });
    }
    Ok(results)
}

/// Returns resources with which the namespace admits a pod without a template, so that a later rejection is caused by a
/// template: minimal ones, those of the templates' containers, or none.
///
/// A quota may require limits, and a limit range may have a minimum.
async fn admitted_resources(config: &Config, dry_run: &PodDryRun) -> anyhow::Result<Value> {
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
        match dry_run.create(&pod("app", "false", &[], &resources)).await {
            Ok(()) => return Ok(resources),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    let rejected = "the API server rejects a pod without templates, so that templates cannot be checked in this \
                    namespace; select another one with --namespace";
    match first_error {
        Some(error) => Err(error).context(rejected),
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
