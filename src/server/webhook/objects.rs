//! Parsing of a review together with its objects, in one pass: the objects are the largest part of a body.
//!
//! If this pass fails, [`Review::read`] parses the body again to report the error.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};

use super::{
    review::{Review, ReviewBody, ReviewError, supported_version},
    review_response::KIND,
};
use crate::{
    json::{self, CowStr, Json, ObjectReader},
    k8s::admission::AdmissionRequest,
};

/// The objects of a review to mutate.
#[derive(Debug, Default)]
pub(super) struct Objects<'a> {
    /// The new object, if present and readable.
    pub(super) new: Option<Json<'a>>,
    /// The stored object, if present and readable.
    pub(super) stored: Option<Json<'a>>,
}

impl<'a> Review<'a> {
    /// Reads a review and its objects. The environment variables of containers are skipped, except for `variables`. The
    /// returned request does not contain the objects.
    pub(super) fn read_with_objects(
        body: &'a ReviewBody<'_>,
        variables: &BTreeSet<String>,
    ) -> Result<(Self, Objects<'a>), ReviewError> {
        if let Some(read) = body.text().and_then(|text| read_valid(text, ObjectReader { variables })) {
            return Ok(read);
        }
        let review = Self::read(body)?;
        let objects = review.request().map_or_else(
            |_| Objects::default(),
            |request| Objects {
                new: request.object.and_then(|object| json::read_object(object, variables)),
                stored: request.old_object.and_then(|object| json::read_object(object, variables)),
            },
        );
        Ok((review, objects))
    }
}

/// Reads a valid review.
fn read_valid<'a>(text: &'a str, reader: ObjectReader<'_>) -> Option<(Review<'a>, Objects<'a>)> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let (api_version, (request, objects)) = Envelope(reader).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    (!request.uid.is_empty()).then(|| (Review::new(api_version, request), objects))
}

/// Stores the value of a field. Rejects duplicates, because other parsers may use the other value.
fn set_once<T, E: Error>(field: &mut Option<T>, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::custom("duplicate field")),
    }
}

/// Deserializes the body into the version, the request and its objects.
#[derive(Clone, Copy)]
struct Envelope<'r>(ObjectReader<'r>);

/// Deserializes the request without its options, and its objects.
#[derive(Clone, Copy)]
struct Request<'r>(ObjectReader<'r>);

// === impl Envelope ===

