//! A validator for the JSON Schema of `offramp show --json`. It supports only the keywords that this schema uses.

use serde_json::Value;
use std::path::Path;

/// Keywords that only describe a value, and restrict nothing.
const NOTES: [&str; 6] = ["$schema", "$defs", "title", "description", "format", "default"];

pub struct Schema(Value);

impl Schema {
    /// Reads `docs/show.schema.json`.
    pub fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/show.schema.json");
        Self(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    }

    /// Panics if the value does not match the schema, or if the value has an undescribed field.
    pub fn check(&self, value: &Value) {
        if let Err(error) = self.matches(&self.0, value) {
            panic!("{error}");
        }
    }

    fn matches(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        for (keyword, wanted) in keywords {
            let list = || wanted.as_array().unwrap().iter();
            let holds = match keyword.as_str() {
                "$ref" => {
                    let place = wanted.as_str().unwrap().trim_start_matches('#');
                    return self.matches(self.0.pointer(place).unwrap(), value);
                }
                "type" if wanted.is_array() => list().any(|kind| is_of(kind, value)),
                "type" => is_of(wanted, value),
                "const" => wanted == value,
                "enum" => list().any(|one| one == value),
                "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
                "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap()),
                "required" => list().all(|name| value.get(name.as_str().unwrap()).is_some()),
                "anyOf" => list().any(|one| self.matches(one, value).is_ok()),
                "oneOf" => list().filter(|one| self.matches(one, value).is_ok()).count() == 1,
                "items" => {
                    value.as_array().into_iter().flatten().try_for_each(|item| self.matches(wanted, item))?;
                    true
                }
                "properties" => {
                    for (name, property) in wanted.as_object().unwrap() {
                        let inner = value.get(name).map_or(Ok(()), |value| self.matches(property, value));
                        inner.map_err(|error| format!("{name}: {error}"))?;
                    }
                    true
                }
                "additionalProperties" => {
                    let known = keywords.get("properties").and_then(Value::as_object);
                    let mut others = value.as_object().into_iter().flatten();
                    let is_known = |name: &String| known.is_some_and(|known| known.contains_key(name));
                    others.try_for_each(
                        |(name, value)| {
                            if is_known(name) { Ok(()) } else { self.matches(wanted, value) }
                        },
                    )?;
                    *wanted != Value::Bool(false) || value.as_object().is_none_or(|of| of.keys().all(is_known))
                }
                other if NOTES.contains(&other) => true,
                other => panic!("the schema has the keyword {other}, which this check does not know"),
            };
            if !holds {
                return Err(format!("{keyword} {wanted} does not hold for {value}"));
            }
        }
        Ok(())
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("no type of JSON Schema: {other}"),
    }
}
