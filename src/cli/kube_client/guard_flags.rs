//! Flags of commands that connect to the API server and to the guard with the kubeconfig and the permissions of the user.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use http::Uri;
use kube::{
    Client,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};

use crate::{
    escape::to_shell_word,
    guard_client::{CALL_TIMEOUT, GuardClient, GuardEndpoint},
    k8s,
};

/// The API server, and the identity of the caller
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct AccessFlags {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig context; by default the current context
    #[arg(long, global = true)]
    context: Option<String>,
    /// The user to impersonate, as in kubectl
    #[arg(long = "as", value_name = "USER")]
    impersonated_user: Option<String>,
    /// A group to impersonate, as in kubectl; can be repeated
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonated_user")]
    impersonated_groups: Vec<String>,
    /// The uid to impersonate, as in kubectl
    #[arg(long = "as-uid", value_name = "UID", requires = "impersonated_user")]
    impersonated_uid: Option<String>,
}

/// Access to the API server
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct ClusterFlags {
    #[command(flatten)]
    access: AccessFlags,
    /// The namespace; by default the namespace of the context
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Access to the API server and, through it, to the guard
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct GuardFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Connect to the guard at this address, such as `http://127.0.0.1:8080`, instead of through a port-forward
    #[arg(long, env = "ETCD_GUARD_URL", value_parser = parse_address)]
    guard: Option<Uri>,
    /// The namespace of the guard
    #[arg(long, default_value = "etcd-guard", env = "ETCD_GUARD_NAMESPACE")]
    guard_namespace: String,
    /// Label selector of the guard's pods
    #[arg(long, default_value = "app.kubernetes.io/name=etcd-guard")]
    guard_selector: String,
}

fn parse_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let is_plain = uri.scheme_str() == Some("http") && uri.host().is_some();
    is_plain.then_some(uri).ok_or_else(|| String::from("expected http://HOST:PORT"))
}

/// A client of the API server with the identity of the user.
pub(in crate::cli) struct ClusterClient {
    pub(in crate::cli) client: Client,
    /// The namespace that the user selected, or the default of the kubeconfig context.
    pub(in crate::cli) namespace: String,
    /// URL of the API server.
    pub(in crate::cli) server: Uri,
}

// === impl AccessFlags ===

impl AccessFlags {
    /// Creates a client with this timeout of API calls. Without a kubeconfig, the identity is that of the pod in which the
    /// process runs.
    pub(in crate::cli) async fn connect_or_in_cluster(
        &self,
        timeout: Duration,
    ) -> anyhow::Result<ClusterClient> {
        let is_selected = self.kubeconfig.is_some() || self.context.is_some();
        let config = match self.config().await {
            Err(error) if !is_selected => {
                let mut config = kube::Config::incluster().map_err(|_| {
                    error.context("the process runs in no pod with a service account, and has no kubeconfig")
                })?;
                self.impersonate(&mut config.auth_info);
                config
            }
            config => config?,
        };
        ClusterClient::new(config, None, timeout)
    }

    /// Reads the kubeconfig.
    async fn config(&self) -> anyhow::Result<kube::Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let kubeconfig = match &self.kubeconfig {
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?
            }
            None => Kubeconfig::read().context("no kubeconfig; pass --kubeconfig or set KUBECONFIG")?,
        };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        self.impersonate(&mut config.auth_info);
        Ok(config)
    }

    /// Replaces the values of the kubeconfig by those of the flags, as kubectl does.
    fn impersonate(&self, identity: &mut AuthInfo) {
        let Self { impersonated_user: user, impersonated_groups: groups, impersonated_uid: uid, .. } = self;
        if user.is_some() {
            identity.impersonate.clone_from(user);
        }
        if !groups.is_empty() {
            identity.impersonate_groups = Some(groups.clone());
        }
        if uid.is_some() {
            identity.impersonate_uid.clone_from(uid);
        }
    }

    /// Returns the flags that select the same cluster and the same identity, each with a space before it.
    fn selection(&self) -> String {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let flags = [
            ("--kubeconfig", kubeconfig.as_ref()),
            ("--context", self.context.as_ref()),
            ("--as", self.impersonated_user.as_ref()),
            ("--as-uid", self.impersonated_uid.as_ref()),
        ];
        let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        let groups = self.impersonated_groups.iter().map(|group| ("--as-group", group));
        given.chain(groups).flat_map(|(flag, value)| [format!(" {flag} "), to_shell_word(value)]).collect()
    }
}

