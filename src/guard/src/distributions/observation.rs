//! The result for a pod of the corpus: the report of `inspect`, and the credentials that the guard finds with the Role that
//! this report contains, or after the annotation that it names.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::{ByteString, jiff::Timestamp};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::expectation::{CA_MARK, Expectation, SERVER_MARK};
use crate::credentials::CredentialReader;
use etcd_guard_core::{
    config::policies::Policies,
    discovery::{
        etcd_pod,
        etcd_pod::EtcdPod,
        recognition::{recognize, unrecognized_listener},
    },
    etcd::member::Scheme,
    inspect::{inspect, *},
    objects::{
        data_object::{DataObject, Secret},
        pod::Pod,
    },
};
use etcd_guard_kubernetes::{SecretReader, fake};

/// The objects that were read, as `KIND/NAME`.
type Reads = Arc<Mutex<Vec<String>>>;

/// A member after its credentials were read.
struct Reached {
    member: EtcdPod,
    /// The existing objects that were read, in order.
    reads: Vec<String>,
    /// Whether the printed Role permits any read.
    has_role: bool,
}

/// Returns a sentence for each difference between the expectation and the result.
pub(super) async fn differences(pod: &Pod, expected: &Expectation) -> Vec<String> {
    let mut found = Differences::default();
    let inspection = report(pod, expected);
    found.compare("recognized", &expected.recognized, &inspection.recognized);
    found.compare("reason", &expected.reason, &reason(pod, &pod.metadata.annotations));
    // The survey reports every namespace without a member. Pods that run no member are not compared.
    if expected.reached.is_some() && !inspection.recognized && !pod.is_mirror() {
        let gap = if unrecognized_listener(pod).is_some() { "port" } else { "namespace" };
        found.compare("reported", &expected.reported.as_deref(), &Some(gap));
    } else {
        found.compare("reported", &expected.reported.as_deref(), &None);
    }
    if let Some(member) = &inspection.member {
        compare_settings(&mut found, member, expected);
    }
    let Some(expected_reach) = &expected.reached else { return found.0 };
    let mut reached = reach(pod, &inspection, expected).await;
    let mut requirement = reached.as_ref().map(|reached| if reached.has_role { "Role" } else { "nothing" });
    let mut annotations = BTreeMap::new();
    for suggestion in &inspection.suggestions {
        if reached.is_some() {
            break;
        }
        let Some(value) = completed(suggestion, expected) else { continue };
        let mut annotated = pod.clone();
        annotated.metadata.annotations.insert(suggestion.annotation.to_owned(), value.clone());
        let result = reach(&annotated, &report(&annotated, expected), expected).await;
        if let Some(result) = result {
            annotations.insert(suggestion.annotation.to_owned(), value);
            (reached, requirement) = (Some(result), Some("annotation"));
        }
    }
    found.compare("reached", &expected_reach.as_str(), &requirement.unwrap_or("no"));
    found.compare("annotations", &expected.annotations, &annotations);
    if let Some(result) = &reached {
        compare_credentials(&mut found, result, expected);
    }
    found.0
}

/// Returns the report of `inspect` with the rights to read all objects, and with the Role.
fn report(pod: &Pod, expected: &Expectation) -> Inspection {
    let object = InspectedObject { object: String::from("the pod"), pod: pod.clone(), owners: Vec::new() };
    let mut inspection = inspect(&object, &Policies::default(), Timestamp::UNIX_EPOCH);
    // The configuration file adds objects.
    for _ in 0..2 {
        let states = inspection.objects().into_iter().map(|object| {
            let name = format!("{}/{}", object.kind.as_str(), object.name);
            let content = expected.objects.get(&name).map(|keys| values(&name, keys, expected));
            let content = content.map_or(ObjectContent::Missing, |content| {
                ObjectContent::Found(content.into_iter().collect::<Secret>())
            });
            (object, ObjectState { content: Some(content), ..ObjectState::default() })
        });
        let states: BTreeMap<DataObject, ObjectState> = states.collect();
        inspection.record(&states);
    }
    let account = GuardAccount { namespace: String::from("etcd-guard"), name: String::from("etcd-guard") };
    inspection.add_role(&account);
    inspection
}

/// Returns the value of a suggested annotation. For words in capital letters, the user sets the names of the distribution.
fn completed(suggestion: &Suggestion, expected: &Expectation) -> Option<String> {
    let variables = ["$(POD_NAME)", "$(POD_NAMESPACE)"];
    let plain =
        variables.iter().fold(suggestion.value.clone(), |value, variable| value.replace(variable, ""));
    if plain.contains(|letter: char| letter.is_ascii_uppercase()) {
        expected.annotations.get(suggestion.annotation).cloned()
    } else {
        Some(suggestion.value.clone())
    }
}

