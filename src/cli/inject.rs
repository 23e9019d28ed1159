//! `etcd-guard inject`: what the webhook would make of a pod, without a cluster.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::{
    config::Labels,
    inject::{Surroundings, inject},
    k8s::Version,
    rules::judge_name,
};

/// Show what becomes of a pod, without a cluster
#[derive(Debug, Args)]
pub(super) struct Inject {
    /// The pod, YAML or JSON; - for standard input
    #[arg(short, long)]
    file: PathBuf,
    /// The configuration file; by default, the default configuration
    #[arg(long, env = "ETCD_GUARD_CONFIG")]
    config: Option<PathBuf>,
    /// What to print
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
    /// The pod's namespace; by default the one that it names, or `default`
    #[arg(short, long)]
    namespace: Option<String>,
    /// A label of the namespace, such as sidecar-injector=enabled; may be repeated
    #[arg(long = "namespace-label", value_parser = parse_label)]
    namespace_labels: Vec<(String, String)>,
    /// The apiserver's version, which decides about native sidecars
    #[arg(long, default_value = "1.34", value_parser = parse_version)]
    kubernetes_version: Version,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// The pod as it would be
    Yaml,
    /// The same in JSON
    Json,
    /// The JSON patch
    Patch,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE is expected")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parse_version(text: &str) -> Result<Version, String> {
    let (major, minor) =
        text.trim_start_matches('v').split_once('.').ok_or("1.34, for instance, is expected")?;
    let minor = minor.split('.').next().unwrap_or_default();
    Version::of(major, minor).ok_or_else(|| format!("{text:?} is no version such as 1.34"))
}

/// What is said before the reason of a denial.
const DENIED: &str = "the pod would be denied";

/// A label or annotation that is no text: the apiserver refuses such a pod before it asks any webhook.
fn check_texts(pod: &Value) -> anyhow::Result<()> {
    for (members, what) in [("/metadata/labels", "label"), ("/metadata/annotations", "annotation")] {
        let mut members = pod.pointer(members).and_then(Value::as_object).into_iter().flatten();
        // Go reads null as an empty text.
        if let Some((key, value)) = members.find(|(_, it)| !it.is_string() && !it.is_null()) {
            bail!("{what} {key} is {value}, which is no text: quote it, or the apiserver refuses the pod");
        }
    }
    Ok(())
}

// === impl Inject ===

impl Inject {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let Self { file, config, output, namespace, namespace_labels, kubernetes_version } = self;
        let (config, _) = super::config::read_or_default(config.as_deref())?;
        let text = super::input::read(&file)?;
        let pod: Value = serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
        if pod.get("kind").is_none_or(|kind| kind != "Pod") {
            bail!("{}: one object of kind Pod is expected", file.display());
        }
        check_texts(&pod).with_context(|| file.display().to_string())?;
        let own = pod.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        let namespace = namespace.or(own).unwrap_or_else(|| String::from("default"));
        let labels: Labels = namespace_labels.into_iter().collect();
        let surroundings = Surroundings {
            namespace: &namespace,
            namespace_labels: Ok(&labels),
            native_sidecars: kubernetes_version >= Version::NATIVE_SIDECARS,
        };
        let injection = inject((&pod).into(), &surroundings, &config).context(DENIED)?;
        if let Some(rule) = &config.pod_names {
            let text = |place| pod.pointer(place).and_then(Value::as_str).unwrap_or_default();
            judge_name(text("/metadata/name"), text("/metadata/generateName"), rule).context(DENIED)?;
        }
        for warning in injection.notes.iter().filter_map(|note| note.warning.as_ref()) {
            eprintln!("Warning: {warning}");
        }
        let pod = injection.pod.as_ref().map_or_else(|| pod.clone(), Value::from);
        match output {
            Output::Yaml => print!("{}", serde_saphyr::to_string(&pod)?),
            Output::Json => println!("{}", serde_json::to_string_pretty(&pod)?),
            Output::Patch => println!("{}", serde_json::to_string_pretty(&injection.patch)?),
        }
        Ok(())
    }
}
