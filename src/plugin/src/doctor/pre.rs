//! Checks before an installation: what stops it, and what would surprise you afterwards. Like the other checks, they read, review
//! permissions, and request dry runs, with the permissions of the user.

mod budgets;
mod etcd;
mod others;
mod permissions;

use serde_json::{Value, json};

use self::etcd::EtcdSets;
use super::{
    Doctor,
    installation::{Installation, encoded},
    reader::{Reader, Right, text},
    report::{Line, Report},
    webhooks::GuardedNamespace,
};
use etcd_guard_cli::registration::{ConfigurationName, Registration, WebhookGroup};
use etcd_guard_core::{escape::to_shell_word, opt_in_label::OptInLabel};

/// The Deployment of the servers.
const DEPLOYMENT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base/deployment.yaml"));

/// The API of webhook configurations.
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// The API server's message if it admits the priority class of the guard's pods only in namespaces with a quota for it, which
/// the manifests contain. Source: `CheckRequest` in k8s.io/apiserver, `pkg/admission/plugin/resourcequota/controller.go`.
const QUOTA_REQUIRED: &str = "insufficient quota to match these scopes";

/// The rejections that can depend on the name of the image.
const OTHER_POLICIES: [&str; 2] = ["admission webhook", "ValidatingAdmissionPolicy"];

// === impl Doctor ===

impl Doctor {
    /// Runs the checks before an installation. The error is that the API server does not respond.
    pub(crate) async fn examine_before(&self) -> anyhow::Result<Report> {
        let version = self.version_line().await?;
        let (reader, namespace) = (&self.reader, self.options.guard_namespace.as_str());
        let label = OptInLabel::default();
        let installation = Installation::read(reader, namespace, &self.options.guard_selector, &label).await;
        let namespaces = Right { verb: "list", resource: "namespaces", namespace: None };
        let namespaces = reader.list("/api/v1/namespaces", namespaces).await;
        let etcd = EtcdSets::read(reader, &namespaces, namespace, &label).await;
        let known: Vec<GuardedNamespace> =
            namespaces.iter().flatten().filter_map(GuardedNamespace::new).collect();
        let mut lines = vec![
            version,
            self.installation_line(&installation),
            admission_line(reader, namespace).await,
            permissions::line(reader, namespace).await,
            pods_line(reader, namespace).await,
            certificates_line(reader).await,
            others::line(reader, &etcd, &known, namespace).await,
            etcd.line(reader, &label),
        ];
        lines.extend(budgets::line(reader, &etcd).await);
        Ok(Report::new(lines, &self.options.manual))
    }

    /// What of a guard exists already.
    fn installation_line(&self, installation: &Installation) -> Line {
        let (reader, namespace) = (&self.reader, self.options.guard_namespace.as_str());
        let unread = installation.configurations.iter().find_map(|(_, read)| read.as_ref().err());
        if let Some(unread) = unread {
            return Line::not_checked("installation", unread);
        }
        let configurations = &installation.configurations;
        let registered: Vec<(&ConfigurationName, &Value)> = configurations
            .iter()
            .filter_map(|(name, read)| Some((name, read.as_ref().ok()?.as_ref()?)))
            .collect();
        let owner =
            |object: &Value| text(object, "/webhooks/0/clientConfig/service/namespace").map(str::to_owned);
        let other = registered.iter().find_map(|(name, object)| {
            owner(object).filter(|owner| owner != namespace).map(|owner| (name, owner))
        });
        if let Some((name, owner)) = other {
            let text =
                format!("{name} belongs to a guard in namespace {owner}, which would lose it to this one");
            let remedy = format!(
                "use that guard, or uninstall it: {} --guard-namespace {}",
                reader.command("doctor"),
                to_shell_word(&owner)
            );
            return Line::failure("installation", text, remedy);
        }
        let pods = installation.pods.iter().flatten();
        let mut parts: Vec<String> = registered.iter().map(|(name, _)| name.to_string()).collect();
        parts.extend(pods.filter_map(|pod| Some(format!("pod {}", text(pod, "/metadata/name")?))));
        if parts.is_empty() {
            return Line::ok("installation", "no guard is installed");
        }
        let text = format!(
            "the guard is installed in namespace {namespace}, at least in part: {}",
            parts.join(", ")
        );
        let remedy = format!("check it: {}{}", reader.command("doctor"), self.guard_flag());
        Line::warning("installation", text, remedy)
    }
}

