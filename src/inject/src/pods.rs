//! Injection into new pods: files of lxcfs, sidecars from templates, tolerations.
//!
//! The module is pure: its inputs are a pod, its namespace and cluster, and a configuration; its output is a patch.
//! Existing parts of the pod take precedence, parts that the pod already has are not added again, and an internal error
//! never denies a pod. The module does not know admission reviews, the network or the status of nodes.

mod context;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzzing;
mod limits;
mod lxcfs;
mod pod;
mod reason;
mod record;
mod selection;
mod sidecar;
#[cfg(test)]
mod tests;
mod tolerations;

use std::borrow::Cow;

use json_patch::Patch;
use serde_json::Value;

use self::{context::InjectionError, pod::PodView, record::Record, selection::Selection};
pub use self::{
    context::{Denial, InjectionContext},
    lxcfs::{EXCLUDED_CONTAINERS, FILES, ONLY_CONTAINERS},
    reason::{Note, Outcome, Reason},
    record::INJECTED,
    selection::{INJECT, LXCFS_INJECT},
    sidecar::OVERRIDE,
};
use crate::{
    config::{Config, sidecars::UnknownTemplate, template::Template},
    patch::{PatchBuilder, PatchError, pointer},
};

/// The result for a pod.
#[derive(Debug)]
pub struct Injection<'a> {
    /// The changed pod; absent if the pod is unchanged.
    pub pod: Option<Value>,
    /// The operations that change the pod; empty if the pod is unchanged.
    pub patch: Patch,
    /// The names of the containers that this pass added.
    pub added_containers: Vec<&'a str>,
    /// The injected and the skipped parts, with their reasons.
    pub notes: Vec<Note>,
}

/// Whether the result for this pod can depend on the labels of its namespace.
pub fn needs_namespace(pod: &Value, config: &Config) -> bool {
    selection::needs_namespace(PodView::new(pod), config)
}

/// Injects the configured parts into a new pod.
pub fn inject<'a>(
    pod: Value,
    context: &InjectionContext<'_>,
    config: &'a Config,
) -> Result<Injection<'a>, Denial> {
    let mut builder = PatchBuilder::new(pod);
    let mut notes = Vec::new();
    let added_containers = match apply(&mut builder, context, config, &mut notes) {
        Ok(added) => added,
        Err(InjectionError::Denied(denial)) => return Err(denial),
        Err(InjectionError::Failed(error)) => return Ok(Injection::failed(&error)),
    };
    let (object, patch) = builder.finish();
    let pod = (!patch.is_empty()).then_some(object);
    Ok(Injection { pod, patch, added_containers, notes })
}

/// Applies the configuration, and returns the names of the added containers.
fn apply<'a>(
    builder: &mut PatchBuilder,
    context: &InjectionContext<'_>,
    config: &'a Config,
    notes: &mut Vec<Note>,
) -> Result<Vec<&'a str>, InjectionError> {
    let pod = PodView::new(builder.object());
    if let Err(cause) = context.namespace_labels
        && selection::needs_namespace(pod, config)
    {
        let text = format!("the labels of namespace {} are not known: {cause}", context.namespace);
        notes.push(Note::skipped(Reason::NamespaceUnknown, text));
    }
    let mut selection = selection::select(pod, context, config);
    match exclusion(pod, context, config) {
        // The pod requests a part: the user gets a warning.
        Some(note) if !selection.is_empty() => {
            notes.push(note);
            selection = Selection::default();
        }
        Some(_) => notes.append(&mut selection.notes),
        None => deny_unknown_template(&selection, config)?,
    }
    let enforced = context.enforced_level(config);
    let mut record = Record::default();
    let earlier = Record::parse(PodView::new(builder.object()).annotation(INJECTED));
    let (mut applied, mut added_containers) = (Vec::<&str>::new(), Vec::new());
    while let Some(template) = next_template(&selection, &applied) {
        applied.push(&template.name);
        let pod = PodView::new(builder.object());
        let absent: Vec<_> =
            template.container_names().filter(|name| pod.container(name).is_none()).collect();
        let operations = builder.operation_count();
        let injected_names = selection.container_names(pod);
        if sidecar::apply(builder, template, &injected_names, context, enforced, notes)? {
            let has_changed = builder.operation_count() != operations;
            record.add(template, has_changed, &earlier);
            added_containers.extend(absent);
        }
        // The labels that this template adds may match the selector of another template.
        if !template.labels.is_empty() {
            selection.merge(selection::select(PodView::new(builder.object()), context, config));
        }
    }
    notes.append(&mut selection.notes);
    if selection.lxcfs {
        let files = lxcfs::apply(builder, context, enforced, &config.lxcfs, notes)?;
        record.lxcfs = files.into_iter().map(Cow::from).collect();
    }
    if !record.is_empty() {
        if context.namespace_labels.is_err() {
            record.preserve(earlier);
        }
        let text = serde_json::to_string(&record).unwrap_or_default();
        builder.set(&pointer(["metadata", "annotations", INJECTED]), text)?;
    }
    if let Some(settings) = &config.lifespan {
        let pod = PodView::new(builder.object());
        match full_exclusion(pod, context, config) {
            None => tolerations::apply(builder, settings, notes)?,
            Some(note) if pod.label(&settings.label).is_some() && !notes.contains(&note) => notes.push(note),
            Some(_) => {}
        }
    }
    Ok(added_containers)
}

