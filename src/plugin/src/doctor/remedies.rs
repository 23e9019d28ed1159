//! The commands that correct an installation.

use serde_json::Value;

use super::reader::{elements, text};
use etcd_guard_core::{escape::to_shell_word, opt_in_label::OptInLabel};

/// The subcommand of the Deployment that keeps self-managed certificates. The name of the Deployment depends on the release.
const CERTIFICATE_COMMAND: &str = "certificates";

/// The Deployment of the servers in the shipped manifests.
const SHIPPED_DEPLOYMENT: &str = "etcd-guard";

/// Annotation of objects that Helm installed.
const HELM_RELEASE: &str = "/metadata/annotations/meta.helm.sh~1release-name";

/// Label of the objects of a chart: its name and version.
const HELM_CHART: &str = "/metadata/labels/helm.sh~1chart";

/// Annotation of webhook configurations with a `caBundle` that cert-manager writes.
const CERT_MANAGER: &str = "/metadata/annotations/cert-manager.io~1inject-ca-from";

/// The component that keeps the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Certificates {
    /// With the name of the Deployment that keeps them.
    SelfManaged(String),
    CertManager,
    Files,
}

/// The commands for this installation.
#[derive(Clone, Debug)]
pub(super) struct Remedies {
    kubectl: String,
    namespace: String,
    selector: String,
    helm_release: Option<String>,
    /// The Deployment of the servers.
    deployment: String,
    certificates: Certificates,
}

// === impl Remedies ===

impl Remedies {
    /// Determines from the Deployments and the registered webhook configuration how the guard was installed. `servers` is the
    /// Deployment of the replicas.
    pub(super) fn new(
        kubectl: &str,
        (namespace, selector): (&str, &str),
        servers: Option<&str>,
        deployments: &[Value],
        configuration: Option<&Value>,
    ) -> Self {
        // Other releases can be in the same namespace.
        let is_of_chart = |deployment: &&Value| {
            text(deployment, HELM_CHART).is_some_and(|chart| chart.starts_with("etcd-guard-"))
        };
        let release =
            deployments.iter().filter(is_of_chart).find_map(|deployment| text(deployment, HELM_RELEASE));
        let keeper = certificate_deployment(deployments).and_then(|keeper| text(keeper, "/metadata/name"));
        let certificates = if configuration.is_some_and(|object| text(object, CERT_MANAGER).is_some()) {
            Certificates::CertManager
        } else if keeper.is_some() || deployments.is_empty() {
            Certificates::SelfManaged(to_shell_word(keeper.unwrap_or("etcd-guard-certificates")))
        } else {
            Certificates::Files
        };
        Self {
            kubectl: kubectl.to_owned(),
            namespace: to_shell_word(namespace),
            selector: to_shell_word(selector),
            helm_release: release.map(to_shell_word),
            deployment: to_shell_word(servers.unwrap_or(SHIPPED_DEPLOYMENT)),
            certificates,
        }
    }

    /// Applies the manifests again.
    pub(super) fn apply(&self) -> String {
        let Self { kubectl, namespace, helm_release, certificates, .. } = self;
        if let Some(release) = helm_release {
            let flags = kubectl.trim_start_matches("kubectl").replace("--context", "--kube-context");
            return format!(
                "install the chart again: helm{flags} -n {namespace} upgrade {release} deploy/chart/etcd-guard \
                 --reset-then-reuse-values"
            );
        }
        let folder = match certificates {
            Certificates::SelfManaged(_) => "deploy/overlays/self-managed",
            Certificates::CertManager => "deploy/overlays/cert-manager",
            Certificates::Files => "deploy/base",
        };
        format!("apply the manifests of your installation again, for example: {kubectl} apply -k {folder}")
    }

    /// Registers the entries for deletions and evictions again. The values of a Helm release can omit them.
    pub(super) fn register(&self) -> String {
        let values = if self.helm_release.is_some() {
            " --set webhooks.guard=true,webhooks.eviction=true"
        } else {
            ""
        };
        self.apply() + values
    }

