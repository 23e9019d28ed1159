//! The affinity of a pod to nodes (`v1`), as far as it can bind the pod to one node.
//!
//! Source: `k8s.io/api/core/v1/types.go`.

use serde::Deserialize;

use super::{heap_size::heap_size_of_fields, nullable::null_as_default};

/// `Affinity`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    #[serde(default)]
    node_affinity: Option<NodeAffinity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeAffinity {
    #[serde(default, rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelector {
    /// Alternatives.
    #[serde(default, deserialize_with = "null_as_default")]
    node_selector_terms: Vec<Term>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default, deserialize_with = "null_as_default")]
    match_expressions: Vec<Requirement>,
    /// Requirements for fields of the node, of which only `metadata.name` is supported.
    #[serde(default, deserialize_with = "null_as_default")]
    match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Requirement {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    #[serde(default, deserialize_with = "null_as_default")]
    values: Vec<String>,
}

heap_size_of_fields! {
    Affinity { node_affinity }
    NodeAffinity { required }
    NodeSelector { node_selector_terms }
    Term { match_expressions, match_fields }
    Requirement { key, operator, values }
}

// === impl Affinity ===

impl Affinity {
    /// Returns the only node that can satisfy the required terms: each alternative names the same single value of this label, or
    /// the same name of a node.
    pub fn only_node(&self, label: &str) -> Option<&str> {
        let required = self.node_affinity.as_ref()?.required.as_ref()?;
        let mut nodes = required.node_selector_terms.iter().map(|term| term.node(label));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }
}

// === impl Term ===

impl Term {
    /// Returns the only node that this term admits.
    fn node(&self, label: &str) -> Option<&str> {
        let mut by_label = self.match_expressions.iter().filter(|requirement| requirement.key == label);
        by_label
            .find_map(Requirement::only_value)
            .or_else(|| self.match_fields.iter().find_map(Requirement::only_value))
    }
}

// === impl Requirement ===

impl Requirement {
    fn only_value(&self) -> Option<&str> {
        match self.values.as_slice() {
            [value] if self.operator == "In" => Some(value),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn binds(terms: &Value) -> bool {
        let selector = json!({"nodeSelectorTerms": terms});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}});
        let affinity: Affinity = serde_json::from_value(affinity).unwrap();
        affinity.only_node("kubernetes.io/hostname").is_some()
    }

    fn term(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    #[test]
    fn one_value_of_the_hostname_binds_to_a_node() {
        let host = "kubernetes.io/hostname";
        let field = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]});
        for bound in
            [json!([term(host, "In", &["a"])]), json!([field]), json!([term(host, "In", &["a"]), field])]
        {
            assert!(binds(&bound), "{bound}");
        }
        for free in [
            json!([]),
            json!([{}]),
            json!([term(host, "In", &["a", "b"])]),
            json!([term(host, "NotIn", &["a"])]),
            json!([term("zone", "In", &["a"])]),
            json!([term(host, "In", &["a"]), term(host, "In", &["b"])]),
            json!([term(host, "In", &["a"]), term("zone", "In", &["a"])]),
        ] {
            assert!(!binds(&free), "{free}");
        }
        let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
        let preferred: Affinity = serde_json::from_value(preferred).unwrap();
        assert_eq!(preferred.only_node(host), None);
    }
}
