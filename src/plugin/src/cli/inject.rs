//! `kubectl etcd-guard inject`: shows the mutation of a pod without a cluster.

use std::{io::Write, path::PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::guard_flags::parse_namespace;
use etcd_guard_cli::printing::{print_error, print_warning, stdout};
use etcd_guard_core::{
    config::{document::yaml_error, selector::Labels},
    escape::escape_json,
    objects::api_server_version::ApiServerVersion,
};
use etcd_guard_inject::{
    pod_names::check_pod_name,
    pods::{InjectionContext, inject},
};

/// Print a pod with all injections applied; requires no cluster
///
/// Status 1 means that the guard would deny the pod.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # What becomes of this pod?
  kubectl etcd-guard inject -f pod.yaml --config config.yaml

  # The JSON patch of the webhook
  kubectl etcd-guard inject -f pod.yaml --config config.yaml -o patch")]
pub(super) struct Inject {
    /// The pod in YAML or JSON, or - for standard input
    #[arg(short, long)]
    file: PathBuf,
    /// The configuration file; by default the built-in configuration
    #[arg(long, env = "ETCD_GUARD_CONFIG")]
    config: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
    /// The pod's namespace; by default the namespace in the file, otherwise `default`
    #[arg(short, long, value_parser = parse_namespace)]
    namespace: Option<String>,
    /// A label of the namespace, such as sidecar-injector=enabled; can be repeated
    #[arg(long = "namespace-label", value_parser = parse_label)]
    namespace_labels: Vec<(String, String)>,
    /// The version of the API server and of the oldest kubelet, on which native sidecars depend
    #[arg(long, default_value = "1.34", value_parser = parse_version)]
    kubernetes_version: ApiServerVersion,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// The mutated pod in YAML
    Yaml,
    /// The mutated pod in JSON
    Json,
    /// The JSON patch
    Patch,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_version(text: &str) -> Result<ApiServerVersion, String> {
    let (major, minor) =
        text.trim_start_matches('v').split_once('.').ok_or("expected a version such as 1.34")?;
    let minor = minor.split('.').next().unwrap_or_default();
    ApiServerVersion::parse(major, minor).ok_or_else(|| format!("{text:?} is not a version such as 1.34"))
}

/// Prints why the guard denies the pod. Returns that it does.
fn denied(denial: impl std::error::Error + Send + Sync + 'static) -> bool {
    print_error(&anyhow::Error::new(denial).context("the pod would be denied"));
    false
}

/// Rejects labels and annotations that are not strings. The API server rejects such a pod before it calls any webhook.
fn check_strings(pod: &Value) -> anyhow::Result<()> {
    for (pointer, kind) in [("/metadata/labels", "label"), ("/metadata/annotations", "annotation")] {
        let mut members = pod.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
        // Go reads null as an empty string.
        if let Some((key, value)) = members.find(|(_, value)| !value.is_string() && !value.is_null()) {
            bail!(
                "{kind} {key} is {value}, not a string; quote it, otherwise the API server rejects the pod"
            );
        }
    }
    Ok(())
}

// === impl Inject ===

impl Inject {
    /// Returns whether the guard would admit the pod.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let Self { file, config, output, namespace, namespace_labels, kubernetes_version } = self;
        let (config, _) = super::config::read_or_default(config.as_deref())?;
        let text = super::config::read_text(&file)?;
        let pod: Value = serde_saphyr::from_str(&text)
            .map_err(|error| anyhow!("{}: {}", file.display(), yaml_error(&error)))?;
        if pod.get("kind").is_none_or(|kind| kind != "Pod") {
            bail!("{}: expected one object of kind Pod", file.display());
        }
        if let Err(error) = check_strings(&pod).with_context(|| file.display().to_string()) {
            print_error(&error);
            return Ok(false);
        }
        let pod_namespace = pod.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        let namespace = namespace.or(pod_namespace).unwrap_or_else(|| String::from("default"));
        let labels: Labels = namespace_labels.into_iter().collect();
        let context = InjectionContext {
            namespace: &namespace,
            namespace_labels: Ok(&labels),
            native_sidecars: kubernetes_version >= ApiServerVersion::NATIVE_SIDECARS,
        };
        let injection = match inject(pod.clone(), &context, &config) {
            Ok(injection) => injection,
            Err(denial) => return Ok(denied(denial)),
        };
        if let Some(rule) = &config.pod_names {
            let text = |place| pod.pointer(place).and_then(Value::as_str).unwrap_or_default();
            if let Err(denial) = check_pod_name(text("/metadata/name"), text("/metadata/generateName"), rule)
            {
                return Ok(denied(denial));
            }
        }
        for warning in injection.notes.iter().filter_map(|note| note.warning.as_ref()) {
            print_warning(warning);
        }
        let mut out = stdout();
        let pod = injection.pod.unwrap_or(pod);
        match output {
            Output::Yaml => write!(out, "{}", serde_saphyr::to_string(&pod)?)?,
            Output::Json => writeln!(out, "{}", escape_json(&serde_json::to_string_pretty(&pod)?))?,
            Output::Patch => {
                writeln!(out, "{}", escape_json(&serde_json::to_string_pretty(&injection.patch)?))?;
            }
        }
        Ok(true)
    }
}
