//! What a template asks of a pod as a whole: time to end, names, its security context.

use json_patch::jsonptr::Pointer;
use serde_json::Value;

use super::{
    pod::Pod,
    reason::{Note, Reason},
};
use crate::{
    config::{MOST_NAME_SERVERS, MOST_SEARCHES, Template},
    patch::{Draft, PatchError, Place, pointer},
};

/// What the apiserver gives a pod that says nothing (`pkg/apis/core/v1/defaults.go`).
const DEFAULT_GRACE_PERIOD: u64 = 30;

const GRACE_PERIOD: &Pointer = Pointer::from_static("/spec/terminationGracePeriodSeconds");
const HOST_ALIASES: &Pointer = Pointer::from_static("/spec/hostAliases");
const SECURITY_CONTEXT: &Pointer = Pointer::from_static("/spec/securityContext");

pub(super) fn apply(draft: &mut Draft, template: &Template, notes: &mut Vec<Note>) -> Result<(), PatchError> {
    if let Some(least) = template.termination_grace_period_seconds {
        let own = Pod::of(draft.object()).spec("terminationGracePeriodSeconds").and_then(Value::as_u64);
        if own.unwrap_or(DEFAULT_GRACE_PERIOD) < u64::from(least) {
            draft.rewrite(GRACE_PERIOD, least.into())?;
        }
    }
    if let Some(dns) = &template.dns_config {
        for (list, most) in [("nameservers", MOST_NAME_SERVERS), ("searches", MOST_SEARCHES)] {
            if !join(draft, dns, list, Some(most), |a, b| a == b)? {
                let text = format!("template {}: the pod would have more than {most} {list}", template.name);
                notes.push(Note::skipped(Reason::Conflict, text));
            }
        }
        join(draft, dns, "options", None, |a, b| a.get("name") == b.get("name"))?;
    }
    for alias in &template.host_aliases {
        add_alias(draft, alias)?;
    }
    let members = template.security_context.as_ref().and_then(Value::as_object).into_iter().flatten();
    draft.add_members(SECURITY_CONTEXT, members.map(|(key, value)| (key.clone(), value.clone())))
}

/// Adds to a list of `dnsConfig` what it has not, unless it would then be too long for the apiserver. Whether it fits.
fn join(
    draft: &mut Draft,
    dns: &Value,
    list: &str,
    most: Option<usize>,
    is_same: impl Fn(&Value, &Value) -> bool,
) -> Result<bool, PatchError> {
    let place = pointer(["spec", "dnsConfig", list]);
    let present =
        draft.object().pointer(place.as_str()).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let wanted = dns.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let new: Vec<Value> =
        wanted.iter().filter(|it| !present.iter().any(|own| is_same(own, it))).cloned().collect();
    if most.is_some_and(|most| present.len() + new.len() > most) && !new.is_empty() {
        return Ok(false);
    }
    draft.add_items(&place, new, Place::Last)?;
    Ok(true)
}

/// Gives an address the names that have none in the pod.
fn add_alias(draft: &mut Draft, alias: &Value) -> Result<(), PatchError> {
    let present = Pod::of(draft.object()).items("hostAliases");
    let names = |it: &Value| it.get("hostnames").and_then(Value::as_array).cloned().unwrap_or_default();
    let taken: Vec<Value> = present.iter().flat_map(names).collect();
    let new: Vec<Value> = names(alias).into_iter().filter(|it| !taken.contains(it)).collect();
    if new.is_empty() {
        return Ok(());
    }
    // Addresses are the keys of this list for server-side apply: one entry each.
    match present.iter().position(|it| it.get("ip") == alias.get("ip")) {
        Some(index) => {
            let index = index.to_string();
            draft.add_items(&pointer(["spec", "hostAliases", &index, "hostnames"]), new, Place::Last)
        }
        None => {
            let mut alias = alias.clone();
            if let Some(fields) = alias.as_object_mut() {
                fields.insert(String::from("hostnames"), Value::Array(new));
            }
            draft.add_items(HOST_ALIASES, vec![alias], Place::Last)
        }
    }
}
