//! Settings of a template for the whole pod: grace period, DNS, host aliases, security context.

use crate::{
    config::{MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS, Template},
    inject::{
        pod::PodView,
        reason::{Note, Reason},
    },
    json::{Json, SharedJson},
    patch::{ListPosition, PatchBuilder, PatchError, pointer},
};
use json_patch::jsonptr::Pointer;

/// The API server's default grace period in seconds (`pkg/apis/core/v1/defaults.go`).
const DEFAULT_GRACE_PERIOD: u64 = 30;

const GRACE_PERIOD: &Pointer = Pointer::from_static("/spec/terminationGracePeriodSeconds");
const HOST_ALIASES: &Pointer = Pointer::from_static("/spec/hostAliases");
const SECURITY_CONTEXT: &Pointer = Pointer::from_static("/spec/securityContext");

/// Applies the settings.
pub(super) fn apply<'a>(
    builder: &mut PatchBuilder<'a>,
    template: &'a Template,
    notes: &mut Vec<Note>,
) -> Result<(), PatchError> {
    if let Some(min) = template.termination_grace_period_seconds {
        let present =
            PodView::new(builder.object()).spec("terminationGracePeriodSeconds").and_then(Json::as_u64);
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
        template.security_context.as_ref().and_then(|context| context.json().as_map()).into_iter().flatten();
    builder.add_members(SECURITY_CONTEXT, members.map(|(key, value)| (&**key, value.clone())))
}

/// Adds missing items to a list of `dnsConfig`. Returns false, without a change, if the list would exceed the API
/// server's maximum.
fn merge<'a>(
    builder: &mut PatchBuilder<'a>,
    dns: &'a SharedJson,
    list: &str,
    max: Option<usize>,
    is_same: impl Fn(&Json<'_>, &Json<'_>) -> bool,
) -> Result<bool, PatchError> {
    let path = pointer(["spec", "dnsConfig", list]);
    let present = builder.object().at(&path).map_or(&[][..], Json::items);
    let wanted: &[Json<'a>] = dns.json().get(list).map_or(&[][..], Json::items);
    let new: Vec<Json<'a>> =
        wanted.iter().filter(|item| !present.iter().any(|present| is_same(present, item))).cloned().collect();
    if max.is_some_and(|max| present.len() + new.len() > max) && !new.is_empty() {
        return Ok(false);
    }
    builder.add_items(&path, new, ListPosition::Last)?;
    Ok(true)
}

/// Adds a host alias. Omits host names that already have an address in the pod.
fn add_alias<'a>(builder: &mut PatchBuilder<'a>, alias: &'a SharedJson) -> Result<(), PatchError> {
    let present = PodView::new(builder.object()).items("hostAliases");
    let alias: &Json<'a> = alias.json();
    let is_taken = |name: &Json<'_>| {
        present.iter().any(|alias| {
            alias.get("hostnames").is_some_and(|names| names.items().iter().any(|taken| taken == name))
        })
    };
    let names = alias.get("hostnames").map_or(&[][..], Json::items);
    let new: Vec<Json<'a>> = names.iter().filter(|name| !is_taken(name)).cloned().collect();
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
            let alias = alias.clone().with("hostnames", Json::List(new));
            builder.add_items(HOST_ALIASES, [alias], ListPosition::Last)
        }
    }
}
