//! The registered webhook configurations, compared with the shipped ones.

pub(crate) mod owner_kinds;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde_json::{Value, json};

use super::{
    network::EVICTION_WEBHOOK,
    reader::{elements, text},
    report::{Finding, Line, State},
};

/// The entries without which deletions or evictions of pods pass unevaluated. The documentation describes how to leave out
/// the others.
const REQUIRED: [&str; 3] = ["guard.etcd-guard.io", "others.guard.etcd-guard.io", EVICTION_WEBHOOK];

/// The entry to which installations add rules for custom resources that own members.
const EXTENSIBLE: &str = "intent.guard.etcd-guard.io";

/// The API server's default of `timeoutSeconds`.
const DEFAULT_TIMEOUT: u64 = 10;

/// A namespace with the label that opts in.
#[derive(Clone, Debug)]
pub(super) struct GuardedNamespace {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
}

/// A registered configuration and the shipped one of the same name, for the namespace of this guard.
pub(super) struct Comparison<'a> {
    pub(super) shipped: &'a Value,
    pub(super) registered: Option<&'a Value>,
    /// Whether the guard does not work without it.
    pub(super) is_required: bool,
    /// The guarded namespaces, if they could be listed.
    pub(super) guarded: &'a [GuardedNamespace],
}

// === impl GuardedNamespace ===

impl GuardedNamespace {
    /// Reads name and labels of a Namespace.
    pub(super) fn new(namespace: &Value) -> Option<Self> {
        let labels = namespace.pointer("/metadata/labels").cloned().unwrap_or_default();
        let name = text(namespace, "/metadata/name")?.to_owned();
        Some(Self { name, labels: serde_json::from_value(labels).unwrap_or_default() })
    }

    /// Whether an entry selects the namespace.
    pub(super) fn is_selected_by(&self, entry: &Value) -> bool {
        let selector = entry.get("namespaceSelector").cloned().unwrap_or_else(|| json!({}));
        let selector: Result<LabelSelector, _> = serde_json::from_value(selector);
        let selector = selector.ok().and_then(|selector| Selector::try_from(selector).ok());
        selector.is_some_and(|selector| selector.matches(&self.labels))
    }
}

// === impl Comparison ===

impl Comparison<'_> {
    /// Returns the result; `None` if an optional configuration is not installed. `register` is the remedy if a required entry is
    /// absent, and `apply` any other one.
    pub(super) fn line(&self, apply: &str, register: &str) -> Option<Line> {
        let name = text(self.shipped, "/metadata/name").unwrap_or_default();
        let Some(registered) = self.registered else {
            let message = format!("{name}: not registered, so the API server does not call the guard");
            return self.is_required.then(|| Line::failure("webhooks", message, register));
        };
        let mut remedy = apply;
        let mut findings: Vec<Finding> = Vec::new();
        let mut count: usize = 0;
        for shipped in elements(self.shipped, "/webhooks") {
            let entry_name = text(shipped, "/name").unwrap_or_default();
            let entry =
                elements(registered, "/webhooks").find(|entry| text(entry, "/name") == Some(entry_name));
            match entry {
                Some(entry) => {
                    count += 1;
                    self.compare(entry_name, shipped, entry, &mut findings);
                }
                None => {
                    let is_required = REQUIRED.contains(&entry_name);
                    let state = if is_required { State::Failure } else { State::Warning };
                    if is_required {
                        remedy = register;
                    }
                    findings.push((state, format!("{entry_name} is not registered")));
                }
            }
        }
        let message = format!("{count} webhooks as shipped");
        Some(Line::from_findings("webhooks", &format!("{name}: "), &message, &findings, remedy))
    }

    fn compare(&self, name: &str, shipped: &Value, entry: &Value, findings: &mut Vec<Finding>) {
        let is_required = REQUIRED.contains(&name);
        let severe = if is_required { State::Failure } else { State::Warning };
        let (wanted, present) = (rules(shipped), rules(entry));
        let missing: Vec<&str> = wanted
            .iter()
            .filter(|rule| !present.iter().any(|present| covers(present, rule)))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            findings.push((severe, format!("{name} lacks the rules {}", missing.join(", "))));
        }
        let further: Vec<&str> =
            present.iter().filter(|rule| !wanted.contains(*rule)).map(String::as_str).collect();
        if !further.is_empty() && name != EXTENSIBLE {
            findings.push((State::Warning, format!("{name} has the further rules {}", further.join(", "))));
        }
        compare_calls(name, shipped, entry, severe, findings);
        compare_conditions(name, shipped, entry, severe, findings);
        if !is_empty_selector(entry.get("objectSelector")) {
            findings.push((severe, format!("{name} has an objectSelector: other objects are not evaluated")));
        }
        self.compare_namespaces(name, shipped, entry, findings);
        if let Some(difference) = other_server(shipped, entry) {
            findings.push((severe, format!("{name} {difference}")));
        }
    }

    fn compare_namespaces(&self, name: &str, shipped: &Value, entry: &Value, findings: &mut Vec<Finding>) {
        let selector = |entry: &Value| normalized(entry.get("namespaceSelector"));
        if selector(shipped) == selector(entry) {
            return;
        }
        let unselected: Vec<&str> = self
            .guarded
            .iter()
            .filter(|namespace| namespace.is_selected_by(shipped) && !namespace.is_selected_by(entry))
            .map(|namespace| namespace.name.as_str())
            .collect();
        findings.push(if unselected.is_empty() {
            (State::Warning, format!("{name} has another namespaceSelector than shipped"))
        } else {
            (
                State::Failure,
                format!("{name} does not select the guarded namespaces {}", unselected.join(", ")),
            )
        });
    }
}

