//! Which pods get what: what the pod says goes before what its namespace says.
//!
//! In this order, per template: the pod's own word, never-selectors, always-selectors, the namespace's label. What
//! excludes a pod altogether is looked at later, so that somebody who asked is told.

use std::cell::LazyCell;

use super::Surroundings;
use super::{
    pod::Pod,
    reason::{Note, Reason},
    sidecar,
};
use crate::config::{Config, Labels, Match, Matched, Template};

/// The pod's annotation, or label, that names what it gets: `true`, `false`, or names with commas. As a label of a
/// namespace `enabled` chooses the default list.
pub const INJECT: &str = "etcd-guard.io/inject";

/// The annotation that older lxcfs injectors know: `true` or `false`.
pub const LXCFS_INJECT: &str = "sidecar-injector.lxcfs/inject";

/// The namespace's label that older sidecar injectors know: `enabled`.
const NAMESPACE_LABEL: &str = "sidecar-injector";

const LXCFS: &str = "lxcfs";

/// What a pod gets, if nothing speaks against it.
#[derive(Default)]
pub(super) struct Chosen<'a> {
    pub(super) lxcfs: bool,
    pub(super) templates: Vec<&'a Template>,
    pub(super) notes: Vec<Note>,
}

/// What a pod says itself.
enum Word<'a> {
    Nothing,
    No,
    Default,
    Names(Vec<&'a str>),
}

pub(super) fn needs_namespace(pod: Pod<'_>, config: &Config) -> bool {
    let by_namespace = |it: &Option<Match>| it.as_ref().is_some_and(|it| it.namespace_selector.is_some());
    let asks = pod.annotation(INJECT).or(pod.label(INJECT)).or(pod.annotation(LXCFS_INJECT)).is_some();
    asks || !config.sidecars.default.is_empty()
        || config.lxcfs.always.is_some()
        || config.sidecars.templates.iter().any(|it| by_namespace(&it.always) || by_namespace(&it.never))
}

pub(super) fn choose<'a>(pod: Pod<'_>, surroundings: &Surroundings<'_>, config: &'a Config) -> Chosen<'a> {
    let mut notes = Vec::new();
    let text = pod.annotation(INJECT).or(pod.label(INJECT));
    let word = text.map_or(Word::Nothing, |text| understood(text, config, &mut notes));
    let old_word = pod.annotation(LXCFS_INJECT).and_then(|text| {
        let known = yes_or_no(text);
        if known.is_none() {
            let text = format!("{LXCFS_INJECT}: {:?} is neither true nor false", shortened(text));
            notes.push(Note::skipped(Reason::UnknownValue, text));
        }
        known
    });
    let namespace = surroundings.namespace_labels.ok();
    // Most pods get what they ask for or nothing: what selectors look at is read when there is one.
    let labels = LazyCell::new(|| pod.labels());
    let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let annotations = LazyCell::new(|| pod.annotations().map(text).collect());
    let selects = |it: &Match| {
        let owner_kind = pod.owner_kind();
        it.holds(Matched { labels: &labels, annotations: &annotations, owner_kind, namespace })
    };
    let choice = Choice { selects: &selects, namespace, word: &word, config };
    let is_lxcfs = |asked: &str| asked == LXCFS;
    let lxcfs_word = match choice.own_word(is_lxcfs) {
        // Names of templates say nothing against lxcfs that an older annotation asks for.
        Some(false) if matches!(word, Word::Names(_)) => old_word.or(Some(false)),
        own_word => own_word.or(old_word),
    };
    let lxcfs = choice.of(is_lxcfs, lxcfs_word, config.lxcfs.always.as_ref(), config.lxcfs.never.as_ref());
    let mut chosen = Chosen { lxcfs, templates: Vec::new(), notes };
    for template in &config.sidecars.templates {
        let is_it = |asked: &str| config.sidecars.is_meant(template, asked);
        if choice.of(is_it, choice.own_word(is_it), template.always.as_ref(), template.never.as_ref()) {
            chosen.add(template);
        }
    }
    chosen
}

struct Choice<'a> {
    /// Whether a selector holds for the pod, where that can be judged.
    selects: &'a dyn Fn(&Match) -> Option<bool>,
    namespace: Option<&'a Labels>,
    word: &'a Word<'a>,
    config: &'a Config,
}

