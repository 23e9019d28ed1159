//! The objects of the API server, with resource versions and a log of changes for watches and for stale reads.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

/// Resource, namespace and name of an object.
pub(crate) type Key = (String, String, String);

/// The stored objects.
#[derive(Default)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Value>,
    log: Vec<Change>,
    version: u64,
    uids: u64,
}

/// One change of an object.
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) at: Instant,
    pub(crate) key: Key,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

/// A write that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    NotFound,
    Conflict,
    AlreadyExists,
}

pub(crate) fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.to_owned(), namespace.to_owned(), name.to_owned())
}

// === impl Store ===

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns all changes so far.
    pub(crate) fn log(&self) -> &[Change] {
        &self.log
    }

    pub(crate) fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    /// Returns the number in the uid of the object that was created last.
    pub(crate) fn last_created(&self) -> u64 {
        self.uids
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// Returns the objects of a resource, of one namespace or of all.
    pub(crate) fn list<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Value> {
        let is_listed =
            move |key: &Key| key.0 == resource && namespace.is_none_or(|namespace| namespace == key.1);
        self.objects.iter().filter(move |(key, _)| is_listed(key)).map(|(_, object)| object)
    }

    /// Returns the objects of a resource as a cache shows them that lags by this time.
    pub(crate) fn list_stale(&self, resource: &str, namespace: Option<&str>, lag: Duration) -> Vec<Value> {
        let mut objects: BTreeMap<&Key, &Value> = BTreeMap::new();
        for change in self.log.iter().take_while(|change| change.at + lag <= Instant::now()) {
            if change.key.0 == resource && namespace.is_none_or(|namespace| namespace == change.key.1) {
                match change.kind {
                    "DELETED" => drop(objects.remove(&change.key)),
                    _ => drop(objects.insert(&change.key, &change.object)),
                }
            }
        }
        objects.into_values().cloned().collect()
    }

    /// Returns the changes of a resource after a version that are at least this old, and the version up to which all
    /// changes were considered.
    pub(crate) fn changes(
        &self,
        resource: &str,
        namespace: Option<&str>,
        after: u64,
        lag: Duration,
    ) -> (Vec<&Change>, u64) {
        let start = self.log.partition_point(|change| change.version <= after);
        let visible = self.log[start..].iter().take_while(|change| change.at + lag <= Instant::now());
        let (mut found, mut seen) = (Vec::new(), after);
        for change in visible {
            seen = change.version;
            if change.key.0 == resource && namespace.is_none_or(|namespace| namespace == change.key.1) {
                found.push(change);
            }
        }
        (found, seen)
    }

    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Result<Value, Rejected> {
        if self.objects.contains_key(&key) {
            return Err(Rejected::AlreadyExists);
        }
        let uid = self.new_uid();
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(key.2);
        if !key.1.is_empty() {
            metadata["namespace"] = json!(key.1);
        }
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(uid);
        }
        Ok(self.store(key, object, "ADDED"))
    }

    /// Replaces an object if it has this version. A Lease that does not exist is created, unless the update has a uid
    /// (`AllowCreateOnUpdate` in `pkg/registry/coordination/lease/strategy.go`).
    pub(crate) fn replace(&mut self, key: Key, mut object: Value) -> Result<Value, Rejected> {
        let Some(stored) = self.objects.get(&key) else {
            return match (key.0.as_str(), object["metadata"]["uid"].is_null()) {
                ("leases", true) => self.create(key, object),
                ("leases", false) => Err(Rejected::Conflict),
                _ => Err(Rejected::NotFound),
            };
        };
        let expected = &object["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != stored["metadata"]["resourceVersion"] {
            return Err(Rejected::Conflict);
        }
        object["metadata"]["uid"] = stored["metadata"]["uid"].clone();
        object["metadata"]["namespace"] = json!(key.1);
        Ok(self.store(key, object, "MODIFIED"))
    }

    /// Changes an object, if it exists.
    pub(crate) fn update(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> bool {
        let Some(mut object) = self.objects.get(key).cloned() else { return false };
        change(&mut object);
        if self.objects.get(key) != Some(&object) {
            self.store(key.clone(), object, "MODIFIED");
        }
        true
    }

    /// Removes an object, if its version is this one.
    pub(crate) fn remove(&mut self, key: &Key, version: Option<&str>) -> Result<(), Rejected> {
        let object = self.objects.get(key).ok_or(Rejected::NotFound)?;
        if version.is_some_and(|version| object["metadata"]["resourceVersion"] != version) {
            return Err(Rejected::Conflict);
        }
        let object = object.clone();
        self.store(key.clone(), object, "DELETED");
        self.objects.remove(key);
        Ok(())
    }

    fn store(&mut self, key: Key, mut object: Value, kind: &'static str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.clone(), object.clone());
        let change = Change { version: self.version, at: Instant::now(), key, kind, object: object.clone() };
        self.log.push(change);
        object
    }
}
