//! The JSON schema of the configuration file, for editors and for checks without this program.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::Config;

/// Returns the JSON schema (draft 7) of the configuration file.
pub fn schema() -> Value {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Config>();
    schema.to_value()
}