/// What a pod says, with a warning about what of it there is not. Names of which none is known, as a mistyped `true` is,
/// say nothing: what holds without them still does.
fn understood<'a>(text: &'a str, config: &Config, notes: &mut Vec<Note>) -> Word<'a> {
    let word = word(text);
    match &word {
        Word::Names(names) => {
            let is_known = |it: &&str| *it == LXCFS || config.sidecars.template(it).is_some();
            for name in names.iter().filter(|it| !is_known(it)) {
                let text = format!("there is no template {:?} to inject", shortened(name));
                notes.push(Note::skipped(Reason::UnknownTemplate, text));
            }
            if names.iter().any(is_known) { word } else { Word::Nothing }
        }
        Word::Default if config.sidecars.default.is_empty() => {
            let text = format!(
                "{INJECT}: {:?} asks for the default list, which is empty: name templates instead",
                shortened(text)
            );
            notes.push(Note::skipped(Reason::UnknownValue, text));
            word
        }
        _ => word,
    }
}

fn word(text: &str) -> Word<'_> {
    match yes_or_no(text) {
        Some(true) => Word::Default,
        Some(false) => Word::No,
        None => {
            let names: Vec<&str> = text.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
            if names.is_empty() { Word::Nothing } else { Word::Names(names) }
        }
    }
}

/// The spellings that injectors in use know.
fn yes_or_no(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "1" | "enabled" => Some(true),
        "false" | "no" | "n" | "off" | "0" | "disabled" | "none" => Some(false),
        _ => None,
    }
}

/// A user's text, short enough for a warning.
pub(super) fn shortened(text: &str) -> &str {
    const LONGEST: usize = 40;
    text.char_indices().nth(LONGEST).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

// === impl Choice ===

impl Choice<'_> {
    /// What the pod itself says of the template that `is_it` knows by the names that mean it.
    fn own_word(&self, is_it: impl Fn(&str) -> bool) -> Option<bool> {
        match self.word {
            Word::Nothing => None,
            Word::No => Some(false),
            Word::Default => self.is_default(is_it).then_some(true),
            Word::Names(names) => Some(names.iter().any(|it| is_it(it))),
        }
    }

    fn of(
        &self,
        is_it: impl Fn(&str) -> bool,
        own_word: Option<bool>,
        always: Option<&Match>,
        never: Option<&Match>,
    ) -> bool {
        // Where a selector cannot be judged, nothing is injected.
        let holds = |it: Option<&Match>, unknown| it.is_some_and(|it| (self.selects)(it).unwrap_or(unknown));
        own_word.unwrap_or_else(|| {
            !holds(never, true)
                && (holds(always, false) || self.namespace_opts_in() && self.is_default(is_it))
        })
    }

    fn is_default(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.config.sidecars.default.iter().any(|it| is_it(it))
    }

    fn namespace_opts_in(&self) -> bool {
        let Some(labels) = self.namespace else { return false };
        [NAMESPACE_LABEL, INJECT]
            .iter()
            .any(|key| labels.get(*key).and_then(|it| yes_or_no(it)) == Some(true))
    }
}

// === impl Chosen ===

impl<'a> Chosen<'a> {
    pub(super) fn is_empty(&self) -> bool {
        !self.lxcfs && self.templates.is_empty()
    }

    /// The names of all containers that may come from templates.
    pub(super) fn container_names(&self, pod: Pod<'_>) -> Vec<&'a str> {
        self.templates.iter().flat_map(|it| sidecar::container_names(pod, it)).collect()
    }

    /// Adds what was chosen later.
    pub(super) fn join(&mut self, later: Self) {
        self.lxcfs |= later.lxcfs;
        for template in later.templates {
            self.add(template);
        }
    }

    /// Adds a template, unless there is one, perhaps of another version.
    fn add(&mut self, template: &'a Template) {
        match self.templates.iter().find(|it| it.name == template.name) {
            None => self.templates.push(template),
            Some(chosen) if chosen.version == template.version => {}
            Some(chosen) => {
                let (other, chosen) = (template.full_name(), chosen.full_name());
                let text = format!("template {other} was not injected: the pod gets {chosen}");
                self.notes.push(Note::skipped(Reason::Conflict, text));
            }
        }
    }
}
