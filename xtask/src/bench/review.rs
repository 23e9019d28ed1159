//! Admission reviews for `scripts/bench mutate` and `scripts/compare`.
//!
//! The order of the fields is that of an API server, so the text is assembled from fragments instead of a map.

use clap::{Args, ValueEnum};
use serde_json::Value;

/// Environment variables of each container.
const VARIABLES: usize = 16;

/// A review of a new pod, shaped as the pods of a `ReplicaSet` reach the API server: with defaults, the volume of a
/// token, and managed fields, which are two fifths of the text.
#[derive(Args)]
pub(crate) struct Options {
    /// Resource that the review names: `pods`, or another one, which the guard lets through.
    #[arg(long, default_value = "pods")]
    resource: String,
    /// Smallest size of the review in bytes; containers are added until it is reached.
    #[arg(long)]
    bytes: usize,
    /// Value of the annotation `etcd-guard.io/inject`.
    #[arg(long)]
    inject: String,
    /// Image of the containers.
    #[arg(long, default_value = "registry.example/web:1")]
    image: String,
    /// Operation of the review. The pod of a deletion has a name and runs.
    #[arg(long, value_enum, default_value_t = Operation::Create)]
    operation: Operation,
    /// Print the pod alone, as the API server accepts it.
    #[arg(long)]
    pod_only: bool,
}

/// Operation of a review.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    Create,
    Delete,
}

impl Options {
    /// Returns the smallest review or pod that has at least the requested size.
    pub(crate) fn review(&self) -> String {
        let mut containers = 0;
        loop {
            let review = if self.pod_only { self.pod(containers) } else { self.review_of(containers) };
            if review.len() >= self.bytes {
                return review;
            }
            containers += 1;
        }
    }

