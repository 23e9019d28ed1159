//! Checks of an installation, with the permissions of the user. Each check is evaluated by a pure function of what was read;
//! a read that fails or is not permitted is the result of its own check.
//!
//! All calls are reads, reviews of permissions, and one dry run: [`network`] describes it.

mod api_server;
mod certificate;
mod clusters;
mod handshake;
mod installation;
mod network;
mod permissions;
mod pre;
mod reader;
mod remedies;
mod replicas;
mod report;
mod reports;
pub(crate) mod sections;
#[cfg(test)]
mod tests;
mod webhooks;

use serde_json::Value;
use time::OffsetDateTime;

pub(crate) use self::report::Report;
use self::{
    installation::{Installation, LXCFS_NAMESPACE, encoded},
    network::EVICTION_WEBHOOK,
    permissions::{ShippedRoles, policies::ShippedPolicies},
    reader::{Reader, Right, Unread, elements, text},
    remedies::{Remedies, account_of, arguments, certificate_deployment},
    replicas::Replicas,
    report::Line,
    reports::{Reports, bounded},
    webhooks::{Comparison, GuardedNamespace, owner_kinds},
};
use crate::guard_client::{GuardClient, GuardEndpoint};
use etcd_guard_api::Survey;
use etcd_guard_cli::registration::{Registration, WebhookGroup};
use etcd_guard_core::{documentation::Manual, escape::to_shell_word, opt_in_label::OptInLabel};

/// The finding without the webhook that adds uids to evictions.
const UID_ABSENT: &str =
    "uid.guard.etcd-guard.io is not registered: an eviction keeps the name of its pod reserved for a minute";

/// The account of the shipped manifests, if no pod has another.
const SHIPPED_ACCOUNT: &str = "etcd-guard";

/// The namespace of the shipped manifests.
const SHIPPED_NAMESPACE: &str = "etcd-guard";

/// What the user selected.
pub(crate) struct Options {
    /// The namespace of the guard.
    pub(crate) guard_namespace: String,
    /// The label selector of the guard's pods.
    pub(crate) guard_selector: String,
    /// The namespace of the dry run; by default the first guarded one.
    pub(crate) namespace: Option<String>,
    /// The manual that the lines name.
    pub(crate) manual: Manual,
}

/// The checks, and the clients that they use.
pub(crate) struct Doctor {
    guard: GuardClient,
    reader: Reader,
    options: Options,
}

// === impl Doctor ===

impl Doctor {
    pub(crate) fn new(guard: GuardClient, options: Options) -> Self {
        let reader = Reader::new(guard.api_server.clone());
        Self { guard, reader, options }
    }