/// Whether the API server accepts the webhook configurations, with their conditions in CEL.
async fn admission_line(reader: &Reader, namespace: &str) -> Line {
    let registration = Registration {
        namespace: namespace.to_owned(),
        groups: vec![WebhookGroup::Guard],
        url: None,
        opt_in_label: OptInLabel::default(),
    };
    let remedy = format!("{} api-resources --api-group=admissionregistration.k8s.io", reader.kubectl());
    for name in registration.names() {
        let Some(object) = registration.object(&name, "", None) else { continue };
        let resource = if name.kind == "MutatingWebhookConfiguration" {
            "mutatingwebhookconfigurations"
        } else {
            "validatingwebhookconfigurations"
        };
        let path =
            format!("{ADMISSION}/{resource}?dryRun=All&fieldValidation=Strict&fieldManager=etcd-guard");
        let response = match reader.post(&path, &object).await {
            Ok(response) => response,
            Err(cause) => return reader.unanswered("admission", cause),
        };
        match response.code {
            // An object of this name exists. The API server has validated the new one before.
            200..300 | 409 => {}
            _ if response.is_forbidden() || response.has_no_verdict() => {
                let right = Right { verb: "create", resource, namespace: None };
                return Line::not_checked("admission", &reader.unread(&response, right));
            }
            _ => {
                let text = format!("the API server rejects {name}: {}", response.cause());
                return Line::failure("admission", text, remedy);
            }
        }
    }
    Line::ok("admission", "the API server accepts the webhooks and their conditions in CEL (dry run)")
}

/// Whether the namespace admits a pod like those of the guard: a quota, a limit range, the priority class, Pod Security, or the
/// policy of another product can reject it.
async fn pods_line(reader: &Reader, namespace: &str) -> Line {
    let path = format!("/api/v1/namespaces/{}", encoded(namespace));
    let right = Right { verb: "get", resource: "namespaces", namespace: None };
    match reader.get(&path, right).await {
        Err(unread) => return Line::not_checked("pods", &unread),
        Ok(None) => {
            let text =
                format!("namespace {namespace} does not exist yet, so no quota and no limit range is in it");
            return Line::ok("pods", text);
        }
        Ok(Some(_)) => {}
    }
    let path = format!("{path}/pods?dryRun=All&fieldManager=etcd-guard");
    let response = match reader.post(&path, &pod()).await {
        Ok(response) => response,
        Err(cause) => return reader.unanswered("pods", cause),
    };
    let cause = response.cause();
    if response.is_success() || cause.contains(QUOTA_REQUIRED) {
        return Line::ok("pods", format!("namespace {namespace} admits a pod like the guard's (dry run)"));
    }
    if response.is_forbidden() || response.has_no_verdict() {
        let right = Right { verb: "create", resource: "pods", namespace: Some(namespace) };
        return Line::not_checked("pods", &reader.unread(&response, right));
    }
    let text = format!(
        "namespace {namespace} rejects a pod like the guard's, of the image etcd-guard (dry run): {cause}"
    );
    let kubectl = reader.kubectl();
    let remedy = format!(
        "change what the message names, or choose another namespace: {kubectl} -n {} describe resourcequotas,limitranges",
        to_shell_word(namespace)
    );
    // A policy may accept the name of the image that you will use.
    if OTHER_POLICIES.iter().any(|name| cause.contains(name)) {
        return Line::warning("pods", text, remedy);
    }
    Line::failure("pods", text, remedy)
}

/// Returns a pod of the shipped Deployment. Its service account does not exist yet.
fn pod() -> Value {
    // A test parses the manifest.
    let deployment: Value = serde_saphyr::from_str(DEPLOYMENT).unwrap_or_default();
    let field = |pointer: &str| deployment.pointer(pointer).cloned().unwrap_or_default();
    let mut spec = field("/spec/template/spec");
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("serviceAccountName");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "etcd-guard-doctor-", "labels": field("/spec/template/metadata/labels")},
        "spec": spec,
    })
}

/// Which sources of the certificate fit. Each cluster has one.
async fn certificates_line(reader: &Reader) -> Line {
    let right = Right { verb: "get", resource: "certificates.cert-manager.io", namespace: None };
    match reader.get("/apis/cert-manager.io/v1", right).await {
        Err(unread) => Line::not_checked("certificates", &unread),
        Ok(Some(_)) => Line::ok(
            "certificates",
            "cert-manager is installed; self-managed (the default), cert-manager and files fit",
        ),
        Ok(None) => Line::ok(
            "certificates",
            "cert-manager is not installed; self-managed (the default) and files fit",
        ),
    }
}

#[cfg(test)]
mod tests;
