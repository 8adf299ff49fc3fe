//! Records as CSV: one column a leaf of their schema.

use super::schema;
use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Columns that say which record a row is; they come first, the others follow by name.
const KEYS: [&str; 8] = ["sample", "task", "index", "document", "cell", "repeat", "layer", "outcome"];

/// A table of `records`. The columns are those of the type's schema, whatever the records hold: objects give a column a
/// field (`counters.hits`), lists are JSON text, and what is null is empty.
///
/// # Errors
/// A record that is no JSON.
pub fn csv<T: Serialize + JsonSchema>(records: &[T]) -> Result<String> {
    let root = schema::of::<T>();
    let mut columns = Vec::new();
    leaves(&root, &root, String::new(), &mut columns);
    columns.sort_by_key(|c| (KEYS.iter().position(|k| k == c).unwrap_or(KEYS.len()), c.clone()));
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(&columns)?;
    for record in records {
        let value = serde_json::to_value(record).context("a record can't be written as JSON")?;
        out.write_record(columns.iter().map(|c| cell(&value, c)))?;
    }
    let bytes = out.into_inner().map_err(|e| e.into_error())?;
    String::from_utf8(bytes).context("a record holds what is no UTF-8")
}

/// Collects the names of all fields below `schema` that are no objects.
fn leaves(root: &Value, schema: &Value, name: String, out: &mut Vec<String>) {
    let Some(fields) = object(root, schema).and_then(|o| o["properties"].as_object()) else {
        return out.push(name);
    };
    for (key, field) in fields {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        leaves(root, field, name, out);
    }
}

/// The object that a schema is, refers to, or is besides null.
fn object<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    if schema.get("properties").is_some() {
        return Some(schema);
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return object(root, root.pointer(target.trim_start_matches('#'))?);
    }
    schema.get("anyOf")?.as_array()?.iter().find_map(|choice| object(root, choice))
}

fn cell(record: &Value, column: &str) -> String {
    let value = column.split('.').try_fold(record, |at, key| at.get(key));
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Inner {
        hits: u64,
    }

    #[derive(Serialize, JsonSchema)]
    struct Outer {
        text: String,
        cell: &'static str,
        counters: Inner,
        drafts: Option<Inner>,
        list: Vec<u32>,
    }

    #[test]
    fn columns_come_from_the_type_and_cells_are_quoted() {
        let row = |text: &str, drafts| Outer {
            text: text.to_owned(),
            cell: "a",
            counters: Inner { hits: 3 },
            drafts,
            list: vec![1, 2],
        };
        let head = "cell,counters.hits,drafts.hits,list,text\n";
        assert_eq!(csv::<Outer>(&[]).unwrap(), head);
        let rows = csv(&[row("x, \"y\"\nz", None), row("", Some(Inner { hits: 9 }))]).unwrap();
        assert_eq!(rows, format!("{head}a,3,,\"[1,2]\",\"x, \"\"y\"\"\nz\"\na,3,9,\"[1,2]\",\n"));
    }
}