    /// Runs all checks. The error is that the API server does not respond.
    pub(crate) async fn examine(&self) -> anyhow::Result<Report> {
        let kubectl = self.reader.kubectl();
        let version = self.version_line().await?;
        let Options { guard_namespace, guard_selector, .. } = &self.options;
        let survey = self.guard.status(None).await;
        let label = self.opt_in_label(&survey).await;
        let installation = Installation::read(&self.reader, guard_namespace, guard_selector, &label).await;
        let Installation { pods, deployments, guarded, .. } = &installation;
        let (pods, deployments) = (pods.clone(), deployments.clone());
        let configuration = installation.configuration(WebhookGroup::Guard);
        let replicas = Replicas::new(
            pods.clone().unwrap_or_default(),
            deployments.as_ref().cloned().unwrap_or_default(),
        );
        let remedies = Remedies::new(
            kubectl,
            (&self.options.guard_namespace, &self.options.guard_selector),
            replicas.deployment_name(),
            deployments.as_deref().unwrap_or_default(),
            configuration,
        );
        let mut lines = vec![version];
        if matches!(self.guard.endpoint, GuardEndpoint::PortForward { .. }) && installation.is_absent() {
            // All other checks would report the same, each in its own words.
            let text = format!(
                "the guard is not installed: namespace {guard_namespace} has no pod and no Deployment of it, and no webhook is \
                 registered"
            );
            let remedy = format!(
                "check what an installation needs, then install it: {} --pre{}",
                self.reader.command("doctor"),
                self.guard_flag()
            );
            lines.push(Line::failure("installation", text, remedy));
            return Ok(Report::new(lines, &self.options.manual));
        }
        let (now, reports) = Reports::read(&self.guard, &replicas, &installation).await;
        let time = now.as_ref().copied().unwrap_or_else(|_| OffsetDateTime::now_utc());

        // Without the list of pods, nobody knows whether a replica is ready.
        let unread_pods = pods.as_ref().err();
        lines.push(match now {
            Ok(_) => {
                let (clocks, unread) = (&reports.clocks, &reports.unread_replicas);
                api_server::clock(clocks, unread, unread_pods, (kubectl, &remedies.pods()))
            }
            Err(cause) => {
                Line::not_checked("clock", &Unread::new(cause, format!("{kubectl} get --raw /version")))
            }
        });
        lines.extend(self.webhook_lines(&installation, &remedies, &label));
        lines.extend(self.owner_kinds_line(&installation, &remedies).await);
        let bundles = installation.bundles();
        if !bundles.is_empty() {
            lines.push(certificate::bundles(&bundles, &reports.chains, time, &remedies.certificates()));
        }
        lines.push(if reports.chains.is_empty() {
            unreachable_line("certificate", &reports.unread_certificates, unread_pods, &remedies)
        } else {
            let unread = &reports.unread_certificates;
            certificate::validity(&reports.chains, unread, time, &remedies.certificates())
        });
        lines.extend(self.permission_lines(&installation, &replicas, &remedies).await);
        lines.push(match installation.unread_configuration(WebhookGroup::Guard) {
            Some(unread) => Line::not_checked("network", unread),
            None => self.network_line(configuration, guarded, &remedies, &label).await,
        });
        lines.extend(self.replica_lines(&installation, &replicas, &reports, &remedies));
        lines.extend(self.cluster_lines(survey, &installation, &replicas, &remedies));
        Ok(Report::new(lines, &self.options.manual))
    }

    /// Returns the line about the version of the API server. The error is that it does not respond, or rejects the credentials:
    /// all other checks would report the same.
    async fn version_line(&self) -> anyhow::Result<Line> {
        let kubectl = self.reader.kubectl();
        let version = self.reader.version().await.map_err(anyhow::Error::msg)?;
        Ok(match version {
            Ok(info) => {
                let field = |name: &str| text(&info, name).unwrap_or_default().to_owned();
                api_server::version(&field("/major"), &field("/minor"), kubectl)
            }
            Err(unread) => Line::not_checked("api-server", &unread),
        })
    }

    /// Returns the flag of commands that selects the same namespace of the guard, with a space before it.
    fn guard_flag(&self) -> String {
        match self.options.guard_namespace.as_str() {
            SHIPPED_NAMESPACE => String::new(),
            other => format!(" --guard-namespace {}", to_shell_word(other)),
        }
    }

    /// Returns the label of guarded namespaces that the guard reports. Without a response, that of its arguments.
    async fn opt_in_label(&self, survey: &anyhow::Result<Survey>) -> OptInLabel {
        if let Ok(survey) = survey {
            return survey.opt_in_label.clone().unwrap_or_default();
        }
        let namespace = self.options.guard_namespace.as_str();
        let path = format!("/apis/apps/v1/namespaces/{}/deployments", encoded(namespace));
        let right = Right { verb: "list", resource: "deployments.apps", namespace: Some(namespace) };
        let deployments = self.reader.list(&path, right).await.unwrap_or_default();
        let mut arguments = deployments.iter().flat_map(arguments);
        let label = arguments.find_map(|argument| argument.strip_prefix("--opt-in-label=")?.parse().ok());
        label.unwrap_or_default()
    }

    fn webhook_lines(
        &self,
        installation: &Installation,
        remedies: &Remedies,
        opt_in_label: &OptInLabel,
    ) -> Vec<Line> {
        let registration = Registration {
            namespace: self.options.guard_namespace.clone(),
            groups: <WebhookGroup as clap::ValueEnum>::value_variants().to_vec(),
            url: None,
            opt_in_label: opt_in_label.clone(),
        };
        let guarded = installation.guarded.as_deref().unwrap_or_default();
        let mut lines: Vec<Line> = Vec::new();
        for (name, read) in &installation.configurations {
            let is_required = WebhookGroup::Guard.is_named(name);
            match (read, registration.object(name, "", None)) {
                (Ok(registered), Some(shipped)) => {
                    let registered = registered.as_ref();
                    let comparison = Comparison { shipped: &shipped, registered, is_required, guarded };
                    lines.extend(comparison.line(&remedies.apply(), &remedies.register()));
                    if registered.is_none() && WebhookGroup::Uid.is_named(name) {
                        lines.push(Line::warning("webhooks", UID_ABSENT, remedies.apply()));
                    }
                }
                // The optional configurations are not readable either.
                (Err(unread), _) if is_required => lines.push(Line::not_checked("webhooks", unread)),
                _ => {}
            }
        }
        lines
    }

