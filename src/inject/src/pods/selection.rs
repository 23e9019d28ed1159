//! Selection of the parts that a pod receives. Requests of the pod take precedence over its namespace.
//!
//! The order per template: the pod's own request, `never` selectors, `always` selectors, the namespace's label.
//! Exclusions of whole pods are checked later, so that an ignored request results in a warning.

use std::cell::LazyCell;

use super::{
    context::InjectionContext,
    pod::PodView,
    reason::{Note, Reason, truncated},
    sidecar,
};
use crate::config::{Config, template::Template};
use etcd_guard_core::config::selector::{Labels, Match, PodAttributes};

/// The pod's annotation or label with its request: `true`, `false`, or names separated by commas. As a label of a
/// namespace, `enabled` selects the default list.
pub const INJECT: &str = "etcd-guard.io/inject";

/// The annotation of older lxcfs injectors: `true` or `false`.
pub const LXCFS_INJECT: &str = "sidecar-injector.lxcfs/inject";

/// The namespace's label of older sidecar injectors: `enabled`.
const NAMESPACE_LABEL: &str = "sidecar-injector";

const LXCFS: &str = "lxcfs";

/// The parts that a pod receives, unless it is excluded.
#[derive(Default)]
pub(super) struct Selection<'a> {
    pub(super) lxcfs: bool,
    pub(super) templates: Vec<&'a Template>,
    pub(super) notes: Vec<Note>,
}

/// The request of a pod.
enum Request<'a> {
    Absent,
    Declined,
    Default,
    Names(Vec<&'a str>),
}

pub(super) fn needs_namespace(pod: PodView<'_>, config: &Config) -> bool {
    let by_namespace = |selector: &Option<Match>| {
        selector.as_ref().is_some_and(|selector| selector.namespace_selector.is_some())
    };
    let has_request = pod.annotation(INJECT).or(pod.label(INJECT)).or(pod.annotation(LXCFS_INJECT)).is_some();
    has_request
        || !config.sidecars.default.is_empty()
        || config.lxcfs.always.is_some()
        || config
            .sidecars
            .templates
            .iter()
            .any(|template| by_namespace(&template.always) || by_namespace(&template.never))
        // The namespace's Pod Security level decides about every selected template.
        || config.sidecars.templates.iter().any(|template| template.always.is_some())
            && !select(pod, &InjectionContext::unlabelled(), config).is_empty()
}

/// Selects the parts for a pod.
pub(super) fn select<'a>(
    pod: PodView<'_>,
    context: &InjectionContext<'_>,
    config: &'a Config,
) -> Selection<'a> {
    let mut notes = Vec::new();
    let text = pod.annotation(INJECT).or(pod.label(INJECT));
    let request = text.map_or(Request::Absent, |text| validated_request(text, config, &mut notes));
    let lxcfs_annotation = pod.annotation(LXCFS_INJECT).and_then(|text| {
        let value = parse_bool(text);
        if value.is_none() {
            let text = format!("{LXCFS_INJECT}: {:?} is neither true nor false", truncated(text));
            notes.push(Note::skipped(Reason::UnknownValue, text));
        }
        value
    });
    let namespace = context.namespace_labels.ok();
    // Labels and annotations are collected only if a selector is evaluated, which is rare.
    let labels = LazyCell::new(|| pod.labels());
    let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let annotations = LazyCell::new(|| pod.annotations().map(text).collect());
    let matches = |selector: &Match| {
        let owner_kind = pod.owner_kind();
        selector.matches(PodAttributes { labels: &labels, annotations: &annotations, owner_kind, namespace })
    };
    let rules = SelectionRules { matches: &matches, namespace, request: &request, config };
    let is_lxcfs = |name: &str| name == LXCFS;
    let lxcfs_request = match rules.requested(is_lxcfs) {
        // A list of templates does not decline lxcfs that the older annotation requests.
        Some(false) if matches!(request, Request::Names(_)) => lxcfs_annotation.or(Some(false)),
        requested => requested.or(lxcfs_annotation),
    };
    let lxcfs =
        rules.is_selected(is_lxcfs, lxcfs_request, config.lxcfs.always.as_ref(), config.lxcfs.never.as_ref());
    let mut selection = Selection { lxcfs, templates: Vec::new(), notes };
    for template in &config.sidecars.templates {
        let is_named = |name: &str| config.sidecars.is_requested(template, name);
        let requested = rules.requested(is_named);
        if rules.is_selected(is_named, requested, template.always.as_ref(), template.never.as_ref()) {
            selection.add(template);
        }
    }
    selection
}

