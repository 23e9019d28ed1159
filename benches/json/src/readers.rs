//! The compared readers. Each reads a body as the guard would have to with this library.

use std::{borrow::Cow, collections::BTreeSet, sync::LazyLock};

use etcd_guard::{
    config::{Config, Labels},
    guard::PodHeader,
    inject::{InjectionContext, inject},
    json::{self, Json, ObjectReader},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny},
};
use serde_json::value::RawValue;
use simd_json::prelude::{ValueAsArray, ValueAsScalar, ValueObjectAccess};
use sonic_rs::{JsonContainerTrait, JsonValueTrait};

/// One way to read a review.
pub(crate) struct Reader {
    pub(crate) name: &'static str,
    /// Returns whether the content is the expected one. The checks access little, so that their cost is small.
    pub(crate) read: fn(&[u8]) -> bool,
}

/// Readers for the fast path of `/validate`. The first one is that of the guard.
pub(crate) const DELETION_READERS: [Reader; 7] = [
    Reader { name: "guard: serde_json, borrowed types", read: header },
    Reader { name: "serde_json, RawValue of the pod, then borrowed types", read: raw_header },
    Reader { name: "serde_json, Value", read: serde_value },
    Reader { name: "sonic-rs, borrowed types", read: sonic_header },
    Reader { name: "sonic-rs, Value", read: sonic_value },
    Reader { name: "simd-json, copy of the body, borrowed types", read: simd_header },
    Reader { name: "simd-json, copy of the body, borrowed Value", read: simd_value },
];

/// Readers for `/mutate`. The first one is that of the guard.
pub(crate) const CREATION_READERS: [Reader; 9] = [
    Reader { name: "guard: ObjectReader on serde_json", read: tree },
    Reader { name: "serde_json, RawValue of the pod, then read_object", read: raw_tree },
    Reader { name: "serde_json, Value", read: serde_value },
    Reader { name: "sonic-rs, Value", read: sonic_value },
    Reader { name: "ObjectReader on sonic-rs", read: sonic_tree },
    Reader { name: "simd-json, copy of the body, borrowed Value", read: simd_value },
    Reader { name: "ObjectReader on simd-json, copy of the body", read: simd_tree },
    Reader { name: "guard, with the patch", read: mutated_tree },
    Reader { name: "serde_json, Value, with the patch", read: mutated_value },
];

const CONFIGURATION: &str = r#"
apiVersion: etcd-guard.io/v1alpha1
sidecars:
  templates:
  - name: agent
    containers:
    - name: agent
      image: agent:1
      volumeMounts: [{name: agent-data, mountPath: /data}]
    volumes: [{name: agent-data, emptyDir: {}}]
    appContainers:
      env: [{name: AGENT_SOCKET, value: /agent/socket}]
      volumeMounts: [{name: agent-data, mountPath: /agent}]
"#;

static CONFIG: LazyLock<Config> = LazyLock::new(|| Config::read(CONFIGURATION).expect("a configuration"));

/// The fields of a review that the guard reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "P: Deserialize<'de>"))]
struct Review<'a, P> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    request: Request<'a, P>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "P: Deserialize<'de>"))]
struct Request<'a, P> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    resource: Resource<'a>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    user_info: User<'a>,
    object: Option<P>,
    old_object: Option<P>,
    dry_run: Option<bool>,
    #[serde(default)]
    options: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Resource<'a> {
    #[serde(borrow)]
    resource: Cow<'a, str>,
}

#[derive(Deserialize)]
struct User<'a> {
    #[serde(borrow)]
    username: Cow<'a, str>,
}

/// A pod as `/mutate` reads it.
struct Tree<'a>(Option<Json<'a>>);

impl<'de> Deserialize<'de> for Tree<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        static VARIABLES: BTreeSet<String> = BTreeSet::new();
        ObjectReader { variables: &VARIABLES }.deserialize(deserializer).map(Self)
    }
}

impl<P> Review<'_, P> {
    /// Returns the pod of a request that the guard evaluates.
    fn pod(self) -> Option<P> {
        let Request {
            uid,
            resource,
            name,
            namespace,
            operation,
            user_info,
            object,
            old_object,
            dry_run,
            options,
        } = self.request;
        let is_valid = self.kind == "AdmissionReview"
            && !uid.is_empty()
            && resource.resource == "pods"
            && name.is_some()
            && namespace.is_some()
            && matches!(&*operation, "DELETE" | "CREATE")
            && !user_info.username.is_empty()
            && dry_run == Some(false)
            && options.is_some();
        object.or(old_object).filter(|_| is_valid)
    }
}

