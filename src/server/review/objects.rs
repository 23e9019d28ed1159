//! A review, read together with the objects in it: in one pass, because they are most of a body.
//!
//! Whatever is not as expected is left to [`Review::read`], which tells the mistake.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};

use super::{Body, KIND, Review, ReviewError, known_version};
use crate::{
    json::{self, Json, Reader, Text},
    k8s::admission::AdmissionRequest,
};

/// The objects of a review, to be changed.
#[derive(Debug, Default)]
pub(in crate::server) struct Objects<'a> {
    /// The new one, if there is one that can be read.
    pub(in crate::server) new: Option<Json<'a>>,
    /// The stored one, if there is one that can be read.
    pub(in crate::server) stored: Option<Json<'a>>,
}

impl<'a> Review<'a> {
    /// Reads the envelope and the objects, and of containers' variables only these. What was read is no longer in the
    /// request.
    pub(in crate::server) fn read_with_objects(
        body: &'a Body<'_>,
        variables: &BTreeSet<String>,
    ) -> Result<(Self, Objects<'a>), ReviewError> {
        if let Some(read) = body.text().and_then(|it| at_once(it, Reader { variables })) {
            return Ok(read);
        }
        let review = Self::read(body)?;
        let objects = review.request().map_or_else(
            |_| Objects::default(),
            |request| Objects {
                new: request.object.and_then(|it| json::read(it, variables)),
                stored: request.old_object.and_then(|it| json::read(it, variables)),
            },
        );
        Ok((review, objects))
    }
}

/// A review without a mistake.
fn at_once<'a>(text: &'a str, reader: Reader<'_>) -> Option<(Review<'a>, Objects<'a>)> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let (api_version, (request, objects)) = Envelope(reader).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    let uid = Some(request.uid.clone()).filter(|it| !it.is_empty())?;
    Some((Review { api_version, uid, request: Ok(request) }, objects))
}

/// Takes a field's value, unless there was one: of two, other readers may take the other.
fn once<T, E: Error>(field: &mut Option<T>, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::custom("a field is there twice")),
    }
}

/// The whole body; what it is read into is the version and what the request is read into.
#[derive(Clone, Copy)]
struct Envelope<'r>(Reader<'r>);

/// The request, of which the options are left out.
#[derive(Clone, Copy)]
struct Request<'r>(Reader<'r>);

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
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "apiVersion" => once(&mut version, map.next_value::<Text<'de>>()?.0)?,
                "kind" => once(&mut kind, map.next_value::<Text<'de>>()?.0)?,
                "request" => once(&mut request, map.next_value_seed(Request(self.0))?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let version = version.and_then(|it| known_version(&it));
        let is_review = kind.is_some_and(|it| it == KIND);
        let read = version.zip(request).filter(|_| is_review);
        read.ok_or_else(|| A::Error::custom("no AdmissionReview that is known"))
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
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "uid" => once(&mut uid, map.next_value::<Text<'de>>()?.0)?,
                "resource" => once(&mut resource, map.next_value()?)?,
                "operation" => once(&mut operation, map.next_value::<Text<'de>>()?.0)?,
                "subResource" => once(&mut sub_resource, map.next_value::<Option<Text<'de>>>()?)?,
                "name" => once(&mut name, map.next_value::<Option<Text<'de>>>()?)?,
                "namespace" => once(&mut namespace, map.next_value::<Option<Text<'de>>>()?)?,
                "userInfo" => once(&mut user_info, map.next_value()?)?,
                "dryRun" => once(&mut dry_run, map.next_value()?)?,
                "object" => once(&mut new, map.next_value_seed(self.0)?)?,
                "oldObject" => once(&mut stored, map.next_value_seed(self.0)?)?,
                "options" => once(&mut options, map.next_value::<IgnoredAny>()?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let objects = Objects { new: new.flatten(), stored: stored.flatten() };
        let missing = || A::Error::custom("the request lacks a field");
        let request = AdmissionRequest {
            uid: uid.ok_or_else(missing)?,
            resource: resource.ok_or_else(missing)?,
            sub_resource: sub_resource.flatten().map(|it| it.0),
            name: name.flatten().map(|it| it.0),
            namespace: namespace.flatten().map(|it| it.0),
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

    /// All that is done with a review, in words.
    fn told(read: &Result<(Review<'_>, Objects<'_>), ReviewError>) -> String {
        let (review, objects) = match read {
            Ok(read) => read,
            Err(error) => return format!("{error:?}"),
        };
        let request = review.request().map(|it| {
            let AdmissionRequest { uid, resource, sub_resource, name, namespace, operation, .. } = it;
            format!(
                "{:?}",
                (uid, resource, sub_resource, name, namespace, operation, &it.user_info, it.dry_run)
            )
        });
        format!("{} {} {request:?} {objects:?}", review.api_version, review.uid())
    }

    /// What both ways read.
    fn both(body: &[u8]) -> (Option<String>, String) {
        let variables = BTreeSet::new();
        let body = Body::of(body);
        let at_once = body.text().and_then(|it| at_once(it, Reader { variables: &variables }));
        let one_by_one = Review::read(&body).map(|review| {
            let (mut new, mut stored) = (None, None);
            if let Ok(request) = review.request() {
                new = request.object.and_then(|it| json::read(it, &variables));
                stored = request.old_object.and_then(|it| json::read(it, &variables));
            }
            (review, Objects { new, stored })
        });
        (at_once.map(|it| told(&Ok(it))), told(&one_by_one))
    }

    #[test]
    fn in_one_pass_the_same_is_read() {
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
            let (at_once, one_by_one) = both(review.to_string().as_bytes());
            assert_eq!(at_once.as_ref(), Some(&one_by_one), "{review}");
        }
    }

    #[test]
    fn a_mistake_is_told_as_ever() {
        let whole = review(&request()).to_string();
        let changed = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from}");
            whole.replace(from, to).into_bytes()
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
            [whole.as_bytes(), b"}"].concat(),
        ];
        // A byte that is no character.
        bodies.push(
            whole
                .replace("system:node:a", "\u{1}")
                .bytes()
                .map(|it| if it == 1 { 255 } else { it })
                .collect(),
        );
        for body in bodies {
            let (at_once, one_by_one) = both(&body);
            let text = String::from_utf8_lossy(&body);
            assert_eq!(at_once, None, "{text}");
            let body = Body::of(&body);
            let read = Review::read_with_objects(&body, &BTreeSet::new());
            assert_eq!(told(&read), one_by_one, "{text}");
        }
    }
}