struct SelectionRules<'a> {
    /// Whether a selector matches the pod; `None` if that is unknown.
    matches: &'a dyn Fn(&Match) -> Option<bool>,
    namespace: Option<&'a Labels>,
    request: &'a Request<'a>,
    config: &'a Config,
}

/// Parses a request and adds warnings about unknown names. A request without any known name, such as a mistyped `true`,
/// counts as absent, so that selectors and the namespace still apply.
fn validated_request<'a>(text: &'a str, config: &Config, notes: &mut Vec<Note>) -> Request<'a> {
    let request = parse_request(text);
    match &request {
        Request::Names(names) => {
            let is_known = |name: &&str| *name == LXCFS || config.sidecars.template(name).is_some();
            for name in names.iter().filter(|name| !is_known(name)) {
                let text = format!("there is no template {:?} to inject", truncated(name));
                notes.push(Note::skipped(Reason::UnknownTemplate, text));
            }
            if names.iter().any(is_known) { request } else { Request::Absent }
        }
        Request::Default if config.sidecars.default.is_empty() => {
            let text = format!(
                "{INJECT}: {:?} requests the default list, which is empty: name templates instead",
                truncated(text)
            );
            notes.push(Note::skipped(Reason::UnknownValue, text));
            request
        }
        _ => request,
    }
}

fn parse_request(text: &str) -> Request<'_> {
    match parse_bool(text) {
        Some(true) => Request::Default,
        Some(false) => Request::Declined,
        None => {
            let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
            if names.is_empty() { Request::Absent } else { Request::Names(names) }
        }
    }
}

/// Parses a boolean in all spellings that common injectors accept.
fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "1" | "enabled" => Some(true),
        "false" | "no" | "n" | "off" | "0" | "disabled" | "none" => Some(false),
        _ => None,
    }
}

// === impl SelectionRules ===

impl SelectionRules<'_> {
    /// Whether the pod requests the part with names that match `is_named`; `None` without a request.
    fn requested(&self, is_named: impl Fn(&str) -> bool) -> Option<bool> {
        match self.request {
            Request::Absent => None,
            Request::Declined => Some(false),
            Request::Default => self.is_default(is_named).then_some(true),
            Request::Names(names) => Some(names.iter().any(|name| is_named(name))),
        }
    }

    fn is_selected(
        &self,
        is_named: impl Fn(&str) -> bool,
        requested: Option<bool>,
        always: Option<&Match>,
        never: Option<&Match>,
    ) -> bool {
        // If the result of a selector is unknown, the part is not injected.
        let matches = |selector: Option<&Match>, unknown| {
            selector.is_some_and(|selector| (self.matches)(selector).unwrap_or(unknown))
        };
        requested.unwrap_or_else(|| {
            !matches(never, true)
                && (matches(always, false) || self.namespace_opts_in() && self.is_default(is_named))
        })
    }

    fn is_default(&self, is_named: impl Fn(&str) -> bool) -> bool {
        self.config.sidecars.default.iter().any(|name| is_named(name))
    }

    fn namespace_opts_in(&self) -> bool {
        let Some(labels) = self.namespace else { return false };
        [NAMESPACE_LABEL, INJECT]
            .iter()
            .any(|key| labels.get(*key).and_then(|value| parse_bool(value)) == Some(true))
    }
}

// === impl Selection ===

impl<'a> Selection<'a> {
    pub(super) fn is_empty(&self) -> bool {
        !self.lxcfs && self.templates.is_empty()
    }

    /// The names of the pod's containers that come from the selected templates.
    pub(super) fn container_names(&self, pod: PodView<'_>) -> Vec<&'a str> {
        self.templates.iter().flat_map(|template| sidecar::container_names(pod, template)).collect()
    }

    /// Adds a later selection.
    pub(super) fn merge(&mut self, later: Self) {
        self.lxcfs |= later.lxcfs;
        for template in later.templates {
            self.add(template);
        }
    }

    /// Adds a template, unless a template of that name is already selected. Another version of the same template is a
    /// conflict.
    fn add(&mut self, template: &'a Template) {
        match self.templates.iter().find(|selected| selected.name == template.name) {
            None => self.templates.push(template),
            Some(selected) if selected.version == template.version => {}
            Some(selected) => {
                let (other, selected) = (template.full_name(), selected.full_name());
                let text = format!("template {other} was not injected: the pod receives {selected}");
                self.notes.push(Note::skipped(Reason::Conflict, text));
            }
        }
    }
}