/// Sentences about differences.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: Debug + PartialEq>(&mut self, field: &str, expected: &T, got: &T) {
        if expected != got {
            self.0.push(format!("{field}: expected {expected:?}, got {got:?}"));
        }
    }

    /// Compares a value that is present in the expectation.
    fn compare_if_given(&mut self, field: &str, expected: Option<&String>, got: Option<&str>) {
        if let Some(expected) = expected {
            self.compare(field, &Some(expected.as_str()), &got);
        }
    }
}

fn compare_settings(found: &mut Differences, member: &EtcdPod, expected: &Expectation) {
    found.compare_if_given("container", expected.container.as_ref(), Some(&member.container));
    let endpoint = member.endpoint.as_ref().map(|endpoint| {
        let scheme = if is_probed(member) { "probed" } else { endpoint.url.split(':').next().unwrap() };
        format!("{scheme}:{}", endpoint.url.rsplit(':').next().unwrap())
    });
    found.compare_if_given("endpoint", expected.endpoint.as_ref(), endpoint.as_deref());
    if !is_probed(member) {
        let server_name = member.endpoint.as_ref().and_then(|endpoint| endpoint.tls.as_ref());
        let server_name = server_name.map(|tls| tls.server_name.as_str());
        found.compare_if_given("serverName", expected.server_name.as_ref(), server_name);
    }
    let storage = format!("{:?}", member.storage);
    found.compare_if_given("storage", expected.storage.as_ref(), Some(&storage));
    found.compare("claim", &expected.claim.as_deref(), &member.claims.first().map(String::as_str));
    found.compare("memberName", &expected.member_name.as_deref(), &member.member_name.as_deref());
}

/// Whether only a probe determines the scheme.
fn is_probed(member: &EtcdPod) -> bool {
    member.possible_tls.is_some()
}

/// Returns the rule by which the pod is a member, or the cause by which it is none, without details.
fn reason(pod: &Pod, annotations: &BTreeMap<String, String>) -> String {
    let recognition = recognize(pod, annotations);
    let reason = match (recognition.rule, recognition.vetoes.first()) {
        _ if pod.is_mirror() => String::from("MirrorPod"),
        (Some(rule), _) => format!("{rule:?}"),
        (None, Some((_, veto))) => format!("{veto:?}"),
        (None, None) => String::from("NotEtcd"),
    };
    reason.split('(').next().unwrap_or_default().to_owned()
}

fn compare_credentials(found: &mut Differences, reached: &Reached, expected: &Expectation) {
    let endpoint = reached.member.endpoint.as_ref().unwrap();
    let tls = endpoint.tls.as_ref();
    let certificate =
        tls.and_then(|tls| tls.identity.as_ref()).map(|identity| location(&identity.certificate));
    found.compare("certificate", &expected.certificate, &certificate);
    let ca = tls.and_then(|tls| tls.ca.as_deref()).map(location);
    found.compare_if_given("ca", expected.ca.as_ref(), ca.as_deref());
    let user = endpoint.user.as_ref().map(|user| user.password.as_ref());
    found.compare("user", &expected.user.as_deref(), &user);
    let of_kind = |kind: &str| -> Vec<String> {
        reached.reads.iter().filter_map(|read| read.strip_prefix(kind)).map(str::to_owned).collect()
    };
    found.compare("configMaps", &expected.config_maps, &of_kind("ConfigMap/"));
    if let Some(secrets) = &expected.secrets {
        // The reader stops as soon as it has all credentials.
        let read = of_kind("Secret/");
        found.compare("secrets", &secrets.get(..read.len()).unwrap_or_default(), &read.as_slice());
    }
}

/// Returns the place of a value, which is its last line.
fn location(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.lines().last().unwrap_or_default().to_owned()
}

