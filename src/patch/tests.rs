//! What operations a draft tells, and that they lead where it stands.

use json_patch::jsonptr::Pointer;
use serde_json::{Value, json};

use super::{Draft, PatchError, Place, pointer};

const ANNOTATIONS: &Pointer = Pointer::from_static("/metadata/annotations");
const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");

fn finish(draft: Draft<'_>) -> (Value, Value) {
    let finished = draft.finish().unwrap();
    (serde_json::to_value(&finished.patch).unwrap(), Value::from(&finished.object))
}

fn member(key: &str) -> Vec<(String, Value)> {
    vec![(key.to_owned(), json!("ours"))]
}

#[test]
fn members_join_those_that_are_there() {
    // crazytaxii/lxcfs-hostpath-injector, morvencao/kube-sidecar-injector and ymping/lxcfs-admission-webhook put a map
    // of their own in the place of the user's annotations.
    let mut draft = Draft::new(json!({"metadata": {"annotations": {"theirs": "1"}}}));
    draft.add_members(ANNOTATIONS, member("ours")).unwrap();
    let (patch, object) = finish(draft);
    assert_eq!(patch, json!([{"op": "add", "path": "/metadata/annotations/ours", "value": "ours"}]));
    assert_eq!(object["metadata"]["annotations"], json!({"theirs": "1", "ours": "ours"}));
}

#[test]
fn keys_are_escaped_tilde_first() {
    // crazytaxii and morvencao escape nothing; tumblr/k8s-sidecar-injector and linkerd/linkerd2 only the slash.
    let mut draft = Draft::new(json!({"metadata": {"annotations": {}}}));
    draft.add_members(ANNOTATIONS, member("a.io/b~1c~0")).unwrap();
    let (patch, object) = finish(draft);
    assert_eq!(patch[0]["path"], "/metadata/annotations/a.io~1b~01c~00");
    assert_eq!(object["metadata"]["annotations"]["a.io/b~1c~0"], "ours");
}

#[test]
fn values_that_look_like_json_stay_texts() {
    // linkerd/linkerd2 writes values into JSON by a text template.
    let mut draft = Draft::new(json!({}));
    let value = json!("\"},{\"op\":\"remove\",\"path\":\"/spec\"\n");
    draft.add_members(ANNOTATIONS, [(String::from("k"), value.clone())]).unwrap();
    assert_eq!(finish(draft).1["metadata"]["annotations"]["k"], value);
}