impl<'de> DeserializeSeed<'de> for Envelope<'_> {
    type Value = (&'static str, (AdmissionRequest<'de>, Objects<'de>));

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Envelope<'_> {
    type Value = (&'static str, (AdmissionRequest<'de>, Objects<'de>));

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionReview")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut version, mut kind, mut request) = (None, None, None);
        while let Some(CowStr(key)) = map.next_key()? {
            match &*key {
                "apiVersion" => set_once(&mut version, map.next_value::<CowStr<'de>>()?.0)?,
                "kind" => set_once(&mut kind, map.next_value::<CowStr<'de>>()?.0)?,
                "request" => set_once(&mut request, map.next_value_seed(Request(self.0))?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let version = version.and_then(|version| supported_version(&version));
        let is_review = kind.is_some_and(|kind| kind == KIND);
        let read = version.zip(request).filter(|_| is_review);
        read.ok_or_else(|| A::Error::custom("not a supported AdmissionReview"))
    }
}

// === impl Request ===

impl<'de> DeserializeSeed<'de> for Request<'_> {
    type Value = (AdmissionRequest<'de>, Objects<'de>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Request<'_> {
    type Value = (AdmissionRequest<'de>, Objects<'de>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut uid, mut resource, mut operation) = (None, None, None);
        let (mut sub_resource, mut name, mut namespace) = (None, None, None);
        let (mut user_info, mut dry_run, mut options) = (None, None, None);
        let (mut new, mut stored) = (None, None);
        while let Some(CowStr(key)) = map.next_key()? {
            match &*key {
                "uid" => set_once(&mut uid, map.next_value::<CowStr<'de>>()?.0)?,
                "resource" => set_once(&mut resource, map.next_value()?)?,
                "operation" => set_once(&mut operation, map.next_value::<CowStr<'de>>()?.0)?,
                "subResource" => set_once(&mut sub_resource, map.next_value::<Option<CowStr<'de>>>()?)?,
                "name" => set_once(&mut name, map.next_value::<Option<CowStr<'de>>>()?)?,
                "namespace" => set_once(&mut namespace, map.next_value::<Option<CowStr<'de>>>()?)?,
                "userInfo" => set_once(&mut user_info, map.next_value()?)?,
                "dryRun" => set_once(&mut dry_run, map.next_value()?)?,
                "object" => set_once(&mut new, map.next_value_seed(self.0)?)?,
                "oldObject" => set_once(&mut stored, map.next_value_seed(self.0)?)?,
                "options" => set_once(&mut options, map.next_value::<IgnoredAny>()?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let objects = Objects { new: new.flatten(), stored: stored.flatten() };
        let missing = || A::Error::custom("the request lacks a field");
        let request = AdmissionRequest {
            uid: uid.ok_or_else(missing)?,
            resource: resource.ok_or_else(missing)?,
            sub_resource: sub_resource.flatten().map(|text| text.0),
            name: name.flatten().map(|text| text.0),
            namespace: namespace.flatten().map(|text| text.0),
            operation: operation.ok_or_else(missing)?,
            user_info: user_info.unwrap_or_default(),
            object: None,
            old_object: None,
            dry_run: dry_run.flatten(),
            options: None,
        };
        Ok((request, objects))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review(request: &Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": request})
    }

    fn request() -> Value {
        json!({
            "uid": "1-2-3",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "nodes"},
            "subResource": "status",
            "name": "a\"b",
            "namespace": "prod",
            "operation": "UPDATE",
            "userInfo": {"username": "system:node:a", "groups": ["system:nodes"], "extra": {"a": ["b"]}},
            "object": {"metadata": {"name": "n\u{e9}\n", "managedFields": [1]}, "spec": {"containers": [{"env": [{"name": "A"}]}]}},
            "oldObject": {"metadata": {"name": "old"}, "status": {"x": [1.5, -1, null, true]}},
            "dryRun": true,
            "options": {"kind": "UpdateOptions"},
        })
    }

    /// Describes a review by all fields that the server uses.
    fn describe(read: &Result<(Review<'_>, Objects<'_>), ReviewError>) -> String {
        let (review, objects) = match read {
            Ok(read) => read,
            Err(error) => return format!("{error:?}"),
        };
        let request = review.request().map(|request| {
            let AdmissionRequest { uid, resource, sub_resource, name, namespace, operation, .. } = request;
            format!(
                "{:?}",
                (
                    uid,
                    resource,
                    sub_resource,
                    name,
                    namespace,
                    operation,
                    &request.user_info,
                    request.dry_run
                )
            )
        });
        format!("{} {} {request:?} {objects:?}", review.api_version, review.uid())
    }

    /// Reads a body in one pass and step by step.
    fn read_both_ways(body: &[u8]) -> (Option<String>, String) {
        let variables = BTreeSet::new();
        let body = ReviewBody::new(body);
        let one_pass = body.text().and_then(|text| read_valid(text, ObjectReader { variables: &variables }));
        let stepwise = Review::read(&body).map(|review| {
            let (mut new, mut stored) = (None, None);
            if let Ok(request) = review.request() {
                new = request.object.and_then(|object| json::read_object(object, &variables));
                stored = request.old_object.and_then(|object| json::read_object(object, &variables));
            }
            (review, Objects { new, stored })
        });
        (one_pass.map(|read| describe(&Ok(read))), describe(&stepwise))
    }

    #[test]
    fn reads_same_fields_in_one_pass_as_stepwise() {
        let mut reviews = vec![review(&request())];
        for field in
            ["subResource", "name", "namespace", "userInfo", "object", "oldObject", "dryRun", "options"]
        {
            let mut without = request();
            without.as_object_mut().unwrap().remove(field);
            reviews.push(review(&without));
            if field != "userInfo" {
                without[field] = Value::Null;
                reviews.push(review(&without));
            }
        }
        for object in [json!("x"), json!([]), json!({"metadata": 1}), json!({})] {
            let mut odd = request();
            odd["object"] = object;
            reviews.push(review(&odd));
        }
        for review in reviews {
            let (one_pass, stepwise) = read_both_ways(review.to_string().as_bytes());
            assert_eq!(one_pass.as_ref(), Some(&stepwise), "{review}");
        }
    }

    #[test]
    fn reports_same_error_with_objects_as_without() {
        let valid = review(&request()).to_string();
        let changed = |from: &str, to: &str| {
            assert!(valid.contains(from), "{from}");
            valid.replace(from, to).into_bytes()
        };
        let mut bodies = vec![
            Vec::new(),
            b"no JSON".to_vec(),
            b"[]".to_vec(),
            changed("AdmissionReview", "Pod"),
            changed("v1beta1", "v2"),
            changed("1-2-3", ""),
            changed(r#""uid""#, r#""id""#),
            changed(r#""operation""#, r#""op""#),
            changed(r#""dryRun":true"#, r#""dryRun":1"#),
            changed(r#""resource":"nodes""#, r#""resources":"nodes""#),
            changed(r#""request""#, r#""request":{},"request""#),
            changed(r#""uid""#, r#""uid":"4","uid""#),
            changed(r#""name":"a\"b""#, r#""name":"c","name":"d""#),
            changed(r#""kind":"AdmissionReview""#, r#""kind":"AdmissionReview","kind":"AdmissionReview""#),
            changed("-1", "-"),
            [valid.as_bytes(), b"}"].concat(),
        ];
        // An invalid UTF-8 byte.
        bodies.push(
            valid
                .replace("system:node:a", "\u{1}")
                .bytes()
                .map(|byte| if byte == 1 { 255 } else { byte })
                .collect(),
        );
        for body in bodies {
            let (one_pass, stepwise) = read_both_ways(&body);
            let text = String::from_utf8_lossy(&body);
            assert_eq!(one_pass, None, "{text}");
            let body = ReviewBody::new(&body);
            let read = Review::read_with_objects(&body, &BTreeSet::new());
            assert_eq!(describe(&read), stepwise, "{text}");
        }
    }
}