// === impl ClusterFlags ===

impl ClusterFlags {
    /// Creates a client with this timeout of API calls.
    pub(in crate::cli) async fn connect_within(self, timeout: Duration) -> anyhow::Result<ClusterClient> {
        ClusterClient::new(self.access.config().await?, self.namespace, timeout)
    }

    /// Returns the value of --namespace.
    pub(in crate::cli) fn namespace_flag(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the flags that select the same cluster and the same identity, each with a space before it.
    pub(in crate::cli) fn selection(&self) -> String {
        self.access.selection()
    }
}

// === impl ClusterClient ===

impl ClusterClient {
    fn new(mut config: kube::Config, namespace: Option<String>, timeout: Duration) -> anyhow::Result<Self> {
        config.read_timeout = Some(timeout);
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.clone();
        let client = k8s::client(config).context("failed to create a client for the API server")?;
        Ok(Self { client, namespace, server })
    }
}

// === impl GuardFlags ===

impl GuardFlags {
    /// Returns the kubectl command with the flags that select the same cluster and the same identity.
    pub(in crate::cli) fn kubectl(&self) -> String {
        format!("kubectl{}", self.cluster.selection())
    }

    /// Connects with the default timeout of API calls.
    pub(in crate::cli) async fn connect(self) -> anyhow::Result<GuardClient> {
        self.connect_within(CALL_TIMEOUT).await
    }

    /// Connects with this timeout of API calls.
    pub(in crate::cli) async fn connect_within(self, timeout: Duration) -> anyhow::Result<GuardClient> {
        let ClusterClient { client, namespace, server } = self.cluster.connect_within(timeout).await?;
        let endpoint = match self.guard {
            Some(url) => GuardEndpoint::Url(url),
            None => {
                GuardEndpoint::PortForward { namespace: self.guard_namespace, selector: self.guard_selector }
            }
        };
        Ok(GuardClient { client, namespace, server, endpoint })
    }

    /// Returns the label selector of the guard's pods.
    pub(in crate::cli) fn guard_selector(&self) -> &str {
        &self.guard_selector
    }

    /// Returns the namespace of the guard.
    pub(in crate::cli) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// Returns the value of --namespace.
    pub(in crate::cli) fn namespace_flag(&self) -> Option<&str> {
        self.cluster.namespace_flag()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        cluster: ClusterFlags,
    }

    fn flags(words: &[&str]) -> Result<ClusterFlags, clap::Error> {
        let arguments = Arguments::try_parse_from([&["program"], words].concat());
        arguments.map(|arguments| arguments.cluster)
    }

    #[test]
    fn impersonation_is_part_of_requests_and_remedies() {
        let words = ["--as", "alice", "--as-group", "a", "--as-group", "b c", "--as-uid", "7"];
        let flags = flags(&words).unwrap();
        let mut identity = AuthInfo { impersonate: Some(String::from("bob")), ..AuthInfo::default() };
        flags.access.impersonate(&mut identity);
        assert_eq!(identity.impersonate.as_deref(), Some("alice"));
        assert_eq!(identity.impersonate_uid.as_deref(), Some("7"));
        assert_eq!(identity.impersonate_groups, Some(vec![String::from("a"), String::from("b c")]));
        let selection = flags.selection();
        assert!(selection.ends_with(" --as alice --as-uid 7 --as-group a --as-group 'b c'"), "{selection}");
    }

    #[test]
    fn kubeconfig_decides_without_flags_of_impersonation() {
        let mut identity = AuthInfo { impersonate: Some(String::from("bob")), ..AuthInfo::default() };
        flags(&[]).unwrap().access.impersonate(&mut identity);
        assert_eq!(identity.impersonate.as_deref(), Some("bob"));
        assert_eq!(identity.impersonate_groups, None);
    }

    #[test]
    fn groups_and_uid_require_a_user() {
        for words in [["--as-group", "a"], ["--as-uid", "7"]] {
            let error = flags(&words).unwrap_err().to_string();
            assert!(error.contains("--as <USER>"), "{error}");
        }
    }
}
