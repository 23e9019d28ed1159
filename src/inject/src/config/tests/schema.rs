//! The committed schema matches the types.

use super::super::schema;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.schema.json");

#[test]
fn committed_schema_matches_types() {
    let committed: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(FILE).expect(FILE)).expect(FILE);
    // Not assert_eq, which would print both schemas.
    assert!(
        committed == schema(),
        "regenerate it: kubectl etcd-guard config schema >docs/config.schema.json"
    );
}