    /// Renews the certificate and the `caBundle`.
    pub(super) fn certificates(&self) -> String {
        let Self { kubectl, namespace, .. } = self;
        match &self.certificates {
            Certificates::SelfManaged(deployment) => format!(
                "read the log of the Deployment that keeps the certificates: {kubectl} -n {namespace} logs \
                 deployment/{deployment}"
            ),
            Certificates::CertManager => format!(
                "read the state of the Certificate, and check cert-manager's cainjector: {kubectl} -n {namespace} describe \
                 certificates.cert-manager.io"
            ),
            Certificates::Files => {
                let cluster = kubectl.trim_start_matches("kubectl");
                format!(
                    "create the certificate again, and register its CA: scripts/certs --apply --namespace {namespace}{cluster}"
                )
            }
        }
    }

    /// Lists the replicas.
    pub(super) fn pods(&self) -> String {
        let Self { kubectl, namespace, selector, .. } = self;
        format!("{kubectl} -n {namespace} get pods -l {selector} -o wide")
    }

    /// Starts a second replica.
    pub(super) fn scale(&self) -> String {
        let Self { kubectl, namespace, deployment, .. } = self;
        format!("{kubectl} -n {namespace} scale deployment/{deployment} --replicas=2")
    }

    /// Sets the image of all pods, for which the user inserts the registry.
    pub(super) fn image(&self) -> String {
        let Self { kubectl, namespace, helm_release, deployment, certificates, .. } = self;
        if helm_release.is_some() {
            return self.apply() + " --set image.repository=REGISTRY/etcd-guard";
        }
        let image = concat!("etcd-guard=REGISTRY/etcd-guard:", env!("CARGO_PKG_VERSION"));
        let keeper = match certificates {
            Certificates::SelfManaged(keeper) => format!(" deployment/{keeper}"),
            Certificates::CertManager | Certificates::Files => String::new(),
        };
        format!("{kubectl} -n {namespace} set image deployment/{deployment}{keeper} {image}")
    }

    /// Shows the progress of an update.
    pub(super) fn rollout(&self) -> String {
        let Self { kubectl, namespace, deployment, .. } = self;
        format!("{kubectl} -n {namespace} rollout status deployment/{deployment} --timeout=5m")
    }

    /// Shows the disruption budgets.
    pub(super) fn budgets(&self) -> String {
        let Self { kubectl, namespace, .. } = self;
        format!("{kubectl} -n {namespace} describe poddisruptionbudgets")
    }

    /// Checks the permission to reach the admin port.
    pub(super) fn port_forward(&self) -> String {
        let Self { kubectl, namespace, .. } = self;
        format!(
            "requires a ready replica, and the permissions to get and create pods/portforward in {namespace}, for instance by the \
             Role etcd-guard-users: {kubectl} auth can-i get pods --subresource=portforward -n {namespace}"
        )
    }

    /// Shows the guarded clusters.
    pub(super) fn status(&self) -> String {
        let flags = self.kubectl.trim_start_matches("kubectl");
        format!("kubectl etcd-guard status -A{flags} --guard-namespace {}", self.namespace)
    }

    /// Guards a namespace by this label.
    pub(super) fn label(&self, label: &OptInLabel) -> String {
        format!("{} label namespace NAME {label} --overwrite", self.kubectl)
    }
}

/// Returns the Deployment that keeps the certificates.
pub(super) fn certificate_deployment(deployments: &[Value]) -> Option<&Value> {
    deployments.iter().find(|deployment| arguments(deployment).next() == Some(CERTIFICATE_COMMAND))
}

/// Returns the arguments of the first container of a workload.
pub(super) fn arguments(workload: &Value) -> impl Iterator<Item = &str> {
    elements(workload, "/spec/template/spec/containers/0/args").filter_map(Value::as_str)
}