/// Compares the settings with which the API server calls the guard.
fn compare_calls(name: &str, shipped: &Value, entry: &Value, severe: State, findings: &mut Vec<Finding>) {
    // The installation can choose Ignore, and the guard is called while it responds.
    let ignores_failures = text(entry, "/failurePolicy") == Some("Ignore");
    if text(shipped, "/failurePolicy") == Some("Fail") && ignores_failures {
        let text = format!("{name} has failurePolicy Ignore: requests pass while no replica responds");
        findings.push((State::Warning, text));
    }
    let timeout =
        |entry: &Value| entry.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(DEFAULT_TIMEOUT);
    let (wanted, present) = (timeout(shipped), timeout(entry));
    if present < wanted {
        let effect = if ignores_failures { "pass without a verdict" } else { "fail" };
        let state = if ignores_failures { severe } else { State::Warning };
        let text =
            format!("{name} has timeoutSeconds {present} instead of {wanted}: slower evaluations {effect}");
        findings.push((state, text));
    }
    // The API server's default is Equivalent.
    if text(entry, "/matchPolicy") == Some("Exact") && text(shipped, "/matchPolicy") != Some("Exact") {
        let text =
            format!("{name} has matchPolicy Exact: requests for other versions of the API are not evaluated");
        findings.push((severe, text));
    }
    let side_effects = |entry| text(entry, "/sideEffects").unwrap_or_default();
    let (wanted, present) = (side_effects(shipped), side_effects(entry));
    if wanted != present {
        let text = format!("{name} has sideEffects {present} instead of {wanted}");
        findings.push((State::Warning, text));
    }
}

/// Compares the conditions without which the API server does not call the guard.
fn compare_conditions(
    name: &str,
    shipped: &Value,
    entry: &Value,
    severe: State,
    findings: &mut Vec<Finding>,
) {
    let (wanted, present) = (conditions(shipped), conditions(entry));
    let missing_from = |all: &[(String, String)], some: &[(String, String)]| -> Vec<String> {
        some.iter().filter(|condition| !all.contains(condition)).map(|(name, _)| name.clone()).collect()
    };
    let (further, missing) = (missing_from(&wanted, &present), missing_from(&present, &wanted));
    if !further.is_empty() {
        let names = further.join(", ");
        let text =
            format!("{name} has other matchConditions than shipped ({names}): requests can pass unevaluated");
        findings.push((severe, text));
    } else if !missing.is_empty() {
        let names = missing.join(", ");
        let text = format!(
            "{name} lacks the matchConditions {names}: harmless requests fail while no replica responds"
        );
        findings.push((State::Warning, text));
    }
}