#[test]
fn a_list_that_is_not_there_is_made_once() {
    // tumblr/k8s-sidecar-injector adds to /spec/volumes/- where there is none; hashicorp/vault-k8s looks at the pod as
    // it came each time, so that its second list takes the place of its first.
    for spec in [json!({}), json!({"volumes": null})] {
        let mut draft = Draft::new(json!({"spec": spec}));
        draft.add_items(VOLUMES, vec![json!({"name": "a"})], Place::Last).unwrap();
        draft.add_items(VOLUMES, vec![json!({"name": "b"})], Place::Last).unwrap();
        let (patch, object) = finish(draft);
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
fn items_at_the_head_keep_their_order() {
    let mut draft = Draft::new(json!({"spec": {"volumes": [{"name": "theirs"}]}}));
    draft.add_items(VOLUMES, vec![json!({"name": "a"}), json!({"name": "b"})], Place::Before(0)).unwrap();
    assert_eq!(finish(draft).1["spec"]["volumes"], json!([{"name": "a"}, {"name": "b"}, {"name": "theirs"}]));
}

#[test]
fn operations_are_those_of_the_standard() {
    // denverdino/lxcfs-admission-webhook writes the operation " replace", with a blank, when its status has changed.
    let mut draft = Draft::new(json!({"metadata": {"annotations": {"status": "old"}}}));
    draft.rewrite(&pointer(["metadata", "annotations", "status"]), json!("new")).unwrap();
    let (patch, _) = finish(draft);
    assert_eq!(patch, json!([{"op": "replace", "path": "/metadata/annotations/status", "value": "new"}]));
}

#[test]
fn what_this_program_wrote_is_taken_back_and_nothing_else_with_it() {
    let mut draft = Draft::new(json!({"metadata": {"annotations": {"theirs": "1", "ours": "2"}}}));
    assert!(draft.is_unchanged());
    draft.take_back(&pointer(["metadata", "annotations", "ours"])).unwrap();
    assert!(!draft.is_unchanged());
    let (patch, object) = finish(draft);
    assert_eq!(patch, json!([{"op": "remove", "path": "/metadata/annotations/ours"}]));
    assert_eq!(object, json!({"metadata": {"annotations": {"theirs": "1"}}}));
}

#[test]
fn what_is_there_is_not_added_again_and_no_change_is_no_operation() {
    let mut draft = Draft::new(json!({"metadata": {"annotations": {"ours": "theirs"}}}));
    draft.add_members(ANNOTATIONS, member("ours")).unwrap();
    draft.rewrite(&pointer(["metadata", "annotations", "ours"]), json!("theirs")).unwrap();
    draft.take_back(&pointer(["metadata", "annotations", "absent"])).unwrap();
    assert!(draft.is_unchanged());
    assert_eq!(finish(draft).0, json!([]));
}

#[test]
fn an_object_of_another_shape_is_an_error_and_no_patch() {
    let mut draft = Draft::new(json!({"metadata": {"annotations": "text"}, "spec": []}));
    let error = draft.add_members(ANNOTATIONS, member("ours")).unwrap_err();
    assert!(matches!(error, PatchError::WrongShape { .. }), "{error}");
    assert_eq!(error.to_string(), "/metadata/annotations is no map");
    assert!(draft.add_items(VOLUMES, vec![json!({})], Place::Last).is_err());
}

#[test]
fn another_implementation_of_the_standard_makes_the_same_of_it() {
    let before = json!({
        "metadata": {"annotations": {"a~/b": "1", "old": "x", "~1": null}, "labels": null},
        "spec": {"volumes": [{"name": "theirs"}], "containers": [{"name": "c"}, {"env": []}]},
    });
    let mut draft = Draft::new(before.clone());
    let text = |key: &str| (key.to_owned(), json!("ours"));
    draft.add_members(ANNOTATIONS, [text("-"), text("c/d~e"), text("~1"), text("old")]).unwrap();
    draft.add_members(&pointer(["metadata", "labels"]), [text("é\n\"")]).unwrap();
    draft.add_items(VOLUMES, vec![json!({"name": "b"}), json!(null)], Place::Last).unwrap();
    draft.add_items(VOLUMES, vec![json!(1), json!([{}])], Place::Before(1)).unwrap();
    for index in ["0", "1"] {
        let env = pointer(["spec", "containers", index, "env"]);
        draft.add_items(&env, vec![json!({"name": "\u{1}"}), json!(1.5)], Place::Last).unwrap();
    }
    draft.rewrite(&pointer(["metadata", "annotations", "a~/b"]), json!("2")).unwrap();
    draft.rewrite(&pointer(["status", "deep", "est"]), json!(u64::MAX)).unwrap();
    draft.take_back(&pointer(["metadata", "annotations", "old"])).unwrap();
    let (count, finished) = (draft.changes(), draft.finish().unwrap());
    let operations = finished.patch.operations();
    assert_eq!((finished.patch.len(), operations.len()), (count, count));
    let mut after = before;
    json_patch::patch(&mut after, &operations).unwrap();
    assert_eq!(after, Value::from(&finished.object));
}

#[test]
fn an_operation_that_does_not_apply_leaves_no_patch() {
    let mut draft = Draft::new(json!({"spec": {"volumes": [{"name": "a"}]}}));
    draft.add_items(VOLUMES, vec![json!({"name": "b"})], Place::Last).unwrap();
    let error = draft.add_items(VOLUMES, vec![json!({})], Place::Before(7)).unwrap_err();
    assert_eq!(error.to_string(), "the patch does not apply at /spec/volumes/7");
    draft.add_items(VOLUMES, vec![json!({"name": "c"})], Place::Last).unwrap();
    assert!(matches!(draft.finish().unwrap_err(), PatchError::LeadsElsewhere));
}
