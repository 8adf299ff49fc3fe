//! JSON Schemas (draft 2020-12) of all records, derived from their types.

use crate::bench::record::{DecodeRecord, OpsRecord};
use crate::record::{Environment, LayerRecord, Results, SampleRecord, SweepPlan, SweepResults, TimingRecord};
use crate::trace;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::collections::BTreeMap;

/// The schema of `T` as it is written: every field is required that was there from the version's beginning. One that came
/// later has a default.
pub fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    excuse_newer(&mut schema);
    schema
}

/// Fields with a default may be missing.
fn excuse_newer(schema: &mut Value) {
    let newer = |(key, field): (&String, &Value)| field.get("default").map(|_| Value::from(key.as_str()));
    let fields = schema.get("properties").and_then(Value::as_object);
    let newer: Vec<Value> = fields.into_iter().flatten().filter_map(newer).collect();
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| !newer.contains(key));
    }
    match schema {
        Value::Object(all) => all.values_mut().for_each(excuse_newer),
        Value::Array(all) => all.iter_mut().for_each(excuse_newer),
        _ => {}
    }
}

/// Name and schema of every record. A name is the record's file without its ending.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("results", of::<Results>()),
        ("samples", of::<SampleRecord>()),
        ("layers", of::<LayerRecord>()),
        ("timings", of::<TimingRecord>()),
        ("env", of::<Environment>()),
        ("fingerprint", of::<BTreeMap<String, String>>()),
        ("sweep", of::<SweepPlan>()),
        ("sweep-results", of::<SweepResults>()),
        ("bench-decode", of::<DecodeRecord>()),
        ("bench-ops", of::<OpsRecord>()),
        ("trace", of::<trace::Header>()),
        ("replay", of::<trace::Record>()),
    ]
}

/// The file of a schema.
pub fn file(name: &str) -> String {
    format!("{name}.schema.json")
}

/// A schema as it is written.
pub fn text(schema: &Value) -> String {
    format!("{schema:#}\n")
}
