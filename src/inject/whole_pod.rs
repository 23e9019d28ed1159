//! What a template asks of a pod as a whole: time to end, names, its security context.

use super::{
    pod::Pod,
    reason::{Note, Reason},
};
use crate::{
    config::{MOST_NAME_SERVERS, MOST_SEARCHES, Template},
    json::{Json, Shared},
    patch::{Draft, PatchError, Place, pointer},
};
use json_patch::jsonptr::Pointer;

/// What the apiserver gives a pod that says nothing (`pkg/apis/core/v1/defaults.go`).
const DEFAULT_GRACE_PERIOD: u64 = 30;

const GRACE_PERIOD: &Pointer = Pointer::from_static("/spec/terminationGracePeriodSeconds");
const HOST_ALIASES: &Pointer = Pointer::from_static("/spec/hostAliases");
const SECURITY_CONTEXT: &Pointer = Pointer::from_static("/spec/securityContext");

pub(super) fn apply<'a>(
    draft: &mut Draft<'a>,
    template: &'a Template,
    notes: &mut Vec<Note>,
) -> Result<(), PatchError> {
    if let Some(least) = template.termination_grace_period_seconds {
        let own = Pod::of(draft.object()).spec("terminationGracePeriodSeconds").and_then(Json::as_u64);
        if own.unwrap_or(DEFAULT_GRACE_PERIOD) < u64::from(least) {
            draft.rewrite(GRACE_PERIOD, least)?;
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
    let members = template.security_context.as_ref().and_then(|it| it.json().as_map()).into_iter().flatten();
    draft.add_members(SECURITY_CONTEXT, members.map(|(key, value)| (&**key, value.clone())))
}

/// Adds to a list of `dnsConfig` what it has not, unless it would then be too long for the apiserver. Whether it fits.
fn join<'a>(
    draft: &mut Draft<'a>,
    dns: &'a Shared,
    list: &str,
    most: Option<usize>,
    is_same: impl Fn(&Json<'_>, &Json<'_>) -> bool,
) -> Result<bool, PatchError> {
    let place = pointer(["spec", "dnsConfig", list]);
    let present = draft.object().at(&place).map_or(&[][..], Json::items);
    let wanted: &[Json<'a>] = dns.json().get(list).map_or(&[][..], Json::items);
    let new: Vec<Json<'a>> =
        wanted.iter().filter(|it| !present.iter().any(|own| is_same(own, it))).cloned().collect();
    if most.is_some_and(|most| present.len() + new.len() > most) && !new.is_empty() {
        return Ok(false);
    }
    draft.add_items(&place, new, Place::Last)?;
    Ok(true)
}

/// Gives an address the names that have none in the pod.
fn add_alias<'a>(draft: &mut Draft<'a>, alias: &'a Shared) -> Result<(), PatchError> {
    let present = Pod::of(draft.object()).items("hostAliases");
    let alias: &Json<'a> = alias.json();
    let is_taken = |name: &Json<'_>| {
        present.iter().any(|it| it.get("hostnames").is_some_and(|it| it.items().iter().any(|it| it == name)))
    };
    let names = alias.get("hostnames").map_or(&[][..], Json::items);
    let new: Vec<Json<'a>> = names.iter().filter(|it| !is_taken(it)).cloned().collect();
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
            let alias = alias.clone().with("hostnames", Json::List(new));
            draft.add_items(HOST_ALIASES, [alias], Place::Last)
        }
    }
}
