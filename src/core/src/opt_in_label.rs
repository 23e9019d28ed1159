//! The label that opts a namespace in. The webhook configurations select namespaces by this label, and the guard evaluates
//! requests of these namespaces only. Both use the same key and the same value (decision 54).

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::label_syntax::{MAX_LABEL_NAME_LENGTH, is_label_part, is_label_prefix};

/// The key and the value of the shipped manifests.
const SHIPPED: (&str, &str) = ("etcd-guard.io/guard", "enabled");

/// Labels that the API server sets on every namespace: with one of them, a namespace could not be opted out.
const RESERVED_KEYS: [&str; 1] = ["kubernetes.io/metadata.name"];

/// Key and value of the label that opts a namespace in. Both are valid, so that the text `KEY=VALUE` is a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OptInLabel {
    key: String,
    value: String,
}

/// A text that is no label.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptInLabelError {
    /// There is no `=`.
    #[error("expected KEY=VALUE, such as etcd-guard.io/guard=enabled")]
    NoValue,
    /// The key is not valid.
    #[error(
        "{0:?} is not the key of a label: expected [PREFIX/]NAME, a lowercase DNS subdomain and at most 63 alphanumeric \
         characters, '-', '_' or '.', with an alphanumeric character at the start and the end"
    )]
    Key(String),
    /// The value is empty or not valid.
    #[error(
        "{0:?} is not the value of the label: expected 1 to 63 alphanumeric characters, '-', '_' or '.', with an alphanumeric \
         character at the start and the end"
    )]
    Value(String),
    /// Every namespace has the key.
    #[error("{0} is a label of every namespace, so that no namespace could be opted out: choose another key")]
    Reserved(String),
}

// === impl OptInLabel ===

impl OptInLabel {
    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the value.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Whether an object with these labels is opted in.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.key).is_some_and(|value| *value == self.value)
    }
}

impl Default for OptInLabel {
    fn default() -> Self {
        let (key, value) = SHIPPED;
        Self { key: key.to_owned(), value: value.to_owned() }
    }
}

impl FromStr for OptInLabel {
    type Err = OptInLabelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or(OptInLabelError::NoValue)?;
        let is_part = |text: &str| text.len() <= MAX_LABEL_NAME_LENGTH && is_label_part(text);
        let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        if !is_part(name) || prefix.is_some_and(|prefix| !is_label_prefix(prefix)) {
            return Err(OptInLabelError::Key(key.to_owned()));
        }
        if RESERVED_KEYS.contains(&key) {
            return Err(OptInLabelError::Reserved(key.to_owned()));
        }
        if !is_part(value) {
            return Err(OptInLabelError::Value(value.to_owned()));
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl TryFrom<String> for OptInLabel {
    type Error = OptInLabelError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<OptInLabel> for String {
    fn from(label: OptInLabel) -> Self {
        label.to_string()
    }
}

impl fmt::Display for OptInLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_key_and_value() {
        let label: OptInLabel = "example.com/etcd=guarded_1".parse().unwrap();
        assert_eq!((label.key(), label.value()), ("example.com/etcd", "guarded_1"));
        assert_eq!(label.to_string(), "example.com/etcd=guarded_1");
        assert_eq!("team=a".parse::<OptInLabel>().unwrap().key(), "team");
        let shipped = OptInLabel::default();
        assert_eq!(shipped.to_string().parse(), Ok(shipped));
    }

    #[test]
    fn rejects_texts_that_are_no_label() {
        let error = |text: &str| text.parse::<OptInLabel>().unwrap_err();
        assert_eq!(error("etcd-guard.io/guard"), OptInLabelError::NoValue);
        for key in ["", "/a", "a/", "A b", "Example.com/a", "a/b/c", &"x".repeat(64), "a..b/c"] {
            assert_eq!(error(&format!("{key}=x")), OptInLabelError::Key(key.to_owned()));
        }
        for value in ["", "a b", "-a", "a=b", "a,b", &"x".repeat(64)] {
            assert_eq!(error(&format!("a={value}")), OptInLabelError::Value(value.to_owned()));
        }
        let reserved = "kubernetes.io/metadata.name";
        assert_eq!(error(&format!("{reserved}=prod")), OptInLabelError::Reserved(reserved.to_owned()));
    }

    #[test]
    fn matches_key_and_value() {
        let label = OptInLabel::default();
        let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        assert!(label.matches(&labels("etcd-guard.io/guard", "enabled")));
        assert!(!label.matches(&labels("etcd-guard.io/guard", "disabled")));
        assert!(!label.matches(&labels("team", "enabled")));
    }
}