    /// Compares the kinds of owners in the guard's configuration with the registered rules.
    async fn owner_kinds_line(&self, installation: &Installation, remedies: &Remedies) -> Option<Line> {
        let namespace = self.options.guard_namespace.as_str();
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{}",
            encoded(namespace),
            encoded(installation.config_map()?)
        );
        let right = Right { verb: "get", resource: "configmaps", namespace: Some(namespace) };
        match self.reader.get(&path, right).await {
            Err(unread) => Some(Line::not_checked("webhooks", &unread)),
            Ok(object) => {
                let registered = installation.configuration(WebhookGroup::Guard);
                owner_kinds::line(&object?, registered, &remedies.apply())
            }
        }
    }

    async fn permission_lines(
        &self,
        installation: &Installation,
        replicas: &Replicas,
        remedies: &Remedies,
    ) -> Vec<Line> {
        let namespace = self.options.guard_namespace.as_str();
        let mut permissions = ShippedRoles::Servers.permissions(namespace);
        for (group, roles) in
            [(WebhookGroup::Inject, ShippedRoles::Inject), (WebhookGroup::Nodes, ShippedRoles::NodeStatus)]
        {
            if installation.configuration(group).is_some() {
                permissions.extend(roles.permissions(namespace));
            }
        }
        let deployments = installation.deployments.as_deref().unwrap_or_default();
        let mut servers = deployments.iter().flat_map(arguments);
        if servers.any(|argument| argument == "--handover") {
            permissions.extend(ShippedRoles::Handover.permissions(namespace));
        }
        let account = replicas.account().unwrap_or(SHIPPED_ACCOUNT);
        let remedy = remedies.apply();
        let mut lines =
            vec![permissions::check(&self.reader, (namespace, account), &permissions, &remedy).await];
        let mut policies = Vec::new();
        if let Some(keeper) = certificate_deployment(deployments) {
            let mut permissions = ShippedRoles::Certificates.permissions(namespace);
            if arguments(keeper).any(|argument| argument == "--register") {
                permissions.extend(ShippedRoles::Register.permissions(namespace));
                policies.push(ShippedPolicies::Register);
            } else {
                policies.push(ShippedPolicies::Certificates);
            }
            let account = account_of(keeper).unwrap_or("default");
            lines.push(permissions::check(&self.reader, (namespace, account), &permissions, &remedy).await);
        }
        if installation.configuration(WebhookGroup::Nodes).is_some() {
            policies.push(ShippedPolicies::NodeStatus);
        }
        match &installation.lxcfs {
            // Only the mutating webhook uses lxcfs.
            Err(unread) if installation.configuration(WebhookGroup::Inject).is_some() => {
                lines.push(Line::not_checked("permissions", unread));
            }
            Ok(sets) if !sets.is_empty() => {
                policies.push(ShippedPolicies::Lxcfs);
                let permissions = ShippedRoles::Lxcfs.permissions(LXCFS_NAMESPACE);
                let account = sets.iter().find_map(account_of).unwrap_or("default");
                let account = (LXCFS_NAMESPACE, account);
                lines.push(permissions::check(&self.reader, account, &permissions, &remedy).await);
            }
            _ => {}
        }
        for policies in policies {
            lines.push(policies.check(&self.reader, &remedy).await);
        }
        lines
    }

    async fn network_line(
        &self,
        configuration: Option<&Value>,
        guarded: &Result<Vec<GuardedNamespace>, Unread>,
        remedies: &Remedies,
        opt_in_label: &OptInLabel,
    ) -> Line {
        let not_checked =
            |cause: &str, remedy: String| Line::not_checked("network", &Unread::new(cause, remedy));
        let entry = configuration.and_then(|object| {
            elements(object, "/webhooks").find(|entry| text(entry, "/name") == Some(EVICTION_WEBHOOK))
        });
        let (Some(configuration), Some(entry)) = (configuration, entry) else {
            return not_checked("no webhook for evictions was found", remedies.apply());
        };
        let namespaces = match &self.options.namespace {
            None => guarded.clone(),
            Some(name) => {
                let path = format!("/api/v1/namespaces/{}", encoded(name));
                let right = Right { verb: "get", resource: "namespaces", namespace: None };
                match self.reader.get(&path, right).await {
                    Ok(None) => {
                        let remedy = format!("{} get namespaces", self.reader.kubectl());
                        return Line::failure("network", format!("namespace {name} does not exist"), remedy);
                    }
                    read => read
                        .map(|object| object.as_ref().and_then(GuardedNamespace::new).into_iter().collect()),
                }
            }
        };
        match namespaces {
            Err(unread) => Line::not_checked("network", &unread),
            Ok(namespaces) => match namespaces.iter().find(|namespace| namespace.is_selected_by(entry)) {
                Some(namespace) => {
                    let guard = to_shell_word(&self.options.guard_namespace);
                    network::check(&self.reader, &namespace.name, configuration, &guard).await
                }
                None => not_checked("the webhook selects no such namespace", remedies.label(opt_in_label)),
            },
        }
    }

    fn replica_lines(
        &self,
        installation: &Installation,
        replicas: &Replicas,
        reports: &Reports,
        remedies: &Remedies,
    ) -> Vec<Line> {
        let is_outside = matches!(self.guard.endpoint, GuardEndpoint::Url(_)) && replicas.pods.is_empty();
        let mut lines = Vec::new();
        lines.push(match &installation.pods {
            Err(unread) => Line::not_checked("replicas", unread),
            Ok(_) if is_outside => Line::warning(
                "replicas",
                "no pod of the guard was found; a guard outside of the cluster has one replica only",
                remedies.pods(),
            ),
            Ok(_) => {
                replicas::image_line(&installation.namespace_pods, &remedies.image()).unwrap_or_else(|| {
                    replicas.count_line(installation.has_one_node, &remedies.pods(), &remedies.scale())
                })
            }
        });
        lines.push(if reports.releases.is_empty() {
            let unread_pods = installation.pods.as_ref().err();
            unreachable_line("versions", &reports.unread_replicas, unread_pods, remedies)
        } else {
            let (own, unread) = (env!("CARGO_PKG_VERSION"), &reports.unread_replicas);
            replicas::releases(&reports.releases, unread, own, &remedies.pods(), &remedies.rollout())
        });
        match &installation.budgets {
            Err(unread) => lines.push(Line::not_checked("disruption-budget", unread)),
            Ok(_) if is_outside => {}
            Ok(budgets) => {
                lines.push(replicas.budget_line(budgets.clone(), &remedies.budgets(), &remedies.apply()));
            }
        }
        lines
    }

    fn cluster_lines(
        &self,
        survey: anyhow::Result<Survey>,
        installation: &Installation,
        replicas: &Replicas,
        remedies: &Remedies,
    ) -> Vec<Line> {
        match survey {
            Ok(survey) => {
                let kubectl = self.reader.kubectl();
                clusters::lines(&survey, &remedies.status(), kubectl, !replicas.pods.is_empty())
            }
            Err(error) => {
                let unread = match (&self.guard.endpoint, &installation.pods) {
                    (GuardEndpoint::PortForward { .. }, Err(unread)) => unread.clone(),
                    _ => Unread::new(bounded(&error), remedies.port_forward()),
                };
                vec![Line::not_checked("clusters", &unread)]
            }
        }
    }
}

/// The line of a check that requires a replica. `unread` are the causes why no replica answered, and `unread_pods` is why nobody
/// knows which replicas there are.
fn unreachable_line(
    check: &'static str,
    unread: &[String],
    unread_pods: Option<&Unread>,
    remedies: &Remedies,
) -> Line {
    match (unread.first(), unread_pods) {
        (None, Some(unread)) => Line::not_checked(check, unread),
        (cause, _) => {
            let cause = cause.map_or("no replica is ready", String::as_str);
            Line::not_checked(check, &Unread::new(cause, remedies.port_forward()))
        }
    }
}