/// Reads the settings and the credentials of a member as the guard does, with the permissions of the printed Role. Returns
/// `None` if the guard then cannot reach the member.
async fn reach(pod: &Pod, inspection: &Inspection, expected: &Expectation) -> Option<Reached> {
    let annotations = &pod.metadata.annotations;
    let mut member = read(pod, annotations).filter(|_| inspection.recognized)?;
    let permitted: Vec<String> = inspection.role.first().map(permitted_objects).unwrap_or_default();
    let reads = Reads::default();
    let (recorded, has_role) = (reads.clone(), !permitted.is_empty());
    let objects: BTreeMap<String, Value> =
        expected.objects.iter().map(|(name, keys)| (name.clone(), object(name, keys, expected))).collect();
    let client = fake::api_server_with(move |call, _| {
        let mut path = call.uri.path().rsplit('/');
        let name = path.next().unwrap();
        let kind = if path.next() == Some("configmaps") { "ConfigMap" } else { "Secret" };
        let wanted = format!("{kind}/{name}");
        match objects.get(&wanted) {
            _ if !permitted.contains(&wanted) => (403, fake::status_failure(403, "forbidden")),
            Some(content) => {
                recorded.lock().unwrap().push(wanted);
                (200, content.clone())
            }
            None => (404, fake::status_failure(404, "not found")),
        }
    });
    let reader = CredentialReader::new(SecretReader::new(client));
    let (namespace, deadline) = (&pod.metadata.namespace, Instant::now() + Duration::from_secs(10));
    if let Some(file) = &member.config_file {
        let text = reader.config_file(namespace, file, member.is_config_file_optional, deadline).await;
        if let Ok(Some(text)) = text {
            member = member.with_config_file(pod, annotations, &text).unwrap();
        }
    }
    reader.read_stop_scripts(namespace, pod, &mut member, deadline).await;
    // The probe of the scheme finds TLS if the distribution has certificates.
    let has_tls = expected.certificate.is_some();
    member.set_scheme(Some(if has_tls { Scheme::Https } else { Scheme::Http }));
    let mut pods = [((), member)];
    reader.add_to(namespace, &mut pods, deadline).await;
    let [((), member)] = pods;
    let reads = reads.lock().unwrap().clone();
    Some(Reached { member, reads, has_role }).filter(|reached| reached.is_reached(expected))
}

/// Returns the member of a pod, which has no member if it is a mirror.
fn read(pod: &Pod, annotations: &BTreeMap<String, String>) -> Option<EtcdPod> {
    etcd_pod::read(pod, annotations).filter(|_| !pod.is_mirror())
}

/// Returns the objects that a Role permits the guard to read, as `KIND/NAME`.
fn permitted_objects(role: &Value) -> Vec<String> {
    let rules = role["rules"].as_array().unwrap();
    let named = rules.iter().flat_map(|rule| {
        let kind = if rule["resources"] == json!(["configmaps"]) { "ConfigMap" } else { "Secret" };
        let names = rule["resourceNames"].as_array().unwrap();
        names.iter().map(move |name| format!("{kind}/{}", name.as_str().unwrap()))
    });
    named.collect()
}

/// The values of an object are their own places, except those of configuration files. A key with the mark of a CA holds a
/// real certificate of a CA before that.
fn values(name: &str, keys: &[String], expected: &Expectation) -> Vec<(String, String)> {
    let (_, object) = name.split_once('/').expect("KIND/NAME");
    let value = |marked: &String| {
        let (key, certificate) = match marked.strip_suffix(CA_MARK) {
            Some(key) => (key, authority()),
            None => (marked.strip_suffix(SERVER_MARK).unwrap_or(marked), String::new()),
        };
        let file = expected.files.get(&format!("{name}/{key}")).cloned();
        (key.to_owned(), file.unwrap_or_else(|| format!("{certificate}{object}/{key}")))
    };
    keys.iter().map(value).collect()
}

/// Returns an object as the API server does.
fn object(name: &str, keys: &[String], expected: &Expectation) -> Value {
    let (kind, _) = name.split_once('/').expect("KIND/NAME");
    let encoded = |text: String| match kind {
        "Secret" => json!(ByteString(text.into_bytes())),
        _ => json!(text),
    };
    let values = values(name, keys, expected).into_iter();
    let data: Map<String, Value> = values.map(|(key, value)| (key, encoded(value))).collect();
    json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name}, "data": data})
}

/// Returns the certificate of a CA.
fn authority() -> String {
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

impl Reached {
    /// Whether the guard can probe the member at this endpoint, with these credentials.
    fn is_reached(&self, expected: &Expectation) -> bool {
        let Some(endpoint) = &self.member.endpoint else { return false };
        if expected.listens_on_loopback || self.member.loopback.is_some() {
            return false;
        }
        match &endpoint.tls {
            // A member with certificates rejects plain HTTP.
            None => expected.certificate.is_none(),
            Some(tls) if tls.accepts_any_certificate => true,
            Some(tls) => {
                let names = &expected.certificate_names;
                let is_named = names.is_empty() || names.contains(&tls.server_name);
                let is_usable = tls.identity.as_ref().is_some_and(|identity| {
                    let place = format!("Secret/{}{SERVER_MARK}", location(&identity.certificate));
                    let mut keys = expected
                        .objects
                        .iter()
                        .flat_map(|(object, keys)| keys.iter().map(move |key| format!("{object}/{key}")));
                    !keys.any(|key| key == place)
                });
                is_named && is_usable && tls.ca.is_some()
            }
        }
    }
}
