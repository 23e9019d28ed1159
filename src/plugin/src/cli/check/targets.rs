//! The objects of the command line: names, or a label selector.

use anyhow::{Context, bail};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};

use super::review::{Target, TargetKind};
use crate::api_server::ApiServer;
use etcd_guard_core::objects::data_object::is_subdomain;

/// The objects that the user selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Targets {
    /// These objects.
    Named(Vec<Target>),
    /// All objects of a kind with these labels.
    Selected { kind: TargetKind, selector: String },
}

/// Returns the nodes of the command line, or `None` if it names no node. A drain is several requests, so that a node is no
/// [`Target`].
pub(super) fn nodes(words: &[String], selector: Option<&str>) -> anyhow::Result<Option<Vec<String>>> {
    let is_type = |word: &str| matches!(word, "node" | "nodes" | "no");
    let name = |word: &String| {
        let (kind, name) = word.split_once('/')?;
        is_type(kind).then(|| name.to_owned())
    };
    let names = match words.first() {
        Some(word) if is_type(word) => words.get(1..).unwrap_or_default().to_vec(),
        _ if words.iter().any(|word| name(word).is_some()) => {
            let names: Option<Vec<String>> = words.iter().map(name).collect();
            names.context("a node cannot be combined with other types")?
        }
        _ => return Ok(None),
    };
    anyhow::ensure!(selector.is_none(), "--selector cannot be combined with nodes; name them: node/NAME");
    let is_missing = names.is_empty() || names.iter().any(String::is_empty);
    anyhow::ensure!(!is_missing, "the name is missing; pass node/NAME");
    if let Some(name) = names.iter().find(|name| !is_subdomain(name)) {
        bail!("{name:?} is not the name of a node");
    }
    Ok(Some(names))
}

// === impl Targets ===

impl Targets {
    /// Interprets the words of the command line as kubectl does: `TYPE/NAME`, or a type and then names or a selector.
    /// Differs from kubectl in one form: names without a type are pods.
    pub(super) fn parse(words: &[String], selector: Option<String>) -> anyhow::Result<Self> {
        let kind = words.first().and_then(|word| TargetKind::from_word(word));
        match (kind, selector) {
            (kind, Some(selector)) => {
                let names = if kind.is_some() { words.get(1..) } else { words.get(..) };
                if names.is_some_and(|names| !names.is_empty()) {
                    bail!("a name cannot be combined with --selector");
                }
                Ok(Self::Selected { kind: kind.unwrap_or(TargetKind::Pod), selector })
            }
            (Some(kind), None) => {
                let names = words.get(1..).unwrap_or_default();
                if names.is_empty() {
                    let word = words.first().map(String::as_str).unwrap_or_default();
                    bail!("the name is missing; pass {word}/NAME, or --selector");
                }
                if let Some(name) = names.iter().find(|name| name.contains('/')) {
                    bail!("{name}: a type before all names cannot be combined with TYPE/NAME");
                }
                let targets = names.iter().map(|name| Target::new(kind, name).map_err(anyhow::Error::msg));
                Ok(Self::Named(targets.collect::<Result<_, _>>()?))
            }
            (None, None) => {
                let targets = words.iter().map(|word| word.parse::<Target>().map_err(anyhow::Error::msg));
                Ok(Self::Named(targets.collect::<Result<_, _>>()?))
            }
        }
    }

    /// Returns the kinds of the objects.
    pub(super) fn kinds(&self) -> impl Iterator<Item = TargetKind> {
        let (named, selected) = match self {
            Self::Named(targets) => (targets.as_slice(), None),
            Self::Selected { kind, .. } => (&[][..], Some(*kind)),
        };
        named.iter().map(|target| target.kind).chain(selected)
    }