/// Denies a pod that requests an unknown template, if `unknownTemplate: deny` is configured.
fn deny_unknown_template(selection: &Selection<'_>, config: &Config) -> Result<(), InjectionError> {
    let unknown = selection.notes.iter().find(|note| note.reason == Reason::UnknownTemplate);
    match unknown.and_then(|note| note.warning.as_ref()) {
        Some(warning) if config.sidecars.unknown_template == UnknownTemplate::Deny => {
            let known: Vec<_> = config.sidecars.templates.iter().map(Template::full_name).collect();
            let message = format!("{warning}; known are: {}", known.join(", "));
            Err(InjectionError::Denied(Denial { reason: Reason::UnknownTemplate, message }))
        }
        _ => Ok(()),
    }
}

/// Returns the first selected template that is not yet applied.
fn next_template<'a>(selection: &Selection<'a>, applied: &[&str]) -> Option<&'a Template> {
    selection.templates.iter().copied().find(|template| !applied.contains(&template.name.as_str()))
}

/// Returns the reason why a pod receives no containers, volumes and files, if there is one.
fn exclusion(pod: PodView<'_>, context: &InjectionContext<'_>, config: &Config) -> Option<Note> {
    let windows = || Note::skipped(Reason::Windows, "nothing was injected: the pod is for Windows");
    full_exclusion(pod, context, config).or_else(|| pod.is_windows().then(windows))
}

/// Returns the reason why a pod is not changed at all, not even by tolerations, if there is one.
fn full_exclusion(pod: PodView<'_>, context: &InjectionContext<'_>, config: &Config) -> Option<Note> {
    if pod.is_mirror() {
        Some(Note::skipped(
            Reason::MirrorPod,
            "nothing was injected: the pod is the mirror of a static pod, which cannot be changed",
        ))
    } else if config.skip_namespaces.iter().any(|namespace| namespace == context.namespace) {
        let text = format!(
            "nothing was injected: namespace {} is excluded by skipNamespaces of the configuration",
            context.namespace
        );
        Some(Note::skipped(Reason::SkippedNamespace, text))
    } else {
        None
    }
}

// === impl Injection ===

impl Injection<'_> {
    /// Creates the result of an internal error: the unchanged pod, with a warning.
    fn failed(error: &PatchError) -> Self {
        let note = Note::skipped(Reason::PatchFailed, format!("nothing was injected: {error}"));
        Self { pod: None, patch: Patch::default(), added_containers: Vec::new(), notes: vec![note] }
    }

    /// Whether the pod is unchanged.
    pub fn is_empty(&self) -> bool {
        self.patch.is_empty()
    }
}
