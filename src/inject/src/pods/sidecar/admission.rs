//! Rules of the API server that a pod with a template must meet: its Pod Security level, and its resources as a whole.
//! A template that violates them is left out, because the pod would be rejected.

use std::borrow::Cow;

use serde_json::Value;

use super::missing::MissingContainers;
use crate::{
    config::{pod::security_level::PodSecurityLevel, template::Template},
    pods::pod::PodView,
};
use etcd_guard_core::objects::quantity::Quantity;

/// Returns the part of a template that a Pod Security level rejects.
pub(super) fn rejected_part<'a>(
    pod: PodView<'_>,
    template: &'a Template,
    enforced: PodSecurityLevel,
) -> Option<Cow<'a, str>> {
    let own = pod.spec("securityContext");
    let default = template.security_context.as_ref();
    template.pod_security.violation(enforced, |field| {
        own.and_then(|context| context.get(field)).is_some_and(|value| !value.is_null())
            || default.and_then(|context| context.get(field)).is_some_and(|value| !value.is_null())
    })
}

/// Returns the resource of which a pod with `spec.resources` would have too little, if there is one. The requests of all
/// containers together must not exceed those of the pod, and no limit may exceed that of the pod.
pub(super) fn exceeded_resource(pod: PodView<'_>, missing: &MissingContainers) -> Option<String> {
    let resources = pod.spec("resources")?;
    let new =
        || missing.containers.iter().chain(missing.missing_init(true)).chain(missing.missing_init(false));
    for (name, limit) in amounts(resources, "limits") {
        if new().filter_map(|container| amount(container, "limits", name)).any(|amount| amount > limit) {
            return Some(format!("limits.{name}"));
        }
    }
    for (name, available) in amounts(resources, "requests") {
        let own = |list: &'static str, is_sidecar: bool| {
            let containers = pod.containers(list).filter(move |item| item.is_native_sidecar() == is_sidecar);
            containers.map(move |container| own_request(container.value, name))
        };
        let request = |container| request_of(container, name);
        let new_sidecars = missing.missing_init(true).map(request).sum::<i128>();
        let sidecars = own("initContainers", true).sum::<i128>() + new_sidecars;
        let running =
            own("containers", false).sum::<i128>() + missing.containers.iter().map(request).sum::<i128>();
        let new_init = missing.missing_init(false).map(request);
        let starting = own("initContainers", false).chain(new_init).max().unwrap_or_default();
        if sidecars + running.max(starting) > available.nano() {
            // The pod alone may violate the rule already; then it is rejected without the template as well.
            return new()
                .any(|container| request_of(container, name) > 0)
                .then(|| format!("requests.{name}"));
        }
    }
    None
}

/// The quantities of a list of the pod's resources.
fn amounts<'a>(resources: &'a Value, list: &str) -> impl Iterator<Item = (&'a str, Quantity)> {
    let amounts = resources.get(list).and_then(Value::as_object).into_iter().flatten();
    amounts.filter_map(|(name, amount)| Some((name.as_str(), Quantity::parse(amount.as_str()?)?)))
}

fn amount(container: &Value, list: &str, name: &str) -> Option<Quantity> {
    Quantity::parse(container.get("resources")?.get(list)?.get(name)?.as_str()?)
}

/// The request of a template's container in billionths. A container without a request gets its limit.
fn request_of(container: &Value, name: &str) -> i128 {
    let request = amount(container, "requests", name).or_else(|| amount(container, "limits", name));
    request.map_or(0, Quantity::nano)
}

/// The request of a pod's container in billionths.
fn own_request(container: &Value, name: &str) -> i128 {
    let amount = |list: &str| {
        let amount = container.get("resources")?.get(list)?.get(name)?;
        Quantity::parse(amount.as_str()?)
    };
    amount("requests").or_else(|| amount("limits")).map_or(0, Quantity::nano)
}
