//! The names in a file, checked before their values. An error names the key that is unknown or missing.

use super::quantity::nearest;
use super::schema::SECTIONS;
use super::{ProfileError, key_error};
use toml::Table;

/// Keys of a file besides its sections.
const OF_A_FILE: [&str; 4] = ["kind", "title", "extends", "parts"];
/// Keys of a number.
const OF_A_NUMBER: [&str; 6] = ["value", "unit", "interval", "tag", "source", "fitted_to"];
/// Keys that every number must have.
const NEEDED: [&str; 3] = ["value", "tag", "source"];
const FORM: &str = "expected { value = 8, unit = \"MHz\", tag = \"assumed\", source = \"why\" }";

/// Checks every name of a file.
///
/// # Errors
/// The first one that is unknown, with the nearest that is known, or that is missing.
pub(super) fn check(file: &str, table: &Table) -> Result<(), ProfileError> {
    let known = [OF_A_FILE.as_slice(), &SECTIONS].concat();
    for (name, value) in table {
        if !known.contains(&name.as_str()) {
            return Err(key_error(file, name, format!("there is no such key{}", nearest(name, &known))));
        }
        if !SECTIONS.contains(&name.as_str()) {
            continue;
        }
        let numbers = value.as_table().ok_or_else(|| key_error(file, name, "it is a section: [name]".to_owned()))?;
        for (key, number) in numbers {
            check_number(file, &format!("{name}.{key}"), number.as_table())?;
        }
    }
    for name in ["kind", "title"] {
        if !table.contains_key(name) {
            return Err(key_error(file, name, "it is missing".to_owned()));
        }
    }
    Ok(())
}

fn check_number(file: &str, key: &str, number: Option<&Table>) -> Result<(), ProfileError> {
    let number = number.ok_or_else(|| key_error(file, key, FORM.to_owned()))?;
    if let Some(name) = number.keys().find(|name| !OF_A_NUMBER.contains(&name.as_str())) {
        let why = format!("a number has no {name:?}{}", nearest(name, &OF_A_NUMBER));
        return Err(key_error(file, key, why));
    }
    match NEEDED.iter().find(|name| !number.contains_key(**name)) {
        Some(name) => Err(key_error(file, key, format!("its {name} is missing; {FORM}"))),
        None => Ok(()),
    }
}