fn text(body: &[u8]) -> &str {
    std::str::from_utf8(body).expect("UTF-8")
}

// Readers of the header of a pod.

fn is_expected(review: Review<'_, PodHeader<'_>>) -> bool {
    review.pod().is_some_and(|pod| pod.name() == "web-0" && pod.namespace() == "default")
}

fn header(body: &[u8]) -> bool {
    is_expected(serde_json::from_str(text(body)).expect("a review"))
}

fn raw_header(body: &[u8]) -> bool {
    let review: Review<'_, &RawValue> = serde_json::from_str(text(body)).expect("a review");
    let pod = review.pod().expect("a pod");
    let pod: PodHeader<'_> = serde_json::from_str(pod.get()).expect("a header");
    pod.name() == "web-0" && pod.namespace() == "default"
}

fn sonic_header(body: &[u8]) -> bool {
    is_expected(sonic_rs::from_slice(body).expect("a review"))
}

fn simd_header(body: &[u8]) -> bool {
    is_expected(simd_json::from_slice(&mut body.to_vec()).expect("a review"))
}

// Readers of the pod as a tree.

fn is_expected_tree(pod: &Json<'_>) -> bool {
    let name = pod.get("metadata").and_then(|metadata| metadata.get("name"));
    let containers = pod.get("spec").and_then(|spec| spec.get("containers"));
    name.is_some_and(|name| name == "web-0") && containers.is_some_and(|list| !list.items().is_empty())
}

fn pod<'a>(review: Review<'a, Tree<'a>>) -> Json<'a> {
    review.pod().and_then(|Tree(pod)| pod).expect("a pod")
}

fn tree(body: &[u8]) -> bool {
    is_expected_tree(&pod(serde_json::from_str(text(body)).expect("a review")))
}

fn raw_tree(body: &[u8]) -> bool {
    let review: Review<'_, &RawValue> = serde_json::from_str(text(body)).expect("a review");
    let pod = json::read_object(review.pod().expect("a pod"), &CONFIG.sidecars.variables);
    is_expected_tree(&pod.expect("an object"))
}

fn sonic_tree(body: &[u8]) -> bool {
    is_expected_tree(&pod(sonic_rs::from_slice(body).expect("a review")))
}

fn simd_tree(body: &[u8]) -> bool {
    is_expected_tree(&pod(simd_json::from_slice(&mut body.to_vec()).expect("a review")))
}

fn mutated_tree(body: &[u8]) -> bool {
    is_patched(pod(serde_json::from_str(text(body)).expect("a review")))
}

fn mutated_value(body: &[u8]) -> bool {
    let review: serde_json::Value = serde_json::from_slice(body).expect("a review");
    is_patched(Json::from(&review["request"]["object"]))
}

/// Injects lxcfs and a sidecar, and returns whether that results in a patch.
fn is_patched(pod: Json<'_>) -> bool {
    let labels = Labels::default();
    let context =
        InjectionContext { namespace: "default", namespace_labels: Ok(&labels), native_sidecars: true };
    inject(pod, &context, &CONFIG).expect("no denial").patch.into_json().is_some()
}

// Readers of the whole review as a tree of the library.

fn serde_value(body: &[u8]) -> bool {
    let review: serde_json::Value = serde_json::from_slice(body).expect("a review");
    let request = &review["request"];
    let pod = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
    pod["metadata"]["name"] == "web-0" && pod["spec"]["containers"].as_array().is_some()
}

fn sonic_value(body: &[u8]) -> bool {
    let review: sonic_rs::Value = sonic_rs::from_slice(body).expect("a review");
    let request = &review["request"];
    let pod = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
    pod["metadata"]["name"].as_str() == Some("web-0") && pod["spec"]["containers"].as_array().is_some()
}

fn simd_value(body: &[u8]) -> bool {
    let mut copy = body.to_vec();
    let review = simd_json::to_borrowed_value(&mut copy).expect("a review");
    let pods = ["object", "oldObject"].map(|key| review.get("request").and_then(|request| request.get(key)));
    let pod = pods.into_iter().flatten().find(|pod| pod.get("metadata").is_some()).expect("a pod");
    let name = pod.get("metadata").and_then(|metadata| metadata.get("name"));
    let containers = pod.get("spec").and_then(|spec| spec.get("containers"));
    name.and_then(ValueAsScalar::as_str) == Some("web-0")
        && containers.and_then(ValueAsArray::as_array).is_some()
}
