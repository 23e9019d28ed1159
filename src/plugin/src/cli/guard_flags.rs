//! Flags of commands that connect to the API server and to the guard with the kubeconfig and the permissions of the user.

use clap::Args;
use http::Uri;

use crate::{
    api_server::ApiServer,
    guard_client::{GuardClient, GuardEndpoint},
};
use etcd_guard_cli::access::AccessFlags;
use etcd_guard_core::objects::data_object::is_subdomain;

/// The longest name of a namespace.
const MAX_LABEL_LENGTH: usize = 63;

/// Access to the API server
#[derive(Clone, Debug, Args)]
pub(super) struct ClusterFlags {
    #[command(flatten)]
    access: AccessFlags,
    /// The namespace; by default the namespace of the context
    #[arg(short, long, value_parser = parse_namespace)]
    namespace: Option<String>,
}

/// Access to the API server and, through it, to the guard
#[derive(Clone, Debug, Args)]
pub(super) struct GuardFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Connect to the guard at this address, such as `http://127.0.0.1:8080`, instead of through a port-forward
    #[arg(long, env = "ETCD_GUARD_URL", value_parser = parse_address)]
    guard: Option<Uri>,
    /// The namespace of the guard
    #[arg(long, default_value = "etcd-guard", env = "ETCD_GUARD_NAMESPACE", value_parser = parse_namespace)]
    guard_namespace: String,
    /// Label selector of the guard's pods
    #[arg(long, default_value = "app.kubernetes.io/name=etcd-guard", value_parser = parse_selector)]
    guard_selector: String,
}

fn parse_address(text: &str) -> Result<Uri, String> {
    let uri = text.parse().ok().filter(|uri: &Uri| uri.scheme_str() == Some("http") && uri.host().is_some());
    uri.ok_or_else(|| String::from("expected http://HOST:PORT, such as http://127.0.0.1:8080"))
}

/// Checks the name of a namespace, which becomes a part of paths.
pub(super) fn parse_namespace(text: &str) -> Result<String, String> {
    let is_name = is_subdomain(text) && !text.contains('.') && text.len() <= MAX_LABEL_LENGTH;
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| String::from("expected a namespace: at most 63 lowercase letters, digits and hyphens"))
}

/// Checks the name of an object, which becomes a part of paths.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    is_subdomain(text)
        .then(|| text.to_owned())
        .ok_or_else(|| String::from("expected a name: lowercase letters, digits, hyphens and dots"))
}

/// Returns the name in `statefulset/NAME`.
pub(super) fn stateful_set(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').unwrap_or_default();
    let is_set = matches!(kind, "statefulset" | "statefulsets" | "sts" | "statefulset.apps");
    parse_name(name).ok().filter(|_| is_set).ok_or_else(|| String::from("expected statefulset/NAME"))
}

/// Checks the name of a container.
pub(super) fn parse_container(text: &str) -> Result<String, String> {
    parse_namespace(text)
        .map_err(|_| String::from("expected a container: at most 63 lowercase letters, digits and hyphens"))
}

/// Checks a label selector, with the operators of kubectl.
pub(super) fn parse_selector(text: &str) -> Result<String, String> {
    let mut depth = 0_usize;
    let requirements = text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let is_valid = requirements.map(str::trim).all(is_requirement);
    let selector = is_valid.then(|| text.to_owned());
    selector.ok_or_else(|| String::from("expected a label selector such as app=etcd"))
}

/// Whether a text is a requirement of a label selector: `KEY`, `!KEY`, `KEY=VALUE`, `KEY!=VALUE`, `KEY in (VALUE,...)`.
fn is_requirement(text: &str) -> bool {
    let is_word = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let is_key = |text: &str| {
        let (prefix, name) = text.trim().split_once('/').unwrap_or(("", text.trim()));
        !name.is_empty() && is_word(prefix) && is_word(name)
    };
    let in_set = [" in ", " notin "].into_iter().find_map(|operator| text.split_once(operator));
    if let Some((key, set)) = in_set {
        let values = set.trim().strip_prefix('(').and_then(|set| set.strip_suffix(')'));
        return is_key(key)
            && values.is_some_and(|values| values.split(',').all(|value| is_word(value.trim())));
    }
    match ["!=", "==", "="].into_iter().find_map(|operator| text.split_once(operator)) {
        Some((key, value)) => is_key(key) && is_word(value.trim()),
        None => is_key(text.strip_prefix('!').unwrap_or(text)),
    }
}

// === impl ClusterFlags ===

impl ClusterFlags {
    /// Creates a client of the API server.
    pub(super) async fn connect(self) -> anyhow::Result<ApiServer> {
        let kubectl = format!("kubectl{}", self.selection());
        // In a pod, as kubectl does.
        let config = match std::env::var_os("KUBERNETES_SERVICE_HOST") {
            Some(_) => self.access.config_or_in_cluster().await?,
            None => self.access.config().await?,
        };
        ApiServer::new(config, self.namespace, kubectl)
    }

    /// Returns the value of --namespace.
    pub(super) fn namespace_flag(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the flags that select the same cluster and the same identity, each with a space before it.
    pub(super) fn selection(&self) -> String {
        self.access.selection()
    }
}

// === impl GuardFlags ===

impl GuardFlags {
    /// Creates the clients of the API server and of the guard.
    pub(super) async fn connect(self) -> anyhow::Result<GuardClient> {
        let api_server = self.cluster.connect().await?;
        let endpoint = match self.guard {
            Some(url) => GuardEndpoint::Url(url),
            None => {
                GuardEndpoint::PortForward { namespace: self.guard_namespace, selector: self.guard_selector }
            }
        };
        Ok(GuardClient { api_server, endpoint })
    }

    /// Returns the label selector of the guard's pods.
    pub(super) fn guard_selector(&self) -> &str {
        &self.guard_selector
    }

    /// Returns the namespace of the guard.
    pub(super) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// Returns the value of --namespace.
    pub(super) fn namespace_flag(&self) -> Option<&str> {
        self.cluster.namespace_flag()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_those_of_kubectl() {
        for text in [
            "app=etcd",
            "app==etcd",
            "app != etcd",
            "app=",
            "app.kubernetes.io/name=etcd,!canary",
            "app in (a, b),tier notin (x)",
            "app",
        ] {
            assert_eq!(parse_selector(text).as_deref(), Ok(text));
        }
        for text in ["", "a b", "app=a b", "app=a=b", "=a", "app=a,", "app in a", "app in (a", "a/b/c=d"] {
            assert!(parse_selector(text).is_err(), "{text}");
        }
    }
}