/// Returns each combination of operation, group, version, resource and scope.
pub(super) fn rules(entry: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rule in elements(entry, "/rules") {
        let values = |name: &str| -> Vec<String> {
            elements(rule, name).filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let scope = text(rule, "/scope").unwrap_or("*");
        for operation in values("/operations") {
            for group in values("/apiGroups") {
                for version in values("/apiVersions") {
                    for resource in values("/resources") {
                        found.insert(format!("{operation} {group}/{version}/{resource} {scope}"));
                    }
                }
            }
        }
    }
    found
}

/// Whether a rule with wildcards covers a rule without them.
pub(super) fn covers(rule: &str, wanted: &str) -> bool {
    let parts = |text: &str| -> Vec<String> { text.splitn(4, ['/', ' ']).map(str::to_owned).collect() };
    let resource_and_scope = |text: &str| text.rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    let (rule, wanted) = (parts(rule), parts(wanted));
    let is_covered = |rule: &str, wanted: &str| rule == "*" || rule == wanted;
    rule.iter().zip(&wanted).enumerate().all(|(index, (rule, wanted))| {
        if index < 3 {
            return is_covered(rule, wanted);
        }
        match (resource_and_scope(rule), resource_and_scope(wanted)) {
            (Some((resource, scope)), Some((wanted_resource, wanted_scope))) => {
                covers_resource(&resource, &wanted_resource) && is_covered(&scope, &wanted_scope)
            }
            _ => false,
        }
    })
}

/// Whether a resource with wildcards covers a resource. `*` covers no subresource, `*/*` everything.
fn covers_resource(rule: &str, wanted: &str) -> bool {
    let is_covered = |rule: &str, wanted: &str| rule == "*" || rule == wanted;
    match (rule.split_once('/'), wanted.split_once('/')) {
        (Some(("*", "*")), _) => true,
        (Some((resource, "*")), None) => resource == wanted,
        (Some((resource, sub)), Some((wanted, wanted_sub))) => {
            is_covered(resource, wanted) && is_covered(sub, wanted_sub)
        }
        (None, None) => is_covered(rule, wanted),
        _ => false,
    }
}

/// Returns the name of each condition with its expression, without differences in white space.
fn conditions(entry: &Value) -> Vec<(String, String)> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = |condition: &Value, name: &str| words(text(condition, name).unwrap_or_default());
    elements(entry, "/matchConditions")
        .map(|condition| (text(condition, "/name"), text(condition, "/expression")))
        .collect()
}

/// Returns a selector without fields that are empty.
fn normalized(selector: Option<&Value>) -> Value {
    let mut selector = selector.cloned().unwrap_or_else(|| json!({}));
    if let Some(fields) = selector.as_object_mut() {
        fields.retain(|_, value| {
            !value.is_null()
                && value.as_array().is_none_or(|items| !items.is_empty())
                && value.as_object().is_none_or(|members| !members.is_empty())
        });
    }
    selector
}

fn is_empty_selector(selector: Option<&Value>) -> bool {
    normalized(selector) == json!({})
}

