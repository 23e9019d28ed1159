//! The objects of one namespace: a list, and the events of a watch. If the watch is shared, an event can arrive before or
//! after the list that contains its change.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    error::LookupError,
    read::{
        pages::Listed,
        watching::{Change, Event, WatchedMetadata},
    },
};

/// Maximum number of objects whose events are collected while a list is in progress.
const MAX_EVENTS: usize = 10_000;

/// The objects of one namespace.
#[derive(Default)]
pub(super) struct Objects {
    /// By name; `None` until the first list is complete.
    pub(super) by_name: Option<BTreeMap<String, Arc<WatchedMetadata>>>,
    /// The cause of the last failure.
    pub(super) failure: Option<LookupError>,
    /// Whether no change has been missed since the last list.
    is_complete: bool,
    /// Whether events can be late.
    is_late: bool,
    /// The version of the last list, if the watch is shared. The list contains the events up to this version.
    listed_version: Option<u64>,
    /// The list that is in progress, if the watch is shared.
    expected: Option<ExpectedList>,
}

/// A list that was requested while the shared watch ran.
struct ExpectedList {
    /// The number of the start of the shared watch.
    start: u64,
    /// The last event of each object since the list was requested. The list contains some of these changes.
    events: BTreeMap<String, Event>,
    /// Whether events were dropped, because there were too many.
    is_overflown: bool,
}

// === impl Objects ===

impl Objects {
    /// Creates objects that are not known, because the watch has failed.
    pub(super) fn failed(failure: Option<LookupError>) -> Self {
        Self { failure, ..Self::default() }
    }

    /// Returns a copy of the last known objects. It is not current.
    pub(super) fn last_known(&self) -> Self {
        Self { by_name: self.by_name.clone(), ..Self::default() }
    }

    /// Whether no change has been missed since the last list.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether the objects are as old as the delay of watch events.
    pub(super) fn is_current(&self) -> bool {
        self.is_complete && !self.is_late
    }

    /// Applies a change that the watch reports.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Listed(objects) => {
                let by_name = Some(by_name(objects));
                *self = Self { by_name, is_complete: true, ..Self::default() };
            }
            Change::Event(event) => self.apply_event(event),
            // The list follows.
            Change::Started => {}
            Change::Late => self.is_late = true,
            Change::CaughtUp => self.is_late = false,
            Change::Failed(failure) => {
                self.is_complete = false;
                self.failure = failure;
                self.expected = None;
            }
        }
    }

    /// Expects a list after this start of the shared watch, and collects events from now on. Call it before the list is
    /// requested.
    pub(super) fn expect_list(&mut self, start: u64, is_late: bool) {
        // Versions can be smaller than before, if the data of the API server was restored.
        (self.failure, self.listed_version, self.is_late) = (None, None, is_late);
        self.expected = Some(ExpectedList::new(start));
    }

    /// Drops the events that were collected until now: the list that begins now contains their changes.
    pub(super) fn start_list(&mut self, start: u64) {
        if let Some(expected) = self.expected.take_if(|expected| expected.start == start) {
            self.expected = Some(ExpectedList::new(expected.start));
        }
    }

    /// Records the failure of a list that was requested after this start of the shared watch.
    pub(super) fn fail_list(&mut self, start: u64, failure: LookupError) {
        if self.expected.as_ref().is_none_or(|expected| expected.start == start) {
            self.failure = Some(failure);
        }
    }

    /// Stores a list that was requested after this start of the shared watch. Returns false if the list must be repeated,
    /// because events were dropped.
    pub(super) fn apply_list(&mut self, start: u64, list: Listed<WatchedMetadata>) -> bool {
        let Listed { objects, version } = list;
        let Some(expected) = self.expected.take_if(|expected| expected.start == start) else {
            // The watch failed after the list was requested, so that later events can be missing.
            if self.expected.is_none() {
                self.by_name.get_or_insert_with(|| by_name(objects));
            }
            return true;
        };
        if expected.is_overflown {
            self.expected = Some(ExpectedList::new(start));
            return false;
        }
        *self = Self {
            by_name: Some(by_name(objects)),
            is_complete: true,
            is_late: self.is_late,
            listed_version: version.parse().ok(),
            ..Self::default()
        };
        for event in expected.events.into_values() {
            self.apply_event(event);
        }
        true
    }

    fn apply_event(&mut self, event: Event) {
        // Versions are decimal numbers that grow with each change of the resource. If a version is not a number, each event is
        // applied when it arrives: an older state can be shown until the last event of the object arrives.
        let versions = self.listed_version.zip(event.version.parse::<u64>().ok());
        if versions.is_some_and(|(list, event)| event <= list) {
            return;
        }
        if let Some(by_name) = &mut self.by_name {
            match &event.object {
                Some(object) => by_name.insert(event.name.clone(), Arc::clone(object)),
                None => by_name.remove(&event.name),
            };
        }
        if let Some(expected) = &mut self.expected {
            expected.collect(event);
        }
    }
}

