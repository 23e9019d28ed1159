//! The annotation that names the Secrets of clients.

use super::tls_source::TlsSource;
use crate::objects::data_object::{DataKind, DataObject};

/// Maximum number of objects that one annotation names. Two are useful: one with the certificate, and one with the CA.
const MAX_OBJECTS: usize = 4;

/// Reads the objects in the annotation, separated by spaces. Each has the form `[secret/|configmap/]NAME[#KEYS]`, where
/// KEYS is `CERTIFICATE,KEY,CA`, `CERTIFICATE,KEY` or `CA`.
pub(super) fn read(value: &str) -> Vec<TlsSource> {
    value.split_whitespace().take(MAX_OBJECTS).map(source).collect()
}

fn source(entry: &str) -> TlsSource {
    let (object, keys) = match entry.split_once('#') {
        Some((object, keys)) => (object, Some(keys)),
        None => (entry, None),
    };
    let (kind, name) = match object.split_once('/') {
        Some(("configmap", name)) => (DataKind::ConfigMap, name),
        Some(("secret", name)) => (DataKind::Secret, name),
        // A name with a slash is invalid, and is reported as such when it is read.
        _ => (DataKind::Secret, object),
    };
    let source = TlsSource::new(DataObject { kind, name: name.to_owned() });
    let source = if kind == DataKind::ConfigMap { source.only_ca() } else { source };
    let Some(keys) = keys else { return source };
    let keys: Vec<&str> = keys.split(',').map(str::trim).collect();
    let key = |at: usize| keys.get(at).filter(|key| !key.is_empty()).map(|key| (*key).to_owned());
    match keys.len() {
        1 => source.listing(None, key(0)).only_ca(),
        _ => source.listing(key(0).zip(key(1)), key(2)),
    }
}