/// Returns how the address of an entry differs from the shipped one. A URL replaces the Service if the guard runs outside of
/// the cluster; its path must be the same.
fn other_server(shipped: &Value, entry: &Value) -> Option<String> {
    let path = text(shipped, "/clientConfig/service/path").unwrap_or_default();
    if let Some(url) = text(entry, "/clientConfig/url") {
        return (!url.ends_with(path)).then(|| format!("calls {url}, whose path is not {path}"));
    }
    let service = |entry: &Value| {
        let field = |name: &str| text(entry, &format!("/clientConfig/service/{name}")).map(str::to_owned);
        (field("namespace"), field("name"), field("path"))
    };
    let (namespace, name, _) = service(entry);
    (service(shipped) != service(entry)).then(|| {
        format!(
            "calls Service {}/{} instead of the guard's",
            namespace.unwrap_or_default(),
            name.unwrap_or_default()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_cli::registration::{Registration, WebhookGroup, shipped_configurations};
    use etcd_guard_core::opt_in_label::OptInLabel;

    fn shipped() -> Value {
        let registration = Registration {
            namespace: String::from("ops"),
            groups: vec![WebhookGroup::Guard],
            url: None,
            opt_in_label: OptInLabel::default(),
        };
        let name = shipped_configurations().into_iter().next().unwrap();
        registration.object(&name, "Y2E=", None).unwrap()
    }

    /// Returns the configuration as the API server stores it, with its defaults.
    fn stored() -> Value {
        let mut stored = shipped();
        for entry in stored["webhooks"].as_array_mut().unwrap() {
            entry["objectSelector"] = json!({});
        }
        stored
    }

    fn line(registered: Option<&Value>) -> Line {
        let guarded = [GuardedNamespace {
            name: String::from("prod"),
            labels: [
                (String::from("etcd-guard.io/guard"), String::from("enabled")),
                (String::from("kubernetes.io/metadata.name"), String::from("prod")),
            ]
            .into(),
        }];
        let shipped = shipped();
        let comparison = Comparison { shipped: &shipped, registered, is_required: true, guarded: &guarded };
        comparison.line("kubectl apply", "register").unwrap()
    }

    fn with(change: impl Fn(&mut Value)) -> Line {
        let mut stored = stored();
        change(&mut stored);
        line(Some(&stored))
    }

    #[test]
    fn accepts_the_shipped_configuration_as_stored() {
        let line = line(Some(&stored()));
        assert_eq!((line.state, line.message.as_str()), (State::Ok, "etcd-guard: 6 webhooks as shipped"));
    }

    #[test]
    fn absent_configuration_fails_only_if_required() {
        assert_eq!(line(None).state, State::Failure);
        let shipped = shipped();
        let optional = Comparison { shipped: &shipped, registered: None, is_required: false, guarded: &[] };
        assert_eq!(optional.line("kubectl apply", "register"), None);
    }

    #[test]
    fn entries_of_deletions_and_evictions_are_required() {
        let without = |index: usize| {
            with(|object| drop(object["webhooks"].as_array_mut().unwrap().remove(index))).state
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(without),
            [State::Failure, State::Failure, State::Warning, State::Warning, State::Failure]
        );
    }

    #[test]
    fn missing_rules_fail_and_rules_for_owners_do_not() {
        let line = with(|object| object["webhooks"][0]["rules"][0]["operations"] = json!(["CREATE"]));
        assert_eq!(line.state, State::Failure);
        assert!(line.message.contains("lacks the rules DELETE /v1/pods Namespaced"), "{line:?}");
        let wildcard = with(|object| object["webhooks"][0]["rules"][0]["apiVersions"] = json!(["*"]));
        assert_eq!(wildcard.state, State::Warning, "{wildcard:?}");
        let owners = with(|object| {
            let rule = json!({"apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["etcds"]});
            object["webhooks"][2]["rules"].as_array_mut().unwrap().push(rule);
        });
        assert_eq!(owners.state, State::Ok, "{owners:?}");
    }

    #[test]
    fn wildcards_cover_resources_as_the_api_server_does() {
        let covered = |resource: &str| {
            ["pods", "pods/eviction"].map(|wanted| {
                covers(&format!("* */*/{resource} *"), &format!("CREATE /v1/{wanted} Namespaced"))
            })
        };
        assert_eq!(
            ["*", "*/*", "pods", "pods/*"].map(covered),
            [[true, false], [true, true], [true, false], [true, true]]
        );
        assert_eq!(
            ["pods/eviction", "*/eviction", "services"].map(covered),
            [[false, true], [false, true], [false, false]]
        );
    }

    #[test]
    fn weaker_settings_are_reported() {
        let ignore = with(|object| object["webhooks"][1]["failurePolicy"] = json!("Ignore"));
        assert_eq!(ignore.state, State::Warning, "{ignore:?}");
        let strict = with(|object| object["webhooks"][3]["failurePolicy"] = json!("Fail"));
        assert_eq!(strict.state, State::Ok, "{strict:?}");
        let condition =
            with(|object| object["webhooks"][0]["matchConditions"][0]["expression"] = json!("false"));
        assert_eq!(condition.state, State::Failure, "{condition:?}");
        let further = with(|object| {
            let condition = json!({"name": "never", "expression": "false"});
            object["webhooks"][1]["matchConditions"] = json!([condition]);
        });
        assert_eq!(further.state, State::Failure, "{further:?}");
        let fewer = with(|object| object["webhooks"][0]["matchConditions"] = json!([]));
        assert_eq!(fewer.state, State::Warning, "{fewer:?}");
        let objects =
            with(|object| object["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"a": "b"}}));
        assert_eq!(objects.state, State::Failure, "{objects:?}");
    }

    #[test]
    fn unselected_guarded_namespace_fails() {
        let selector = |value: &str| {
            with(|object| {
                object["webhooks"][0]["namespaceSelector"] =
                    json!({"matchLabels": {"kubernetes.io/metadata.name": value}});
            })
        };
        let other = selector("other");
        assert_eq!(other.state, State::Failure);
        assert!(other.message.contains("does not select the guarded namespaces prod"), "{other:?}");
        assert_eq!(selector("prod").state, State::Warning);
    }

    #[test]
    fn address_of_another_server_fails() {
        let service =
            with(|object| object["webhooks"][0]["clientConfig"]["service"]["name"] = json!("other"));
        assert_eq!(service.state, State::Failure, "{service:?}");
        let url = |url: &str| {
            with(|object| object["webhooks"][0]["clientConfig"] = json!({"url": url, "caBundle": ""})).state
        };
        assert_eq!(url("https://192.0.2.1:8443/validate"), State::Ok);
        assert_eq!(url("https://192.0.2.1:8443/"), State::Failure);
    }
}
