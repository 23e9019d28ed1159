//! The kinds of owners that the configuration of the guard lists, compared with the rules for their deletion.

use serde_json::Value;

use super::{EXTENSIBLE, covers, rules};
use crate::doctor::{
    reader::{elements, text},
    report::Line,
};
use etcd_guard_core::config::owner_kinds::OwnerKind;
use etcd_guard_inject::config::Config;

/// The key of the guard's `ConfigMap` with the configuration file, as the manifests and the chart create it.
const CONFIG_KEY: &str = "/data/config.yaml";

/// Returns a warning if the registered configuration lacks the rule for the deletion of a listed kind: neither `--register`
/// nor the shipped manifests contain rules for custom resources. An invalid file has no line here, because the guard uses
/// the last valid one.
pub(crate) fn line(config_map: &Value, registered: Option<&Value>, apply: &str) -> Option<Line> {
    let config = Config::read(text(config_map, CONFIG_KEY)?).ok()?;
    let entry = elements(registered?, "/webhooks").find(|entry| text(entry, "/name") == Some(EXTENSIBLE));
    let present = entry.map(rules).unwrap_or_default();
    let listed = config.guard.owner_kinds.iter().filter(|kind| !kind.is_built_in());
    let without_rule = listed.filter(|kind| {
        let wanted = format!("DELETE {}/{}/{} Namespaced", kind.group, kind.version, kind.resource);
        !present.iter().any(|rule| covers(rule, &wanted))
    });
    let names: Vec<String> = without_rule.map(OwnerKind::resource_name).collect();
    if names.is_empty() {
        return None;
    }
    let message = format!(
        "guard.ownerKinds lists {}, but {EXTENSIBLE} has no rule for their deletion, so that it is not evaluated",
        names.join(", ")
    );
    let remedy = format!(
        "add the rule with the component deploy/components/owner-kinds, or with the value ownerKinds of the chart; the \
         certificate controller adds none with --register (docs/policies.md); then {apply}"
    );
    Some(Line::warning("webhooks", message, remedy))
}
