//! Settings of a template for the whole pod.

use serde_json::{Value, json};

use super::{config, injected, pod};
use crate::{config::Config, pods::Reason};

fn agent(fields: &str) -> Config {
    config(&format!("sidecars: {{templates: [{{name: agent, {fields}}}]}}"))
}

fn with(spec: &Value) -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": "agent"}));
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

#[test]
fn uses_the_longer_grace_period() {
    let agent = agent("terminationGracePeriodSeconds: 60");
    for (own, expected) in [(json!(30), 60), (json!(0), 60), (json!(60), 60), (json!(300), 300)] {
        let (after, _) = injected(&with(&json!({"terminationGracePeriodSeconds": own})), &[], &agent);
        assert_eq!(after["spec"]["terminationGracePeriodSeconds"], expected, "{own}");
    }
    let short = self::agent("terminationGracePeriodSeconds: 10");
    let silent = with(&json!({}));
    assert_eq!(
        injected(&silent, &[], &short).0["spec"],
        silent["spec"],
        "the default of the API server is 30"
    );
}

#[test]
fn adds_dns_settings_to_the_pods_own() {
    let dns = agent(
        "dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2], searches: [ours.example], options: [{name: ndots, value: '1'}, {name: edns0}]}",
    );
    let own =
        json!({"nameservers": ["192.0.2.2"], "options": [{"name": "ndots", "value": "5"}], "tomorrow": 1});
    let (after, reasons) = injected(&with(&json!({"dnsConfig": own})), &[], &dns);
    assert_eq!(
        after["spec"]["dnsConfig"],
        json!({
            "nameservers": ["192.0.2.2", "192.0.2.1"],
            "searches": ["ours.example"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "edns0"}],
            "tomorrow": 1,
        })
    );
    assert_eq!(reasons, [Reason::Sidecar]);

    let full = json!({"nameservers": ["192.0.2.7", "192.0.2.8"]});
    let (after, reasons) = injected(&with(&json!({"dnsConfig": full})), &[], &dns);
    assert_eq!(after["spec"]["dnsConfig"]["nameservers"], full["nameservers"], "four would be refused");
    assert_eq!(reasons, [Reason::Conflict, Reason::Sidecar]);
}

#[test]
fn adds_host_aliases_for_names_without_an_address() {
    let hosts = agent(
        "hostAliases: [{ip: 192.0.2.1, hostnames: [a.example, b.example]}, {ip: 192.0.2.2, hostnames: [c.example]}]",
    );
    let own = json!([{"ip": "192.0.2.9", "hostnames": ["a.example"]}, {"ip": "192.0.2.1", "hostnames": ["d.example"]}]);
    let (after, _) = injected(&with(&json!({"hostAliases": own})), &[], &hosts);
    assert_eq!(
        after["spec"]["hostAliases"],
        json!([
            {"ip": "192.0.2.9", "hostnames": ["a.example"]},
            {"ip": "192.0.2.1", "hostnames": ["d.example", "b.example"]},
            {"ip": "192.0.2.2", "hostnames": ["c.example"]},
        ])
    );
}

#[test]
fn security_context_of_the_pod_takes_precedence() {
    let context = agent("securityContext: {runAsNonRoot: true, fsGroup: 2000}");
    let own = json!({"runAsNonRoot": false});
    let (after, _) = injected(&with(&json!({"securityContext": own})), &[], &context);
    assert_eq!(after["spec"]["securityContext"], json!({"runAsNonRoot": false, "fsGroup": 2000}));
    let (after, _) = injected(&with(&json!({})), &[], &context);
    assert_eq!(after["spec"]["securityContext"], json!({"runAsNonRoot": true, "fsGroup": 2000}));
}
