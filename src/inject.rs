//! The mutating path for pods: the files of lxcfs, sidecars by templates, tolerations.
//!
//! All of it is pure: a pod, what is known of its namespace and of the cluster, and a configuration go in; a patch comes
//! out. The user's own wins wherever the two meet, whatever is there already is not added again, and an error in here
//! never rejects a pod. This room never knows of reviews, of the network, or of nodes' status.

mod affinity;
mod choose;
mod content;
mod from_pod;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod lifespan;
mod lxcfs;
mod pod;
mod reason;
mod sidecar;
#[cfg(test)]
mod tests;
mod volumes;
mod whole_pod;

use std::{borrow::Cow, collections::BTreeMap};

use self::{choose::Chosen, pod::Pod};
pub use self::{
    choose::{INJECT, LXCFS_INJECT},
    from_pod::OVERRIDE,
    lxcfs::{EXCLUDED_CONTAINERS, FILES, ONLY_CONTAINERS},
    reason::{Note, Reason, Result},
};
use crate::{
    config::{Config, Labels, Template, UnknownTemplate},
    json::Json,
    patch::{Draft, Finished, Patch, PatchError, pointer},
};
use serde::{Deserialize, Serialize};

/// The annotation that says what a pod got.
pub const INJECTED: &str = "etcd-guard.io/injected";

/// What is known around a pod.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The request's namespace: a pod's own metadata may lack it.
    pub namespace: &'a str,
    /// The namespace's labels, or why they are not known.
    pub namespace_labels: std::result::Result<&'a Labels, &'a str>,
    /// Whether all kubelets know native sidecars.
    pub native_sidecars: bool,
}

/// What became of a pod.
#[derive(Debug)]
pub struct Injection<'a> {
    /// The pod as it should be; absent if it stays as it came.
    pub pod: Option<Json<'a>>,
    /// What leads there; empty if nothing is to be done.
    pub patch: Patch,
    /// What was done or left out, and why.
    pub notes: Vec<Note>,
}

/// A pod that says what no pod may say.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Denial {
    /// Why, in the word that metrics and audits have.
    pub reason: Reason,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// What the status annotation holds. Nothing in it but what was chosen, so that a second pass writes the same.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Record<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lxcfs: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    templates: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

/// Whether anything about this pod can hang on its namespace's labels.
#[must_use]
pub fn needs_namespace(pod: &Json<'_>, config: &Config) -> bool {
    choose::needs_namespace(Pod::of(pod), config)
}

/// What a pod should be that is created in these surroundings.
pub fn inject<'a>(
    pod: Json<'a>,
    surroundings: &Surroundings<'_>,
    config: &'a Config,
) -> std::result::Result<Injection<'a>, Denial> {
    let mut draft = Draft::new(pod);
    let mut notes = Vec::new();
    match change(&mut draft, surroundings, config, &mut notes) {
        Ok(()) => {}
        Err(Stop::Denied(denial)) => return Err(denial),
        Err(Stop::Failed(error)) => return Ok(Injection::failed(&error)),
    }
    match draft.finish() {
        Ok(Finished { patch, .. }) if patch.is_empty() => Ok(Injection { pod: None, patch, notes }),
        Ok(Finished { object, patch }) => Ok(Injection { pod: Some(object), patch, notes }),
        Err(error) => Ok(Injection::failed(&error)),
    }
}

/// Why a pod gets no patch.
enum Stop {
    Denied(Denial),
    Failed(PatchError),
}

