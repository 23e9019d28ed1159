//! What is read of an untyped pod. Absent, null and empty are the same, as in Go.

use std::borrow::Cow;

use serde_json::Value;

use super::INJECTED;
use crate::{config::Labels, json::Json, k8s::pod::MIRROR_ANNOTATION};

/// A pod to be read.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a>(&'a Json<'a>);

/// A container to be read, and where it is.
#[derive(Clone, Copy)]
pub(super) struct Container<'a> {
    /// `containers` or `initContainers`.
    pub(super) list: &'static str,
    pub(super) index: usize,
    pub(super) value: &'a Json<'a>,
}

/// The lists that hold containers that a template may meet.
pub(super) const LISTS: [&str; 2] = ["initContainers", "containers"];

// === impl Pod ===

impl<'a> Pod<'a> {
    pub(super) fn of(pod: &'a Json<'_>) -> Self {
        Self(pod)
    }

    pub(super) fn annotation(self, key: &str) -> Option<&'a str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// All annotations with a text.
    pub(super) fn annotations(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let annotations = self.0.get("metadata").and_then(|it| it.get("annotations"));
        let annotations = annotations.and_then(Json::as_map).into_iter().flatten();
        annotations.filter_map(|(key, value)| Some((key.as_ref(), value.as_str()?)))
    }

    pub(super) fn label(self, key: &str) -> Option<&'a str> {
        self.0.get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    pub(super) fn labels(self) -> Labels {
        let labels = self.0.get("metadata").and_then(|it| it.get("labels")).and_then(Json::as_map);
        let labels = labels.into_iter().flatten();
        labels
            .filter_map(|(key, value)| Some((key.clone().into_owned(), value.as_str()?.to_owned())))
            .collect()
    }

    /// Whether the pod has a template of this hash, as its record says.
    pub(super) fn is_recorded(self, hash: &str) -> bool {
        let record: Option<Value> = self.annotation(INJECTED).and_then(|it| serde_json::from_str(it).ok());
        let templates = record.as_ref().and_then(|it| it.get("templates")).and_then(Value::as_object);
        templates.is_some_and(|it| it.values().any(|it| it == hash))
    }

    /// The kind of the pod's controller.
    pub(super) fn owner_kind(self) -> Option<&'a str> {
        let owners = self.0.get("metadata")?.get("ownerReferences")?.as_list()?;
        owners.iter().find(|it| it.get("controller").is_some_and(Json::is_true))?.get("kind")?.as_str()
    }

    pub(super) fn is_mirror(self) -> bool {
        self.annotation(MIRROR_ANNOTATION).is_some()
    }

    pub(super) fn is_windows(self) -> bool {
        let os = self.spec("os").and_then(|it| it.get("name"));
        let chosen = self.spec("nodeSelector").and_then(|it| it.get("kubernetes.io/os"));
        os.or(chosen).is_some_and(|it| it == "windows")
    }

    /// Whether a boolean of the spec is set.
    pub(super) fn is(self, field: &str) -> bool {
        self.spec(field).is_some_and(Json::is_true)
    }

    pub(super) fn runtime_class(self) -> Option<&'a str> {
        self.spec("runtimeClassName")?.as_str()
    }

    /// A field of the spec.
    pub(super) fn spec(self, field: &str) -> Option<&'a Json<'a>> {
        self.0.get("spec")?.get(field).filter(|it| !it.is_null())
    }

    /// The items of a list of the spec.
    pub(super) fn items(self, list: &str) -> &'a [Json<'a>] {
        self.spec(list).map_or(&[], Json::items)
    }

    /// The containers of a list.
    pub(super) fn containers(self, list: &'static str) -> impl Iterator<Item = Container<'a>> {
        self.items(list).iter().enumerate().map(move |(index, value)| Container { list, index, value })
    }

    /// The container of a name, in whichever list it is.
    pub(super) fn container(self, name: &str) -> Option<Container<'a>> {
        LISTS.into_iter().flat_map(move |list| self.containers(list)).find(|it| it.name() == name)
    }

    /// The volume of a name.
    pub(super) fn volume(self, name: &str) -> Option<&'a Json<'a>> {
        self.items("volumes").iter().find(|it| it.get("name").is_some_and(|it| it == name))
    }
}

// === impl Container ===

impl<'a> Container<'a> {
    pub(super) fn name(self) -> &'a str {
        self.text("name")
    }

    pub(super) fn image(self) -> &'a str {
        self.text("image")
    }

    /// An init container that runs on beside the others.
    pub(super) fn is_native_sidecar(self) -> bool {
        self.list == "initContainers" && self.text("restartPolicy") == "Always"
    }

    /// Whether it has a limit of CPU or memory.
    pub(super) fn has_limits(self) -> bool {
        let limits = self.value.get("resources").and_then(|it| it.get("limits"));
        limits.is_some_and(|it| ["cpu", "memory"].iter().any(|key| it.get(key).is_some()))
    }

    /// The names and normalised paths of its mounts.
    pub(super) fn mounts(self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
        self.items("volumeMounts").iter().map(|mount| {
            let name = mount.get("name").and_then(Json::as_str).unwrap_or_default();
            (name, mount_path(mount))
        })
    }

    pub(super) fn items(self, list: &str) -> &'a [Json<'a>] {
        self.value.get(list).map_or(&[], Json::items)
    }

    fn text(self, key: &str) -> &'a str {
        self.value.get(key).and_then(Json::as_str).unwrap_or_default()
    }
}

/// The normalised path of a mount.
pub(super) fn mount_path<'a>(mount: &'a Json<'_>) -> Cow<'a, str> {
    normalised(mount.get("mountPath").and_then(Json::as_str).unwrap_or_default())
}

/// A path without doubled and trailing slashes, `.` and `..`.
pub(super) fn normalised(path: &str) -> Cow<'_, str> {
    // By bytes, as most paths are short and normal.
    let is_normal = |step: &[u8]| !matches!(step, b"" | b"." | b"..");
    if path.strip_prefix('/').is_some_and(|steps| steps.as_bytes().split(|it| *it == b'/').all(is_normal)) {
        return Cow::Borrowed(path);
    }
    let mut steps: Vec<&str> = Vec::new();
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    Cow::Owned(format!("/{}", steps.join("/")))
}

/// Whether the normalised path `inner` is below the normalised path `outer`.
pub(super) fn is_below(inner: &str, outer: &str) -> bool {
    outer == "/" && inner != "/" || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}