// === impl ExpectedList ===

impl ExpectedList {
    fn new(start: u64) -> Self {
        Self { start, events: BTreeMap::new(), is_overflown: false }
    }

    fn collect(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS && !self.events.contains_key(&event.name) {
            self.is_overflown = true;
            self.events.clear();
        } else if !self.is_overflown {
            self.events.insert(event.name.clone(), event);
        }
    }
}

fn by_name(objects: Vec<WatchedMetadata>) -> BTreeMap<String, Arc<WatchedMetadata>> {
    objects.into_iter().map(|object| (object.name.clone(), Arc::new(object))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, version: u64) -> WatchedMetadata {
        let resource_version = version.to_string();
        WatchedMetadata { name: name.to_owned(), resource_version, ..WatchedMetadata::default() }
    }

    fn changed(name: &str, version: u64) -> Event {
        Event { object: Some(Arc::new(object(name, version))), ..deleted(name, version) }
    }

    fn deleted(name: &str, version: u64) -> Event {
        Event {
            namespace: String::from("prod"),
            name: name.to_owned(),
            version: version.to_string(),
            object: None,
        }
    }

    fn list(version: u64, objects: &[(&str, u64)]) -> Listed<WatchedMetadata> {
        let objects = objects.iter().map(|(name, version)| object(name, *version)).collect();
        Listed { objects, version: version.to_string() }
    }

    /// The names and versions, in the order of the names.
    fn shown(objects: &Objects) -> Vec<(String, String)> {
        let all = objects.by_name.iter().flat_map(BTreeMap::values);
        let mut shown: Vec<_> =
            all.map(|object| (object.name.clone(), object.resource_version.clone())).collect();
        shown.sort();
        shown
    }

    fn expected(objects: &[(&str, u64)]) -> Vec<(String, String)> {
        objects.iter().map(|(name, version)| ((*name).to_owned(), version.to_string())).collect()
    }

    #[test]
    fn events_after_the_version_of_a_list_survive_it() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        for event in [changed("newer", 12), deleted("gone", 13), changed("older", 8), deleted("returned", 9)]
        {
            objects.apply(Change::Event(event));
        }
        assert!(objects.by_name.is_none(), "events do not replace a list");
        let _ = objects.apply_list(1, list(10, &[("gone", 3), ("newer", 4), ("older", 9), ("returned", 10)]));
        assert_eq!(shown(&objects), expected(&[("newer", 12), ("older", 9), ("returned", 10)]));
        assert!(objects.is_current());
    }

    #[test]
    fn late_events_do_not_replace_a_newer_list() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        let _ = objects.apply_list(1, list(10, &[("etcd", 9)]));
        objects.apply(Change::Event(changed("etcd", 7)));
        objects.apply(Change::Event(deleted("etcd", 8)));
        assert_eq!(shown(&objects), expected(&[("etcd", 9)]));
        objects.apply(Change::Event(changed("etcd", 11)));
        assert_eq!(shown(&objects), expected(&[("etcd", 11)]));
        objects.apply(Change::Event(deleted("etcd", 12)));
        assert!(shown(&objects).is_empty());
    }

    #[test]
    fn last_known_objects_are_shown_during_the_next_list() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        let _ = objects.apply_list(1, list(10, &[("etcd", 9)]));
        objects.apply(Change::Failed(None));
        assert!(!objects.is_current());
        objects.expect_list(2, false);
        objects.apply(Change::Event(changed("etcd", 21)));
        assert_eq!(shown(&objects), expected(&[("etcd", 21)]));
        assert!(!objects.is_current(), "events between the two starts are missing");
        let _ = objects.apply_list(2, list(20, &[("etcd", 15), ("other", 14)]));
        assert_eq!(shown(&objects), expected(&[("etcd", 21), ("other", 14)]));
        assert!(objects.is_current());
    }

    #[test]
    fn list_of_a_failed_watch_is_not_current() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        objects.apply(Change::Failed(None));
        let _ = objects.apply_list(1, list(10, &[("etcd", 9)]));
        assert_eq!(shown(&objects), expected(&[("etcd", 9)]), "policies are known");
        assert!(!objects.is_current());
        objects.expect_list(2, false);
        let _ = objects.apply_list(1, list(8, &[]));
        assert_eq!(
            shown(&objects),
            expected(&[("etcd", 9)]),
            "the list of an earlier start replaces nothing"
        );
        assert!(!objects.is_current());
    }

    #[test]
    fn list_of_an_earlier_start_is_ignored_while_a_later_one_is_expected() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        objects.apply(Change::Failed(None));
        objects.expect_list(2, false);
        assert!(objects.apply_list(1, list(10, &[("etcd", 9)])));
        assert!(objects.by_name.is_none(), "events after this list can be missing");
        assert!(objects.apply_list(2, list(20, &[("etcd", 15)])));
        assert_eq!(shown(&objects), expected(&[("etcd", 15)]));
    }

    #[test]
    fn events_before_the_start_of_a_list_are_dropped() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        objects.apply(Change::Event(changed("gone", 5)));
        objects.start_list(1);
        assert!(objects.apply_list(1, list(10, &[("etcd", 9)])));
        assert_eq!(shown(&objects), expected(&[("etcd", 9)]));
    }

    #[test]
    fn list_is_repeated_after_too_many_events() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        for number in 0..=u64::try_from(MAX_EVENTS).unwrap() {
            objects.apply(Change::Event(changed(&format!("etcd-{number}"), 20 + number)));
        }
        assert!(!objects.apply_list(1, list(10, &[])));
        assert!(objects.by_name.is_none());
        assert!(objects.apply_list(1, list(30_000, &[("etcd-1", 21)])));
        assert_eq!(shown(&objects), expected(&[("etcd-1", 21)]));
        assert!(objects.is_current());
    }

    #[test]
    fn versions_can_decrease_between_two_starts() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        assert!(objects.apply_list(1, list(1000, &[("etcd", 900)])));
        objects.apply(Change::Failed(None));
        objects.expect_list(2, false);
        objects.apply(Change::Event(changed("etcd", 12)));
        assert!(objects.apply_list(2, list(11, &[("etcd", 10)])));
        assert_eq!(shown(&objects), expected(&[("etcd", 12)]));
    }

    #[test]
    fn late_events_are_not_current_until_a_bookmark() {
        let mut objects = Objects::default();
        objects.expect_list(1, false);
        assert!(objects.apply_list(1, list(10, &[("etcd", 9)])));
        objects.apply(Change::Late);
        assert!(!objects.is_current() && objects.is_complete());
        objects.apply(Change::CaughtUp);
        assert!(objects.is_current());
        objects.expect_list(2, true);
        assert!(objects.apply_list(2, list(20, &[("etcd", 9)])));
        assert!(!objects.is_current(), "the watch is late");
    }
}
