//! The operations of a patch builder, and their equivalence to its object.

use json_patch::jsonptr::Pointer;
use serde_json::{Value, json};

use super::{ListPosition, PatchBuilder, PatchError, pointer};

const ANNOTATIONS: &Pointer = Pointer::from_static("/metadata/annotations");
const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");

fn finish(builder: PatchBuilder) -> (Value, Value) {
    let (object, patch) = builder.finish();
    (serde_json::to_value(&patch).unwrap(), object)
}

fn member(key: &str) -> Vec<(String, Value)> {
    vec![(key.to_owned(), json!("ours"))]
}

#[test]
fn adds_members_to_existing_ones() {
    // crazytaxii/lxcfs-hostpath-injector, morvencao/kube-sidecar-injector and ymping/lxcfs-admission-webhook replace
    // the user's annotations by a new map.
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": {"theirs": "1"}}}));
    builder.add_members(ANNOTATIONS, member("ours")).unwrap();
    let (patch, object) = finish(builder);
    assert_eq!(patch, json!([{"op": "add", "path": "/metadata/annotations/ours", "value": "ours"}]));
    assert_eq!(object["metadata"]["annotations"], json!({"theirs": "1", "ours": "ours"}));
}

#[test]
fn escapes_tilde_before_slash_in_keys() {
    // crazytaxii and morvencao escape nothing; tumblr/k8s-sidecar-injector and linkerd/linkerd2 only the slash.
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": {}}}));
    builder.add_members(ANNOTATIONS, member("a.io/b~1c~0")).unwrap();
    let (patch, object) = finish(builder);
    assert_eq!(patch[0]["path"], "/metadata/annotations/a.io~1b~01c~00");
    assert_eq!(object["metadata"]["annotations"]["a.io/b~1c~0"], "ours");
}

#[test]
fn preserves_values_that_look_like_json() {
    // linkerd/linkerd2 inserts values into JSON by a text template.
    let mut builder = PatchBuilder::new(json!({}));
    let value = json!("\"},{\"op\":\"remove\",\"path\":\"/spec\"\n");
    builder.add_members(ANNOTATIONS, [(String::from("k"), value.clone())]).unwrap();
    assert_eq!(finish(builder).1["metadata"]["annotations"]["k"], value);
}

#[test]
fn creates_missing_list_once() {
    // tumblr/k8s-sidecar-injector adds to /spec/volumes/- even if the list does not exist. hashicorp/vault-k8s checks
    // the original pod each time, so that its second list replaces its first.
    for spec in [json!({}), json!({"volumes": null})] {
        let mut builder = PatchBuilder::new(json!({"spec": spec}));
        builder.add_items(VOLUMES, vec![json!({"name": "a"})], ListPosition::Last).unwrap();
        builder.add_items(VOLUMES, vec![json!({"name": "b"})], ListPosition::Last).unwrap();
        let (patch, object) = finish(builder);
        assert_eq!(
            patch,
            json!([
                {"op": "add", "path": "/spec/volumes", "value": [{"name": "a"}]},
                {"op": "add", "path": "/spec/volumes/-", "value": {"name": "b"}},
            ])
        );
        assert_eq!(object["spec"]["volumes"], json!([{"name": "a"}, {"name": "b"}]));
    }
}

#[test]
fn preserves_order_of_items_at_the_head() {
    let mut builder = PatchBuilder::new(json!({"spec": {"volumes": [{"name": "theirs"}]}}));
    builder
        .add_items(VOLUMES, vec![json!({"name": "a"}), json!({"name": "b"})], ListPosition::Before(0))
        .unwrap();
    assert_eq!(
        finish(builder).1["spec"]["volumes"],
        json!([{"name": "a"}, {"name": "b"}, {"name": "theirs"}])
    );
}

#[test]
fn writes_standard_operation_names() {
    // denverdino/lxcfs-admission-webhook writes the operation " replace", with a blank, when its status has changed.
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": {"status": "old"}}}));
    builder.set(&pointer(["metadata", "annotations", "status"]), json!("new")).unwrap();
    let (patch, _) = finish(builder);
    assert_eq!(patch, json!([{"op": "replace", "path": "/metadata/annotations/status", "value": "new"}]));
}

#[test]
fn removes_only_the_given_member() {
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": {"theirs": "1", "ours": "2"}}}));
    assert_eq!(builder.operation_count(), 0);
    builder.remove(&pointer(["metadata", "annotations", "ours"])).unwrap();
    assert_eq!(builder.operation_count(), 1);
    let (patch, object) = finish(builder);
    assert_eq!(patch, json!([{"op": "remove", "path": "/metadata/annotations/ours"}]));
    assert_eq!(object, json!({"metadata": {"annotations": {"theirs": "1"}}}));
}

#[test]
fn records_no_operation_without_a_change() {
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": {"ours": "theirs"}}}));
    builder.add_members(ANNOTATIONS, member("ours")).unwrap();
    builder.set(&pointer(["metadata", "annotations", "ours"]), json!("theirs")).unwrap();
    builder.remove(&pointer(["metadata", "annotations", "absent"])).unwrap();
    assert_eq!(builder.operation_count(), 0);
    assert_eq!(finish(builder).0, json!([]));
}

#[test]
fn rejects_object_of_unexpected_type() {
    let mut builder = PatchBuilder::new(json!({"metadata": {"annotations": "text"}, "spec": []}));
    let error = builder.add_members(ANNOTATIONS, member("ours")).unwrap_err();
    assert!(matches!(error, PatchError::WrongType { .. }), "{error}");
    assert_eq!(error.to_string(), "/metadata/annotations is not a map");
    assert!(builder.add_items(VOLUMES, vec![json!({})], ListPosition::Last).is_err());
}

#[test]
fn operations_lead_to_the_object() {
    let before = json!({
        "metadata": {"annotations": {"a~/b": "1", "old": "x", "~1": null}, "labels": null},
        "spec": {"volumes": [{"name": "theirs"}], "containers": [{"name": "c"}, {"env": []}]},
    });
    let mut builder = PatchBuilder::new(before.clone());
    let text = |key: &str| (key.to_owned(), json!("ours"));
    builder.add_members(ANNOTATIONS, [text("-"), text("c/d~e"), text("~1"), text("old")]).unwrap();
    builder.add_members(&pointer(["metadata", "labels"]), [text("é\n\"")]).unwrap();
    builder.add_items(VOLUMES, vec![json!({"name": "b"}), json!(null)], ListPosition::Last).unwrap();
    builder.add_items(VOLUMES, vec![json!(1), json!([{}])], ListPosition::Before(1)).unwrap();
    for index in ["0", "1"] {
        let env = pointer(["spec", "containers", index, "env"]);
        builder.add_items(&env, vec![json!({"name": "\u{1}"}), json!(1.5)], ListPosition::Last).unwrap();
    }
    builder.set(&pointer(["metadata", "annotations", "a~/b"]), json!("2")).unwrap();
    builder.set(&pointer(["status", "deep", "est"]), json!(u64::MAX)).unwrap();
    builder.remove(&pointer(["metadata", "annotations", "old"])).unwrap();
    let (object, patch) = builder.finish();
    let mut after = before;
    json_patch::patch(&mut after, &patch).unwrap();
    assert_eq!(after, object);
}

#[test]
fn reports_operation_that_does_not_apply() {
    let mut builder = PatchBuilder::new(json!({"spec": {"volumes": [{"name": "a"}]}}));
    let error = builder.add_items(VOLUMES, vec![json!({})], ListPosition::Before(7)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the patch does not apply: operation '/0' failed at path '/spec/volumes/7': path is invalid"
    );
}
