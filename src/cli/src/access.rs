//! The identity of the caller at the API server, from flags and a kubeconfig, and the runtime of commands that use it.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::printing::plain;
use etcd_guard_core::escape::to_shell_word;

/// The API server, and the identity of the caller
#[derive(Clone, Debug, Default, Args)]
pub struct AccessFlags {
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

// === impl AccessFlags ===

impl AccessFlags {
    /// Returns the flags with this kubeconfig file.
    pub fn of_file(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, ..Self::default() }
    }

    /// Reads the kubeconfig. Without one, the identity is that of the pod in which the process runs.
    pub async fn config_or_in_cluster(&self) -> anyhow::Result<kube::Config> {
        let is_selected = self.kubeconfig.is_some() || self.context.is_some();
        match self.config().await {
            Err(error) if !is_selected => {
                let mut config = kube::Config::incluster().map_err(|_| {
                    error.context("the process runs in no pod with a service account, and has no kubeconfig")
                })?;
                self.impersonate(&mut config.auth_info);
                Ok(config)
            }
            config => config,
        }
    }

    /// Reads the kubeconfig.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        let place = self.place();
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let kubeconfig = read.map_err(|error| unusable(&place, &error))?;
        let context = self.selected_context(&kubeconfig)?.to_owned();
        let options = KubeConfigOptions { context: Some(context), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(|error| unusable(&place, &error))?;
        self.impersonate(&mut config.auth_info);
        Ok(config)
    }

    /// Names the kubeconfig in errors.
    fn place(&self) -> String {
        let path = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let variable = || std::env::var("KUBECONFIG").ok().filter(|paths| !paths.is_empty());
        format!("kubeconfig {}", path.or_else(variable).unwrap_or_else(|| String::from("~/.kube/config")))
    }

    /// Returns the context of the flag, or the current one. The error lists the contexts that exist.
    fn selected_context<'a>(&'a self, kubeconfig: &'a Kubeconfig) -> anyhow::Result<&'a str> {
        let place = self.place();
        let names: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
        anyhow::ensure!(!names.is_empty(), "{place} has no contexts");
        let existing = names.join(", ");
        let selected = self.context.as_ref().or(kubeconfig.current_context.as_ref());
        match selected.map(String::as_str).filter(|name| !name.is_empty()) {
            Some(name) if names.contains(&name) => Ok(name),
            Some(name) => bail!("{place} has no context {name}; its contexts: {existing}"),
            None => bail!("{place} has no current context; choose one with --context: {existing}"),
        }
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
    pub fn selection(&self) -> String {
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

/// The error of a kubeconfig that cannot be used, in words for users.
fn unusable(place: &str, error: &KubeconfigError) -> anyhow::Error {
    let cause = match error {
        KubeconfigError::FindPath => {
            return anyhow::anyhow!("no kubeconfig; pass --kubeconfig or set KUBECONFIG");
        }
        KubeconfigError::ReadConfig(cause, path) => {
            let (path, cause) = (path.display(), plain(&cause.to_string()));
            return anyhow::anyhow!(
                "cannot read kubeconfig {path}: {cause}; pass --kubeconfig, or set KUBECONFIG"
            );
        }
        KubeconfigError::Parse(cause) => {
            let text = cause.to_string();
            format!("it is not a kubeconfig: {}", text.lines().next().unwrap_or_default())
        }
        KubeconfigError::LoadContext(name) => format!("context {name} does not exist"),
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the context names cluster {name}, which does not exist")
        }
        KubeconfigError::MissingClusterUrl => String::from("the cluster of the context has no server"),
        KubeconfigError::ParseClusterUrl(_) => {
            String::from("the server of the cluster is not a URL such as https://HOST:6443")
        }
        other => plain(&other.to_string()),
    };
    anyhow::anyhow!("{place}: {cause}")
}

/// Runs a command that uses the API server to its completion.
pub fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    install_provider()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Installs ring as the cryptography provider of the process. kube and etcd-client use the installed provider.
pub fn install_provider() -> anyhow::Result<std::sync::Arc<rustls::crypto::CryptoProvider>> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    if provider.as_ref().clone().install_default().is_err() {
        anyhow::bail!("another cryptography provider is installed already");
    }
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        access: AccessFlags,
    }

    fn flags(words: &[&str]) -> Result<AccessFlags, clap::Error> {
        let arguments = Arguments::try_parse_from([&["program"], words].concat());
        arguments.map(|arguments| arguments.access)
    }

    #[test]
    fn impersonation_is_part_of_requests_and_remedies() {
        let words = ["--as", "alice", "--as-group", "a", "--as-group", "b c", "--as-uid", "7"];
        let flags = flags(&words).unwrap();
        let mut identity = AuthInfo { impersonate: Some(String::from("bob")), ..AuthInfo::default() };
        flags.impersonate(&mut identity);
        assert_eq!(identity.impersonate.as_deref(), Some("alice"));
        assert_eq!(identity.impersonate_uid.as_deref(), Some("7"));
        assert_eq!(identity.impersonate_groups, Some(vec![String::from("a"), String::from("b c")]));
        let selection = flags.selection();
        assert!(selection.ends_with(" --as alice --as-uid 7 --as-group a --as-group 'b c'"), "{selection}");
    }

    #[test]
    fn unknown_context_lists_those_that_exist() {
        let named = |name: &str| serde_json::json!({"name": name, "context": {"cluster": "c", "user": "u"}});
        let mut kubeconfig: Kubeconfig =
            serde_json::from_value(serde_json::json!({"contexts": [named("prod"), named("dev")]})).unwrap();
        let of = |words: &[&str], kubeconfig: &Kubeconfig| {
            let words = [words, &["--kubeconfig", "/k"]].concat();
            flags(&words)
                .unwrap()
                .selected_context(kubeconfig)
                .map(str::to_owned)
                .map_err(|error| error.to_string())
        };
        let unknown = of(&["--context", "test"], &kubeconfig).unwrap_err();
        assert_eq!(unknown, "kubeconfig /k has no context test; its contexts: prod, dev");
        let none = of(&[], &kubeconfig).unwrap_err();
        assert_eq!(none, "kubeconfig /k has no current context; choose one with --context: prod, dev");
        kubeconfig.current_context = Some(String::from("prod"));
        assert_eq!(of(&[], &kubeconfig), Ok(String::from("prod")));
        assert_eq!(of(&["--context", "dev"], &kubeconfig), Ok(String::from("dev")));
    }

    #[test]
    fn kubeconfig_decides_without_flags_of_impersonation() {
        let mut identity = AuthInfo { impersonate: Some(String::from("bob")), ..AuthInfo::default() };
        flags(&[]).unwrap().impersonate(&mut identity);
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