/// Returns the service account of a workload.
pub(super) fn account_of(workload: &Value) -> Option<&str> {
    text(workload, "/spec/template/spec/serviceAccountName")
}

/// Returns the URLs of the servers in a webhook configuration, without those of Services.
pub(super) fn urls(configuration: &Value) -> Vec<String> {
    let urls = elements(configuration, "/webhooks").filter_map(|entry| text(entry, "/clientConfig/url"));
    let mut urls: Vec<String> = urls.map(str::to_owned).collect();
    urls.sort_unstable();
    urls.dedup();
    urls
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(name: &str, arguments: &[&str]) -> Value {
        json!({
            "metadata": {"name": name, "annotations": {}},
            "spec": {"template": {"spec": {"containers": [{"args": arguments}]}}},
        })
    }

    #[test]
    fn commands_match_the_way_of_installation() {
        let remedies = |deployments: &[Value], configuration: Option<&Value>| {
            let remedies = Remedies::new(
                "kubectl",
                ("ops", "app=guard"),
                Some("etcd-guard"),
                deployments,
                configuration,
            );
            (remedies.apply(), remedies.certificates())
        };
        let both = [
            deployment("etcd-guard", &["serve"]),
            deployment("etcd-guard-certificates", &["certificates", "--register"]),
        ];
        let (apply, certificates) = remedies(&both, None);
        assert!(apply.ends_with("kubectl apply -k deploy/overlays/self-managed"), "{apply}");
        assert!(certificates.ends_with("logs deployment/etcd-guard-certificates"), "{certificates}");
        let image = Remedies::new("kubectl", ("ops", "app=guard"), None, &both, None).image();
        let command =
            "kubectl -n ops set image deployment/etcd-guard deployment/etcd-guard-certificates etcd-guard=";
        assert!(image.starts_with(command), "{image}");
        let renamed = [deployment("guard", &["serve"]), deployment("guard-certificates", &["certificates"])];
        let (_, certificates) = remedies(&renamed, None);
        assert!(certificates.ends_with("logs deployment/guard-certificates"), "{certificates}");
        let (apply, certificates) = remedies(&both[..1], None);
        assert!(apply.ends_with("kubectl apply -k deploy/base"), "{apply}");
        assert!(certificates.ends_with("scripts/certs --apply --namespace ops"), "{certificates}");
        let injected =
            json!({"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "ops/etcd-guard"}}});
        let (apply, certificates) = remedies(&both[..1], Some(&injected));
        assert!(apply.ends_with("deploy/overlays/cert-manager"), "{apply}");
        assert!(certificates.ends_with("describe certificates.cert-manager.io"), "{certificates}");
    }

    #[test]
    fn commands_of_a_release_name_the_release_and_the_cluster() {
        let chart = |chart: &str, release: &str| {
            json!({"metadata": {
                "name": release, "labels": {"helm.sh/chart": chart},
                "annotations": {"meta.helm.sh/release-name": release},
            }})
        };
        let deployments = [chart("web-1.0.0", "web"), chart("etcd-guard-0.1.0", "guard")];
        let remedies =
            |kubectl: &str| Remedies::new(kubectl, ("ops", "app=guard"), Some("guard"), &deployments, None);
        let expected = "upgrade guard deploy/chart/etcd-guard --reset-then-reuse-values";
        assert!(remedies("kubectl").apply().ends_with(&format!("helm -n ops {expected}")));
        let other = remedies("kubectl --context dev");
        assert!(other.apply().ends_with(&format!("helm --kube-context dev -n ops {expected}")));
        let values = "--set webhooks.guard=true,webhooks.eviction=true";
        assert!(other.register().ends_with(&format!("{expected} {values}")));
        assert!(other.image().ends_with(&format!("{expected} --set image.repository=REGISTRY/etcd-guard")));
        let certificates = other.certificates();
        assert!(
            certificates.ends_with("scripts/certs --apply --namespace ops --context dev"),
            "{certificates}"
        );
        assert!(other.rollout().contains("deployment/guard "));
    }
}
