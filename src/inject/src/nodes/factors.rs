//! Factors of a node, from its label and the configuration.

use serde_json::Value;

use super::{amounts::Resource, error::NodeError};
use crate::config::over_commit::{Factor, OverCommit};
use etcd_guard_core::config::selector::Labels;

/// The factor of each resource, and an optional warning.
type Factors = ([(Resource, Factor); 2], Option<String>);

/// Returns the factor of each resource of a node, and a warning if the label exceeds the configured maximum.
pub(super) fn factors(node: &Value, settings: Option<&OverCommit>) -> Result<Factors, NodeError> {
    let unraised = ([(Resource::Cpu, Factor::NONE), (Resource::Memory, Factor::NONE)], None);
    let Some(settings) = settings else { return Ok(unraised) };
    let labels = node.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let labels: Labels =
        labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    // Only the label opts a node in. A record is not sufficient, because the kubelet itself could write it.
    let Some(text) = labels.get(&settings.label) else { return Ok(unraised) };
    let entry = settings.entry(&labels);
    let mut cpu = entry.map_or(Factor::NONE, |entry| entry.cpu);
    let memory = entry.map_or(Factor::NONE, |entry| entry.memory);
    let mut warning = None;
    if !text.is_empty() && text != CONFIGURED {
        let requested = Factor::parse(text).ok_or_else(|| {
            NodeError::Malformed(format!(
                "label {}: {text:?} is neither a factor nor {CONFIGURED:?}",
                settings.label
            ))
        })?;
        if requested > settings.most {
            warning = Some(format!("label {}: {requested} was reduced to {}", settings.label, settings.most));
        }
        cpu = requested.min(settings.most);
    }
    Ok(([(Resource::Cpu, cpu), (Resource::Memory, memory)], warning))
}

/// The label's value that selects the factors of the configuration.
const CONFIGURED: &str = "configured";