fn change<'a>(
    draft: &mut Draft<'a>,
    surroundings: &Surroundings<'_>,
    config: &'a Config,
    notes: &mut Vec<Note>,
) -> std::result::Result<(), Stop> {
    let pod = Pod::of(draft.object());
    if let Err(cause) = surroundings.namespace_labels
        && choose::needs_namespace(pod, config)
    {
        let text = format!("the labels of namespace {} are not known: {cause}", surroundings.namespace);
        notes.push(Note::skipped(Reason::NamespaceUnknown, text));
    }
    let mut chosen = choose::choose(pod, surroundings, config);
    match hard_skip(pod, surroundings, config) {
        // Somebody who asked is told.
        Some(note) if !chosen.is_empty() => {
            notes.push(note);
            chosen = Chosen::default();
        }
        Some(_) => notes.append(&mut chosen.notes),
        None => deny_unknown(&chosen, config)?,
    }
    let mut record = Record::default();
    let mut applied: Vec<&str> = Vec::new();
    while let Some(template) = next(&chosen, &applied) {
        applied.push(&template.name);
        let containers = chosen.container_names(Pod::of(draft.object()));
        if sidecar::apply(draft, template, &containers, surroundings, notes)? {
            record.templates.insert(template.full_name(), Cow::from(&template.hash));
        }
        // Another template may select by the labels that this one adds.
        if !template.labels.is_empty() {
            chosen.join(choose::choose(Pod::of(draft.object()), surroundings, config));
        }
    }
    notes.append(&mut chosen.notes);
    if chosen.lxcfs {
        let files = lxcfs::apply(draft, surroundings, &config.lxcfs, notes)?;
        record.lxcfs = files.into_iter().map(Cow::from).collect();
    }
    if !record.is_empty() {
        if surroundings.namespace_labels.is_err() {
            record.keep(Pod::of(draft.object()).annotation(INJECTED));
        }
        let text = serde_json::to_string(&record).unwrap_or_default();
        draft.rewrite(&pointer(["metadata", "annotations", INJECTED]), text)?;
    }
    if let Some(settings) = &config.lifespan {
        let pod = Pod::of(draft.object());
        match left_alone(pod, surroundings, config) {
            None => lifespan::apply(draft, settings, notes)?,
            Some(note) if pod.label(&settings.label).is_some() && !notes.contains(&note) => notes.push(note),
            Some(_) => {}
        }
    }
    Ok(())
}

/// A pod that asks for what there is not, where that is to be denied.
fn deny_unknown(chosen: &Chosen<'_>, config: &Config) -> std::result::Result<(), Stop> {
    let unknown = chosen.notes.iter().find(|it| it.reason == Reason::UnknownTemplate);
    match unknown.and_then(|it| it.warning.as_ref()) {
        Some(warning) if config.sidecars.unknown_template == UnknownTemplate::Deny => {
            let known: Vec<_> = config.sidecars.templates.iter().map(Template::full_name).collect();
            let message = format!("{warning}; known are: {}", known.join(", "));
            Err(Stop::Denied(Denial { reason: Reason::UnknownTemplate, message }))
        }
        _ => Ok(()),
    }
}

/// The first template that was chosen and not yet applied.
fn next<'a>(chosen: &Chosen<'a>, applied: &[&str]) -> Option<&'a Template> {
    chosen.templates.iter().copied().find(|it| !applied.contains(&it.name.as_str()))
}

/// Pods that get no containers, volumes and files.
fn hard_skip(pod: Pod<'_>, surroundings: &Surroundings<'_>, config: &Config) -> Option<Note> {
    let windows = || Note::skipped(Reason::Windows, "nothing was injected: the pod is for Windows");
    left_alone(pod, surroundings, config).or_else(|| pod.is_windows().then(windows))
}

/// Pods that nothing is ever changed in, tolerations included.
fn left_alone(pod: Pod<'_>, surroundings: &Surroundings<'_>, config: &Config) -> Option<Note> {
    if pod.is_mirror() {
        Some(Note::skipped(
            Reason::MirrorPod,
            "nothing was injected: the pod mirrors a static one, which stays as it is",
        ))
    } else if config.skip_namespaces.iter().any(|it| it == surroundings.namespace) {
        let text = format!("nothing was injected: namespace {} is left alone", surroundings.namespace);
        Some(Note::skipped(Reason::SkippedNamespace, text))
    } else {
        None
    }
}

// === impl Record ===

impl Record<'_> {
    fn is_empty(&self) -> bool {
        self.lxcfs.is_empty() && self.templates.is_empty()
    }

    /// Keeps what an earlier pass wrote, where this one could not choose for want of the namespace.
    fn keep(&mut self, earlier: Option<&str>) {
        let earlier: Option<Record<'static>> = earlier.and_then(|it| serde_json::from_str(it).ok());
        let Some(earlier) = earlier else { return };
        if self.lxcfs.is_empty() {
            self.lxcfs = earlier.lxcfs;
        }
        for (name, hash) in earlier.templates {
            self.templates.entry(name).or_insert(hash);
        }
    }
}

// === impl Injection ===

impl Injection<'_> {
    /// The pod as it came, and a warning.
    fn failed(error: &PatchError) -> Self {
        let note = Note::skipped(Reason::PatchFailed, format!("nothing was injected: {error}"));
        Self { pod: None, patch: Patch::default(), notes: vec![note] }
    }

    /// Whether the pod stays as it came.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patch.is_empty()
    }
}

// === impl Stop ===

impl From<PatchError> for Stop {
    fn from(error: PatchError) -> Self {
        Self::Failed(error)
    }
}
