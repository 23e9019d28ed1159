//! Settings of a template for the whole pod: grace period, DNS, host aliases, security context.

use json_patch::jsonptr::Pointer;
use serde_json::Value;

use crate::{
    config::{
        pod_parts::{MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS},
        template::Template,
    },
    patch::{ListPosition, PatchBuilder, PatchError, pointer},
    pods::{
        pod::{PodView, items, with_member},
        reason::{Note, Reason},
    },
};

/// The API server's default grace period in seconds (`pkg/apis/core/v1/defaults.go`).
const DEFAULT_GRACE_PERIOD: u64 = 30;

const GRACE_PERIOD: &Pointer = Pointer::from_static("/spec/terminationGracePeriodSeconds");
const HOST_ALIASES: &Pointer = Pointer::from_static("/spec/hostAliases");
const SECURITY_CONTEXT: &Pointer = Pointer::from_static("/spec/securityContext");

/// Applies the settings.
pub(super) fn apply(
    builder: &mut PatchBuilder,
    template: &Template,
    notes: &mut Vec<Note>,
) -> Result<(), PatchError> {
    if let Some(min) = template.termination_grace_period_seconds {
        let present =
            PodView::new(builder.object()).spec("terminationGracePeriodSeconds").and_then(Value::as_u64);
        if present.unwrap_or(DEFAULT_GRACE_PERIOD) < u64::from(min) {
            builder.set(GRACE_PERIOD, min)?;
        }
    }
    if let Some(dns) = &template.dns_config {
        for (list, max) in [("nameservers", MAX_NAME_SERVERS), ("searches", MAX_SEARCH_DOMAINS)] {
            if !merge(builder, dns, list, Some(max), |a, b| a == b)? {
                let text = format!("template {}: the pod would have more than {max} {list}", template.name);
                notes.push(Note::skipped(Reason::Conflict, text));
            }
        }
        merge(builder, dns, "options", None, |a, b| a.get("name") == b.get("name"))?;
    }
    for alias in &template.host_aliases {
        add_alias(builder, alias)?;
    }
    let members =
        template.security_context.as_ref().and_then(|context| context.as_object()).into_iter().flatten();
    builder.add_members(SECURITY_CONTEXT, members.map(|(key, value)| (key.clone(), value.clone())))
}

/// Adds missing items to a list of `dnsConfig`. Returns false, without a change, if the list would exceed the API
/// server's maximum.
fn merge(
    builder: &mut PatchBuilder,
    dns: &Value,
    list: &str,
    max: Option<usize>,
    is_same: impl Fn(&Value, &Value) -> bool,
) -> Result<bool, PatchError> {
    let path = pointer(["spec", "dnsConfig", list]);
    let present = items(builder.object().pointer(path.as_str()));
    let wanted = items(dns.get(list));
    let new: Vec<Value> =
        wanted.iter().filter(|item| !present.iter().any(|present| is_same(present, item))).cloned().collect();
    if max.is_some_and(|max| present.len() + new.len() > max) && !new.is_empty() {
        return Ok(false);
    }
    builder.add_items(&path, new, ListPosition::Last)?;
    Ok(true)
}

/// Adds a host alias. Omits host names that already have an address in the pod.
fn add_alias(builder: &mut PatchBuilder, alias: &Value) -> Result<(), PatchError> {
    let present = PodView::new(builder.object()).items("hostAliases");
    let is_taken = |name: &Value| {
        present.iter().any(|alias| items(alias.get("hostnames")).iter().any(|taken| taken == name))
    };
    let names = items(alias.get("hostnames"));
    let new: Vec<Value> = names.iter().filter(|name| !is_taken(name)).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    // Addresses are the keys of this list in server-side apply: one entry per address.
    match present.iter().position(|present| present.get("ip") == alias.get("ip")) {
        Some(index) => {
            let index = index.to_string();
            builder.add_items(&pointer(["spec", "hostAliases", &index, "hostnames"]), new, ListPosition::Last)
        }
        None => {
            let alias = with_member(alias.clone(), "hostnames", new);
            builder.add_items(HOST_ALIASES, vec![alias], ListPosition::Last)
        }
    }
}