    fn review_of(&self, containers: usize) -> String {
        let pod = self.pod(containers);
        let null = || String::from("null");
        let (name, operation, object_field, old_object, options) = match self.operation {
            Operation::Create => ("", "CREATE", pod, null(), "CreateOptions"),
            Operation::Delete => (POD_NAME, "DELETE", null(), pod, "DeleteOptions"),
        };
        let resource =
            object(&[("group", string("")), ("version", string("v1")), ("resource", string(&self.resource))]);
        let mut request = vec![
            ("uid", string("705ab4f5-6393-11e8-b7cc-42010a800002")),
            ("kind", String::from(r#"{"group":"","version":"v1","kind":"Pod"}"#)),
            ("resource", resource),
        ];
        if !name.is_empty() {
            request.push(("name", string(name)));
        }
        request.extend([
            ("namespace", string("default")),
            ("operation", string(operation)),
            ("userInfo", String::from(USER)),
            ("object", object_field),
            ("oldObject", old_object),
            ("dryRun", String::from("false")),
            ("options", object(&[("kind", string(options)), ("apiVersion", string("meta.k8s.io/v1"))])),
        ]);
        object(&[
            ("kind", string("AdmissionReview")),
            ("apiVersion", string("admission.k8s.io/v1")),
            ("request", object(&request)),
        ])
    }

    fn pod(&self, containers: usize) -> String {
        let numbers = 0..containers;
        let specs: Vec<String> = numbers.clone().map(|number| container(number, &self.image)).collect();
        let owned: Vec<String> = numbers.map(owned_container).collect();
        let mut metadata = match self.operation {
            Operation::Create => vec![("generateName", string("web-"))],
            Operation::Delete => vec![("name", string(POD_NAME)), ("uid", string(POD_UID))],
        };
        metadata.extend([
            ("namespace", string("default")),
            ("labels", String::from(r#"{"app":"web"}"#)),
            ("annotations", object(&[("etcd-guard.io/inject", string(&self.inject))])),
        ]);
        // The API server computes them.
        if !self.pod_only {
            metadata.push(("managedFields", array(&[managed_fields(&owned)])));
        }
        let status = match self.operation {
            Operation::Create => "{}",
            Operation::Delete => r#"{"phase":"Running"}"#,
        };
        object(&[
            ("kind", string("Pod")),
            ("apiVersion", string("v1")),
            ("metadata", object(&metadata)),
            (
                "spec",
                object(&[
                    ("volumes", String::from(VOLUMES)),
                    ("containers", array(&specs)),
                    ("restartPolicy", string("Always")),
                    ("terminationGracePeriodSeconds", String::from("30")),
                    ("dnsPolicy", string("ClusterFirst")),
                    ("serviceAccountName", string("default")),
                    ("securityContext", String::from("{}")),
                    ("schedulerName", string("default-scheduler")),
                    ("tolerations", String::from(TOLERATIONS)),
                ]),
            ),
            ("status", String::from(status)),
        ])
    }
}

/// A JSON object of fields with values that are JSON already.
fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// A JSON array of JSON values.
fn array(items: &[String]) -> String {
    format!("[{}]", items.join(","))
}

/// A JSON string.
fn string(text: &str) -> String {
    Value::from(text).to_string()
}

/// Name and UID of the pod of a deletion.
const POD_NAME: &str = "web-0";
const POD_UID: &str = "0c4f4a52-8d0a-4b5e-9a60-0d6f4c8f7a11";

const USER: &str = r#"{"username":"system:serviceaccount:kube-system:replicaset-controller","groups":["system:serviceaccounts","system:authenticated"]}"#;

const VOLUMES: &str = r#"[{"name":"token","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}}],"defaultMode":420}}]"#;

const TOLERATIONS: &str = r#"[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}]"#;

/// Managed fields of the controller that created the pod.
fn managed_fields(containers: &[String]) -> String {
    let spec = format!(
        r#"{{"f:containers":{{{}}},"f:dnsPolicy":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}},"f:securityContext":{{}},"f:terminationGracePeriodSeconds":{{}}}}"#,
        containers.join(",")
    );
    object(&[
        ("manager", string("kube-controller-manager")),
        ("operation", string("Update")),
        ("apiVersion", string("v1")),
        ("fieldsType", string("FieldsV1")),
        ("fieldsV1", object(&[("f:metadata", String::from(OWNED_METADATA)), ("f:spec", spec)])),
    ])
}

const OWNED_METADATA: &str = r#"{"f:annotations":{".":{},"f:etcd-guard.io/inject":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{}}}"#;

/// The managed fields of one container: a field and its value.
fn owned_container(number: usize) -> String {
    let empty = || String::from("{}");
    let mut variables = vec![(String::from("."), empty())];
    variables.extend((0..VARIABLES).map(|variable| {
        let key = format!(r#"k:{{"name":"VARIABLE_{variable}"}}"#);
        (key, String::from(r#"{".":{},"f:name":{},"f:value":{}}"#))
    }));
    let variables: Vec<(&str, String)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let fields = object(&[
        (".", empty()),
        ("f:env", object(&variables)),
        ("f:image", empty()),
        ("f:imagePullPolicy", empty()),
        ("f:name", empty()),
        ("f:resources", String::from(r#"{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{}}}"#)),
        ("f:terminationMessagePath", empty()),
    ]);
    format!("{}:{fields}", string(&format!(r#"k:{{"name":"web-{number}"}}"#)))
}

fn container(number: usize, image: &str) -> String {
    let variables: Vec<String> = (0..VARIABLES)
        .map(|variable| {
            object(&[
                ("name", string(&format!("VARIABLE_{variable}"))),
                ("value", string(&format!("the value of the environment variable {variable}, some words"))),
            ])
        })
        .collect();
    object(&[
        ("name", string(&format!("web-{number}"))),
        ("image", string(image)),
        ("env", array(&variables)),
        ("resources", String::from(r#"{"limits":{"cpu":"1","memory":"256Mi"}}"#)),
        ("volumeMounts", String::from(VOLUME_MOUNTS)),
        ("terminationMessagePath", string("/dev/termination-log")),
        ("imagePullPolicy", string("IfNotPresent")),
    ])
}

const VOLUME_MOUNTS: &str =
    r#"[{"name":"token","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}]"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(resource: &str, bytes: usize) -> Options {
        Options {
            resource: resource.to_owned(),
            bytes,
            inject: String::from("lxcfs,agent"),
            image: String::from("registry.example/web:1"),
            operation: Operation::Create,
            pod_only: false,
        }
    }

    #[test]
    fn review_is_valid_json_of_the_requested_size() {
        for bytes in [0, 9_000, 102_400] {
            let text = options("pods", bytes).review();
            assert!(text.len() >= bytes && text.len() < bytes + 4_000, "{bytes}: {}", text.len());
            let review: Value = serde_json::from_str(&text).unwrap();
            let object = &review["request"]["object"];
            let containers = object["spec"]["containers"].as_array().unwrap().len();
            let owned = &object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:containers"];
            assert_eq!(owned.as_object().unwrap().len(), containers);
            assert_eq!(object["metadata"]["annotations"]["etcd-guard.io/inject"], "lxcfs,agent");
        }
    }

    #[test]
    fn review_names_the_requested_resource() {
        let review: Value = serde_json::from_str(&options("configmaps", 0).review()).unwrap();
        assert_eq!(review["request"]["resource"]["resource"], "configmaps");
    }

    #[test]
    fn deletion_has_a_running_old_object() {
        let options = Options { operation: Operation::Delete, ..options("pods", 9_500) };
        let review: Value = serde_json::from_str(&options.review()).unwrap();
        let request = &review["request"];
        assert_eq!((&request["operation"], &request["object"]), (&Value::from("DELETE"), &Value::Null));
        assert_eq!(request["name"], request["oldObject"]["metadata"]["name"]);
        assert_eq!(request["oldObject"]["status"]["phase"], "Running");
    }

    #[test]
    fn pod_alone_has_no_managed_fields() {
        let pod: Value =
            serde_json::from_str(&Options { pod_only: true, ..options("pods", 9_000) }.review()).unwrap();
        assert_eq!(pod["kind"], "Pod");
        assert!(pod["metadata"]["managedFields"].is_null());
    }

    #[test]
    fn fields_before_the_object_precede_it() {
        let text = options("pods", 9_000).review();
        let position = |field: &str| text.find(field).unwrap();
        assert!(position("\"resource\"") < position("\"object\""));
        assert!(position("\"managedFields\"") < position("\"spec\":"));
    }
}