    /// Returns the objects. Lists them if a selector selects them.
    pub(super) async fn resolve(self, api_server: &ApiServer) -> anyhow::Result<Vec<Target>> {
        let (kind, selector) = match self {
            Self::Named(targets) => return Ok(targets),
            Self::Selected { kind, selector } => (kind, selector),
        };
        let group = kind.group();
        let resource = ApiResource {
            group: group.to_owned(),
            version: String::from("v1"),
            api_version: if group.is_empty() { String::from("v1") } else { format!("{group}/v1") },
            kind: kind.object_kind().to_owned(),
            plural: kind.plural().to_owned(),
        };
        let ApiServer { client, namespace, .. } = api_server;
        let api: Api<DynamicObject> = match kind {
            TargetKind::Namespace => Api::all_with(client.clone(), &resource),
            _ => Api::namespaced_with(client.clone(), namespace, &resource),
        };
        let place = match kind {
            TargetKind::Namespace => String::new(),
            _ => format!(" in namespace {namespace}"),
        };
        let operation = format!("failed to list {}{place}", kind.plural());
        let parameters = ListParams::default().labels(&selector);
        let listed = api_server.call(operation, api.list_metadata(&parameters)).await?;
        let names = listed.items.into_iter().filter_map(|object| object.metadata.name);
        let targets: Vec<Target> = names.map(|name| Target { kind, name }).collect();
        if targets.is_empty() {
            bail!("no {kind}{place} has the labels {selector}");
        }
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str], selector: Option<&str>) -> Result<Targets, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Targets::parse(&words, selector.map(str::to_owned)).map_err(|error| error.to_string())
    }

    fn named(targets: &[(TargetKind, &str)]) -> Targets {
        let targets = targets.iter().map(|(kind, name)| Target { kind: *kind, name: (*name).to_owned() });
        Targets::Named(targets.collect())
    }

    #[test]
    fn accepts_the_forms_of_kubectl() {
        let (pod, set) = (TargetKind::Pod, TargetKind::StatefulSet);
        assert_eq!(parse(&["etcd-0"], None), Ok(named(&[(pod, "etcd-0")])));
        assert_eq!(parse(&["etcd-0", "etcd-1"], None), Ok(named(&[(pod, "etcd-0"), (pod, "etcd-1")])));
        assert_eq!(parse(&["pod", "etcd-0", "etcd-1"], None), Ok(named(&[(pod, "etcd-0"), (pod, "etcd-1")])));
        assert_eq!(parse(&["pod/etcd-0", "sts/etcd"], None), Ok(named(&[(pod, "etcd-0"), (set, "etcd")])));
        let selected = |kind| Ok(Targets::Selected { kind, selector: String::from("app=etcd") });
        assert_eq!(parse(&[], Some("app=etcd")), selected(pod));
        assert_eq!(parse(&["sts"], Some("app=etcd")), selected(set));
    }

    #[test]
    fn nodes_are_named_in_the_forms_of_kubectl() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let nodes =
            |given: &[&str], selector| nodes(&words(given), selector).map_err(|error| error.to_string());
        for given in [&["node/a", "no/b"][..], &["node", "a", "b"], &["nodes", "a", "b"]] {
            assert_eq!(nodes(given, None), Ok(Some(words(&["a", "b"]))), "{given:?}");
        }
        assert_eq!(nodes(&["etcd-0", "pod/node"], None), Ok(None));
        assert_eq!(nodes(&[], Some("a=b")), Ok(None));
        for (given, selector, text) in [
            (&["node/a", "etcd-0"][..], None, "cannot be combined with other types"),
            (&["node"], Some("a=b"), "--selector cannot be combined with nodes"),
            (&["node"], None, "the name is missing"),
            (&["node/"], None, "the name is missing"),
        ] {
            let error = nodes(given, selector).unwrap_err();
            assert!(error.contains(text), "{given:?}: {error}");
        }
    }

    #[test]
    fn rejects_ambiguous_forms() {
        for (words, selector, text) in [
            (&["pod"][..], None, "the name is missing; pass pod/NAME"),
            (&["pod", "sts/etcd"], None, "cannot be combined with TYPE/NAME"),
            (&["etcd-0"], Some("a=b"), "cannot be combined with --selector"),
            (&["pod", "etcd-0"], Some("a=b"), "cannot be combined with --selector"),
            (&["deployment/x"], None, "unknown type"),
        ] {
            let error = parse(words, selector).unwrap_err();
            assert!(error.contains(text), "{words:?}: {error}");
        }
    }
}
